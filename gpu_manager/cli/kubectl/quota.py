"""``kubectl vcuda quota``: what namespaces may hold by model of card, and what they hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from gpu_manager.arguments import Argument
from gpu_manager.cli.kubectl import service
from gpu_manager.cli.kubectl.login import AllNamespaces, Context, Kubeconfig, Login, Namespace, log_in
from gpu_manager.cli.output import Form, Output, columns, emit, for_program
from gpu_manager.domain.cluster.state import NodeBooks, survey
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable
from gpu_manager.domain.placement.ledger import peak
from gpu_manager.domain.resources import CORES_PER_CARD, MIB, ZERO, Amount, format_bytes

_CONFIG_MAP: Final = "/api/v1/namespaces/kube-system/configmaps/gpuquota"  # the predecessor's
_KEY: Final = "gpu_quota"
_ANY: Final = "*"


def command(
    place: Annotated[str, Argument(metavar="[NAMESPACE]", help="Default: the context's.")] = "",
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    output: Form = Output.TABLE,
    admission: service.Admission = service.USUAL,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """Show what namespaces may hold of each model of card, and what they hold now.

    The admission service answers; where it cannot be asked, the quotas' ConfigMap and the pods' annotations
    do, and it is said so. Exit code: 0, 1 if a quota is exceeded, 2 for bad input.
    """
    if namespace and place and namespace != place:
        raise RequestInvalid(f"two namespaces, {place} and {namespace}: name one")
    with log_in(kubeconfig, context, place or namespace) as login:
        wanted = "" if all_namespaces else login.namespace
        rows, by = _answer(login, admission, wanted)
    if for_program(output):
        emit({"quota": [dict(row) for row in rows], "answeredBy": by}, output)
    elif rows:
        print(columns(_TITLES, [_cells(row) for row in rows]))
        print(f"judged by {printable(by)}", file=sys.stderr)
    else:
        where = f"namespace {wanted}" if wanted else "any namespace"
        print(f"no quota limits {where}")
    return 1 if any(_exceeded(row) for row in rows) else 0


_TITLES = ("NAMESPACE", "MODEL", "CARDS", "USED", "MEMORY", "USED")
_Row = Mapping[str, Any]


def _answer(login: Login, admission: str, namespace: str) -> tuple[Sequence[_Row], str]:
    query = {"namespace": namespace} if namespace else {}
    try:
        said = service.ask(login, admission, "/quota", query=query).get("quota")
        rows = [row for row in said if isinstance(row, Mapping)] if isinstance(said, list) else []
        return rows, f"the admission service ({admission})"
    except service.Silent as why:
        return list(_here(login, namespace)), f"this program, from the ConfigMap and the annotations ({why})"


def _here(login: Login, namespace: str) -> Iterator[_Row]:
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    cluster = read_cluster(login.connection)
    used = _used(survey(cluster.nodes, cluster.pods))
    limits = _limits(login)
    for name in sorted({*used, *limits}):
        if namespace and name != namespace:
            continue
        cards, memory = limits.get(name, ({}, {}))
        held = used.get(name, {})
        for model in sorted({*cards, *memory, *held}):
            amount = sum(held.values(), ZERO) if model == _ANY else held.get(model, ZERO)
            mib = memory.get(model)
            yield {
                "namespace": name,
                "model": model,
                "cores": None if model not in cards else int(cards[model] * CORES_PER_CARD),
                "cores_used": amount.cores,
                "memory": None if mib is None else int(mib * MIB),
                "memory_used": amount.memory,
            }


def _used(books: Sequence[NodeBooks]) -> dict[str, dict[str, Amount]]:
    """Namespace → model → what its pods hold, each card of a pod at its peak."""
    used: dict[str, dict[str, Amount]] = {}
    for one in books:
        models = {s.card.uuid: s.card.model for s in one.said.inventory.cards}
        for uid in (uid for uid in one.ledger.pods if uid not in one.gone):
            held = tuple(one.ledger.of_pod(uid).values())
            mine = used.setdefault(held[0].namespace, {})
            for card in dict.fromkeys(card for a in held for card in a.cards):
                model = models.get(card, "")
                mine[model] = mine.get(model, ZERO) + peak(held, card)
    return used


_Limits = Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]


def _limits(login: Login) -> _Limits:
    """Namespace → (cards, MiB) by model, as written. To be shown, not judged."""
    from gpu_manager.adapters.kube import Refused  # noqa: PLC0415  # as in log_in

    try:
        data = login.connection.request("read the quotas' ConfigMap", "GET", _CONFIG_MAP).get("data")
    except Refused as error:
        if error.code == 404:
            return {}
        raise
    text = data.get(_KEY) if isinstance(data, Mapping) else None
    try:
        written = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError) as error:
        raise NodeUnready(f"the quotas' ConfigMap kube-system/gpuquota is no JSON: {error}") from error
    if not isinstance(written, Mapping):
        raise NodeUnready("the quotas' ConfigMap kube-system/gpuquota holds no map of namespaces")
    return {
        str(name): (_numbers(entry.get("quota")), _numbers(entry.get("memory")))
        for name, entry in written.items()
        if isinstance(entry, Mapping)
    }


def _numbers(value: object) -> dict[str, float]:
    pairs = value.items() if isinstance(value, Mapping) else ()
    return {str(k): float(v) for k, v in pairs if isinstance(v, int | float) and not isinstance(v, bool)}


def _cells(row: _Row) -> list[str]:
    return [
        str(row.get("namespace")),
        str(row.get("model")),
        _cards(row.get("cores")),
        _cards(row.get("cores_used")),
        _bytes(row.get("memory")),
        _bytes(row.get("memory_used")),
    ]


def _cards(cores: object) -> str:
    return f"{cores / CORES_PER_CARD:g}" if isinstance(cores, int) else "-"


def _bytes(count: object) -> str:
    return format_bytes(count) if isinstance(count, int) else "-"


def _exceeded(row: _Row) -> bool:
    pairs = (("cores", "cores_used"), ("memory", "memory_used"))
    return any(
        isinstance(limit := row.get(a), int) and isinstance(used := row.get(b), int) and used > limit
        for a, b in pairs
    )

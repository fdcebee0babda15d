"""``kubectl vcuda advise``: what size running containers should have, and why.

``--apply in-place`` resizes the containers whose owner allows it (annotation ``tencent.com/vcuda-advice``),
within the owner's bounds, and each at most once a day unless its memory is too small.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Final

from gpu_manager.cli.kubectl import service
from gpu_manager.cli.kubectl.names import WORKLOADS, NamedObject, labelled, read_target
from gpu_manager.cli.kubectl.service import (
    BY_KUBECONFIG,
    Access,
    AllNamespaces,
    Login,
    Namespace,
    Selector,
    log_in,
)
from gpu_manager.cli.output import TABLE, Printing, Watch, repeat
from gpu_manager.domain.advice.opt_in import (
    SizeBounds,
    advised_size,
    next_change,
    note_change,
    read_advice_terms,
)
from gpu_manager.domain.advice.size import AdvicePolicy, Sized, named_advice, pool, read_sized, sized_json
from gpu_manager.domain.contract import ADVICE, ADVISED, CORE, MEMORY, RESIZE
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable, quoted
from gpu_manager.domain.resize.sizes import KINDS, with_size
from gpu_manager.domain.resources import Amount, format_bytes, memory_quantity
from gpu_manager.domain.untrusted import annotations_of, at
from gpu_manager.runtime.arguments import Argument, Option


class ApplyWay(Enum):
    """How advice is followed."""

    IN_PLACE = "in-place"


def command(
    name: Annotated[str, Argument(metavar="POD|KIND/NAME", help="Default: all.", complete="pods")] = "",
    memory_margin: Annotated[
        float | None,
        Option(
            min=-50, max=400, help="Percent of memory beside the greatest amount seen; default: the agents'."
        ),
    ] = None,
    apply: Annotated[
        ApplyWay | None,
        Option(help=f"Give it to running containers whose owner allows it (annotation {ADVICE})."),
    ] = None,
    selector: Selector = "",
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    watch: Watch = False,
    printing: Printing = TABLE,
    access: Access = BY_KUBECONFIG,
) -> int:
    """Advise a size for containers that hold a part of one card, from what their replicas were seen to need.

    Cores come from demand, also above the limit; memory from the greatest amounts held. Where memory cannot
    be judged there is no figure, and the reason says why. Needs get on pods/proxy.

    With --apply in-place: within the bounds of that annotation, and each at most once a day unless its memory
    is too small. Needs get and patch on the workloads. Exit code 1 if one of these changes is refused.

    Examples:
      kubectl vcuda advise deployment/web
      kubectl vcuda advise -A --memory-margin 30
      kubectl vcuda advise -l app=web -w
      kubectl vcuda advise --apply in-place
    """
    if watch and apply is not None:
        raise RequestInvalid("--watch shows advice, --apply follows it: give one of them")
    policy = None if memory_margin is None else AdvicePolicy(margin=memory_margin / 100)
    question = _Question(name, selector, policy, everywhere=all_namespaces, apply=apply is not None)
    with log_in(access, namespace) as login:
        return repeat(lambda: _show(login, question, printing), watch=watch)


@dataclass(frozen=True, slots=True)
class _Question:
    """Whose advice is asked for, and whether it is followed."""

    name: str
    selector: str
    policy: AdvicePolicy | None
    everywhere: bool
    apply: bool


def _show(login: Login, question: _Question, printing: Printing) -> int:
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    name, everywhere = question.name, question.everywhere
    asked = _target(name) if name else None
    cluster = read_cluster(login.connection)
    nodes = [one.name for one in cluster.with_cards]
    told, silent = service.ask_agents(login, cluster.agents, nodes, "/advice", _parsed)
    named = (named_advice(one, cluster.by_uid) for each in told.values() for one in each)
    said = [one for one in named if one is not None]
    found = [one for one in said if everywhere or one.workload[0] == login.namespace]
    where = "any namespace" if everywhere else f"namespace {login.namespace}"
    if question.selector:
        chosen = labelled(login, question.selector, everywhere=everywhere)
        pods = {(pod.namespace, pod.name) for pod in cluster.by_uid.values() if pod.uid in chosen}
        found = [one for one in found if any((one.workload[0], pod) in pods for pod in one.pods)]
        where = f"{where} with {question.selector}"
    sizes = [
        state.card.capacity(books.node.unit).memory
        for books in cluster.with_cards
        for state in books.node.cards
    ]
    pooled = pool(found, question.policy, max(sizes, default=None))
    rows = [one for one in pooled if asked is None or _is_about(one, asked)]
    unseen = sum(
        len(a.shares) == 1 and not a.shares[0].whole
        for books in cluster.with_cards
        for a in books.ledger
        if everywhere or a.namespace == login.namespace
    )
    applied = list(apply_advice(login, rows, datetime.now(UTC))) if question.apply else []
    nobody = f"no container in {where} holds a part of one card"
    if unseen and not rows and not question.selector:
        many = "one container" if unseen == 1 else f"{unseen} containers"
        nobody = f"nothing is known yet of {many} in {where}: agents look once a minute"
    if name and not rows and not silent:
        raise RequestInvalid(f"{quoted(name)} is no pod or workload here with a part of one card: {nobody}")
    code = 1 if any(one.is_refused for one in applied) else 0
    if printing.for_program:
        told_of = {"applied": [one.as_json() for one in applied]} if question.apply else {}
        printing.emit({"containers": [sized_json(row) for row in rows], "silent": dict(silent), **told_of})
        return code
    print(_table(rows, login.namespace, printing) if rows else nobody)
    for one in applied:
        mark = "refused: " if one.is_refused else "" if one.size is None else "changed: "
        print(printable(f"{mark}{one.workload[0]}/{one.workload[1]} {one.workload[2]}: {one.text}"))
    service.tell_silent(silent, "advice")
    return code


def _target(word: str) -> NamedObject:
    """A pod or a workload, of whatever kind: a controller that nobody here knows may make pods."""
    kind, slash, name = word.partition("/")
    with contextlib.suppress(RequestInvalid):
        return read_target(word, WORKLOADS, "POD")
    return NamedObject(kind, name) if slash else read_target(word, WORKLOADS, "POD")


def _is_about(one: Sized, asked: NamedObject) -> bool:
    return any(asked.is_of(pod, one.workload[1], "") for pod in ("", *one.pods))


def _parsed(answer: Any) -> list[Sized]:
    """Read an agent's ``/advice``."""
    return [read_sized(one) for one in answer["containers"]]


def _table(rows: Sequence[Sized], here: str, printing: Printing) -> str:
    """``here``: the namespace in which commands act by themselves."""
    titles = ["NAMESPACE", "WORKLOAD", "CONTAINER", "PODS", "CORES", "ADVISED", "MEMORY", "ADVISED"]
    lines = [printing.columns(titles, [_cells(row) for row in rows])]
    for row in rows:
        who = f"{row.workload[0]}/{row.workload[1]} {row.workload[2]}"
        lines += map(printable, (f"{who}:", f"  cores: {row.advice.cores.reason}"))
        lines.append(printable(f"  memory: {row.advice.memory.reason}"))
        if (how := _how(row, here)) is not None:
            lines.append(printable(f"  {how}"))
    return "\n".join(lines)


def _how(row: Sized, here: str) -> str | None:
    """What gives it the advised size; None if nothing else is advised than it has."""
    (namespace, owner, container), advice = row.workload, row.advice
    cores = None if advice.cores.value in (None, row.given.cores) else min(advice.cores.value or 0, 99)
    memory = None if advice.memory.value in (None, row.given.memory) else advice.memory.value
    if cores is None and memory is None:
        return None
    kind, _, name = owner.partition("/")
    if kind not in (*KINDS, "Pod"):
        units = None if memory is None else memory // row.unit
        values = ((CORE, cores), (MEMORY, units))
        wanted = ", ".join(f"{key}: {value}" for key, value in values if value is not None)
        return f"in its template: {wanted}"
    words = ["kubectl vcuda resize", name if kind == "Pod" else f"{kind.lower()}/{name}", f"-c {container}"]
    words += [f"-n {namespace}"] if namespace != here else []
    words += [f"--cores {cores}"] if cores is not None else []
    words += [f"--memory {memory_quantity(memory)}"] if memory is not None else []
    return " ".join(words)


def _cells(row: Sized) -> list[str]:
    cores, memory = row.advice.cores.value, row.advice.memory.value
    return [
        *row.workload,
        str(len(row.pods)),
        str(row.given.cores),
        "-" if cores is None else str(cores),
        format_bytes(row.given.memory),
        "-" if memory is None else format_bytes(memory),
    ]


_TRIES: Final = 3  # before the last: the status of a Deployment is written often
_PATIENCE_SECONDS: Final = 10.0  # for an admission service that starts again


@dataclass(frozen=True, slots=True)
class AppliedAdvice:
    """What became of the advice for one workload's container. ``is_refused``: it was to be followed."""

    workload: tuple[str, str, str]
    text: str
    size: Amount | None = None
    is_refused: bool = False

    def as_json(self) -> dict[str, Any]:
        """The form for programs."""
        namespace, workload, container = self.workload
        size = None if self.size is None else {"cores": self.size.cores, "memory": self.size.memory}
        return {
            "namespace": namespace,
            "workload": workload,
            "container": container,
            "applied": size,
            "refused": self.is_refused,
            "text": self.text,
        }


def apply_advice(login: Login, rows: Sequence[Sized], now: datetime) -> Iterator[AppliedAdvice]:
    """Follow the advice where that is allowed, one workload's container after the other."""
    for row in rows:
        try:
            yield _apply_in_turn(login, row, now)
        except (NodeUnready, RequestInvalid) as error:
            yield AppliedAdvice(row.workload, str(error), is_refused=True)


def _apply_in_turn(login: Login, row: Sized, now: datetime) -> AppliedAdvice:
    """As :func:`_apply`, of the workload as it is then, if another writer comes in between."""
    from gpu_manager.adapters.kube.changes import in_turn  # noqa: PLC0415  # as in log_in

    return in_turn(lambda: _apply(login, row, now), _TRIES)


def _apply(login: Login, row: Sized, now: datetime) -> AppliedAdvice:
    from gpu_manager.adapters.kube.changes import annotate_workload, workload  # noqa: PLC0415  # as in log_in

    namespace, owner, container = row.workload
    kind, _, name = owner.partition("/")
    if kind not in (*KINDS, "Pod"):
        return AppliedAdvice(row.workload, f"a {kind} has no size of its own: change its template")
    there = workload(login.connection, kind, namespace, name)
    annotations = annotations_of(there)
    # Those that its pods get: all that the values of many charts let their users set.
    written = annotations.get(ADVICE, annotations_of(at(there, "spec", "template")).get(ADVICE))
    try:
        terms = read_advice_terms(written)
    except RequestInvalid as error:
        raise RequestInvalid(f"annotation {ADVICE} is {quoted(written)}: {error}") from error
    if not terms.applies:
        return AppliedAdvice(row.workload, f"its owner does not allow it (annotation {ADVICE})")
    size = advised_size(row.advice, row.given, terms.bounds.get(container, SizeBounds()))
    if size == row.given:
        return AppliedAdvice(row.workload, "it has the size that is advised, or none is")
    if (due := next_change(annotations.get(ADVISED), container, row.need, row.given, now)) > now:
        when = due.isoformat(timespec="minutes")
        return AppliedAdvice(row.workload, f"it was changed within the last day: again from {when} on")
    changed = {
        RESIZE: with_size(annotations.get(RESIZE), container, {"cores": size.cores, "memory": size.memory}),
        ADVISED: note_change(annotations.get(ADVISED), container, now),
    }
    annotate_workload(login.connection, kind, there, changed, _PATIENCE_SECONDS)
    return AppliedAdvice(row.workload, f"{size} instead of {row.given}; running pods follow in place", size)

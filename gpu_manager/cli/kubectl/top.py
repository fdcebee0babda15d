"""``kubectl vcuda top``: what each container was given, and what it uses of it now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final

from gpu_manager.cli.kubectl import agents
from gpu_manager.cli.kubectl.login import AllNamespaces, Context, Kubeconfig, Login, Namespace, log_in
from gpu_manager.cli.output import WideForm, WideOutput, columns, emit, for_program
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_books import NodeBooks
from gpu_manager.domain.cluster.usage_json import NodeUsage, UsedShare, read_usage, used_share
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import format_bytes
from gpu_manager.runtime.arguments import Option


@dataclass(frozen=True, slots=True)
class _Row:
    node: str
    model: str
    index: int
    guessed: bool
    allocation: Allocation
    share: Share
    used: UsedShare


class SortBy(Enum):
    """The order of rows."""

    NAME = "name"
    CORES = "cores"
    MEMORY = "memory"


def command(
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    sort_by: Annotated[
        SortBy, Option("--sort-by", help="name, or what is used now, the largest first: cores, memory.")
    ] = SortBy.NAME,
    output: WideForm = WideOutput.TABLE,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """Show each container's share of a card, and what it uses of it where the node's agent can be asked.

    Usage is read through the API server and needs get on pods/proxy; a message says where it is left out.
    """
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    with log_in(kubeconfig, context, namespace) as login:
        cluster = read_cluster(login.connection)
        wanted = [
            one for one in cluster.with_cards if any(_shown(a, login, all_namespaces) for a in one.ledger)
        ]
        told, silent = agents.ask(login, cluster, [one.name for one in wanted], "/usage", read_usage)
        used = {place: figures for one in told.values() for place, figures in one.items()}
        found = (row for one in wanted for row in _rows(one, used))
        rows = [row for row in found if _shown(row.allocation, login, all_namespaces)]
        rows.sort(key=_ORDERS[sort_by])
        where = "any namespace" if all_namespaces else f"namespace {login.namespace}"
    agents.tell_unread_claims(cluster)
    if for_program(output):
        emit({"containers": [_json(row) for row in rows], "silent": silent}, output)
        return 0
    if rows:
        print(_table(rows, wide=output is WideOutput.WIDE))
        if any(_mark(row) for row in rows):
            print("(+n), (-n): the driver counts so many points more or less; see the pod's Events")
    else:
        print(f"no container in {where} holds a share of a card")
    agents.tell_silent(silent, "usage")
    return 0


def _shown(allocation: Allocation, login: Login, everywhere: bool) -> bool:
    return everywhere or allocation.namespace == login.namespace


def _rows(books: NodeBooks, used: NodeUsage) -> Iterator[_Row]:
    cards = {s.card.uuid: s.card for s in books.node.cards}
    gone = books.gone
    named = (a for a in books.ledger if a.pod not in gone and not books.ended(a))
    for allocation in sorted(named, key=lambda a: (a.namespace, a.pod_name, a.order)):
        for share in allocation.shares:
            card = cards[share.card]
            yield _Row(
                books.name,
                card.model,
                card.index,
                books.guessed(allocation.pod),
                allocation,
                share,
                used_share(used, allocation.pod, allocation.container, share.card),
            )


_ORDERS: Final[Mapping[SortBy, Callable[[_Row], Any]]] = {
    SortBy.NAME: lambda _: 0,  # as they come
    SortBy.CORES: lambda row: -(row.used.cores or 0),
    SortBy.MEMORY: lambda row: -(row.used.memory or 0),
}


def _table(rows: list[_Row], *, wide: bool) -> str:
    titles = ["NAMESPACE", "POD", "CONTAINER", "NODE", "CARD", "CORES", "USED", "MEMORY", "USED"]
    if wide:
        titles += ["MODEL", "UUID", "PRIORITY"]
    return columns(titles, [_cells(row, wide=wide) for row in rows])


def _cells(row: _Row, *, wide: bool) -> list[str]:
    core, memory = row.used.cores, row.used.memory
    cells = [
        row.allocation.namespace,
        row.allocation.pod_name,
        row.allocation.container,
        row.node,
        f"{row.index}{'?' if row.guessed else ''}",
        str(row.share.amount.cores),
        "-" if core is None else f"{core:.0f} %{_mark(row)}",
        format_bytes(row.share.amount.memory),
        "-" if memory is None else format_bytes(memory),
    ]
    more = [row.model, str(row.share.card), row.allocation.priority.value]
    return cells + (more if wide else [])


def _mark(row: _Row) -> str:
    """By how many points of the card the driver counts more or less, where that is reported."""
    return "" if row.used.difference is None else f" ({row.used.difference:+.0f})"


def _json(row: _Row) -> Mapping[str, Any]:
    core, memory = row.used.cores, row.used.memory
    return {
        "namespace": row.allocation.namespace,
        "pod": row.allocation.pod_name,
        "container": row.allocation.container,
        "node": row.node,
        "card": row.index,
        "uuid": CardUuid(row.share.card),
        "model": row.model,
        "cardKnown": not row.guessed,
        "priority": row.allocation.priority.value,
        "cores": row.share.amount.cores,
        "coresUsed": core,
        "accountDifference": row.used.difference,
        "memory": row.share.amount.memory,
        "memoryUsed": memory,
    }

"""``kubectl vcuda top``: what each container was given, and what it uses of it now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

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
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_books import NodeBooks
from gpu_manager.domain.cluster.usage_json import NodeUsage, UsedShare, read_usage, used_share
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import format_bytes
from gpu_manager.runtime.arguments import Argument, Option

if TYPE_CHECKING:
    from gpu_manager.adapters.kube.reading import ClusterReader


@dataclass(frozen=True, slots=True)
class _Row:
    node: str
    model: str
    index: int
    guessed: bool
    allocation: Allocation
    share: Share
    used: UsedShare

    @property
    def idle(self) -> float | None:
        """Cores that it holds and does not use; None where its use is not known."""
        used = self.used.cores
        return None if used is None else max(0.0, self.share.amount.cores - used)


class SortBy(Enum):
    """The order of rows."""

    NAME = "name"
    CORES = "cores"
    MEMORY = "memory"
    IDLE = "idle"


def command(
    targets: Annotated[
        list[str] | None,
        Argument(
            metavar="[POD|KIND/NAME]...",
            help="Pods, workloads (deployment/web) or nodes (node/n1); default: all.",
            complete="pods",
        ),
    ] = None,
    selector: Selector = "",
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    sort_by: Annotated[
        SortBy,
        Option(
            "--sort-by",
            help="name; or the largest first: cores or memory used now, idle: cores held and not used.",
        ),
    ] = SortBy.NAME,
    watch: Watch = False,
    printing: Printing = TABLE,
    access: Access = BY_KUBECONFIG,
) -> int:
    """Show each container's share of a card, and what it uses of it where the node's agent can be asked.

    Usage is read through the API server and needs get on pods/proxy; a message says where it is left out.

    Examples:
      kubectl vcuda top
      kubectl vcuda top -A --sort-by idle
      kubectl vcuda top deployment/web -w
      kubectl vcuda top -l app=web -o custom-columns=POD:.pod,USED:.coresUsed
    """
    wanted = [read_target(word, _KINDS, "POD") for word in targets or ()]
    with log_in(access, namespace) as login:
        question = _Question(login, wanted, selector, everywhere=all_namespaces)
        return repeat(lambda: _show(question, sort_by, printing), watch=watch)


_KINDS: Final = (*WORKLOADS, "Node")


@dataclass(frozen=True, slots=True)
class _Question:
    """Which containers are asked about."""

    login: Login
    targets: Sequence[NamedObject]
    selector: str
    everywhere: bool

    def chooser(self, cluster: ClusterReader) -> Callable[[Allocation, str], bool]:
        """Whether an allocation on a node is one of them."""
        everywhere, namespace, pods = self.everywhere, self.login.namespace, cluster.by_uid
        labels = labelled(self.login, self.selector, everywhere=everywhere) if self.selector else None

        def chosen(one: Allocation, node: str) -> bool:
            pod = pods.get(one.pod)
            owner = pod.workload if pod else ""
            named = any(target.is_of(one.pod_name, owner, node) for target in self.targets)
            return (
                (everywhere or one.namespace == namespace)
                and (named or not self.targets)
                and (labels is None or one.pod in labels or (pod is not None and pod.uid in labels))
            )

        return chosen

    @property
    def where(self) -> str:
        """For the sentence that says that there is none."""
        names = " or ".join(f"{one.kind.lower()}/{one.name}" for one in self.targets)
        whose = f"of {names} in" if names else f"of pods with {self.selector} in" if self.selector else "in"
        return f"{whose} {'any namespace' if self.everywhere else f'namespace {self.login.namespace}'}"


def _show(question: _Question, sort_by: SortBy, printing: Printing) -> int:
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    login = question.login
    cluster = read_cluster(login.connection)
    chosen = question.chooser(cluster)
    wanted = [one for one in cluster.with_cards if any(chosen(a, one.name) for a in one.ledger)]
    told, silent = service.ask_agents(
        login, cluster.agents, [one.name for one in wanted], "/usage", read_usage
    )
    used = {place: figures for one in told.values() for place, figures in one.items()}
    found = (row for one in wanted for row in _rows(one, used))
    rows = [row for row in found if chosen(row.allocation, row.node)]
    rows.sort(key=_ORDERS[sort_by])
    service.tell_unread_claims(cluster)
    if printing.for_program:
        printing.emit({"containers": [_json(row) for row in rows], "silent": silent})
        return 0
    if rows:
        print(_table(rows, printing))
        if any(_mark(row) for row in rows):
            print("(+n), (-n): the driver counts so many points more or less; see the pod's Events")
    else:
        print(f"no container {question.where} holds a share of a card")
        if question.targets:
            print(
                "kubectl vcuda explain says of a pod why it waits; -n names another namespace",
                file=sys.stderr,
            )
            return 1
    service.tell_silent(silent, "usage")
    return 0


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
    SortBy.IDLE: lambda row: -(row.idle or 0),
}


def _table(rows: list[_Row], printing: Printing) -> str:
    titles = ["NAMESPACE", "POD", "CONTAINER", "NODE", "CARD", "CORES", "USED", "MEMORY", "USED"]
    if printing.form.wide:
        titles += ["MODEL", "UUID", "PRIORITY"]
    return printing.columns(titles, [_cells(row, wide=printing.form.wide) for row in rows])


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
        "coresIdle": row.idle,
        "accountDifference": row.used.difference,
        "memory": row.share.amount.memory,
        "memoryUsed": memory,
    }

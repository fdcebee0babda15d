"""Commands on the cards of the cluster: ``kubectl vcuda graph``, ``cordon`` and ``uncordon``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from gpu_manager.cli.kubectl import service
from gpu_manager.cli.kubectl.names import find_cards, read_target, selected
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, Login, log_in
from gpu_manager.cli.output import TABLE, Printing, Watch, repeat
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.kubelet_ids import kubelet_ids
from gpu_manager.domain.cluster.node_books import NodeBooks
from gpu_manager.domain.cluster.node_json import node_json, node_text
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.resources import ZERO
from gpu_manager.domain.untrusted import mapping, mappings, text
from gpu_manager.runtime.arguments import Argument, Option

# `kubectl vcuda cordon` and `uncordon`: close cards to new shares, whichever node they are in.


Cards = Annotated[
    list[str],
    Argument(
        metavar="CARD...",
        help="A UUID or its first letters, NODE/INDEX, or a node for all of its cards.",
        complete="cards",
    ),
]


def cordon(cards: Cards, printing: Printing = TABLE, access: Access = BY_KUBECONFIG) -> None:
    """Close cards to new shares; running pods keep theirs. Needs list and patch on nodes.

    Examples:
      kubectl vcuda cordon node-1/0
      kubectl vcuda cordon GPU-2781 node-2
    """
    _change(cards, printing, access, close=True)


def uncordon(cards: Cards, printing: Printing = TABLE, access: Access = BY_KUBECONFIG) -> None:
    """Open closed cards again. Needs list and patch on nodes.

    Examples:
      kubectl vcuda uncordon node-1/0
    """
    _change(cards, printing, access, close=False)


def _change(cards: list[str], printing: Printing, access: Access, *, close: bool) -> None:
    from gpu_manager.adapters.kube.changes import cordon, places_of_cards  # noqa: PLC0415  # as in log_in

    with log_in(access) as login:
        wanted = find_cards(places_of_cards(login.connection), cards)
        closed = {
            node: sorted(cordon(login.connection, node, uuids, close=close)) for node, uuids in wanted.items()
        }
    if printing.for_program:
        printing.emit({"nodes": [{"node": node, "cordoned": cards} for node, cards in closed.items()]})
        return
    for node, left in closed.items():
        print(f"{node}: {len(left)} cordoned" + "".join(f"\n  {uuid}" for uuid in left))


def graph(
    nodes: Annotated[
        list[str] | None,
        Argument(
            metavar="[NODE]...",
            help="As NAME or node/NAME; default: every node with cards.",
            complete="nodes",
        ),
    ] = None,
    selector: Annotated[
        str, Option("--selector", "-l", help="Labels of the nodes, such as pool=a100 or 'zone in (a, b)'.")
    ] = "",
    watch: Watch = False,
    printing: Printing = TABLE,
    admission: service.Admission = service.USUAL,
    access: Access = BY_KUBECONFIG,
) -> int:
    r"""Show the cards of the cluster and who holds what of them, from annotations and ResourceClaims.

    The admission service says which node is closed to smaller pods, for one that waits for several cards.
    Exit code: 0, 1 if no node has cards, 2 for bad input.

    Examples:
      kubectl vcuda graph
      kubectl vcuda graph node-1 -w
      kubectl vcuda graph -l pool=a100
      kubectl vcuda graph -o jsonpath='{range .nodes[*].cards[*]}{.uuid} {.cores_free}{"\n"}{end}'
    """
    names = [read_target(word, ("Node",), "NODE").name for word in nodes or ()]
    if names and selector:
        raise RequestInvalid("name nodes, or choose them with -l: not both")
    with log_in(access) as login:
        return repeat(lambda: _show(login, names, selector, admission, printing), watch=watch)


def _show(login: Login, names: Sequence[str], selector: str, admission: str, printing: Printing) -> int:
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    cluster = read_cluster(login.connection)
    closed = _closed(login, admission)
    books = chosen(cluster.with_cards, names)
    if selector:
        found = {
            text(mapping(node.get("metadata")).get("name")) for node in selected(login, "nodes", selector)
        }
        books = [one for one in books if one.name in found]
    pictures = [{**_graph(one), **closed.get(one.name, {})} for one in books]
    if printing.for_program:
        printing.emit({"nodes": pictures})
    for one, drawn in zip(books, pictures, strict=True) if not printing.for_program else ():
        print(node_text(drawn).rstrip())
        for pod in one.unplaceable:
            print(printable(f"|---no card has room for {pod.key}, which is bound here"))
    service.tell_unread_claims(cluster)
    if not books and not printing.for_program:
        where = f" with {selector}" if selector else ""
        print(printable(f"no node{where} publishes cards: kubectl vcuda doctor says why"))
    return 0 if books else 1


def _closed(login: Login, admission: str) -> Mapping[str, Mapping[str, Any]]:
    """Node → what its picture has beside its cards: for whom it is closed to smaller pods."""
    try:
        said = service.ask(login, admission, "/closed").get("closed")
    except service.Silent as why:
        print(
            f"a node that is closed to smaller pods is not shown as such: {printable(str(why))}",
            file=sys.stderr,
        )
        return {}
    found = {}
    for one in mappings(said):
        cards, left = one.get("cards"), one.get("left")
        if isinstance(cards, int) and isinstance(left, int):
            kept: dict[str, Any] = {
                "pod": text(one.get("pod")),
                "since": text(one.get("since")),
                "cards": cards,
                "left": left,
            }
            if isinstance(seconds := one.get("seconds"), int):
                kept["seconds"] = seconds
            found[text(one.get("node"))] = {"kept": kept}
    return found


def chosen(books: tuple[NodeBooks, ...], names: Sequence[str]) -> list[NodeBooks]:
    """The named nodes, or all if none is named. Raises RequestInvalid: a node publishes no cards."""
    known = {one.name: one for one in books}
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)[:10]) or "none"
            raise RequestInvalid(f"node {quoted(name)} publishes no cards; nodes that do: {there}")
    return [known[name] for name in dict.fromkeys(names)] if names else list(books)


def _graph(books: NodeBooks) -> Mapping[str, Any]:
    """The nodes in the JSON of the agent's ``/graph``."""
    gone = books.gone

    def more(holder: Allocation, _: CardUuid) -> Mapping[str, Any]:
        return {
            "planned": books.guessed(holder.pod),
            "ended": books.ended(holder),
            "gone": str(holder.pod) if holder.pod in gone else None,
        }

    ids = kubelet_ids(books.node, books.charges)
    stranded = ZERO if ids is None else ids.stranded
    return node_json(books.name, books.node.cards, books.node.topology, books.ledger, more, stranded)

"""``kubectl vcuda graph``: the cards of the cluster, and who holds what of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

from gpu_manager.cli.kubectl import agents, service
from gpu_manager.cli.kubectl.login import Context, Kubeconfig, Login, log_in
from gpu_manager.cli.output import Form, Output, emit, for_program
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.kubelet_ids import kubelet_ids
from gpu_manager.domain.cluster.node_books import NodeBooks
from gpu_manager.domain.cluster.node_json import node_json, node_text
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.resources import ZERO
from gpu_manager.domain.untrusted import mappings, text
from gpu_manager.runtime.arguments import Argument


def command(
    nodes: Annotated[
        list[str] | None, Argument(metavar="[NODE]...", help="Default: every node with cards.")
    ] = None,
    output: Form = Output.TABLE,
    admission: service.Admission = service.USUAL,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """Show the cards of the cluster and who holds what of them, from annotations and ResourceClaims.

    The admission service says which node is closed to smaller pods, for one that waits for several cards.
    Exit code: 0, 1 if no node has cards, 2 for bad input.
    """
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    with log_in(kubeconfig, context) as login:
        cluster = read_cluster(login.connection)
        closed = _closed(login, admission)
    books = chosen(cluster.with_cards, nodes or ())
    pictures = [{**_graph(one), **closed.get(one.name, {})} for one in books]
    if for_program(output):
        emit({"nodes": pictures}, output)
    for one, drawn in zip(books, pictures, strict=True) if not for_program(output) else ():
        print(node_text(drawn).rstrip())
        for pod in one.unplaceable:
            print(printable(f"|---no card has room for {pod.key}, which is bound here"))
    agents.tell_unread_claims(cluster)
    if not books and not for_program(output):
        print("no node publishes cards: kubectl vcuda doctor says why")
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


def chosen(books: tuple[NodeBooks, ...], names: tuple[str, ...] | list[str]) -> list[NodeBooks]:
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

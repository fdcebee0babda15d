"""``kubectl vcuda graph``: the cards of the cluster, and who holds what of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from gpu_manager.arguments import Argument
from gpu_manager.cli.kubectl import agents
from gpu_manager.cli.kubectl.login import Context, Kubeconfig, log_in
from gpu_manager.cli.output import Form, Output, emit, for_program
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.accounting import NodeBooks
from gpu_manager.domain.cluster.kubelet_ids import kubelet_ids
from gpu_manager.domain.cluster.node_json import node_json, node_text
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.resources import ZERO


def command(
    nodes: Annotated[
        list[str] | None, Argument(metavar="[NODE]...", help="Default: every node with cards.")
    ] = None,
    output: Form = Output.TABLE,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """Show the cards of the cluster and who holds what of them, from annotations and ResourceClaims.

    Exit code: 0, 1 if no node has cards, 2 for bad input.
    """
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    with log_in(kubeconfig, context) as login:
        cluster = read_cluster(login.connection)
    books = chosen(cluster.with_cards, nodes or ())
    pictures = [_graph(one) for one in books]
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

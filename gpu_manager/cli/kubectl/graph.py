"""``kubectl vcuda graph``: the cards of the cluster, and who holds what of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpu_manager.cli.kubectl.login import Context, Kubeconfig, log_in
from gpu_manager.cli.output import Form, Output, emit, for_program
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.survey import NodeBooks, survey


def command(
    nodes: Annotated[
        list[str] | None, typer.Argument(metavar="[NODE]...", help="Default: every node with cards.")
    ] = None,
    output: Form = Output.TABLE,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """Show the cards of the cluster and who holds what of them, from the annotations of nodes and pods.

    Exit code: 0, 1 if no node has cards, 2 for bad input.
    """
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in
    from gpu_manager.servers.status import draw  # noqa: PLC0415  # same

    with log_in(kubeconfig, context) as login:
        cluster = read_cluster(login.connection)
    books = chosen(survey(cluster.nodes, cluster.pods), nodes or ())
    pictures = [_graph(one) for one in books]
    if for_program(output):
        emit({"nodes": pictures}, output)
    for one, picture in zip(books, pictures, strict=True) if not for_program(output) else ():
        typer.echo(draw(picture).rstrip())
        for pod in one.homeless:
            typer.echo(printable(f"|---no card has room for {pod.key}, which is bound here"))
    if not books and not for_program(output):
        typer.echo("no node publishes cards: kubectl vcuda doctor says why")
    return 0 if books else 1


def chosen(books: tuple[NodeBooks, ...], names: tuple[str, ...] | list[str]) -> list[NodeBooks]:
    """Those nodes, all if none is named. Raises RequestInvalid: one publishes no cards."""
    known = {one.name: one for one in books}
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)[:10]) or "none"
            raise RequestInvalid(f"node {quoted(name)} publishes no cards; nodes that do: {there}")
    return [known[name] for name in dict.fromkeys(names)] if names else list(books)


def _graph(books: NodeBooks) -> Mapping[str, Any]:
    """The same shape as the agent's ``/graph``."""
    inventory, ledger = books.said.inventory, books.ledger
    return {
        "node": books.name,
        "unit": inventory.unit,
        "links": [[str(link) for link in row] for row in inventory.topology.links],
        "cards": [
            {
                "index": s.card.index,
                "uuid": s.card.uuid,
                "model": s.card.model,
                "healthy": s.healthy,
                "cordoned": s.cordoned,
                "mig": s.card.mig,
                "reason": s.reason,
                "cores_free": ledger.free(s.card.uuid).cores,
                "memory": s.card.capacity(inventory.unit).memory,
                "memory_free": ledger.free(s.card.uuid).memory,
                "holders": [
                    {
                        "namespace": a.namespace,
                        "pod": a.pod_name,
                        "container": a.container,
                        "cores": share.amount.cores,
                        "memory": share.amount.memory,
                        "planned": a.pod in books.guessed,
                        "gone": str(a.pod) if a.pod in books.gone else None,
                    }
                    for a in ledger.holders(s.card.uuid)
                    for share in a.shares
                    if share.card == s.card.uuid
                ],
            }
            for s in inventory.cards
        ],
    }

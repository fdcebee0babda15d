"""``kubectl vcuda cordon`` and ``uncordon``: close cards to new shares, whichever node they are in."""

from __future__ import annotations

from typing import Annotated

from gpu_manager.cli.kubectl.login import Context, Kubeconfig, log_in
from gpu_manager.cli.output import Form, Output, emit, for_program
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.runtime.arguments import Argument

Uuids = Annotated[list[str], Argument(metavar="UUID...", help="Cards, as `kubectl vcuda graph` names them.")]


def command(
    uuids: Uuids, output: Form = Output.TABLE, kubeconfig: Kubeconfig = "", context: Context = ""
) -> None:
    """Close cards to new shares; running pods keep theirs. Needs list and patch on nodes."""
    _change(uuids, output, kubeconfig, context, close=True)


def uncordon(
    uuids: Uuids, output: Form = Output.TABLE, kubeconfig: Kubeconfig = "", context: Context = ""
) -> None:
    """Open closed cards again. Needs list and patch on nodes."""
    _change(uuids, output, kubeconfig, context, close=False)


def _change(uuids: list[str], output: Output, kubeconfig: str, context: str, *, close: bool) -> None:
    from gpu_manager.adapters.kube.cordon import cordon, nodes_of_cards  # noqa: PLC0415  # as in log_in

    with log_in(kubeconfig, context) as login:
        nodes = nodes_of_cards(login.connection)
        wanted: dict[str, list[CardUuid]] = {}
        for uuid in map(CardUuid, uuids):
            if uuid not in nodes:
                raise RequestInvalid(f"no node shows a card {quoted(uuid)}: kubectl vcuda graph names them")
            wanted.setdefault(nodes[uuid], []).append(uuid)
        closed = {
            node: sorted(cordon(login.connection, node, cards, close=close)) for node, cards in wanted.items()
        }
    if for_program(output):
        emit({"nodes": [{"node": node, "cordoned": cards} for node, cards in closed.items()]}, output)
        return
    for node, cards in closed.items():
        print(f"{node}: {len(cards)} cordoned" + "".join(f"\n  {uuid}" for uuid in cards))

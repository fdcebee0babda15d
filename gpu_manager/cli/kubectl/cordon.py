"""``kubectl vcuda cordon`` and ``uncordon``: close cards to new shares, whichever node they are in."""

from __future__ import annotations

from typing import Annotated

from gpu_manager.cli.kubectl.login import BY_KUBECONFIG, Access, log_in
from gpu_manager.cli.kubectl.names import find_cards
from gpu_manager.cli.output import TABLE, Printing
from gpu_manager.runtime.arguments import Argument

Cards = Annotated[
    list[str],
    Argument(
        metavar="CARD...",
        help="A UUID or its first letters, NODE/INDEX, or a node for all of its cards.",
        complete="cards",
    ),
]


def command(cards: Cards, printing: Printing = TABLE, access: Access = BY_KUBECONFIG) -> None:
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
    from gpu_manager.adapters.kube.cordon import cordon, places_of_cards  # noqa: PLC0415  # as in log_in

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

"""``gpu-manager cordon``, ``uncordon`` and ``forget``: what an operator says of a node's cards."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated

from gpu_manager.cli.output import TABLE, Printing
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.runtime.arguments import Argument, Option


def _command(
    text: str, key: str, shown: str, change: Callable[..., Collection[CardUuid]]
) -> Callable[..., None]:
    """A command that changes one of a node's lists of cards.

    ``text`` is its help, ``key`` names the list in JSON and YAML, and ``shown`` is the line above it for
    people. ``change`` gets :mod:`gpu_manager.adapters.kube.cordon`, the connection, the node and the cards,
    and returns what is then in the list.
    """

    def command(
        uuids: Annotated[
            list[str], Argument(metavar="UUID...", help="Cards, as `nvidia-smi -L` names them.")
        ],
        node_name: Annotated[
            str, Option("--node-name", envvar="NODE_NAME", help="The cards' node; default: this host's name.")
        ] = "",
        kubeconfig: Annotated[Path | None, Option(help="Default: as a pod of the cluster.")] = None,
        api_url: Annotated[str | None, Option(help="API server by address, for the sandbox.")] = None,
        printing: Printing = TABLE,
    ) -> None:
        from gpu_manager.adapters.kube import cordon as lists  # noqa: PLC0415  # heavy; completions must not wait
        from gpu_manager.adapters.kube.connection import connect  # noqa: PLC0415  # same

        for uuid in uuids:
            if (
                not uuid.isprintable() or not uuid.strip() or "," in uuid
            ):  # the annotation separates by commas
                raise RequestInvalid(f"{quoted(uuid)} is no card's UUID: `nvidia-smi -L` names them")
        node = node_name or socket.gethostname().lower()
        connection = connect(kubeconfig=kubeconfig, url=api_url)
        try:
            cards = sorted(change(lists, connection, node, [CardUuid(uuid) for uuid in uuids]))
        finally:
            connection.close()
        if printing.for_program:
            printing.emit({"node": node, key: cards})
        else:
            print("\n  ".join((shown.format(node=node, count=len(cards)), *cards)))

    command.__doc__ = text
    return command


command = _command(
    """Close cards: what runs there runs on, nothing new is placed.

    Examples:
      gpu-manager cordon GPU-27810000-0000-4000-8000-000000000000
    """,
    "cordoned",
    "{node}: {count} cordoned",
    lambda lists, *of: lists.cordon(*of, close=True),
)
uncordon = _command(
    """Open cards that were closed.

    Examples:
      gpu-manager uncordon GPU-27810000-0000-4000-8000-000000000000
    """,
    "cordoned",
    "{node}: {count} cordoned",
    lambda lists, *of: lists.cordon(*of, close=False),
)
forget = _command(
    """Stop missing cards that have vanished: their series and their alert end, within seconds.

    A card that a pod still holds is forgotten once the pod has gone. One that comes back is a new card.

    Examples:
      gpu-manager forget GPU-27810000-0000-4000-8000-000000000000
    """,
    "to_forget",
    "{node}: its agent forgets",
    lambda lists, *of: lists.forget(*of),
)

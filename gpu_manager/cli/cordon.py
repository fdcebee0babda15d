"""``gpu-manager cordon``, ``uncordon`` and ``forget``: what an operator says of a node's cards."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

from gpu_manager.arguments import Argument, Option
from gpu_manager.cli.output import Form, Output, emit, for_program
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import RequestInvalid, quoted

Uuids = Annotated[list[str], Argument(metavar="UUID...", help="Cards, as `nvidia-smi -L` names them.")]
NodeName = Annotated[
    str, Option("--node-name", envvar="NODE_NAME", help="Their node; default: this host's name.")
]
Kubeconfig = Annotated[Path | None, Option(help="Default: as a pod of the cluster.")]
ApiUrl = Annotated[str | None, Option(help="API server by address, for the sandbox.")]


def command(
    uuids: Uuids,
    node_name: NodeName = "",
    kubeconfig: Kubeconfig = None,
    api_url: ApiUrl = None,
    output: Form = Output.TABLE,
) -> None:
    """Close cards: what runs there runs on, nothing new is placed."""
    _change(uuids, node_name, kubeconfig, api_url, output, close=True)


def uncordon(
    uuids: Uuids,
    node_name: NodeName = "",
    kubeconfig: Kubeconfig = None,
    api_url: ApiUrl = None,
    output: Form = Output.TABLE,
) -> None:
    """Open cards that were closed."""
    _change(uuids, node_name, kubeconfig, api_url, output, close=False)


def forget(
    uuids: Uuids,
    node_name: NodeName = "",
    kubeconfig: Kubeconfig = None,
    api_url: ApiUrl = None,
    output: Form = Output.TABLE,
) -> None:
    """Stop missing cards that have vanished: their series and their alert end, within seconds.

    A card that a pod still holds is forgotten once the pod has gone. One that comes back is a new card.
    """
    from gpu_manager.adapters.kube.connection import connect  # noqa: PLC0415  # the client is heavy; check must not wait
    from gpu_manager.adapters.kube.cordon import forget as ask  # noqa: PLC0415  # same

    node = _checked(uuids, node_name)
    connection = connect(kubeconfig=kubeconfig, url=api_url)
    try:
        waiting = ask(connection, node, [CardUuid(uuid) for uuid in uuids])
    finally:
        connection.close()
    if for_program(output):
        emit({"node": node, "to_forget": sorted(waiting)}, output)
        return
    print(f"{node}: its agent forgets" + "".join(f"\n  {uuid}" for uuid in sorted(waiting)))


def _change(
    uuids: list[str],
    node: str,
    kubeconfig: Path | None,
    api_url: str | None,
    output: Output,
    *,
    close: bool,
) -> None:
    from gpu_manager.adapters.kube.connection import connect  # noqa: PLC0415  # the client is heavy; check must not wait
    from gpu_manager.adapters.kube.cordon import cordon  # noqa: PLC0415  # same

    node = _checked(uuids, node)
    connection = connect(kubeconfig=kubeconfig, url=api_url)
    try:
        closed = cordon(connection, node, [CardUuid(uuid) for uuid in uuids], close=close)
    finally:
        connection.close()
    if for_program(output):
        emit({"node": node, "cordoned": sorted(closed)}, output)
        return
    print(f"{node}: {len(closed)} cordoned" + "".join(f"\n  {uuid}" for uuid in sorted(closed)))


def _checked(uuids: list[str], node: str) -> str:
    """The node's name, this host's unless given. Raises RequestInvalid for what cannot be a UUID."""
    for uuid in uuids:
        if not uuid.isprintable() or not uuid.strip() or "," in uuid:  # the annotation separates by commas
            raise RequestInvalid(f"{quoted(uuid)} is no card's UUID: `nvidia-smi -L` names them")
    return node or socket.gethostname().lower()

"""Options of every command: kubeconfig, context, namespace. kubectl passes none of its own to plugins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpu_manager.arguments import Option
from gpu_manager.domain.errors import RequestInvalid, printable, quoted

if TYPE_CHECKING:
    from gpu_manager.adapters.kube.connection import Connection

Kubeconfig = Annotated[str, Option("--kubeconfig", help="Default: $KUBECONFIG, else ~/.kube/config.")]
Context = Annotated[str, Option("--context", help="Of the kubeconfig; default: the current one.")]
Namespace = Annotated[str, Option("--namespace", "-n", help="Default: the context's.")]
AllNamespaces = Annotated[bool, Option("--all-namespaces", "-A", help="Pods of all namespaces.")]
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Login:
    """An open connection with the caller's rights, and their namespace."""

    connection: Connection
    namespace: str


@contextmanager
def log_in(kubeconfig: str, context: str, namespace: str = "") -> Iterator[Login]:
    """Connect for the length of a block. Raises RequestInvalid: bad kubeconfig, context or namespace name."""
    if namespace:
        object_name(namespace, "--namespace")
    from gpu_manager.adapters.kube.connection import connect_person  # noqa: PLC0415  # the client is heavy; --help must not wait

    path = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if os.pathsep not in path and not Path(path).is_file():
        raise RequestInvalid(
            f"there is no kubeconfig {printable(path)}: name one with --kubeconfig or $KUBECONFIG"
        )
    connection, usual = connect_person(path, context)
    try:
        yield Login(connection, namespace or usual)
    finally:
        connection.close()


def object_name(text: str, what: str) -> str:
    """Return the text if it is a valid object name. Raises RequestInvalid."""
    if not _NAME.fullmatch(text):
        raise RequestInvalid(f"{what} is {quoted(text)}: use lower-case letters, digits, - and .")
    return text

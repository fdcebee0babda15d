"""Options of every command: kubeconfig, context, namespace. kubectl passes none of its own to plugins."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.runtime.arguments import Option

if TYPE_CHECKING:
    from gpu_manager.adapters.kube.connection import Connection
    from gpu_manager.adapters.kube.objects import Unreadable

Kubeconfig = Annotated[
    str, Option("--kubeconfig", help="Default: $KUBECONFIG, else ~/.kube/config, else the pod's account.")
]
Context = Annotated[str, Option("--context", help="Of the kubeconfig; default: the current one.")]
Namespace = Annotated[str, Option("--namespace", "-n", help="Default: the context's.")]
AllNamespaces = Annotated[bool, Option("--all-namespaces", "-A", help="Pods of all namespaces.")]
_NAMED = 5  # objects that cannot be read
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Login:
    """An open connection with the caller's rights, and their namespace."""

    connection: Connection
    namespace: str


@contextmanager
def log_in(kubeconfig: str, context: str, namespace: str = "") -> Iterator[Login]:
    """Connect for the length of a block: by kubeconfig, in a pod without one by its service account.

    Raises:
        RequestInvalid: bad kubeconfig, context or namespace name.
    """
    if namespace:
        object_name(namespace, "--namespace")
    from gpu_manager.adapters.kube.connection import connect_account, connect_person  # noqa: PLC0415  # the client is heavy; --help must not wait

    named = kubeconfig or os.environ.get("KUBECONFIG")
    path = named or os.path.expanduser("~/.kube/config")  # noqa: PTH111 - a user of a pod may have no home
    is_there = os.pathsep in path or Path(path).is_file()
    if not is_there and not named and not context and os.environ.get("KUBERNETES_SERVICE_HOST"):
        connection, usual = connect_account()  # as kubectl does in a pod
    elif is_there:
        connection, usual = connect_person(path, context)
    else:
        raise RequestInvalid(
            f"there is no kubeconfig {printable(path)}: name one with --kubeconfig or $KUBECONFIG"
        )
    unread = Unread()
    connection.told = unread
    try:
        yield Login(connection, namespace or usual)
    finally:
        connection.close()
        unread.tell()


class Unread:
    """Collects what could not be read, to name it on stderr."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def __call__(self, found: Unreadable) -> None:
        self._found[found.key] = found.reason

    def tell(self) -> None:
        """Name each, or the first of many."""
        for name, reason in list(self._found.items())[:_NAMED]:
            print(printable(f"{name} cannot be read and is left out: {reason}"), file=sys.stderr)
        if (more := len(self._found) - _NAMED) > 0:
            print(f"{more} more objects cannot be read and are left out", file=sys.stderr)


def object_name(text: str, what: str) -> str:
    """Return the text if it is a valid object name. Raises RequestInvalid."""
    if not _NAME.fullmatch(text):
        raise RequestInvalid(f"{what} is {quoted(text)}: use lower-case letters, digits, - and .")
    return text

"""Options of every command that asks the API server: kubectl's own, of which it passes none to plugins."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.runtime.arguments import Option, Seconds

if TYPE_CHECKING:
    from gpu_manager.adapters.kube.connection import Connection
    from gpu_manager.adapters.kube.objects import Unreadable

Namespace = Annotated[str, Option("--namespace", "-n", help="Default: the context's.", complete="namespaces")]
AllNamespaces = Annotated[bool, Option("--all-namespaces", "-A", help="All namespaces.")]
Selector = Annotated[
    str, Option("--selector", "-l", help="Labels of the pods, such as app=web or 'app in (a, b)'.")
]


_PATIENCE: Final = Seconds(30)


@dataclass(frozen=True, slots=True)
class Access:
    """Which API server is asked, and as whom."""

    TITLE: ClassVar[str] = "as with kubectl"
    kubeconfig: Annotated[
        str, Option("--kubeconfig", help="Default: $KUBECONFIG, else ~/.kube/config, else the pod's account.")
    ] = ""
    context: Annotated[
        str, Option("--context", help="Of the kubeconfig; default: the current one.", complete="contexts")
    ] = ""
    cluster: Annotated[str, Option("--cluster", help="Of the kubeconfig; default: the context's.")] = ""
    user: Annotated[str, Option("--user", help="Of the kubeconfig; default: the context's.")] = ""
    server: Annotated[
        str, Option("--server", "-s", help="URL of the API server; default: the cluster's.")
    ] = ""
    token: Annotated[str, Option("--token", help="Bearer token; default: the user's login.")] = ""
    as_user: Annotated[str, Option("--as", metavar="NAME", help="Act as this user.")] = ""
    as_groups: Annotated[
        list[str] | None,
        Option("--as-group", metavar="GROUP", help="With --as: in this group; may be repeated."),
    ] = None
    request_timeout: Annotated[
        Seconds, Option("--request-timeout", help="How long one request may take; 0: for ever.")
    ] = _PATIENCE

    @property
    def words(self) -> list[str]:
        """These options on the command line of another command, but for the token."""
        said = {
            "--kubeconfig": self.kubeconfig, "--context": self.context, "--cluster": self.cluster,
            "--user": self.user, "--server": self.server, "--as": self.as_user,
        }  # fmt: skip
        words = [word for option, value in said.items() if value for word in (option, value)]
        return words + [word for group in self.as_groups or () for word in ("--as-group", group)]


BY_KUBECONFIG: Final = Access()
_NAMED = 5  # objects that cannot be read
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Login:
    """An open connection with the rights of the caller, or of ``acting_as``, and the namespace."""

    connection: Connection
    namespace: str
    acting_as: str = ""


def kubeconfig_of(access: Access) -> str:
    """The kubeconfig's path, or several as in $KUBECONFIG."""
    usual = os.path.expanduser("~/.kube/config")  # noqa: PTH111 - a user of a pod may have no home
    return access.kubeconfig or os.environ.get("KUBECONFIG") or usual


@contextmanager
def log_in(access: Access, namespace: str = "") -> Iterator[Login]:
    """Connect for the length of a block: by kubeconfig, in a pod without one by its service account.

    Raises:
        RequestInvalid: bad kubeconfig, context or namespace name.
    """
    if namespace:
        object_name(namespace, "--namespace")
    from gpu_manager.adapters.kube.connection import connect_account, connect_person  # noqa: PLC0415  # the client is heavy; --help must not wait
    from gpu_manager.adapters.kube.kubeconfig import Overrides  # noqa: PLC0415  # as above

    named = access.kubeconfig or os.environ.get("KUBECONFIG")
    path = kubeconfig_of(access)
    is_there = os.pathsep in path or Path(path).is_file()
    groups = tuple(access.as_groups or ())
    over = Overrides(access.cluster, access.user, access.server, access.token, access.as_user, groups)
    alone = over == Overrides() and not access.context
    if not is_there and not named and alone and os.environ.get("KUBERNETES_SERVICE_HOST"):
        connection = connect_account()  # as kubectl does in a pod
    elif is_there or (access.server and not named):
        connection = connect_person(path if is_there else "", access.context, over, access.request_timeout)
    else:
        raise RequestInvalid(
            f"there is no kubeconfig {printable(path)}: name one with --kubeconfig or $KUBECONFIG"
        )
    unread = Unread()
    connection.told = unread
    try:
        yield Login(connection, namespace or connection.namespace, connection.acting_as)
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

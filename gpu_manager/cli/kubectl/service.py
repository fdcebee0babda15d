"""Access to the cluster with the caller's rights: the API server, and through its proxies the admission
service and the nodes' agents (services/proxy, pods/proxy).

The API server removes the Authorization header from proxied requests, so the token is sent in a second header
too. Where the service cannot be reached, :class:`Silent` says why, and commands compute the answer themselves
with the same functions of the domain.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar
from urllib.parse import quote

from gpu_manager.domain.contract import ADMISSION_NAME, HTTP_PORT, NAMESPACE, TOKEN_HEADER
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable, quoted
from gpu_manager.runtime.arguments import Option, Seconds

if TYPE_CHECKING:
    from gpu_manager.adapters.kube.connection import Connection
    from gpu_manager.adapters.kube.objects import Unreadable
    from gpu_manager.adapters.kube.reading import ClusterReader


# Options of every command that asks the API server: kubectl's own, of which it passes none to plugins.


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


Admission = Annotated[
    str,
    Option(
        "--admission", envvar="VCUDA_ADMISSION", help="Its service: NAMESPACE/NAME; - to judge without it."
    ),
]
USUAL = f"{NAMESPACE}/{ADMISSION_NAME}"
_PORT = 443


class Silent(Exception):  # noqa: N818  # no error: the command goes on without the service
    """The service did not answer; the text says why."""


def ask(
    login: Login,
    admission: str,
    path: str,
    manifest: Mapping[str, Any] | None = None,
    query: Mapping[str, str] | None = None,
) -> Mapping[str, Any]:
    """GET the path, or POST the manifest to it.

    Raises:
        Silent: no answer. RequestInvalid: it refuses the manifest, or ``admission`` is malformed.
    """
    from gpu_manager.adapters.kube.connection import Refused  # noqa: PLC0415  # as in log_in

    if admission == "-":
        raise Silent("--admission is -")
    where = root(admission) + path
    if login.acting_as:
        raise Silent(acting(login))
    token = login.connection.token
    if not token:
        raise Silent("your login is a certificate, and the service asks for a token")
    headers = {TOKEN_HEADER: f"Bearer {token}", "Accept": "application/json"}
    try:
        method = "GET" if manifest is None else "POST"
        return login.connection.request(
            f"ask {admission}", method, where, query=query, body=manifest, headers=headers
        )
    except Refused as error:
        raise Silent(reason(error.code, admission)) from error
    except NodeUnready as error:
        raise Silent(str(error)) from error


_REASONS = {
    401: "it takes no token that comes through the API server",
    403: "you may not ask it: let an administrator bind you to the chart's roles gpu-manager-view",
    404: "there is no such service (--admission NAMESPACE/NAME names another), or it does not know the pod",
    503: "no pod of it is ready",
}


def acting(login: Login) -> str:
    """Why the service is not asked under --as."""
    return (
        f"you act as {login.acting_as} (--as): the API server passes that on to no service, so that it would "
        "judge by your own rights"
    )


def root(admission: str) -> str:
    """Path of the service through the API server. Raises RequestInvalid: it is not NAMESPACE/NAME."""
    from gpu_manager.adapters.kube.connection import service_page  # noqa: PLC0415  # as in log_in

    namespace, slash, name = admission.partition("/")
    if not slash:
        raise RequestInvalid(f"--admission is {quoted(admission)}: write NAMESPACE/NAME, such as {USUAL}")
    return service_page(object_name(namespace, "--admission"), object_name(name, "--admission"), _PORT, "")


def reason(code: int, admission: str) -> str:
    """Why the service gave this status in place of an answer."""
    return f"{admission}: {_REASONS.get(code, f'it answered {code}')}"


def escaped(part: str) -> str:
    """The text as one segment of a URL's path."""
    return quote(part, safe="")


_AT_ONCE = 16  # agents queried in parallel
_MALFORMED = (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError)
T = TypeVar("T")
AgentPlaces = Mapping[str, tuple[str, str]]
"""Node → namespace and name of its agent's pod."""


def ask_agents(
    login: Login,
    places: AgentPlaces,
    nodes: Iterable[str],
    path: str,
    parse: Callable[[Any], T],
    *,
    named: bool = False,
) -> tuple[Mapping[str, T], Mapping[str, str]]:
    """Each node's answer to a GET of ``path``, and why some gave none.

    ``parse`` reads the JSON; where it raises what malformed data raises, that counts as no answer. ``named``:
    the agent is shown who asks, since it names pods to nobody else.
    """
    shown = {TOKEN_HEADER: f"Bearer {login.connection.token}"} if named else {}
    from gpu_manager.adapters.kube.connection import pod_page  # noqa: PLC0415  # as in log_in

    def one(node: str) -> T:
        place = places.get(node)
        if place is None:
            raise NodeUnready("no pod of the agent's DaemonSet runs there")
        asked = pod_page(*place, HTTP_PORT, path)
        text = login.connection.text(f"ask the agent of {node}", asked, "application/json", shown)
        try:
            return parse(json.loads(text))
        except _MALFORMED as error:
            raise NodeUnready("its agent answered with something else") from error

    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # brings logging, only here

    found: dict[str, T] = {}
    silent: dict[str, str] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for node, answer in [(node, pool.submit(one, node)) for node in nodes]:
            try:
                found[node] = answer.result()
            except NodeUnready as error:
                silent[node] = str(error)
    return found, silent


def tell_silent(silent: Mapping[str, str], what: str) -> None:
    """Say on stderr of which nodes ``what`` is not known, and why."""
    for reason in dict.fromkeys(silent.values()):
        nodes = [node for node, why in silent.items() if why == reason]
        named = ", ".join(nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")
        print(printable(f"{what} of {named} is not known: {reason}"), file=sys.stderr)


def tell_unread_claims(cluster: ClusterReader) -> None:
    """Say on stderr that what ResourceClaims hold is left out, where they could not be read."""
    if cluster.silent:
        print(printable(f"what ResourceClaims hold is left out: {cluster.silent}"), file=sys.stderr)

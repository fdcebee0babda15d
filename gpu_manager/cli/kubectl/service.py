"""Requests to the admission service and to nodes' agents, through the API server's proxies with the caller's
rights (services/proxy, pods/proxy).

The API server removes the Authorization header from proxied requests, so the token is sent in a second header
too. Where the service cannot be reached, :class:`Silent` says why, and commands compute the answer themselves
with the same functions of the domain.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

from gpu_manager.cli.kubectl.login import Login, object_name
from gpu_manager.domain.contract import ADMISSION_NAME, HTTP_PORT, NAMESPACE, TOKEN_HEADER
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable, quoted
from gpu_manager.runtime.arguments import Option

if TYPE_CHECKING:
    from gpu_manager.adapters.kube.reading import ClusterReader

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
    from gpu_manager.adapters.kube.pod_paths import service_page  # noqa: PLC0415  # as in log_in

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
    login: Login, places: AgentPlaces, nodes: Iterable[str], path: str, parse: Callable[[Any], T]
) -> tuple[Mapping[str, T], Mapping[str, str]]:
    """Each node's answer to a GET of ``path``, and why some gave none.

    ``parse`` reads the JSON; where it raises what malformed data raises, that counts as no answer.
    """
    from gpu_manager.adapters.kube.pod_paths import pod_page  # noqa: PLC0415  # as in log_in

    def one(node: str) -> T:
        place = places.get(node)
        if place is None:
            raise NodeUnready("no pod of the agent's DaemonSet runs there")
        asked = pod_page(*place, HTTP_PORT, path)
        text = login.connection.text(f"ask the agent of {node}", asked, "application/json")
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

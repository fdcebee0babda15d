"""What the agents of many nodes say, asked through the API server with the caller's rights (pods/proxy)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_manager.cli.kubectl.login import Login
from gpu_manager.domain.contract import HTTP_PORT
from gpu_manager.domain.errors import NodeUnready, printable

if TYPE_CHECKING:
    from gpu_manager.adapters.kube.reading import ClusterReader

_AT_ONCE = 16  # agents queried in parallel
_MALFORMED = (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError)
T = TypeVar("T")
AgentPlaces = Mapping[str, tuple[str, str]]
"""Node → namespace and name of its agent's pod."""


def ask(
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

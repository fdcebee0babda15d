"""The agents' pages as they are reached from within the cluster: by their pods' addresses.

A console asks each agent every few seconds. A connection of ``http.client`` takes twice the processor time of
httptools, with which uvicorn reads requests in the same process.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httptools

from gpu_manager.adapters.http import HttpLimits, NoAnswer, reason
from gpu_manager.adapters.kube.agents import is_agent
from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.adapters.kube.streams import Pages
from gpu_manager.domain.contract import HTTP_PORT
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.untrusted import mapping, mappings, text

_LIMITS: Final = HttpLimits(connect=1.0, answer=2.0, largest=4 << 20)
_PIECE: Final = 1 << 16
_PORT_NAME: Final = "metrics"  # of the container's port, in the chart


class KubeAgents:
    """See :class:`admission.console.agents_usage.Agents`. ``token``: file with the bearer token of
    the agents' pages, None if they ask for none.
    """

    def __init__(self, connection: Connection, namespace: str, token: Path | None = None) -> None:
        self._connection = connection
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._token = token
        self._places: Mapping[str, tuple[str, int]] = {}  # URL → address and port

    def addresses(self) -> Mapping[str, str]:
        """Node → URL of its agent. Raises NodeUnready."""
        found: dict[str, str] = {}
        places: dict[str, tuple[str, int]] = {}
        for pod in Pages(self._connection, "list the agents", self._path).read():
            spec, status = mapping(pod.get("spec")), mapping(pod.get("status"))
            node, ip = text(spec.get("nodeName")), text(status.get("podIP"))
            if is_agent(pod) and status.get("phase") == "Running" and node and ip:
                port = _port(spec)
                found[node] = f"http://{f'[{ip}]' if ':' in ip else ip}:{port}"
                places[found[node]] = ip, port
        self._places = places
        return found

    def page(self, url: str, path: str) -> bytes:
        """The agent's answer to a GET. Raises NodeUnready."""
        headers = {"Accept": "application/json"}
        if self._token is not None:
            try:
                headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
            except OSError as error:
                raise NodeUnready(f"cannot read {self._token}: {error.strerror}") from error
        place = self._places.get(url)
        if place is None:
            raise NodeUnready("it is not running any more")
        status, body = fetch(*place, path, headers, _LIMITS)
        if status != 200:
            raise NodeUnready(f"it answered {status}")
        return body


def _port(spec: Mapping[str, Any]) -> int:
    """The port that the container names for its pages."""
    for container in mappings(spec.get("containers")):
        for port in mappings(container.get("ports")):
            number = port.get("containerPort")
            if port.get("name") == _PORT_NAME and isinstance(number, int) and 0 < number < 1 << 16:
                return number
    return HTTP_PORT


class _Answer:
    """What the parser has read of an answer."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.body = bytearray()
        self._whole = False

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self.body += piece

    def on_message_complete(self) -> None:
        """The end of an answer: of this one, unless it only announces another (1xx)."""
        self._whole = self.parser.get_status_code() >= HTTPStatus.OK

    def is_whole(self) -> bool:
        """True if its end has been read."""
        return self._whole


def fetch(
    host: str, port: int, path: str, headers: Mapping[str, str], limits: HttpLimits
) -> tuple[int, bytes]:
    """Send a GET over plain HTTP to an address, on a connection of its own; return status and body.

    Raises:
        NoAnswer: none, none in time, one that is too long or that ended early, or a header with a line break.
    """
    place = f"[{host}]" if ":" in host else host
    sent = {"Host": f"{place}:{port}", "Connection": "close", **headers}
    if any(not f"{name}{value}".isprintable() for name, value in sent.items()):
        raise NoAnswer("a header cannot be sent: it has a line break")  # the value may be a secret
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as line:
            line.settimeout(limits.connect)
            line.connect((host, port))
            with contextlib.suppress(ConnectionError):  # it may have been answered all the same
                line.sendall("\r\n".join(lines).encode("latin-1"))
            return _read(line, limits)
    except (OSError, ValueError) as error:
        raise NoAnswer(reason(error)) from error


def _read(line: socket.socket, limits: HttpLimits) -> tuple[int, bytes]:
    answer, received, ends = _Answer(), 0, time.monotonic() + limits.answer
    while not answer.is_whole():
        left = ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        line.settimeout(left)
        piece = line.recv(_PIECE)
        received += len(piece)
        if not piece:
            raise NoAnswer("the answer was cut short" if received else "closed connection without an answer")
        try:
            answer.parser.feed_data(piece)
        except httptools.HttpParserError as error:
            if not answer.is_whole():  # what follows it is nobody's
                raise NoAnswer(f"it does not answer as HTTP servers do: {error}") from error
        if len(answer.body) > limits.largest or received > limits.largest + _PIECE:
            raise NoAnswer(f"the answer has more than {limits.largest} bytes")
    return answer.parser.get_status_code(), bytes(answer.body)

"""The one door to the API server: the official client's configuration and transport, our errors.

Objects pass as plain JSON: the client's models cost 22 MB of memory and a hundred times the time to parse.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import OpenApiException

from gpu_manager.domain.errors import NodeUnready, RequestInvalid

MERGE_PATCH = "application/merge-patch+json"
JSON_BODY = "application/json"
_LINE_LIMIT = 16 << 20  # bytes of one watch event; etcd keeps objects of at most 1.5 MiB
_KEPT = 32  # connections: an extender binds 16 pods at once beside its watches, and each would be made anew
# A dead peer is noticed after 15 + 3 * 5 s of silence even if no packet ever says so.
_KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


# What the client and its transport raise when no answer comes; the token is read in between.
_TRANSPORT = (OpenApiException, urllib3.exceptions.HTTPError, config.ConfigException, OSError, ValueError)


class Unreachable(NodeUnready):
    """No answer: network, TLS, time-out, or an answer that is none."""


class Refused(NodeUnready):
    """An answer that is no success. ``code`` is HTTP's; ``retry_after`` is seconds, 0 if not said."""

    def __init__(
        self,
        what: str,
        code: int,
        message: str,
        retry_after: float = 0.0,
        cures: Mapping[int, str] | None = None,
    ) -> None:
        cure = (_CURES if cures is None else cures).get(code, "")
        super().__init__(f"the API server refused to {what}: {message} ({code}){cure}")
        self.code = code
        self.retry_after = retry_after


_CURES = {
    401: ": the token is not valid; restart the agent's pod, check its service account",
    403: ": the service account lacks this right; install the ClusterRole of this version",
}
# The same to a person with a kubeconfig.
_CURES_OF_A_PERSON = {
    401: ": your login is not valid any more; log in anew, or name another --context",
    403: ": you lack this right; ask your administrator for it",
}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, to wait for an answer, and for which a watch is asked for."""

    connect: float = 2.0
    answer: float = 5.0
    watch: int = 290


class Connection:
    """Requests to one API server, from any thread."""

    def __init__(
        self,
        configuration: Configuration,
        timeouts: Timeouts | None = None,
        cures: Mapping[int, str] | None = None,
    ) -> None:
        configuration.retries = False  # who asks knows best when to ask again
        configuration.connection_pool_maxsize = _KEPT
        configuration.socket_options = _KEEPALIVE
        self.timeouts = timeouts or Timeouts()
        self.host = str(configuration.host)
        self._cures = cures
        self._client = ApiClient(configuration)
        self._client.user_agent = "gpu-manager"

    def close(self) -> None:
        """Let go of idle connections."""
        self._client.close()  # type: ignore[no-untyped-call] # untyped upstream

    def request(
        self,
        what: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON_BODY,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Ask once. ``what`` completes "refused to …" in the error text.

        Raises:
            Refused: the server says no.
            Unreachable: it says nothing, or nothing that can be read.
        """
        response = self._open(what, method, path, query, body, content_type, headers)
        try:
            data = json.loads(response.read())
        except (urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError) as error:
            response.close()
            raise self._unreachable(what, error) from error
        response.release_conn()
        if not isinstance(data, dict):
            raise Unreachable(f"cannot {what}: the API server at {self.host} answered with something else")
        return data

    def text(
        self, what: str, path: str, accept: str = "text/plain", headers: Mapping[str, str] | None = None
    ) -> str:
        """The body of a GET as it stands, at most 16 MiB; for what the API server only passes on.

        Raises:
            Refused, Unreachable: as :meth:`request`.
        """
        response = self._open(what, "GET", path, None, None, JSON_BODY, {"Accept": accept, **(headers or {})})
        try:
            return str(response.read(_LINE_LIMIT).decode(errors="replace"))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise self._unreachable(what, error) from error
        finally:
            response.close()

    @property
    def token(self) -> str:
        """The caller's bearer token; empty where it shows a certificate instead."""
        shown = self._client.configuration.get_api_key_with_prefix("BearerToken") or ""
        return str(shown).removeprefix("Bearer ").strip()

    def watch(self, what: str, path: str, query: Mapping[str, str]) -> WatchStream:
        """Open a watch; ends by itself after the time-out. Raises as :meth:`request`."""
        seconds = self.timeouts.watch
        asked = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        response = self._open(what, "GET", path, asked, None, JSON_BODY)
        # The answer has begun in time; from here on silence is normal until the watch ends.
        connected = getattr(response.connection, "sock", None)
        if connected is not None:
            connected.settimeout(seconds + 15)
        return WatchStream(self, what, response)

    def _open(
        self,
        what: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
        more_headers: Mapping[str, str] | None = None,
    ) -> Any:
        headers = {"Accept": JSON_BODY, **(more_headers or {})}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            request = self._client.param_serialize(
                method=method,
                resource_path=path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            limits = (self.timeouts.connect, self.timeouts.answer)
            response = self._client.call_api(*request, _request_timeout=limits).response
            if 200 <= response.status < 300:
                return response
            text = response.read()
            response.release_conn()
        except _TRANSPORT as error:
            raise self._unreachable(what, error) from error
        raise _refused(
            what, int(response.status), text, str(response.headers.get("Retry-After") or ""), self._cures
        )

    def _unreachable(self, what: str, error: Exception) -> Unreachable:
        reason = " ".join(str(error).split()) or type(error).__name__
        return Unreachable(f"cannot {what}: no answer from the API server at {self.host}: {reason[:300]}")


class WatchStream:
    """The events of one watch as (type, object) pairs; iterate once, :meth:`close` from any thread."""

    def __init__(self, connection: Connection, what: str, response: Any) -> None:
        self._connection = connection
        self._what = what
        self._response = response

    def close(self) -> None:
        """End the stream: a thread that waits for its next event goes on at once."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield events to the end of the stream. A broken last line was no event.

        Raises:
            Unreachable: the stream broke. Refused: the server ended it (410: begin anew with a list).
        """
        rest = b""
        try:
            for piece in self._response.stream(1 << 16, decode_content=True):
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > _LINE_LIMIT:
                    raise Unreachable(f"cannot {self._what}: one event has more than {_LINE_LIMIT} bytes")
                for line in lines:
                    if line.strip():
                        yield self._event(line)
        except (urllib3.exceptions.HTTPError, OSError, AttributeError, ValueError, RecursionError) as error:
            raise self._connection._unreachable(self._what, error) from error  # noqa: SLF001 - same file, same words
        finally:
            self._response.close()
            self._response.release_conn()

    def _event(self, line: bytes) -> tuple[str, dict[str, Any]]:
        event = json.loads(line)
        kind, obj = event.get("type"), event.get("object")
        if not isinstance(kind, str) or not isinstance(obj, dict):
            raise ValueError("an event without type or object")  # noqa: TRY004 - nobody passed it here
        if kind == "ERROR":
            raise Refused(
                self._what, int(obj.get("code") or 500), str(obj.get("message") or obj.get("reason"))
            )
        return kind, obj


def _refused(what: str, code: int, text: bytes, retry_after: str, cures: Mapping[int, str] | None) -> Refused:
    try:
        status = json.loads(text)
        message = str(status["message"])
    except (ValueError, RecursionError, KeyError, TypeError):
        message = text[:200].decode(errors="replace") or "no reason given"
    return Refused(what, code, message, float(retry_after) if retry_after.isdigit() else 0.0, cures)


# What the client's loaders raise for a file that is not there, not YAML, or of another shape.
_MALFORMED = (
    config.ConfigException,
    OSError,
    yaml.YAMLError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
)


def connect(
    *,
    kubeconfig: Path | None = None,
    url: str | None = None,
    token: str | None = None,
    timeouts: Timeouts | None = None,
) -> Connection:
    """A connection by ``url`` (and ``token``), else by ``kubeconfig``, else as a pod of the cluster.

    Raises:
        NodeUnready: the configuration cannot be read.
    """
    configuration = Configuration()
    try:
        if url is not None:
            configuration.host = url
            if token:
                configuration.api_key = {"BearerToken": f"Bearer {token}"}
        elif kubeconfig is not None:
            config.load_kube_config(  # type: ignore[no-untyped-call] # untyped upstream
                str(kubeconfig), client_configuration=configuration
            )
        else:
            config.load_incluster_config(  # type: ignore[no-untyped-call] # untyped upstream
                client_configuration=configuration
            )
        return Connection(configuration, timeouts)
    except _MALFORMED as error:
        place = f"the kubeconfig {kubeconfig}" if kubeconfig else "the service account of this pod"
        reason = " ".join(str(error).split()).rstrip(".")
        raise NodeUnready(
            f"cannot find the API server by {url or place}: {reason}. Run in a pod with a service account, "
            f"or give --kubeconfig"
        ) from error


def connect_person(kubeconfig: str, context: str = "") -> tuple[Connection, str]:
    """A connection with a person's own rights, and the namespace that their context names.

    ``kubeconfig`` is a path, or several as KUBECONFIG has them; ``context`` is empty for the current one.

    Raises:
        RequestInvalid: the kubeconfig cannot be read, or has no such context.
    """
    configuration = Configuration()
    try:
        contexts, current = config.list_kube_config_contexts(  # type: ignore[no-untyped-call] # as above
            config_file=kubeconfig
        )
        chosen = next((c for c in contexts if c["name"] == context), None) if context else current
        if chosen is None:
            names = ", ".join(str(c["name"]) for c in contexts)
            raise RequestInvalid(f"the kubeconfig {kubeconfig} has no context {context!r}; it has {names}")
        config.load_kube_config(  # type: ignore[no-untyped-call] # untyped upstream
            kubeconfig, context=chosen["name"], client_configuration=configuration
        )
        namespace = str(chosen["context"].get("namespace") or "default")
        return Connection(configuration, Timeouts(connect=5.0, answer=30.0), _CURES_OF_A_PERSON), namespace
    except _MALFORMED as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise RequestInvalid(
            f"cannot use the kubeconfig {kubeconfig}: {reason}; name another with --kubeconfig"
        ) from error

"""Connections to the API server: requests and watches as plain JSON, with this project's errors;
TokenReview and SubjectAccessReview.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpu_manager.adapters.http import (
    FOREIGN,
    HttpAnswer,
    HttpClient,
    HttpLimits,
    HttpStream,
    NoAnswer,
    reason,
)
from gpu_manager.adapters.kube.kubeconfig import (
    SERVICE_ACCOUNT,
    ApiAccess,
    Overrides,
    access_by_url,
    access_of,
    access_of_pod,
)
from gpu_manager.adapters.kube.objects import Told, decode, unheard
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.untrusted import mapping, text

if TYPE_CHECKING:
    from gpu_manager.domain.kube.pod import Pod


_MERGE_PATCH = "application/merge-patch+json"
_JSON = "application/json"
ABSENT, CONFLICT = 404, 409  # answers: there is none; it has changed, or is there already
_LARGEST = 64 << 20  # bytes of an answer that is no list; etcd keeps objects of at most 1.5 MiB
_REFUSAL = 1 << 20  # bytes that are read of a refusal
_KEPT = 32  # connections: an extender binds 16 pods at once beside its watches, and each would be made anew
# A dead peer is noticed after 15 + 3 * 5 s of silence even if no packet ever says so.
_KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class Unreachable(NodeUnready):
    """No usable answer: network, TLS, time-out, or a malformed answer."""


class Refused(NodeUnready):
    """An answer with an error status ``code``; ``retry_after`` is in seconds, 0 if absent.

    ``more``: the token with which an expired list continues, with objects newer than the earlier ones.
    """

    more = ""

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
# Remedies for a user with a kubeconfig.
_CURES_OF_A_PERSON = {
    401: ": your login is not valid any more; log in anew, or name another --context",
    403: ": you lack this right; ask your administrator for it",
}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, to wait for an answer, and the requested duration of a watch."""

    connect: float = 2.0
    answer: float = 5.0
    watch: int = 290


_PATIENT = Timeouts(connect=5.0, answer=30.0)  # of people's commands


class Connection:
    """Requests to one API server, from any thread. ``told`` is called for objects that a command cannot
    read.
    """

    def __init__(
        self, access: ApiAccess, timeouts: Timeouts | None = None, cures: Mapping[int, str] | None = None
    ) -> None:
        self.timeouts = timeouts or Timeouts()
        self.host = access.url
        self.told: Told = unheard
        self._access = access
        self._cures = cures
        self._client = HttpClient(
            access.url,
            limits=HttpLimits(self.timeouts.connect, self.timeouts.answer, _LARGEST),
            tls=access.tls,
            server_name=access.server_name,
            proxy=access.proxy,
            keep=_KEPT,
            socket_options=_KEEPALIVE,
        )

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def request(
        self,
        what: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send one request; a PATCH merges unless another type is named. ``what`` completes "refused to …" in
        the error text.

        Raises:
            Refused: the server answers with an error.
            Unreachable: no usable answer.
        """
        encoded = None
        if body is not None:
            kind = content_type or (_MERGE_PATCH if method == "PATCH" else _JSON)
            headers, encoded = {"Content-Type": kind, **(headers or {})}, json.dumps(body).encode()
        answer = self._ask(what, method, path, query, encoded, headers)
        try:
            data = decode(answer.body)
        except ValueError as error:
            raise self.unreachable(what, error) from error
        if not isinstance(data, dict):
            raise Unreachable(f"cannot {what}: the API server at {self.host} answered with something else")
        return data

    def read(self, what: str, path: str) -> dict[str, Any] | None:
        """GET an object; None if there is none. Raises as :meth:`request`."""
        return self.write(what, "GET", path, missed=(ABSENT,))

    def write(
        self,
        what: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "",
        missed: Collection[int] = (ABSENT, CONFLICT),
    ) -> dict[str, Any] | None:
        """Send one request; None if the answer is ``missed``: the object is gone, or has changed since the
        version in the body. Raises as :meth:`request`.
        """
        try:
            return self.request(what, method, path, body=body, content_type=content_type)
        except Refused as refusal:
            if refusal.code not in missed:
                raise
            return None

    def delete(self, what: str, path: str, same: Mapping[str, str], *, at_once: bool = False) -> bool:
        """DELETE the object that is the ``same`` in UID or version; False if it is gone or has changed.

        ``at_once``: without its grace period. Raises as :meth:`request`.
        """
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": same}
        grace = {"gracePeriodSeconds": 0} if at_once else {}
        return self.write(what, "DELETE", path, {**body, **grace}) is not None

    def text(
        self, what: str, path: str, accept: str = "text/plain", headers: Mapping[str, str] | None = None
    ) -> str:
        """The body of a GET as text; for pages that the API server proxies.

        Raises:
            Refused, Unreachable: as :meth:`request`.
        """
        answer = self._ask(what, "GET", path, headers={"Accept": accept, **(headers or {})})
        return answer.body.decode(errors="replace")

    def page(
        self, what: str, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> HttpAnswer:
        """The answer of a page behind the API server's proxy, whatever its status. Raises Unreachable."""
        try:
            return self._client.ask(method, path, body=body, headers=self._headers(headers))
        except NoAnswer as error:
            raise self.unreachable(what, error) from error

    def renew(self) -> bool:
        """Report that the login was refused; True if there is a new one to try."""
        return self._access.credentials.refused()

    @property
    def namespace(self) -> str:
        """The namespace that its context names."""
        return self._access.namespace

    @property
    def acting_as(self) -> str:
        """The user that the API server impersonates; empty for the caller's own."""
        return str(self._access.headers.get("Impersonate-User", ""))

    @property
    def token(self) -> str:
        """The caller's bearer token; empty where it authenticates otherwise. Raises NodeUnready."""
        kind, _, token = self._access.credentials.header().partition(" ")
        return token if kind == "Bearer" else ""

    def pieces(self, what: str, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the body of a GET as it arrives, however long it is. Raises as :meth:`request`."""
        try:
            yield from self.open(what, path, query).pieces(self.timeouts.answer)
        except NoAnswer as error:
            raise self.unreachable(what, error) from error

    def open(self, what: str, path: str, query: Mapping[str, str]) -> HttpStream:
        """Begin a GET; the caller reads the answer and closes it. Raises as :meth:`request`."""
        try:
            response = self._client.open("GET", path, query=query, headers=self._headers())
            if response.status == 401 and self._access.credentials.refused():
                response.close()
                response = self._client.open("GET", path, query=query, headers=self._headers())
            if not 200 <= response.status < 300:
                refusal = HttpAnswer(response.status, response.begun(_REFUSAL), response.headers)
                raise _refused(what, refusal, self._cures)
        except (NoAnswer, *FOREIGN) as error:
            raise self.unreachable(what, error) from error
        return response

    def _ask(
        self,
        what: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """A successful answer; a credential that was refused is renewed once."""
        try:
            answer = self._client.ask(method, path, query=query, body=body, headers=self._headers(headers))
            if answer.status == 401 and self._access.credentials.refused():
                answer = self._client.ask(
                    method, path, query=query, body=body, headers=self._headers(headers)
                )
        except NoAnswer as error:
            raise self.unreachable(what, error) from error
        if not 200 <= answer.status < 300:
            raise _refused(what, answer, self._cures)
        return answer

    def _headers(self, more: Mapping[str, str] | None = None) -> Mapping[str, str | tuple[str, ...]]:
        try:
            shown = self._access.credentials.header()
        except NodeUnready as error:
            raise Unreachable(f"cannot log in to the API server at {self.host}: {error}") from error
        login = {"Authorization": shown} if shown else {}
        return {"Accept": _JSON, "User-Agent": "gpu-manager", **login, **self._access.headers, **(more or {})}

    def unreachable(self, what: str, error: Exception) -> Unreachable:
        """The connection's error for a request that ended without a usable answer."""
        return Unreachable(
            f"cannot {what}: no answer from the API server at {self.host}: {reason(error)[:300]}"
        )


def _refused(what: str, answer: HttpAnswer, cures: Mapping[int, str] | None) -> Refused:
    more = ""
    try:
        status = decode(answer.body)
        message, more = str(status["message"]), text(mapping(status.get("metadata")).get("continue"))
    except (ValueError, KeyError, TypeError):
        message = answer.body[:200].decode(errors="replace") or "no reason given"
    wait = answer.headers.get("retry-after", "")
    refused = Refused(what, answer.status, message, float(wait) if wait.isdecimal() else 0.0, cures)
    refused.more = more
    return refused


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
    try:
        if url is not None:
            return Connection(access_by_url(url, token), timeouts)
        return Connection(access_of(str(kubeconfig)) if kubeconfig else access_of_pod(), timeouts)
    except RequestInvalid as error:
        place = f"the kubeconfig {kubeconfig}" if kubeconfig else "the service account of this pod"
        raise NodeUnready(
            f"cannot find the API server by {url or place}: {error}. Run in a pod with a service account, "
            f"or give --kubeconfig"
        ) from error


def connect_account(directory: Path = SERVICE_ACCOUNT) -> Connection:
    """A connection with the rights of the service account of the pod that this runs in.

    Raises:
        RequestInvalid: this is no pod, or it has no service account.
    """
    try:
        access = access_of_pod(directory)
    except RequestInvalid as error:
        raise RequestInvalid(f"cannot use the service account of this pod: {error}") from error
    return Connection(access, _PATIENT, _CURES_OF_A_PERSON)


def connect_person(
    kubeconfig: str, context: str = "", over: Overrides | None = None, seconds: float = _PATIENT.answer
) -> Connection:
    """A connection with a person's own rights.

    ``kubeconfig`` is a path, or several as in KUBECONFIG, empty for none; ``context`` is empty for the
    current one. The values in ``over`` override both. A request may take ``seconds``; 0: no limit.

    Raises:
        RequestInvalid: the kubeconfig cannot be read, or has no such context.
        NodeUnready: one of its credential plugins failed.
    """
    timeouts = replace(_PATIENT, answer=seconds or threading.TIMEOUT_MAX)
    if 0 < seconds < timeouts.connect:
        timeouts = replace(timeouts, connect=seconds)
    try:
        return Connection(access_of(kubeconfig, context, over), timeouts, _CURES_OF_A_PERSON)
    except RequestInvalid as error:
        if over is not None and over != Overrides():  # the command line may be what is wrong
            raise
        raise RequestInvalid(
            f"cannot use the kubeconfig {kubeconfig}: {error}; name another with --kubeconfig"
        ) from error


# Paths of pods, their Events, and pages behind the API server's proxies, with each name as one segment.


def pod_path(pod: Pod) -> str:
    """Path of the pod in the API."""
    return named_path(pod.namespace, pod.name)


def named_path(namespace: str, name: str) -> str:
    """Path of the pod of that name; quoted, so that no name can point elsewhere."""
    return f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}"


def pods_path(namespace: str) -> str:
    """Path of a namespace's pods in the API."""
    return f"/api/v1/namespaces/{segment(namespace)}/pods"


def events_path(namespace: str) -> str:
    """Path of a namespace's Events in the API."""
    return f"/api/v1/namespaces/{segment(namespace)}/events"


def pod_page(namespace: str, name: str, port: int, page: str, scheme: str = "") -> str:
    """Path of a pod's page through the API server (needs get on pods/proxy); by http without a scheme."""
    pod = f"{scheme}:{segment(name)}" if scheme else segment(name)
    return f"/api/v1/namespaces/{segment(namespace)}/pods/{pod}:{port}/proxy{page}"


def service_page(namespace: str, name: str, port: int | str, page: str, scheme: str = "https") -> str:
    """Path of a service's page through the API server (needs get on services/proxy)."""
    return f"/api/v1/namespaces/{segment(namespace)}/services/{scheme}:{segment(name)}:{port}/proxy{page}"


def segment(name: str) -> str:
    """The name, quoted so that it cannot point elsewhere.

    Raises:
        RequestInvalid: it is ``.`` or ``..``, which clients and servers take for other places.
    """
    if name in {".", ".."}:
        raise RequestInvalid(f"{quoted(name)} is no name")
    return quote(name, safe="")


_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class KubeReviews:
    """Sends every review to the API server; nothing is cached. Serves
    :class:`gpu_manager.runtime.inbound.Reviews`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def who(self, token: str) -> Mapping[str, Any] | None:
        """The user's info (username, uid, groups, extra); None if the token is invalid. Raises
        NodeUnready.
        """
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = self._ask("review a token", _TOKENS, body)
        user = status.get("user")
        if status.get("authenticated") is not True or not isinstance(user, dict) or not user.get("username"):
            return None
        return user

    def may(self, user: Mapping[str, Any], right: tuple[str, str], namespace: str) -> bool:
        """True if the user has the right (verb, resource) there (empty: everywhere). Raises NodeUnready."""
        verb, resource = right
        wanted = {"verb": verb, "resource": resource, "version": "v1", "namespace": namespace}
        spec = {
            "user": user["username"],
            "uid": user.get("uid") or "",
            "groups": list(user.get("groups") or ()),
            "extra": user.get("extra") or {},
            "resourceAttributes": wanted,
        }
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        status = self._ask("review what a user may do", _ACCESS, {**kind, "spec": spec})
        return status.get("allowed") is True and status.get("denied") is not True

    def _ask(self, what: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        status = self._connection.request(what, "POST", path, body=body).get("status")
        return status if isinstance(status, dict) else {}

"""The stand-in as one object: start and stop it, use it without HTTP, break it on request."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.runtime import threads
from sandbox.api.access import ADMIN, AccessGate, AccessRules, Authorize, User
from sandbox.api.admission import Hook
from sandbox.api.faults import ApiFaults
from sandbox.api.http import Server
from sandbox.api.kinds import Target, resource_named, resource_of
from sandbox.api.patches import MERGE
from sandbox.api.routing import Proxy, Router
from sandbox.api.selectors import field_selector, label_selector
from sandbox.api.status import ApiError
from sandbox.api.storage import Storage
from sandbox.api.verbs import Call, Verbs

ADMIN_TOKEN = "sandbox-admin"  # noqa: S105 - the sandbox's own, worth nothing elsewhere
_NAMESPACES = "default", "kube-system", "kube-public", "kube-node-lease"
Obj = dict[str, Any]


class StandInApi:
    """An API server on ``127.0.0.1``. What it stores outlives :meth:`stop` and a new :meth:`start`.

    Args:
        port: 0 for any free one; it is kept over restarts.
        tokens: bearer token → user, beside :data:`ADMIN_TOKEN`. A request without a token is anonymous.
        authorize: judges each access (default: everyone may do everything).
        hooks: admission webhooks, mutating ones first.
        bookmark_seconds: how often a watch that asked for bookmarks gets one.
        history: changes kept per resource before older ones are compacted away.
        tls: certificate and key files; None serves plain HTTP.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        tokens: Mapping[str, User] | None = None,
        authorize: Authorize | None = None,
        hooks: Sequence[Hook] = (),
        bookmark_seconds: float = 60.0,
        history: int = 10_000,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self.faults = ApiFaults()
        self._storage = Storage(history)
        self._gate = AccessGate({ADMIN_TOKEN: ADMIN, **(tokens or {})}, authorize)
        self._verbs = Verbs(self._storage, tuple(hooks))
        self._router = Router(self._verbs, self._gate, self.faults, bookmark_seconds)
        self._tls = tls
        self._port = port
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        for name in _NAMESPACES:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    # Life.

    def start(self) -> Self:
        """Listen. Returns itself. Raises NodeUnready: the port is taken, or a TLS file cannot be used."""
        context = None
        try:
            if self._tls is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*self._tls)
            self._server = Server(self._port, self._router, context)
        except OSError as error:
            raise NodeUnready(
                f"the API stand-in cannot listen at {self.url}: {error.strerror or error}"
            ) from error
        self._port = int(self._server.server_address[1])
        self._thread = threads.forever("api-stand-in", self._server.serve)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close the port and all connections at once. Idempotent."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is not None and thread is not None:
            self.faults.release()
            server.shut(thread)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where it listens (or did, or will)."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def kubeconfig(self, path: Path, token: str = ADMIN_TOKEN) -> Path:
        """Write a kubeconfig for the user of ``token``; returns ``path``."""
        cluster: Obj = {"server": self.url}
        if self._tls is not None:
            cluster["certificate-authority"] = str(self._tls[0])
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sandbox", "cluster": cluster}],
            "users": [{"name": "sandbox", "user": {"token": token}}],
            "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": "sandbox"}}],
            "current-context": "sandbox",
        }
        path.write_text(json.dumps(config, indent=2))  # JSON is YAML
        path.chmod(0o600)
        return path

    # Objects, without HTTP but by the same rules. ``resource`` is the plural (``pods``).

    def serve_behind(self, path: str, proxy: Proxy) -> None:
        """Let ``proxy`` answer below ``path``, which ends in ``/proxy``: a pod's or a service's."""
        self._router.proxies[path] = proxy

    def create(self, obj: Mapping[str, Any], namespace: str = "default") -> Obj:
        """Create an object with ``apiVersion`` and ``kind``; returns it as stored. Raises ApiError."""
        resource = resource_of(dict(obj))
        where = str((obj.get("metadata") or {}).get("namespace") or namespace) if resource.namespaced else ""
        return _copy(self._verbs.create(Target(resource, where), dict(obj), Call(ADMIN)).obj)

    def create_written(self, obj: Mapping[str, Any], write: Callable[[int], bytes]) -> None:
        """Create an object without a check, which is sent as ``write`` makes it of its resource version.

        For what only an API server's storage may hold: objects as hostile as their authors can make them, or
        more than this process has memory for. ``obj`` is what selectors see of it.
        """
        resource, meta = resource_of(dict(obj)), dict(obj["metadata"])
        key = (str(meta.get("namespace") or ""), str(meta["name"]))
        self._storage.put_written(resource, key, {**obj, "metadata": meta}, write)

    def get(self, resource: str, name: str, namespace: str = "default") -> Obj | None:
        """The object, or None."""
        try:
            return _copy(self._verbs.get(self._target(resource, name, namespace)).obj)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(
        self, resource: str, namespace: str = "", *, fields: str = "", labels: str = ""
    ) -> Sequence[Obj]:
        """All objects (of a namespace) that both selectors match."""
        found = resource_named(resource)
        by_field, by_label = field_selector(fields, found), label_selector(labels)
        outcome = self._verbs.listing(Target(found, namespace), lambda obj: by_field(obj) and by_label(obj))
        items: Sequence[Obj] = json.loads(outcome.text or b"{}")["items"]
        return items

    def patch(
        self,
        resource: str,
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "default",
        *,
        subresource: str = "",
    ) -> Obj:
        """A merge patch. Raises ApiError."""
        target = self._target(resource, name, namespace, subresource)
        return _copy(self._verbs.patch(target, dict(patch), MERGE, Call(ADMIN)).obj)

    def delete(
        self, resource: str, name: str, namespace: str = "default", *, grace: int | None = None
    ) -> None:
        """Delete; ``grace`` 0 is what a kubelet says at the end (and ``--force``). Raises ApiError."""
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        self._verbs.delete(self._target(resource, name, namespace), options, Call(ADMIN))

    def bind(
        self,
        name: str,
        node: str,
        namespace: str = "default",
        *,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Bind a pod as a scheduler does. Raises ApiError."""
        body = {"metadata": {"name": name, "annotations": dict(annotations or {})}, "target": {"name": node}}
        self._verbs.bind(self._target("pods", name, namespace, "binding"), body, Call(ADMIN))

    def wait(self, resource: str, seen: int = 0, seconds: float = 1.0) -> int:
        """Wait until something is newer than version ``seen``; returns the newest, to be passed next time.

        May return early (a change of another resource counts, :meth:`wake`), at the latest after ``seconds``.
        """
        news = self._storage.news(resource_named(resource))
        with news:
            if self._storage.version <= seen:
                news.wait(seconds)
            return self._storage.version

    def wake(self) -> None:
        """Let everyone in :meth:`wait` return."""
        self._storage.wake()

    def _target(self, resource: str, name: str, namespace: str, subresource: str = "") -> Target:
        found = resource_named(resource)
        return Target(found, namespace if found.namespaced else "", name, subresource)

    def verbs_used(self) -> frozenset[AccessRules]:
        """Every right used over HTTP so far: user, verb, group, resource, namespace."""
        return self._gate.used()

    # Faults. ``match`` is part of the line ``verb resource namespace/name``.

    def fail(self, next_n: int, status: int, *, match: str = "", retry_after: int = 0) -> None:
        """Refuse the next matching requests."""
        self.faults.fail(next_n, status, match=match, retry_after=retry_after)

    def cut(self, next_n: int, *, match: str = "", after: bool = False) -> None:
        """Close the connection of the next matching requests unanswered, before or ``after`` their effect."""
        self.faults.cut(next_n, match=match, after=after)

    def delay(self, seconds: float, *, match: str = "") -> None:
        """Hold every matching request for so long, until ``faults.clear()``."""
        self.faults.delay(seconds, match=match)

    def drop_watches(self, *, mid_line: bool = False) -> None:
        """End all watches now, or break each in the middle of its next line."""
        server = self._server
        if server is None:
            return
        with server.guard:
            watches = set(server.watches)
        for watch in watches:
            if mid_line:
                watch.cut_in_line()
            else:
                watch.stop()

    def lag_watches(self, seconds: float) -> None:
        """Let watches learn of changes so much later (``math.inf``: not before this is called again)."""
        self.faults.watch_lag = seconds
        self._storage.wake()

    def compact(self) -> None:
        """Forget the history: a watch from before now gets 410."""
        self._storage.compact()
        self._storage.wake()

    def watching(self) -> int:
        """How many watches are open."""
        server = self._server
        if server is None:
            return 0
        with server.guard:
            return len(server.watches)


def _copy(obj: Mapping[str, Any]) -> Obj:
    copied: Obj = json.loads(json.dumps(obj))
    return copied

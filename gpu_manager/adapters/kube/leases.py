"""What replicas of the admission service share at the API server: the leader's Lease, a text, the mark of a
new leader, the certificate.

:class:`KubeLease` serves ``admission.extender.leader_election.LeaseApi``. :class:`KubeTextRecord` keeps a
text in an annotation of a Lease of its own (``admission.quota.claims_quota.SharedText``). :class:`PodMark`
changes the replica's own pod, after which a watch of pods has shown all that came before.
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gpu_manager.adapters.kube.connection import Connection, Refused, named_path
from gpu_manager.domain.contract import LEADER_SINCE
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.untrusted import annotations_of, mapping, text
from gpu_manager.ports.api_server import LeaseRecord
from gpu_manager.ports.clock import Clock

# The Secret that holds the admission service's certificate, and the webhook configurations that trust it.
# Every write names the version that it replaces, so that of two concurrent replicas one is refused.


_STRATEGIC: Final = "application/strategic-merge-patch+json"
_GROUP: Final = "/apis/admissionregistration.k8s.io/v1"
_KINDS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_FORBIDDEN: Final = 403


class KubeCertificates:
    """One Secret, and the webhook configurations of some names, behind
    ``admission.serving.authority.Vault``.
    """

    def __init__(self, connection: Connection, namespace: str, secret: str, names: Sequence[str]) -> None:
        """``names`` are those of the mutating and validating configurations; absent ones are left out."""
        self._connection = connection
        self._secrets = f"/api/v1/namespaces/{namespace}/secrets"
        self._namespace = namespace
        self._secret = secret
        self._names = tuple(names)

    def load(self) -> tuple[Mapping[str, bytes], str] | None:
        """The Secret's data and version; None if there is none. Raises NodeUnready."""
        found = self._connection.read("read the certificate's Secret", f"{self._secrets}/{self._secret}")
        if found is None:
            return None
        data = found.get("data") or {}
        return {key: _decoded(value) for key, value in data.items()}, str(
            found["metadata"]["resourceVersion"]
        )

    def save(self, data: Mapping[str, bytes], version: str | None) -> bool:
        """Replace the data of that version (None: create the Secret). Raises NodeUnready."""
        encoded: dict[str, str | None] = {k: base64.b64encode(v).decode() for k, v in data.items()}
        if version is None:
            meta = {"name": self._secret, "namespace": self._namespace}
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": encoded, "type": "Opaque"}
            try:
                made = self._connection.write("create the certificate's Secret", "POST", self._secrets, body)
                return made is not None
            except Refused as error:
                if error.code != _FORBIDDEN:
                    raise
                command = f"kubectl -n {self._namespace} create secret generic {self._secret}"
                raise NodeUnready(
                    f"the Secret {self._namespace}/{self._secret} is missing, and this account may not "
                    f"make it: install the chart again, or run `{command}`"
                ) from error
        found = self.load()
        if found is None or found[1] != version:
            return False
        encoded |= dict.fromkeys(found[0].keys() - data.keys())  # null removes what is not kept
        body = {"metadata": {"resourceVersion": version}, "data": encoded}
        what, path = "write the certificate's Secret", f"{self._secrets}/{self._secret}"
        return self._connection.write(what, "PATCH", path, body) is not None

    def anchors(self) -> Sequence[tuple[str, str, Mapping[str, bytes]]]:
        """(path, version, webhook name → caBundle) of every configuration that exists. Raises NodeUnready."""
        anchors = []
        for path in (f"{_GROUP}/{kind}/{name}" for kind in _KINDS for name in self._names):
            found = self._connection.read("read the webhook configuration", path)
            if found is not None:
                bundles = {
                    str(hook["name"]): _decoded((hook.get("clientConfig") or {}).get("caBundle"))
                    for hook in found.get("webhooks") or ()
                }
                anchors.append((path, str(found["metadata"]["resourceVersion"]), bundles))
        return anchors

    def anchor(self, name: str, version: str, bundles: Mapping[str, bytes]) -> bool:
        """Write the caBundle of each webhook of that version. Raises NodeUnready."""
        hooks = [
            {"name": hook, "clientConfig": {"caBundle": base64.b64encode(bundle).decode()}}
            for hook, bundle in bundles.items()
        ]
        body = {"metadata": {"resourceVersion": version}, "webhooks": hooks}
        what = "write the webhook configuration"
        return self._connection.write(what, "PATCH", name, body, content_type=_STRATEGIC) is not None


def _decoded(value: object) -> bytes:
    try:
        return base64.b64decode(str(value or ""), validate=True)
    except ValueError:
        return b""


_LONGEST: Final = 3600.0


class _VersionedLease:
    """One Lease, which is written on condition of the version that was read or written last."""

    def __init__(self, connection: Connection, namespace: str, name: str) -> None:
        self._connection = connection
        self._name = name
        self._meta = {"name": name, "namespace": namespace}
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._last: dict[str, Any] | None = None

    def _get(self) -> dict[str, Any] | None:
        """The Lease by a quorum read."""
        self._last = self._connection.read(f"read the Lease {self._name}", f"{self._all}/{self._name}")
        return self._last

    def _put(self, changed: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
        old = self._last or {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        method, path = ("PUT", f"{self._all}/{self._name}") if self._last else ("POST", self._all)
        body = {**old, **changed, "metadata": {**metadata, **self._meta}}
        made = self._connection.write(f"write the Lease {self._name}", method, path, body)
        if made is not None:
            self._last = made
        return made is not None


class KubeLease(_VersionedLease):
    """Reads one Lease, and writes it on condition of the version that was read."""

    def __init__(self, connection: Connection, clock: Clock, namespace: str, name: str) -> None:
        super().__init__(connection, namespace, name)
        self._clock = clock

    def read(self) -> LeaseRecord | None:
        """The Lease by a quorum read; None if there is none. Raises NodeUnready: no answer."""
        found = self._get()
        return None if found is None else _record(found)

    def write(self, holder: str, seconds: float, transitions: int) -> bool:
        """Renew or take what was last read; False if it has changed since. Raises NodeUnready."""
        now = datetime.fromtimestamp(self._clock.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = self._last or {}
        before = old.get("spec") or {}
        taken = before.get("holderIdentity") != holder
        spec = {
            **before,
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, round(seconds)),
            "renewTime": now,
            "acquireTime": now if taken else before.get("acquireTime") or now,
            "leaseTransitions": transitions,
        }
        return self._put({"spec": spec}, old.get("metadata") or {})


def _record(found: dict[str, Any]) -> LeaseRecord:
    spec = found.get("spec")
    if not isinstance(spec, dict):
        raise NodeUnready("the API server answered with something that is no Lease")
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    return LeaseRecord(
        holder=str(spec.get("holderIdentity") or ""),
        seconds=min(_LONGEST, float(seconds)) if isinstance(seconds, int) else 0.0,
        transitions=transitions if isinstance(transitions, int) else 0,
        # Not the version: that changes with any label, and would pass for a renewal.
        mark=" ".join(str(spec.get(key)) for key in ("holderIdentity", "acquireTime", "renewTime")),
    )


class KubeTextRecord(_VersionedLease):
    """Reads the text, and writes it on condition of the version that was read or written last."""

    def __init__(self, connection: Connection, namespace: str, name: str, annotation: str) -> None:
        super().__init__(connection, namespace, name)
        self._annotation = annotation

    def read(self) -> str | None:
        """The text by a quorum read; None if there is none. Raises NodeUnready: no answer."""
        self._last = None
        told = annotations_of(self._get()).get(self._annotation)
        return None if told is None else text(told)

    def write(self, value: str) -> bool:
        """Replace the text; False if another has changed it since. Raises NodeUnready: no answer."""
        before = mapping(mapping(self._last).get("metadata"))
        annotations = {**mapping(before.get("annotations")), self._annotation: value}
        return self._put({}, {**before, "annotations": annotations})


class PodMark:
    """The annotation :data:`LEADER_SINCE` of the pod of that name, if it has that UID: since when it leads,
    and in which term.
    """

    def __init__(self, connection: Connection, clock: Clock, namespace: str, name: str, uid: str) -> None:
        self._connection = connection
        self._clock = clock
        self._namespace = namespace
        self._name = name
        self._uid = uid
        self._socket: socket.socket | None = None  # held as long as the process lives

    def set(self, term: str) -> str:
        """Write the present time and the term; returns the resourceVersion that the pod has then.

        Raises:
            NodeUnready: there is no such pod, the API server refuses, or no answer comes.
        """
        if not self._name:
            raise NodeUnready("this replica does not know its pod: no --pod-name")
        written = datetime.fromtimestamp(self._clock.now(), UTC).isoformat()
        said = f"{written} {term}" if self._is_alone() else written
        made = self._connection.request(
            f"annotate the pod {self._namespace}/{self._name}",
            "PATCH",
            named_path(self._namespace, self._name),
            body={"metadata": {"annotations": {LEADER_SINCE: said}}},
        )
        return str(made["metadata"]["resourceVersion"])

    def term(self) -> str:
        """The term that was written last; empty if none was, the UID is not known, or another process of the
        pod is alive: both would take themselves for the one that led. Raises NodeUnready: no answer.
        """
        if not self._is_alone():
            return ""
        path = named_path(self._namespace, self._name)
        found = self._connection.read(f"read the pod {self._namespace}/{self._name}", path)
        meta = mapping(mapping(found).get("metadata"))
        if meta.get("uid") != self._uid:
            return ""
        return text(mapping(meta.get("annotations")).get(LEADER_SINCE)).partition(" ")[2]

    def _is_alone(self) -> bool:
        """Take the pod's name among the sockets of its network, which containers of a pod share: the kernel
        gives it to one process at a time, and frees it with that. False without a UID.
        """
        if self._socket is None and self._uid:
            found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                found.bind(f"\0{self._uid}.{LEADER_SINCE}")
            except OSError:
                found.close()
                return False
            self._socket = found
        return self._socket is not None

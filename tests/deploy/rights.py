"""Writes with the tokens of the chart's own accounts: some that they need, and some past their own names.

For a real API server with the chart installed in kube-system. What an account could do once it is lost is tried
with a token as the kubelet has it made for the account's pod.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu_manager.domain import contract
from tests.deploy.api_server import Server

FORBIDDEN: Final = 403
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
PODS: Final = "/api/v1/namespaces/{}/pods"
SYSTEM, TEAM = "/api/v1/namespaces/kube-system", "/api/v1/namespaces/team-b"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/team-b/resourceclaims"
_POLICY: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
UID: Final = "the pod's"  # in an Eviction: the UID of the pod as it is
_WHITHER: Final = {"apiVersion": "v1", "kind": "Node", "name": "n2"}


@dataclass(frozen=True, slots=True)
class Write:
    """``method`` is PATCH (merge), STRATEGIC, POST, PUT or DELETE."""

    account: str
    what: str
    path: str
    body: Any = None
    method: str = "PATCH"


def _annotated(key: str, value: str = "x") -> dict[str, Any]:
    return {"metadata": {"annotations": {key: value}}}


def _event(
    name: str,
    component: str,
    host: str,
    of: tuple[str, str] = ("team-b", "theirs"),
    reason: str = contract.EVENT_EVADER,
    kind: str = "Pod",
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": of[0]},
        "involvedObject": {"apiVersion": "v1", "kind": kind, "namespace": of[0], "name": of[1]},
        "source": {"component": component, "host": host},
        "reportingComponent": component,
        "reportingInstance": host,
        "type": "Warning",
        "reason": reason,
        "message": "m",
    }


def _object(api: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, **fields.pop("metadata", {})},
        **fields,
    }


def _image(name: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c", "image": name}]}}


def _binding(pod: str, **annotations: str) -> dict[str, Any]:
    return _object("v1", "Binding", pod, metadata={"annotations": annotations}, target=_WHITHER)


def _eviction(namespace: str, pod: str, **options: Any) -> dict[str, Any]:
    """The pod's UID is filled in where ``preconditions`` has a place for it."""
    meta = {"namespace": namespace}
    return _object(
        "policy/v1", "Eviction", pod, metadata=meta, **({"deleteOptions": options} if options else {})
    )


def _secret(name: str, kind: str) -> dict[str, Any]:
    meta = {"annotations": {"kubernetes.io/service-account.name": "other"}}
    return _object("v1", "Secret", name, metadata=meta, type=kind)


_MINE, _THEIRS = PODS.format("team-a") + "/mine", PODS.format("team-b") + "/theirs"
_STATUS: Final = f"{_THEIRS}/status"
_QUOTA: Final = f"{SYSTEM}/configmaps/gpuquota"
_CLUSTER_ADMIN: Final = _object(
    "rbac.authorization.k8s.io/v1",
    "ClusterRoleBinding",
    "mine",
    roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    subjects=[{"kind": "Group", "name": "x", "apiGroup": "rbac.authorization.k8s.io"}],
)
_BINDINGS: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_LEASE: Final = _object("coordination.k8s.io/v1", "Lease", "foreign", spec={"holderIdentity": "me"})
_CLAIM: Final = _object(
    "resource.k8s.io/v1",
    "ResourceClaim",
    "taken",
    spec={"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}},
)

OWN: Final = (
    Write("agent", "what it booked, on a pod of its node", _MINE, _annotated(contract.ALLOCATION, "{}")),
    Write("agent", "that a pod of its node is to be evicted", _MINE, _annotated(contract.EVICT, "{}")),
    Write(
        "evictor",
        "the end of a pod with a mark",
        f"{PODS.format('team-b')}/goes/eviction",
        _eviction("team-b", "goes", preconditions={"uid": UID}),
        "POST",
    ),
    Write(
        "evictor",
        "its Event",
        f"{TEAM}/events",
        _event("gone", "gpu-manager-evictor", "x", reason=contract.EVENT_EVICTED),
        "POST",
    ),
    Write("agent", "its node's inventory", "/api/v1/nodes/n1", _annotated(contract.INVENTORY)),
    Write(
        "agent",
        "an Event about a pod of its node",
        "/api/v1/namespaces/team-a/events",
        _event("told", "gpu-manager", "n1", ("team-a", "mine")),
        "POST",
    ),
    Write(
        "agent",
        "an Event about its node",
        "/api/v1/namespaces/default/events",
        _event("own", "gpu-manager", "n1", ("default", "n1"), contract.EVENT_OTHER_PLUGIN, "Node"),
        "POST",
    ),
    Write("admission", "that a pod's quota has changed", _THEIRS, _annotated(contract.QUOTA_SEEN)),
    Write("admission", "the answer to a resize", _THEIRS, _annotated(contract.RESIZED)),
    Write(
        "admission",
        "the leader's label on its own pod",
        f"{SYSTEM}/pods/gpu-quota-admission-x",
        {"metadata": {"labels": {contract.LEADER_LABEL: "true"}}},
    ),
    Write(
        "admission",
        "when it began to lead, on its own pod",
        f"{SYSTEM}/pods/gpu-quota-admission-x",
        _annotated(contract.LEADER_SINCE),
    ),
    Write(
        "admission",
        "what its release can do, on its own pod",
        f"{SYSTEM}/pods/gpu-quota-admission-x",
        _annotated(contract.FEATURES, contract.MULTI_CARD),
    ),
    Write("admission", "its Lease", LEASES, _LEASE | {"metadata": {"name": "gpu-quota-admission"}}, "POST"),
    Write(
        "admission",
        "its certificate",
        f"{SYSTEM}/secrets/{contract.ADMISSION_SECRET}",
        {"data": {"tls.crt": "eA=="}},
    ),
    Write(
        "admission",
        "why a pod waits",
        f"{PODS.format('team-b')}/waits/status",
        {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}},
        "STRATEGIC",
    ),
    Write(
        "admission",
        "a Binding with what it reserves",
        f"{PODS.format('team-b')}/waits/binding",
        _binding("waits", **{contract.ALLOCATION: "{}", f"{contract.PREDICATE_INDEX}0": "1"}),
        "POST",
    ),
    Write(
        "admission",
        "an Event of its own name",
        f"{TEAM}/events",
        _event("placed", "gpu-quota-admission", "x", reason=contract.EVENT_NOT_PLACED),
        "POST",
    ),
    Write(
        "admission",
        "an Event of the scheduler beside it",
        f"{TEAM}/events",
        _event("scheduled", "vcuda-scheduler", "x", reason="Scheduled"),
        "POST",
    ),
    Write(
        "admission",
        "the node of a volume claim",
        f"{TEAM}/persistentvolumeclaims/data",
        _annotated("volume.kubernetes.io/selected-node", "n1"),
    ),
    Write(
        "admission",
        "a free volume's claim",
        "/api/v1/persistentvolumes/free",
        {"spec": {"claimRef": {"namespace": "team-b", "name": "data"}}},
    ),
    Write("admission", "an end to a pod that is preempted", f"{PODS.format('team-b')}/low", None, "DELETE"),
)

PAST: Final = (
    Write(
        "agent",
        "the end of a pod of another node",
        f"{_THEIRS}/eviction",
        _eviction("team-b", "theirs", preconditions={"uid": UID}),
        "POST",
    ),
    Write("agent", "that a pod of another node is to be evicted", _THEIRS, _annotated(contract.EVICT, "{}")),
    Write("admission", "that a pod is to be evicted", _THEIRS, _annotated(contract.EVICT, "{}")),
    Write(
        "admission",
        "the end of a pod, by an Eviction",
        f"{_THEIRS}/eviction",
        _eviction("team-b", "theirs", preconditions={"uid": UID}),
        "POST",
    ),
    Write("evictor", "that a pod is to be evicted", _THEIRS, _annotated(contract.EVICT, "{}")),
    Write("evictor", "the end of a pod, past budgets", _THEIRS, None, "DELETE"),
    Write(
        "evictor",
        "the end of a pod at once",
        f"{_THEIRS}/eviction",
        _eviction("team-b", "theirs", preconditions={"uid": UID}, gracePeriodSeconds=0),
        "POST",
    ),
    Write(
        "evictor",
        "the end of whatever pod has a name",
        f"{_THEIRS}/eviction",
        _eviction("team-b", "theirs"),
        "POST",
    ),
    Write(
        "evictor",
        "the end of a system pod",
        f"{SYSTEM}/pods/dns/eviction",
        _eviction("kube-system", "dns", preconditions={"uid": UID}),
        "POST",
    ),
    Write(
        "evictor",
        "an Event in an agent's name",
        f"{TEAM}/events",
        _event("d", "gpu-manager", "n1"),
        "POST",
    ),
    Write(
        "evictor",
        "an Event of another reason",
        f"{TEAM}/events",
        _event("e", "gpu-manager-evictor", "x"),
        "POST",
    ),
    Write("evictor", "a Secret", f"{SYSTEM}/secrets", _secret("c", "Opaque"), "POST"),
    Write("evictor", "its own policy", f"{_POLICY}/vcuda-evictions", None, "DELETE"),
    Write("evictor", "a right of its own", _BINDINGS, _CLUSTER_ADMIN, "POST"),
    Write("agent", "the image of a pod of its node", _MINE, _image("evil"), "STRATEGIC"),
    Write("agent", "a label of a pod of its node", _MINE, {"metadata": {"labels": {"app": "x"}}}),
    Write("agent", "a finalizer of a pod of its node", _MINE, {"metadata": {"finalizers": ["x.io/y"]}}),
    Write("agent", "a foreign annotation of its node's pod", _MINE, _annotated(contract.CORE_LIMIT, "100")),
    Write("agent", "an answer that the scheduler gives", _MINE, _annotated(contract.RESIZED)),
    Write("agent", "the end of a pod of its node", _MINE, {"spec": {"activeDeadlineSeconds": 1}}),
    Write("agent", "a pod of another node", _THEIRS, _annotated(contract.ALLOCATION, "{}")),
    Write("agent", "another node", "/api/v1/nodes/n2", _annotated(contract.INVENTORY)),
    Write("agent", "a role of its node", "/api/v1/nodes/n1", {"metadata": {"labels": {"node-role": "x"}}}),
    Write("agent", "its node's taints", "/api/v1/nodes/n1", {"spec": {"taints": []}}),
    Write(
        "agent",
        "an Event in the scheduler's name",
        f"{TEAM}/events",
        _event("a", "vcuda-scheduler", "n1"),
        "POST",
    ),
    Write(
        "agent",
        "an Event of another node's agent",
        f"{TEAM}/events",
        _event("b", "gpu-manager", "n2"),
        "POST",
    ),
    Write(
        "agent",
        "an Event of another reason",
        f"{TEAM}/events",
        _event("f", "gpu-manager", "n1", reason="Killing"),
        "POST",
    ),
    Write(
        "agent",
        "an Event about another node",
        "/api/v1/namespaces/default/events",
        _event("g", "gpu-manager", "n1", ("default", "n2"), kind="Node"),
        "POST",
    ),
    Write("agent", "another's Event, told anew", f"{TEAM}/events/old", {"message": "forged"}),
    Write("agent", "a right of its own", _BINDINGS, _CLUSTER_ADMIN, "POST"),
    Write("agent", "a Secret", f"{SYSTEM}/secrets", _secret("b", "Opaque"), "POST"),
    Write("agent", "its own policy", f"{_POLICY}/vcuda-agent", None, "DELETE"),
    Write("admission", "the image of a tenant's pod", _THEIRS, _image("evil"), "STRATEGIC"),
    Write("admission", "the image of a system pod", f"{SYSTEM}/pods/dns", _image("evil"), "STRATEGIC"),
    Write("admission", "a label by which a Service selects", _THEIRS, {"metadata": {"labels": {"app": "x"}}}),
    Write(
        "admission",
        "the leader's label on a foreign pod",
        f"{SYSTEM}/pods/dns",
        {"metadata": {"labels": {contract.LEADER_LABEL: "true"}}},
    ),
    Write("admission", "what the agent says it booked", _THEIRS, _annotated(contract.ALLOCATION, "{}")),
    Write("admission", "a feature of a system pod", f"{SYSTEM}/pods/dns", _annotated(contract.FEATURES)),
    Write("admission", "a foreign annotation", _THEIRS, _annotated("x")),
    Write("admission", "a finalizer", _THEIRS, {"metadata": {"finalizers": ["x.io/y"]}}),
    Write("admission", "the end of a pod", _THEIRS, {"spec": {"activeDeadlineSeconds": 1}}),
    Write("admission", "the phase of a pod", _STATUS, {"status": {"phase": "Failed"}}, "STRATEGIC"),
    Write("admission", "the address of a pod", _STATUS, {"status": {"podIP": "10.1.1.1"}}, "STRATEGIC"),
    Write(
        "admission",
        "that a pod is ready",
        _STATUS,
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        "STRATEGIC",
    ),
    Write("admission", "the end of a system pod", f"{SYSTEM}/pods/dns", None, "DELETE"),
    Write(
        "admission",
        "a Binding with a foreign annotation",
        f"{PODS.format('team-b')}/free/binding",
        _binding("free", x="y"),
        "POST",
    ),
    Write(
        "admission",
        "a token of another account",
        f"{SYSTEM}/secrets",
        _secret("t", "kubernetes.io/service-account-token"),
        "POST",
    ),
    Write("admission", "a foreign Secret", f"{SYSTEM}/secrets/foreign", {"data": {"x": "eA=="}}),
    Write("admission", "a foreign Lease", LEASES, _LEASE, "POST"),
    Write("admission", "the Lease of the cluster's scheduler", f"{LEASES}/kube-scheduler", None, "PUT"),
    Write(
        "admission", "an Event in the kubelet's name", f"{TEAM}/events", _event("c", "kubelet", "n1"), "POST"
    ),
    Write(
        "admission",
        "an Event of an agent's reason",
        f"{TEAM}/events",
        _event("h", "gpu-quota-admission", "x"),
        "POST",
    ),
    Write("admission", "another's Event, told anew", f"{TEAM}/events/old", {"message": "forged"}),
    Write(
        "admission",
        "a label of a volume claim",
        f"{TEAM}/persistentvolumeclaims/data",
        {"metadata": {"labels": {"a": "b"}}},
    ),
    Write(
        "admission",
        "what becomes of a volume",
        "/api/v1/persistentvolumes/held",
        {"spec": {"persistentVolumeReclaimPolicy": "Delete"}},
    ),
    Write(
        "admission",
        "a volume that somebody has",
        "/api/v1/persistentvolumes/held",
        {"spec": {"claimRef": {"namespace": "team-a", "name": "mine"}}},
    ),
    Write("admission", "a claim of its own making", CLAIMS, _CLAIM, "POST"),
    Write("admission", "a tenant's claim, deleted", f"{CLAIMS}/theirs", None, "DELETE"),
    Write("admission", "the quota", _QUOTA, {"data": {"gpu_quota": "{}"}}),
    Write("admission", "its own policy", f"{_POLICY}/vcuda-admission", None, "DELETE"),
    Write("admission", "a right of its own", _BINDINGS, _CLUSTER_ADMIN, "POST"),
)


class Accounts:
    """What the writes are about, made by the administrator, and the accounts' own tokens."""

    def __init__(self, server: Server) -> None:
        self._server = server
        for name in ("team-a", "team-b"):
            server.make("/api/v1/namespaces", "Namespace", name)
        for name in ("n1", "n2"):
            server.make(
                "/api/v1/nodes", "Node", name, spec={"taints": [{"key": "a", "effect": "NoSchedule"}]}
            )
        for name in ("other", "default"):
            server.make(f"{SYSTEM}/serviceaccounts", "ServiceAccount", name)
        agent = self._pod("kube-system", "gpu-manager-daemonset-x", "n1", serviceAccountName="gpu-manager")
        admission = self._pod(
            "kube-system", "gpu-quota-admission-x", "n2", serviceAccountName="gpu-quota-admission"
        )
        self._pod("kube-system", "dns", "n2", priorityClassName="system-cluster-critical")
        self._pod("team-a", "mine", "n1")
        self._pod("team-b", "theirs", "n2")
        self._pod("team-b", "goes", "n2")
        for name in ("low", "waits", "free"):
            self._pod("team-b", name)
        self._things()
        evictor = self._pod(
            "kube-system", "gpu-manager-evictor-x", "n2", serviceAccountName="gpu-manager-evictor"
        )
        self._tokens = {
            "evictor": server.token("gpu-manager-evictor", evictor),
            "agent": server.token("gpu-manager", agent),
            "admission": server.token("gpu-quota-admission", admission),
        }

    def _pod(self, namespace: str, name: str, node: str = "", **spec: Any) -> dict[str, Any]:
        where = {"nodeName": node} if node else {}
        containers = [{"name": "c", "image": "i"}]
        return self._server.make(
            PODS.format(namespace), "Pod", name, spec={"containers": containers, **where, **spec}
        )

    def _things(self) -> None:
        server = self._server
        server.make(f"{SYSTEM}/secrets", "Secret", "foreign")
        server.make(LEASES, "Lease", "kube-scheduler", spec={"holderIdentity": "kube-scheduler"})
        code, text = server.ask("POST", f"{TEAM}/events", _event("old", "kubelet", "n2"))
        assert code == 201, text
        size = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]}
        server.make(f"{TEAM}/persistentvolumeclaims", "PersistentVolumeClaim", "data", spec=size)
        volume = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/x"},
            "persistentVolumeReclaimPolicy": "Retain",
        }
        held = {**volume, "claimRef": {"namespace": "team-b", "name": "data"}}
        server.make("/api/v1/persistentvolumes", "PersistentVolume", "free", spec=volume)
        server.make("/api/v1/persistentvolumes", "PersistentVolume", "held", spec=held)
        code, text = server.ask("POST", CLAIMS, _CLAIM | {"metadata": {"name": "theirs"}})
        assert code == 201, text

    def settle(self) -> None:
        """Wait until the API server has taken the policies in, within a second or so."""
        tick = threading.Event()
        for attempt in range(100):
            probe = {"metadata": {"labels": {"probe": str(attempt)}}}
            if self.write(Write("agent", "a label", _MINE, probe))[0] == FORBIDDEN:
                return
            tick.wait(0.2)
        raise AssertionError("the policies were never in force")

    def kubeconfig(self, account: str) -> Path:
        """A file with which a program has the account's rights."""
        config = json.loads((self._server.directory / "kubeconfig").read_text())
        config["users"][0]["user"]["token"] = self._tokens[account]
        path = self._server.directory / f"{account}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def write(self, write: Write) -> tuple[int, str]:
        """Status and text."""
        method, kind = {
            "PATCH": ("PATCH", MERGE),
            "STRATEGIC": ("PATCH", STRATEGIC),
        }.get(write.method, (write.method, "application/json"))
        body = write.body
        if write.method == "PUT":
            body = json.loads(self._server.ask("GET", write.path)[1])
            body["spec"]["holderIdentity"] = "me"
        if write.path.endswith("/eviction"):
            pod = json.loads(self._server.ask("GET", write.path.removesuffix("/eviction"))[1])
            uid = pod["metadata"].get("uid", "gone")  # without policies some writes before did end it
            body = json.loads(json.dumps(body).replace(UID, uid))
        return self._server.ask(method, write.path, body, token=self._tokens[write.account], kind=kind)

"""Pods beside those that hold cards: their host CPU on each node, nodes whose agent's pod is not ready, what
replicas of the service say; pods deleted by force.

A kubelet reports an agent whose container was killed within a second or two, and the devices that it withdrew
only with its next status: a pod bound in between fails for good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from admission.cluster.pod_view import asked
from admission.cluster.trim import ADMISSION, AGENT, COMPONENT
from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.contract import FEATURES, TerminatingShare
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.untrusted import annotations_of, at, mappings, text

# Pods deleted by force: they count on their node until it reports that their processes have ended.
# The API forgets such a pod at once, the kubelet ends its processes after that, and the node's inventory is
# updated later still. Meanwhile their shares must not be promised to other pods.


SILENCE_SECONDS: Final = 60.0  # an agent that has said nothing of a deleted pod by then is taken for dead


class DeletedPods:
    """By node. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, dict[PodUid, tuple[TerminatingShare, ...]]] = {}
        self._until: dict[PodUid, tuple[float, str]] = {}  # the end of the silence, and the node
        self._new: dict[PodUid, str] = {}  # not seen by :meth:`expire` yet

    def add(self, uid: PodUid, report: NodeReport, held: tuple[TerminatingShare, ...]) -> None:
        """The API has forgotten the pod before it ended on that node.

        Pods are ignored if the node's agent does not report such pods, or has reported this one already.
        """
        if held and report.released is not None and uid not in _told(report):
            self._held.setdefault(report.name, {})[uid] = held
            self._new[uid] = report.name

    def copy(self) -> DeletedPods:
        """An independent copy."""
        other = DeletedPods()
        other._held = {node: held.copy() for node, held in self._held.items()}
        other._until, other._new = self._until.copy(), self._new.copy()
        return other

    def on(self, node: str) -> tuple[TerminatingShare, ...]:
        """The shares of such pods on the node."""
        return tuple(share for held in self._held.get(node, {}).values() for share in held)

    def hear(self, report: NodeReport) -> bool:
        """Apply the node's new inventory. True if it reports such pods, which then count as reported."""
        told = _told(report) & self._held.get(report.name, {}).keys()
        for uid in told:
            self._drop(uid, report.name)
        return bool(told)

    def forget(self, node: str) -> None:
        """The node is gone."""
        for uid in list(self._held.get(node, ())):
            self._drop(uid, node)

    def expire(self, now: float) -> set[str]:
        """Drop pods that waited for :data:`SILENCE_SECONDS`; returns the changed nodes."""
        self._until |= {uid: (now + SILENCE_SECONDS, node) for uid, node in self._new.items()}
        self._new.clear()
        silent = [(uid, node) for uid, (until, node) in self._until.items() if until <= now]
        for uid, node in silent:
            self._drop(uid, node)
        return {node for _, node in silent}

    def _drop(self, uid: PodUid, node: str) -> None:
        held = self._held.get(node, {})
        held.pop(uid, None)
        if not held:
            self._held.pop(node, None)
        self._until.pop(uid, None)
        self._new.pop(uid, None)


def _told(report: NodeReport) -> set[PodUid]:
    """The deleted pods of which the node has told."""
    names: Iterable[str] = (*(report.released or ()), *(one.pod for one in report.lingering))
    return {PodUid(name) for name in names}


_ENDED = ("Succeeded", "Failed")


class OtherPods:
    """Host CPU of each such pod on its node. Every change returns the nodes it affects. Not thread-safe.

    The agents' pods are those of ``namespace``, where no tenant can create one.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._pods: dict[PodUid, tuple[str, int, bool | None]] = {}
        self._used: dict[str, int] = {}
        self._agents: dict[str, dict[PodUid, bool]] = {}  # node → the agents' pods there: ready?
        self._replicas: dict[PodUid, tuple[str, frozenset[str]]] = {}  # of this service that may serve

    def cpu(self, node: str) -> int:
        """Thousandths of a CPU that these pods take of a node."""
        return self._used.get(node, 0)

    def agent_away(self, node: str) -> bool:
        """True if the kubelet reports every agent's pod there as not ready; False if there is none."""
        agents = self._agents.get(node)
        return agents is not None and not any(agents.values())

    def take(self, uid: PodUid, obj: Mapping[str, Any]) -> set[str]:
        """Apply the pod's object; a status without relevant changes has no effect."""
        node = text(at(obj, "spec").get("nodeName"))
        if not uid or not node or at(obj, "status").get("phase") in _ENDED:
            return self.drop(uid)
        self._note_replica(uid, obj)
        cpu, ready = asked(obj), self._agent_ready(obj)
        if self._pods.get(uid) == (node, cpu, ready):
            return set()
        touched = self._forget(uid)
        self._pods[uid] = node, cpu, ready
        self._used[node] = self._used.get(node, 0) + cpu
        if ready is not None:
            self._agents.setdefault(node, {})[uid] = ready
        return touched | {node}

    def _note_replica(self, uid: PodUid, obj: Mapping[str, Any]) -> None:
        """One whose containers have not started is called by no API server, whatever release it is of."""
        statuses = mappings(at(obj, "status").get("containerStatuses")) if self._is_of(obj, ADMISSION) else ()
        if statuses and all(one.get("started") is True for one in statuses):
            features = text(annotations_of(obj).get(FEATURES)).split(",")
            name = f"{self._namespace}/{at(obj, 'metadata').get('name')}"
            self._replicas[uid] = name, frozenset(map(str.strip, features))
        else:
            self._replicas.pop(uid, None)

    def _agent_ready(self, obj: Mapping[str, Any]) -> bool | None:
        """None for a pod that is no agent's, or of which no kubelet has said anything."""
        statuses = mappings(at(obj, "status").get("containerStatuses"))
        if not (statuses and self._is_of(obj, AGENT)):
            return None
        return all(one.get("ready") is True for one in statuses)

    def _is_of(self, obj: Mapping[str, Any], component: str) -> bool:
        meta = at(obj, "metadata")
        return meta.get("namespace") == self._namespace and at(meta, "labels").get(COMPONENT) == component

    def without_feature(self, feature: str) -> str:
        """A replica of this service that runs, and whose pod does not name the feature; empty for none."""
        return min(
            (name for name, features in self._replicas.values() if feature not in features), default=""
        )

    def drop(self, uid: PodUid) -> set[str]:
        """The pod is gone."""
        self._replicas.pop(uid, None)
        return self._forget(uid)

    def _forget(self, uid: PodUid) -> set[str]:
        node, cpu, ready = self._pods.pop(uid, ("", 0, None))
        if not node:
            return set()
        if ready is not None:
            del self._agents[node][uid]
            if not self._agents[node]:
                del self._agents[node]
        self._used[node] -= cpu
        if not self._used[node]:
            del self._used[node]
        return {node}

    def copy(self) -> OtherPods:
        """An independent copy."""
        other = OtherPods(self._namespace)
        other._pods, other._used = self._pods.copy(), self._used.copy()
        other._agents = {node: agents.copy() for node, agents in self._agents.items()}
        other._replicas = self._replicas.copy()
        return other

    def keep(self, uids: Collection[PodUid]) -> set[str]:
        """All pods but these are gone."""
        gone = [uid for uid in self._pods if uid not in uids]
        return set().union(*map(self.drop, gone))

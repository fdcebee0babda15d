"""Pods without cards: their host CPU on each node, and nodes whose agent's pod is not ready.

A kubelet reports an agent whose container was killed within a second or two, and the devices that it withdrew
only with its next status: a pod bound in between fails for good.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from admission.cluster.pod_view import asked
from admission.cluster.trim import AGENT, COMPONENT
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.untrusted import at, mappings, text

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
        cpu, ready = asked(obj), self._agent_ready(obj)
        if self._pods.get(uid) == (node, cpu, ready):
            return set()
        touched = self.drop(uid)
        self._pods[uid] = node, cpu, ready
        self._used[node] = self._used.get(node, 0) + cpu
        if ready is not None:
            self._agents.setdefault(node, {})[uid] = ready
        return touched | {node}

    def _agent_ready(self, obj: Mapping[str, Any]) -> bool | None:
        """None for a pod that is no agent's, or of which no kubelet has said anything."""
        meta, statuses = at(obj, "metadata"), mappings(at(obj, "status").get("containerStatuses"))
        own = meta.get("namespace") == self._namespace and at(meta, "labels").get(COMPONENT) == AGENT
        if not (statuses and own):
            return None
        return all(one.get("ready") is True for one in statuses)

    def drop(self, uid: PodUid) -> set[str]:
        """The pod is gone."""
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
        return other

    def keep(self, uids: Collection[PodUid]) -> set[str]:
        """All pods but these are gone."""
        gone = [uid for uid in self._pods if uid not in uids]
        return set().union(*map(self.drop, gone))

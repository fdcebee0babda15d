"""Pods that ask for no card: of them only the host CPU that they take from a node matters here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from admission.cluster.host_cpu import asked
from gpu_manager.domain.kube.pod import PodUid

_ENDED = ("Succeeded", "Failed")


class OtherPods:
    """Who takes how much of which node. Every change says which nodes it touched. Not thread-safe."""

    def __init__(self) -> None:
        self._pods: dict[PodUid, tuple[str, int]] = {}
        self._used: dict[str, int] = {}

    def cpu(self, node: str) -> int:
        """Thousandths of a CPU that these pods take of a node."""
        return self._used.get(node, 0)

    def take(self, uid: PodUid, obj: Mapping[str, Any]) -> set[str]:
        """The pod as it is now; nothing changes with a status that changes nothing here."""
        spec, status = obj.get("spec"), obj.get("status")
        node = spec.get("nodeName") if isinstance(spec, Mapping) else None
        phase = status.get("phase") if isinstance(status, Mapping) else None
        if not uid or not isinstance(node, str) or not node or phase in _ENDED:
            return self.drop(uid)
        cpu = asked(obj)
        if self._pods.get(uid) == (node, cpu):
            return set()
        touched = self.drop(uid)
        self._pods[uid] = node, cpu
        self._used[node] = self._used.get(node, 0) + cpu
        return touched | {node}

    def drop(self, uid: PodUid) -> set[str]:
        """It is gone."""
        node, cpu = self._pods.pop(uid, ("", 0))
        if not node:
            return set()
        self._used[node] -= cpu
        if not self._used[node]:
            del self._used[node]
        return {node}

    def copy(self) -> OtherPods:
        """The same, changed apart from these."""
        other = OtherPods()
        other._pods, other._used = self._pods.copy(), self._used.copy()
        return other

    def keep(self, uids: Collection[PodUid]) -> set[str]:
        """Whoever is not among them is gone."""
        gone = [uid for uid in self._pods if uid not in uids]
        return set().union(*map(self.drop, gone))

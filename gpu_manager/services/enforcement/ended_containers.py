"""Which granted containers have ended, before the books give back what they held.

The books keep a share until the kubelet, too, has forgotten the pod: that takes up to a minute, and is right,
since the kubelet would refuse to give the ids to another pod. A series or a bill is not to last as long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpu_manager.domain.pod import PodUid
from gpu_manager.ports import KnownPod, Pods, Processes
from gpu_manager.services.allocation.books import Key


class EndedContainers:
    """Of one node. Not thread-safe: the thread that samples asks once a second."""

    def __init__(self, pods: Pods, processes: Processes) -> None:
        self._pods = pods
        self._processes = processes
        self._absent: frozenset[PodUid] = frozenset()  # not at the API in the last look, without a process
        self._ended: frozenset[PodUid] = frozenset()

    def among(self, granted: Collection[Key]) -> frozenset[Key]:
        """Those of these containers that have ended for good.

        All of a pod's have, once the API shows its end or its object is gone, and no process of it runs. A
        pod that the API does not show at all may be about to start: it has ended if two looks find it so. Of
        a pod that lives, ordinary init containers have that have done their work.
        """
        local = _by_uid(self._pods.local())
        absent: set[PodUid] = set()
        ended: set[PodUid] = set()
        for uid in {uid for uid, _ in granted}:
            found = local.get(uid)
            if found is not None and not found.tombstone and not found.pod.terminal:
                continue
            # A pod's UID never comes back: who has ended is not looked for among the processes again.
            alive = False if uid in self._ended else self._processes.alive(uid)
            if found is None and alive is False:
                absent.add(uid)
                if uid in self._absent:
                    ended.add(uid)
            elif found is not None and not alive:
                ended.add(uid)
        self._absent, self._ended = frozenset(absent), frozenset(ended)
        return frozenset(key for key in granted if key[0] in ended or _is_over(local.get(key[0]), key[1]))


def _is_over(found: KnownPod | None, container: str) -> bool:
    return found is not None and container in found.pod.ended_inits


def _by_uid(local: Mapping[str, Sequence[KnownPod]]) -> dict[PodUid, KnownPod]:
    return {PodUid(f.pod.uid): f for found in local.values() for f in reversed(found)}

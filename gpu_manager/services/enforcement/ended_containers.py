"""Granted containers that have ended while the ledger still holds their shares.

The ledger keeps a share until the kubelet has forgotten the pod, which takes up to a minute, because the
kubelet does not give the ids to another pod before. Metrics and bills end earlier, with the container.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.ports.api_server import KnownPod, Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import Processes
from gpu_manager.services.allocation.books import Key, is_claims

ABSENT_SECONDS = 1.0  # a pod that is not in the watch and has no process for this long has ended


class EndedContainers:
    """Finds the ended containers of one node. Thread-safe."""

    def __init__(self, pods: Pods, processes: Processes, clock: Clock) -> None:
        self._pods = pods
        self._processes = processes
        self._clock = clock
        self._lock = threading.Lock()
        self._absent: dict[PodUid, float] = {}  # pods absent from the API and without a process → since when
        self._ended: frozenset[PodUid] = frozenset()
        self._settled: tuple[Collection[Key], Mapping[str, Sequence[KnownPod]], frozenset[Key]] | None = None

    def among(self, granted: Collection[Key]) -> frozenset[Key]:
        """The containers among ``granted`` that have ended for good.

        All containers of a pod have ended once the API shows its end or its object is deleted, and no process
        of it runs. A pod that the API has never shown may be about to start: it counts as ended after a
        second without a process. Of a running pod, completed init containers have ended. A claim's share has
        not ended as long as it is held: the kubelet reports at once when the last pod of a claim has ended.

        While ``granted`` and the API's pods are the same objects and every pod runs, the last answer is
        valid: neither is ever changed in place.
        """
        known = self._pods.local()
        with self._lock:
            if self._settled and self._settled[0] is granted and self._settled[1] is known:
                return self._settled[2]
            local = _by_uid(known)
            of_pods = [key for key in granted if not is_claims(key)]
            ended = self._ended_pods({uid for uid, _ in of_pods}, local)
            over = frozenset(key for key in of_pods if key[0] in ended or _is_over(local.get(key[0]), key[1]))
            running = all(_runs(local.get(uid)) for uid, _ in of_pods)
            self._settled = (granted, known, over) if running else None  # else processes are checked again
            return over

    def _ended_pods(self, granted: set[PodUid], local: Mapping[PodUid, KnownPod]) -> frozenset[PodUid]:
        """The pods that have ended. The lock is held."""
        now = self._clock.monotonic()
        absent: dict[PodUid, float] = {}
        ended: set[PodUid] = set()
        for uid in granted:
            found = local.get(uid)
            if _runs(found):
                continue
            # UIDs are never reused: processes of ended pods are not searched again.
            alive = False if uid in self._ended else self._processes.alive(uid)
            if found is None and alive is False:
                absent[uid] = self._absent.get(uid, now)
                if now - absent[uid] >= ABSENT_SECONDS:
                    ended.add(uid)
            elif found is not None and not alive:
                ended.add(uid)
        self._absent, self._ended = absent, frozenset(ended)
        return self._ended


def _runs(found: KnownPod | None) -> bool:
    """True if the pod runs according to the API."""
    return found is not None and not found.tombstone and not found.pod.terminal


def _is_over(found: KnownPod | None, container: str) -> bool:
    return found is not None and container in found.pod.ended_inits


def _by_uid(local: Mapping[str, Sequence[KnownPod]]) -> dict[PodUid, KnownPod]:
    return {PodUid(f.pod.uid): f for found in local.values() for f in reversed(found)}

"""Who has left: what ended pods held is given back, and the kubelet's offer cleared of ids that are taken.

There is no Deallocate. This is the quick way, taken at every GetPreferredAllocation on the fresh listing
that it makes anyway; :class:`gpu_manager.services.recovery.Reclaimer` is the thorough one.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.ledger import Allocation
from gpu_manager.domain.pod import PodUid
from gpu_manager.ports import Pods, Processes
from gpu_manager.services.association import Answer
from gpu_manager.services.books import Books
from gpu_manager.services.tally import Tally

log = structlog.get_logger(__name__)

_MOST_ASKED = 8  # pods that the API is asked about in one call; the rest waits for the next


class Departures:
    """Works on the allocator's books under the allocator's lock, and holds that over nothing slow."""

    def __init__(
        self,
        books: Books,
        lock: threading.RLock,
        pods: Pods,
        processes: Processes,
        tally: Tally,
    ) -> None:
        self.books = books
        self._lock = lock
        self._pods = pods
        self._processes = processes
        self._tally = tally
        self._seen: set[PodUid] = set()  # pods seen active since the kubelet came up
        self._returned: set[PodUid] = set()  # pods some of whose ids the kubelet has offered again

    def restarted(self) -> None:
        """The kubelet is new: it lists its pods one by one again, so absence means nothing yet."""
        self._seen.clear()

    def seen(self, uid: PodUid) -> bool:
        """True if the pod was listed as active since the kubelet came up."""
        return uid in self._seen

    def observe(self, answer: Answer, offered: Collection[str]) -> None:
        """Give back what pods held that have ended, by the kubelet's own account, unless processes live on.

        A pod has ended if it was active since the kubelet came up and is not any more; or if the API has
        forgotten it and it was only planned, or the kubelet offers ids of it. If nothing of that is known,
        as after a start, the API itself is asked: absence from the listing alone proves nothing.
        """
        if answer.active is None:
            return
        local = self._pods.local()
        living = {
            f.pod.uid for found in local.values() for f in found if not f.tombstone and not f.pod.terminal
        }
        taken = {name: f.pod.uid for name, found in local.items() for f in found if f.pod.uid in living}
        with self._lock:
            self._returned |= self.books.owners(offered)
            ended, doubtful = [], []
            for uid in self.books.ledger.pods:
                held = next(iter(self.books.ledger.of_pod(uid).values()))
                namesake = taken.get(f"{held.namespace}/{held.pod_name}", uid) != uid and uid not in living
                if (held.namespace, held.pod_name) in answer.active and not namesake:
                    self._seen.add(uid)
                    self._returned.discard(uid)
                elif uid in self._seen or (
                    uid not in living and (uid in self._returned or not self.books.ledger.granted(uid))
                ):
                    ended.append(uid)
                elif uid not in living:
                    doubtful.append((uid, held))
        ended += [uid for uid, held in doubtful[:_MOST_ASKED] if self._forgotten(uid, held)]
        for uid in ended:
            if self._processes.alive(uid) is False:
                with self._lock:
                    gone = self.books.release(uid)
                    self._seen.discard(uid)
                    self._returned.discard(uid)
                for one in gone:
                    log.info("reclaimed", pod=one.pod_key, container=one.container, reason="no longer active")

    def _forgotten(self, uid: PodUid, held: Allocation) -> bool:
        """True if the API says that this pod is no more; False if it cannot be asked."""
        if not held.pod_name:
            return False
        try:
            pod = self._pods.fetch(held.namespace, held.pod_name)
        except NodeUnready:
            return False
        return pod is None or pod.uid != uid or pod.terminal

    def clear(self, resource: str, offered: Sequence[str], answer: Answer) -> list[str]:
        """The offer without ids that another active pod holds; others that the books still show are free."""
        name = (answer.candidate.pod.namespace, answer.candidate.pod.name) if answer.candidate else None
        own = {answer.candidate.pod.uid} if answer.candidate else set()
        held = answer.held or {}
        known = self.books.taken(offered) | (held.keys() & offered)
        free, stale = [], []
        for device in offered:
            if device not in known:  # nearly all: an offer may name thousands
                free.append(device)
                continue
            holder = held.get(device)
            others = self.books.owners((device,)) - own
            if holder is not None and holder != name:
                self._tally.count("double_offers", resource)
                continue
            if others:
                if answer.active is None or any(self._active(uid, answer.active) for uid in others):
                    self._tally.count("double_offers", resource)
                    continue
                stale.append(device)
            free.append(device)
        if stale:
            self.books.detach(stale)
        return free

    def _active(self, uid: PodUid, active: frozenset[tuple[str, str]]) -> bool:
        return any((a.namespace, a.pod_name) in active for a in self.books.ledger.of_pod(uid).values())

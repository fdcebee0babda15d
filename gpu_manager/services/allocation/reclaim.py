"""Who has left: what ended pods held is given back, and the kubelet's offer cleared of ids that are taken.

There is no Deallocate. This is the quick way, taken at every GetPreferredAllocation on the fresh listing
that it makes anyway; :class:`gpu_manager.services.recovery.rebuild.Reclaimer` is the thorough one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import structlog

from gpu_manager.domain.cluster import terminating
from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.pod import PodUid
from gpu_manager.ports import KnownPod, Pods, Processes
from gpu_manager.services.allocation.association import Identification
from gpu_manager.services.allocation.books import Books
from gpu_manager.services.allocation.unidentified_grants import is_unidentified
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 5.0  # a question waits so long for deleted pods' processes; the kubelet admits nobody else
_LOOK_SECONDS = 0.25
_MOST_ASKED = 8  # pods that the API is asked about in one call; the rest waits for the next


class DepartedPods:
    """Works on the allocator's books under the allocator's lock, and holds that over nothing slow."""

    def __init__(
        self,
        books: Books,
        lock: threading.RLock,
        pods: Pods,
        processes: Processes,
        tally: ServiceMetrics,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.books = books
        self._lock = lock
        self._pods = pods
        self._processes = processes
        self._tally = tally
        self._looks = int(patience / _LOOK_SECONDS)
        self._pause = threading.Event()  # never set: it only waits
        self._outlasted: frozenset[PodUid] = frozenset()  # pods that were waited for in vain
        self._seen: set[PodUid] = set()  # pods seen active since the kubelet came up
        self._returned: set[PodUid] = set()  # pods some of whose ids the kubelet has offered again

    def restarted(self) -> None:
        """The kubelet is new: it lists its pods one by one again, so absence means nothing yet."""
        self._seen.clear()

    def seen(self, uid: PodUid) -> bool:
        """True if the pod was listed as active since the kubelet came up."""
        return uid in self._seen

    def lingering(self) -> tuple[TerminatingShare, ...]:
        """What pods hold that the API no longer has and whose processes run, or may run: none can be seen."""
        living = _living(self._pods.local())
        with self._lock:
            absent = [uid for uid in self.books.ledger.pods if uid not in living and not is_unidentified(uid)]
        gone = [uid for uid in absent if self._processes.alive(uid) is not False]
        with self._lock:
            return terminating.terminating_shares(self.books.ledger, gone)

    def outwait(
        self,
        answer: Identification,
        offered: Collection[str],
        in_the_way: Callable[[frozenset[PodUid], frozenset[PodUid]], bool],
    ) -> str:
        """:meth:`observe`, and wait some seconds while only pods that are going stand in the way: asked with
        all of them, and with those of which the watch alone has yet to show the end.

        Returns who still does at the end, for the refusal; empty if nobody. A pod that has outlasted one
        wait is not waited for again. The lock must not be held.
        """
        going = self.observe(answer, offered)
        for _ in range(self._looks):
            if going <= self._outlasted or not in_the_way(going, going & _living(self._pods.local())):
                break
            self._pause.wait(_LOOK_SECONDS)
            shown = _living(self._pods.local()) - self._seen
            going = frozenset(self._free(going - shown) | (going & shown))
        else:
            with self._lock:
                self._outlasted = going | self._outlasted.intersection(self.books.ledger.pods)
        if not going or not in_the_way(going, frozenset()):
            return ""
        with self._lock:
            names = sorted({a.pod_key for uid in going for a in self.books.ledger.of_pod(uid).values()})
        log.warning("deleted pods' processes still run", pods=names[:5])
        who = "a deleted pod" if len(going) == 1 else f"{len(going)} deleted pods"
        return f"processes of {who} still run and hold the room: it fits once they have ended"

    def observe(self, answer: Identification, offered: Collection[str]) -> frozenset[PodUid]:
        """Give back what pods held that have ended, by the kubelet's own account, unless processes live on.

        A pod has ended if it was active since the kubelet came up and is not any more; or if the API has
        forgotten it and it was only planned, or the kubelet offers ids of it, or lists them at nobody. If
        nothing of that is known, as after a start, the API itself is asked: absence from the listing alone
        proves nothing.

        Returns the pods that are going: their processes still run, or the watch has yet to show their end.
        """
        if answer.active is None:
            return frozenset()
        local = self._pods.local()
        living = _living(local)
        taken = {name: f.pod.uid for name, found in local.items() for f in found if f.pod.uid in living}
        # The API's list has been taken in, by the kubelet too, once both show the pod that is being admitted.
        complete = answer.candidate is not None and answer.candidate.pod.uid in living
        going: set[PodUid] = set()
        with self._lock:
            self._returned |= self.books.owners(offered)
            ended, doubtful = [], []
            booked = self.books.ledger.pods
            self._seen.intersection_update(booked)  # others have been released elsewhere
            self._returned.intersection_update(booked)
            for uid in booked:
                held = next(iter(self.books.ledger.of_pod(uid).values()))
                name = held.namespace, held.pod_name
                namesake = uid not in living and taken.get("/".join(name), uid) != uid
                # A kubelet before 1.34 lists who has ended as well, without ids, and offers those again.
                over = uid not in living and uid in self._returned
                if name in answer.active and (
                    not (namesake or over) or name in self._listed_at(uid, answer.held)
                ):
                    self._seen.add(uid)
                    self._returned.discard(uid)
                elif uid in self._seen or (
                    uid not in living and (uid in self._returned or not self.books.ledger.granted(uid))
                ):
                    ended.append(uid)
                elif uid not in living:
                    # A stand-in for a pod that nobody could name is no pod that has gone.
                    if complete and not is_unidentified(uid) and not self._listed_at(uid, answer.held):
                        ended.append(uid)
                    else:
                        doubtful.append((uid, held))
                elif uid in self._returned:
                    going.add(uid)
        ended += self._forgotten(doubtful[:_MOST_ASKED])
        return frozenset(going | self._free(ended))

    def _free(self, ended: Collection[PodUid]) -> set[PodUid]:
        """Give back what these pods held; returns those whose processes still run."""
        running: set[PodUid] = set()
        for uid in ended:
            alive = self._processes.alive(uid)
            if alive:
                running.add(uid)
            elif alive is False:
                with self._lock:
                    gone = self.books.release(uid)
                    self._seen.discard(uid)
                    self._returned.discard(uid)
                for one in gone:
                    log.info("reclaimed", pod=one.pod_key, container=one.container, reason="no longer active")
        return running

    def _listed_at(self, uid: PodUid, held: Mapping[str, tuple[str, str]]) -> set[tuple[str, str]]:
        """The active pods at which the kubelet lists ids of this one; none if only its checkpoint does."""
        grants = (self.books.grants.get(a.key) for a in self.books.ledger.of_pod(uid).values())
        return {
            held[device] for g in grants if g for ids in g.ids.values() for device in ids if device in held
        }

    def _forgotten(self, doubtful: Iterable[tuple[PodUid, Allocation]]) -> list[PodUid]:
        """Those of which the API says that they are no more. Who is silent once is not asked further: the
        kubelet admits nobody while we wait.
        """
        gone = []
        for uid, held in doubtful:
            if held.pod_name:
                try:
                    pod = self._pods.fetch(held.namespace, held.pod_name)
                except NodeUnready:
                    break
                if pod is None or pod.uid != uid or pod.terminal:
                    gone.append(uid)
        return gone

    def clear(self, resource: str, offered: Sequence[str], answer: Identification) -> list[str]:
        """The offer without ids that another active pod holds; others that the books still show are free."""
        name = (answer.candidate.pod.namespace, answer.candidate.pod.name) if answer.candidate else None
        own = {answer.candidate.pod.uid} if answer.candidate else set()
        held = answer.held
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


def _living(local: Mapping[str, Sequence[KnownPod]]) -> set[PodUid]:
    """The pods that the API has and that have not ended."""
    return {f.pod.uid for found in local.values() for f in found if not f.tombstone and not f.pod.terminal}

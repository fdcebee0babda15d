"""Who has left: what ended pods held is given back.

There is no Deallocate. This is the quick way, taken at every GetPreferredAllocation on the fresh listing
that it makes anyway; :class:`gpu_manager.services.recovery.reclaimer.Reclaimer` is the thorough one.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence

import structlog

from gpu_manager.domain.cluster import terminating
from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.pod import PodUid
from gpu_manager.ports import KnownPod, Pods, Processes
from gpu_manager.services.allocation.association import Identification
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.allocation.unidentified_grants import is_unidentified

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 5.0  # a question waits so long for deleted pods' processes; the kubelet admits nobody else
_LOOK_SECONDS = 0.25
_MOST_ASKED = 8  # pods that the API is asked about in one call; the rest waits for the next


class DepartedPods:
    """Thread-safe. Its own lock is around what it remembers of pods, and held over memory alone."""

    def __init__(
        self, state: NodeState, pods: Pods, processes: Processes, patience: float = PATIENCE_SECONDS
    ) -> None:
        """``patience``: seconds that a question waits for deleted pods' processes to end."""
        self._state = state
        self._pods = pods
        self._processes = processes
        self._looks = int(patience / _LOOK_SECONDS)
        self._pause = threading.Event()  # never set: it only waits
        self._lock = threading.Lock()
        self._outlasted: frozenset[PodUid] = frozenset()  # pods that were waited for in vain
        self._seen: set[PodUid] = set()  # pods seen active since the kubelet came up
        self._returned: set[PodUid] = set()  # pods some of whose ids the kubelet has offered again

    def restarted(self) -> None:
        """The kubelet is new: it lists its pods one by one again, so absence means nothing yet."""
        with self._lock:
            self._seen.clear()

    def seen(self, uid: PodUid) -> bool:
        """True if the pod was listed as active since the kubelet came up."""
        return uid in self._seen

    def lingering(self) -> tuple[TerminatingShare, ...]:
        """What pods hold that the API no longer has and whose processes run, or may run: none can be seen."""
        living, ledger = _living(self._pods.local()), self._state.view.ledger
        absent = [uid for uid in ledger.pods if uid not in living and not is_unidentified(uid)]
        gone = [uid for uid in absent if self._processes.alive(uid) is not False]
        return terminating.terminating_shares(ledger, gone)

    def released(self, lingering: Sequence[TerminatingShare]) -> tuple[str, ...]:
        """The UIDs of pods that the API deleted of late before they had ended, and that hold nothing any
        more: all but those ``lingering``.

        Of pods that were deleted while no agent ran, those that are still in the ledger are listed.
        """
        held = {one.pod for one in lingering}
        local, booked = self._pods.local(), self._state.view.ledger.pods
        known = [f for found in local.values() for f in found]
        gone = {
            f.pod.uid for f in known if f.tombstone and f.pod.asks and not (f.pod.terminal or f.pod.static)
        }
        gone |= {uid for uid in booked if not is_unidentified(uid)}.difference(f.pod.uid for f in known)
        unsure = held.union(booked if "" in held else ())  # "": more than an inventory has room for
        return tuple(sorted(gone - unsure - _living(local)))[: terminating.MOST]

    def outwait(self, answer: Identification, offered: Collection[str]) -> str:
        """:meth:`observe`, and wait some seconds while only pods that are going stand in the way: asked with
        all of them, and with those of which the watch alone has yet to show the end.

        Returns who still does at the end, for the refusal; empty if nobody. A pod that has outlasted one
        wait is not waited for again. No lock is held while it waits.
        """
        going = self.observe(answer, offered)
        for _ in range(self._looks):
            if going <= self._outlasted:
                break
            if not self._in_the_way(answer, going, going & _living(self._pods.local())):
                break
            self._pause.wait(_LOOK_SECONDS)
            shown = _living(self._pods.local()) - self._seen
            going = frozenset(self._free(going - shown) | (going & shown))
        else:
            self._outlasted = going | self._outlasted.intersection(self._state.view.ledger.pods)
        if not going or not self._in_the_way(answer, going, frozenset()):
            return ""
        return self._still_running(going)

    def given_again(self, ids: Collection[str]) -> str:
        """Give back what pods held whose ids the kubelet allocates again without having asked for a
        preference.

        The kubelet has given up these pods, so those that the API has deleted or ended are over once their
        processes are, for which it waits some seconds. The API itself is asked: the watch may show neither a
        pod that is new nor the end of an old one. Returns whose processes still run at the end, for the
        refusal; empty if nobody's. No lock is held while it waits.
        """
        view = self._state.view
        known = view.ledger.pods
        owners = [uid for uid in self._state.owners(ids) if uid in known and not is_unidentified(uid)]
        held = [(uid, next(iter(view.ledger.of_pod(uid).values()))) for uid in owners[:_MOST_ASKED]]
        running = self._free(self._forgotten(held))
        for _ in range(self._looks):
            if not running:
                return ""
            self._pause.wait(_LOOK_SECONDS)
            running = self._free(running)
        return self._still_running(running) if running else ""

    def _still_running(self, going: Collection[PodUid]) -> str:
        ledger = self._state.view.ledger
        names = sorted({a.pod_key for uid in going for a in ledger.of_pod(uid).values()})
        log.warning("deleted_pods_still_running", pods=names[:5])
        who = "a deleted pod" if len(going) == 1 else f"{len(going)} deleted pods"
        return f"processes of {who} still run and hold the room: it fits once they have ended"

    def _in_the_way(
        self, answer: Identification, going: frozenset[PodUid], ending: frozenset[PodUid]
    ) -> bool:
        return answer.candidate is not None and self._state.held_up(answer.candidate.pod, going, ending)

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
        view, returned = self._state.view, self._state.owners(offered)
        ended, doubtful = [], []
        with self._lock:
            self._returned |= returned
            booked = view.ledger.pods
            self._seen.intersection_update(booked)  # others have been released elsewhere
            self._returned.intersection_update(booked)
            for uid in booked:
                held = next(iter(view.ledger.of_pod(uid).values()))
                name = held.namespace, held.pod_name
                namesake = uid not in living and taken.get("/".join(name), uid) != uid
                # Ids offered again were a pod's that has ended, whatever the watch still shows: the name is a
                # newer pod's, or a kubelet before 1.34 lists, without ids, who has ended as well.
                over = uid in self._returned
                if name in answer.active and (
                    not (namesake or over) or name in _listed_at(view, uid, answer.held)
                ):
                    self._seen.add(uid)
                    self._returned.discard(uid)
                elif uid in self._seen or (
                    uid not in living and (uid in self._returned or not view.ledger.granted(uid))
                ):
                    ended.append(uid)
                elif uid not in living:
                    # A stand-in for a pod that nobody could name is no pod that has gone.
                    if complete and not is_unidentified(uid) and not _listed_at(view, uid, answer.held):
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
                gone = self._state.forget_pod(uid)
                with self._lock:
                    self._seen.discard(uid)
                    self._returned.discard(uid)
                for one in gone:
                    log.info("reclaimed", pod=one.pod_key, container=one.container, reason="no longer active")
        return running

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


def _listed_at(view: StateView, uid: PodUid, held: Mapping[str, tuple[str, str]]) -> set[tuple[str, str]]:
    """The active pods at which the kubelet lists ids of this one; none if only its checkpoint does."""
    grants = (view.grants.get(a.key) for a in view.ledger.of_pod(uid).values())
    return {held[device] for g in grants if g for ids in g.ids.values() for device in ids if device in held}


def _living(local: Mapping[str, Sequence[KnownPod]]) -> set[PodUid]:
    """The pods that the API has and that have not ended."""
    return {f.pod.uid for found in local.values() for f in found if not f.tombstone and not f.pod.terminal}

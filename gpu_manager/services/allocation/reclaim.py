"""Releases what ended pods held, during GetPreferredAllocation and Allocate.

The device plugin API has no Deallocate. This is the quick way, from the kubelet's listing that
GetPreferredAllocation reads anyway; :class:`gpu_manager.services.recovery.reclaimer.Reclaimer` looks
periodically and at more sources.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import structlog

from gpu_manager.domain.cluster.node_books import RELEASED_MOST, terminating_shares
from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.ports.api_server import KnownPod, Pods
from gpu_manager.ports.containers import Processes
from gpu_manager.services.allocation.association import Identification
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.allocation.unidentified_grants import is_unidentified

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 5.0  # longest wait for deleted pods' processes; the kubelet admits no pod meanwhile
_LOOK_SECONDS = 0.25
_MOST_ASKED = 8  # pods that are read in one call though they are in nobody's way; others follow in the next


class Departed(NamedTuple):
    """Of pods that the API has deleted before they ended, or that cannot be read: the shares that they hold,
    and the UIDs of those deleted of late that hold nothing any more.
    """

    lingering: tuple[TerminatingShare, ...]
    released: tuple[str, ...]


class DepartedPods:
    """Finds pods that have ended and releases their allocations. Thread-safe; its lock is never held over
    I/O.
    """

    def __init__(
        self, state: NodeState, pods: Pods, processes: Processes, patience: float = PATIENCE_SECONDS
    ) -> None:
        """``patience``: how long a call waits for processes of deleted pods to end, in seconds."""
        self._state = state
        self._pods = pods
        self._processes = processes
        self._looks = int(patience / _LOOK_SECONDS)
        self._pause = threading.Event()  # never set: it only waits
        self._lock = threading.Lock()
        self._outlasted: frozenset[PodUid] = frozenset()  # pods whose processes did not end within one wait
        self._seen: set[PodUid] = set()  # pods that the kubelet has listed since it started
        self._returned: set[PodUid] = set()  # pods of whose device ids the kubelet has offered some again
        self._over: set[PodUid] = set()  # pods that start nothing more, as of the last :meth:`told`
        self._released: tuple[PodUid, ...] = ()  # as told last, in the order in which they were released

    def restarted(self) -> None:
        """The kubelet has restarted: it lists its pods one by one again, so a missing pod proves nothing
        yet.
        """
        with self._lock:
            self._seen.clear()

    def seen(self, uid: PodUid) -> bool:
        """True if the kubelet has listed the pod since it started."""
        return uid in self._seen

    def told(self) -> Departed:
        """What schedulers must hear of pods that do not tell it by themselves.

        The pods are read once, and before the books: one that is deleted between two reads would be lingering
        by neither, and its room given away while it is held.

        One that has not started has no process yet: the kubelet starts it, and keeps its room, until it hears
        of the deletion. Of pods that were deleted while no agent ran, those that are still in the ledger are
        listed. Of more than an inventory has room for, those released last are: a scheduler needs to hear of
        each once.
        """
        known = [f for found in self._pods.local().values() for f in found]
        ledger = self._state.view.ledger
        living = {f.pod.uid for f in known if not (f.tombstone or f.pod.terminal)}
        absent = [uid for uid in ledger.pods if uid not in living and not is_unidentified(uid)]
        ended = {f.pod.uid for f in known if f.pod.terminal}
        over = {uid for uid in absent if uid in ended or self._started(uid)}
        self._processes.look_again(over - self._over, answer=False)  # which started since, perhaps
        self._over = over
        held = [uid for uid in absent if uid not in over or self._processes.alive(uid) is not False]
        unread = {f.pod.uid for f in known if f.unread}
        lingering = terminating_shares(ledger, [*held, *unread.intersection(ledger.pods)])

        gone = {
            f.pod.uid for f in known if f.tombstone and f.pod.asks and not (f.pod.terminal or f.pod.static)
        }
        gone |= set(absent).difference(f.pod.uid for f in known)
        gone -= living.union(held, unread)
        kept = [uid for uid in self._released if uid in gone]
        self._released = (*kept, *sorted(gone.difference(kept)))
        return Departed(lingering, tuple(sorted(self._released[-RELEASED_MOST:])))

    def outwait(self, answer: Identification, offered: Collection[str]) -> str:
        """:meth:`observe`, then wait while only ending pods keep the asking pod from its room.

        Ends after some seconds, and does not wait twice for the same pod. No lock is held meanwhile. Returns
        the text of a refusal if processes still run then; empty otherwise.
        """
        going = self.observe(answer, offered)
        for _ in range(self._looks):
            if going <= self._outlasted:
                break
            if not self._in_the_way(answer, going, going & living_pods(self._pods.local())):
                break
            self._pause.wait(_LOOK_SECONDS)
            shown = living_pods(self._pods.local()) - self._seen
            going = frozenset(self._free(going - shown) | (going & shown))
        else:
            self._outlasted = going | self._outlasted.intersection(self._state.view.ledger.pods)
        if not going or not self._in_the_way(answer, going, frozenset()):
            return ""
        return self._still_running(going)

    def given_again(self, resource: str, ids: Collection[str], before: PodUid | None = None) -> str:
        """Release the pods whose device ids the kubelet allocates again without GetPreferredAllocation.

        The kubelet gives no id to a second pod before the first has ended, but for one fault: a listing at
        the wrong moment makes it forget ids that it has just given. So the pod has ended if, besides, the
        API server no longer has it, shows it as ended, or is deleting it: of a pod that is deleted with
        grace the kubelet takes the ids back first, and tells the API server afterwards. A pod without
        processes that is shown as living is waited for. Ids that an ordinary init container passes on to a
        later container of its pod prove nothing.

        What has ended is released as soon as its processes have ended, for which it waits some seconds
        without a lock. ``before``: the pod that these ids were given to, and perhaps are again; it is not
        waited for. Returns the text of a refusal if processes still run then; empty otherwise.
        """
        running: set[PodUid] = set()
        for look in range(self._looks + 1):
            if look:
                self._pause.wait(_LOOK_SECONDS)
            ended, unsure = self._handed_back(resource, ids)
            running = self._free(ended)
            waits = (uid for uid in unsure if uid != before and self._processes.alive(uid) is False)
            if not running and not any(waits):
                return ""
        return self._still_running(running) if running else ""

    def make_room(self, pods: Sequence[Pod]) -> None:
        """Wait while only pods that are ending keep one of these from any room, and release them as they end.

        A pod that has started and that the API server has deleted, is deleting or shows as ended starts
        nothing more: it has ended with its processes. Waits some seconds at most, without a lock.
        """
        for _ in range(self._looks):
            ending = self._ending()
            self._free(ending)
            ending &= frozenset(self._state.view.ledger.pods)
            if not any(self._state.held_up(pod, ending, ()) for pod in pods):
                return
            self._pause.wait(_LOOK_SECONDS)

    def _ending(self) -> frozenset[PodUid]:
        over = {
            f.pod.uid
            for found in self._pods.local().values()
            for f in found
            if f.tombstone or f.pod.terminal or (f.pod.deleting and not f.pod.static)
        }
        return frozenset(filter(self._started, over.intersection(self._state.view.ledger.pods)))

    def _started(self, uid: PodUid) -> bool:
        """True once a container of the pod has started, and with it the pod's sandbox."""
        view = self._state.view
        grants = (view.grants.get(one.key) for one in view.ledger.of_pod(uid).values())
        return any(grant.proven for grant in grants if grant)

    def _handed_back(self, resource: str, ids: Collection[str]) -> tuple[set[PodUid], set[PodUid]]:
        """The holders of ids that the kubelet allocates again: those that have ended, and the others.

        The API server is asked about those of which the watch does not show it, because it may be behind.
        """
        view = self._state.view
        known = {f.pod.uid: f for found in self._pods.local().values() for f in found}
        ended, unsure, asks = set[PodUid](), set[PodUid](), _MOST_ASKED
        for uid in self._state.owners(ids):
            held = next(iter(view.ledger.of_pod(uid).values()), None)
            if is_unidentified(uid) or held is None or held.claim is not None:
                continue
            found = known.get(uid)
            pod, gone = (found.pod, found.tombstone) if found else (None, False)
            if asks and held.pod_name and not (gone or (pod and (pod.terminal or pod.deleting))):
                try:
                    fresh = self._pods.fetch(held.namespace, held.pod_name)
                except NodeUnready:
                    asks = 0  # the kubelet admits no pod meanwhile
                else:
                    asks -= 1
                    gone = fresh is None or fresh.uid != uid
                    pod = pod if gone else fresh
            if gone or (pod is not None and pod.terminal):
                ended.add(uid)
            elif pod is None or not _passes_on(view, pod, resource, ids):
                (ended if pod is not None and pod.deleting and not pod.static else unsure).add(uid)
        return ended, unsure

    def _still_running(self, going: AbstractSet[PodUid]) -> str:
        """The refusal. Deleted are those that the API has no longer or is deleting: a kubelet that has lost
        its checkpoint gives the ids of pods that live to others.
        """
        ledger, local = self._state.view.ledger, self._pods.local()
        over = going - living_pods(local) | {
            f.pod.uid for found in local.values() for f in found if f.pod.deleting
        }

        def named(uids: Iterable[PodUid]) -> list[str]:
            return sorted({a.pod_key for uid in uids for a in ledger.of_pod(uid).values()})

        said = []
        if deleted := named(going & over):
            log.warning("deleted_pods_still_running", pods=deleted[:5])
            who = "a deleted pod" if len(deleted) == 1 else f"{len(deleted)} deleted pods"
            said.append(f"processes of {who} still run and hold the room: it fits once they have ended")
        if living := named(going - over):
            log.warning("ids_of_living_pods_given_again", pods=living[:5])
            who = living[0] if len(living) == 1 else f"{len(living)} pods, {living[0]} among them,"
            said.append(
                f"the kubelet gives the device ids of {who} out again, as if it had lost its record of them; "
                "they run and hold the room"
            )
        return "; ".join(said)

    def _in_the_way(
        self, answer: Identification, going: frozenset[PodUid], ending: frozenset[PodUid]
    ) -> bool:
        if answer.candidate is None or answer.deleted:
            return False
        return self._state.held_up(answer.candidate.pod, going, ending)

    def observe(self, answer: Identification, offered: Collection[str]) -> frozenset[PodUid]:
        """Release pods that have ended according to the kubelet's listing and whose processes have ended.

        A pod has ended if the kubelet has listed it since its start and no longer does. It has also ended if
        the API server no longer has it and it was only planned, or the kubelet offers its device ids, or
        lists them for no pod. If none of this is known, as after a start, the API server is asked: a pod
        that is merely missing from the listing may be running. It is also asked, first, about the pods that
        occupy the cards that the scheduler named: the scheduler may know of an end before the watch shows it.

        Returns the ending pods: their processes still run, or the watch does not show their end yet.
        """
        if answer.active is None:
            return frozenset()
        view = self._state.view  # before the pods: one planned between the two would not seem to live
        local = self._pods.local()
        living = living_pods(local)
        taken = {name: f.pod.uid for name, found in local.items() for f in found if f.pod.uid in living}
        # Agent and kubelet have the API server's whole list once both show the pod that is being admitted.
        complete = answer.candidate is not None and answer.candidate.pod.uid in living
        going: set[PodUid] = set()
        returned = self._state.owners(offered)
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
                # Device ids are offered again only after their pod has ended, whatever the watch still
                # shows. Its name may then be a newer pod's; and a kubelet before 1.34 also lists ended
                # pods, without ids.
                over = uid in self._returned
                if name in answer.active and (
                    not (namesake or over) or name in _listed_at(view, uid, answer.held)
                ):
                    # The kubelet may list one of that name which was deleted, and have yet to see this one.
                    if view.ledger.granted(uid) or len(local.get("/".join(name), ())) < 2:
                        self._seen.add(uid)
                    self._returned.discard(uid)
                elif uid in self._seen or (
                    uid not in living and (uid in self._returned or not view.ledger.granted(uid))
                ):
                    ended.append(uid)
                elif uid not in living:
                    # An unidentified grant belongs to a pod that is not known yet, not to one that has ended.
                    if complete and not is_unidentified(uid) and not _listed_at(view, uid, answer.held):
                        ended.append(uid)
                    else:
                        doubtful.append((uid, held))
                elif uid in self._returned:
                    going.add(uid)
        running = self._free(ended)
        asked = self._unproven(answer, running) | dict(doubtful[:_MOST_ASKED])
        gone = self._forgotten(asked.items())
        return frozenset(going.difference(gone) | running | self._free(gone))

    def _unproven(self, answer: Identification, running: Collection[PodUid]) -> dict[PodUid, Allocation]:
        """Return the pods that keep the asking pod from the cards that the scheduler named and that may have
        ended: the kubelet lists none of their device ids, and they are not known to be ``running``.
        """
        found = self._state.in_the_way(answer.candidate.pod) if answer.candidate is not None else {}
        if not found:
            return {}
        view = self._state.view
        return {
            uid: held
            for uid, held in found.items()
            if uid not in running
            and (held.namespace, held.pod_name) not in _listed_at(view, uid, answer.held)
        }

    def _free(self, ended: Collection[PodUid]) -> set[PodUid]:
        """Release these pods, except those whose processes still run: these are returned."""
        self._processes.look_again(ended)  # their processes may have ended since the last look
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
        """Return the pods that the API server no longer has, or has as ended.

        Stops at the first call that fails: the kubelet admits no pod meanwhile.
        """
        gone = []
        for uid, held in doubtful:
            if held.pod_name:
                try:
                    pod = self._pods.fetch(held.namespace, held.pod_name)
                except NodeUnready:
                    break
                if pod is None or pod.uid != uid or pod.terminal or self._tombstone(uid):
                    gone.append(uid)
        return gone

    def _tombstone(self, uid: PodUid) -> bool:
        """True if the API has deleted the pod. The kubelet, whose answer :meth:`Pods.fetch` may be, has it
        until it has admitted all that came before.
        """
        known = (f for found in self._pods.local().values() for f in found if f.pod.uid == uid)
        return any(f.tombstone for f in known)


def _listed_at(view: StateView, uid: PodUid, held: Mapping[str, tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the active pods for which the kubelet lists device ids that are booked for this pod."""
    grants = (view.grants.get(a.key) for a in view.ledger.of_pod(uid).values())
    return {held[device] for g in grants if g for ids in g.ids.values() for device in ids if device in held}


def _passes_on(view: StateView, pod: Pod, resource: str, ids: Collection[str]) -> bool:
    """True if of these ids the pod holds those of ordinary init containers alone, and a container of it still
    lacks the resource: the kubelet may be giving them to that one.
    """
    held = [(c.kind, view.holds(pod.uid, c.name, resource)) for c in pod.containers if c.wants(resource)]
    kept = (mine for kind, mine in held if kind is not ContainerKind.INIT)
    return not all(mine for _, mine in held) and not any(mine.intersection(ids) for mine in kept)


def living_pods(local: Mapping[str, Sequence[KnownPod]]) -> set[PodUid]:
    """Return the pods that the API server has and that have not ended."""
    return {f.pod.uid for found in local.values() for f in found if not f.tombstone and not f.pod.terminal}

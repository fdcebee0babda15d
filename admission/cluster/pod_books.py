"""The pods that request cards: the state of each in the watch, and the node on which it counts.

A pod counts on its node even before the watch shows it there, and an answer to a resize from the moment it is
written. Not thread-safe: :class:`~admission.cluster.snapshot.ClusterState` holds the lock.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from admission.cluster.other_pods import AssumedPods
from admission.cluster.pod_view import PodView, answered, pod_view
from admission.config import KEEP_SECONDS
from gpu_manager.domain.contract import RESIZE, RESIZED
from gpu_manager.domain.kube.constraints import ANYWHERE, PodConstraints
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resize.sizes import effective_request, workload_key
from gpu_manager.domain.untrusted import annotations_of, mapping, text

# The sizes that workloads request in their own metadata, and the pods to which they apply.


Obj = Mapping[str, Any]


class WorkloadSizes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, str] = {}  # by workload
        self._pods: dict[str, set[PodUid]] = {}

    def replace(self, kind: str, objects: Iterable[Obj], take: Callable[[Obj], None]) -> None:
        """The workloads of one kind: a full list, which ``take`` brings to :meth:`change` one by one."""
        listed: set[str] = set()
        for obj in objects:
            listed.add(_key(kind, obj))
            take(obj)
        with self._lock:
            gone = [key for key in self._asked if key.split("/")[1] == kind and key not in listed]
            for key in gone:
                del self._asked[key]

    def change(self, kind: str, obj: Obj, *, gone: bool) -> bool:
        """Apply one workload's object; its pods keep existing if it is ``gone``.

        True: it requests another size than before.
        """
        key, asked = _key(kind, obj), "" if gone else _asked(obj)
        with self._lock:
            before = self._asked.pop(key, "")
            if asked:
                self._asked[key] = asked
            return asked != before

    def take(self, pod: Pod) -> None:
        """Know a pod by its workload."""
        with self._lock:
            self._pods.setdefault(workload_key(pod.namespace, pod.workload), set()).add(pod.uid)

    def forget(self, pod: Pod) -> None:
        """The pod is gone."""
        key = workload_key(pod.namespace, pod.workload)
        with self._lock:
            known = self._pods.get(key, set())
            known.discard(pod.uid)
            if not known:
                self._pods.pop(key, None)

    def asked_of(self, pod: Pod) -> str:
        """The size that the pod's owner requests; empty for none."""
        with self._lock:
            return self._asked.get(workload_key(pod.namespace, pod.workload), "")

    def pods(self) -> set[PodUid]:
        """The pods of workloads that request a size."""
        with self._lock:
            return {uid for key in self._asked for uid in self._pods.get(key, ())}

    def asking(self, occupant: PodView) -> PodView:
        """The pod with the request that counts for it as its own."""
        pod = occupant.pod
        request = effective_request(pod, self.asked_of(pod))
        if request == pod.annotations.get(RESIZE):
            return occupant
        others = {key: value for key, value in pod.annotations.items() if key != RESIZE}
        annotations = others if request is None else {**others, RESIZE: request}
        return replace(occupant, pod=replace(pod, annotations=annotations))


def _key(kind: str, obj: Obj) -> str:
    meta = mapping(obj.get("metadata"))
    return workload_key(text(meta.get("namespace")), f"{kind}/{text(meta.get('name'))}")


def _asked(obj: Obj) -> str:
    return text(annotations_of(obj).get(RESIZE))


_MOST_UNCOUNTED: Final = 1 << 16  # pods that came, or left, since they were last counted; the oldest go


class PodBooks:
    """Accounts for the pods. ``changed`` are the nodes with changes, removed by the code that rebuilds them.

    ``lapsed`` counts expectations that ended without a bind.
    """

    def __init__(self, keep_seconds: float = KEEP_SECONDS) -> None:
        self.changed: set[str] = set()
        self.lapsed = 0
        self.workloads = WorkloadSizes()
        self._pods: dict[PodUid, PodView] = {}
        self._names: dict[str, PodUid] = {}
        self._assumed = AssumedPods(keep_seconds)
        self._answers = UnshownAnswers()
        self._resizing: set[PodUid] = set()
        self._came: deque[PodView] = deque(maxlen=_MOST_UNCOUNTED)
        self._left: deque[PodView] = deque(maxlen=_MOST_UNCOUNTED)
        self._constraints: WeakKeyDictionary[PodConstraints, ref[PodConstraints]] = WeakKeyDictionary()
        self._at: dict[str, set[PodUid]] = {}  # node → pods bound, reserved or nominated there

    def copy(self) -> PodBooks:
        """A copy with the same pods on the same nodes, independent of this one; no resize answer is pending
        in it.
        """
        other = PodBooks()
        other._pods, other._names = self._pods.copy(), self._names.copy()
        other._assumed, other._came, other._left = self._assumed.copy(), self._came.copy(), self._left.copy()
        other._at = {node: uids.copy() for node, uids in self._at.items()}
        return other

    # What the watch shows.

    def take(self, occupant: PodView) -> None:
        """Apply the pod's object."""
        uid, before = occupant.uid, self._pods.get(occupant.uid)
        if before is not None and before.pod.node and not occupant.pod.node:
            return  # a UID is bound once for all: this is an older picture of it
        occupant = self._answers.shown(self._with_shared_constraints(occupant))
        if before == occupant:
            return
        if before is not None:
            self._untouch(uid, before.places)
        if before is None:
            self._came.append(occupant)
        if occupant.pod.terminal and not (before and before.pod.terminal):
            self._left.append(occupant)
        self._pods[uid] = occupant
        self.workloads.take(occupant.pod)
        (self._resizing.add if occupant.resizes else self._resizing.discard)(uid)
        self._names[occupant.pod.key] = uid
        if occupant.pod.node or occupant.pod.terminal:
            self.release(uid)
            self._assumed.forget(uid)
        elif occupant.pod.deleting or self._assumed.is_given_up(occupant):
            self.give_up(uid)
        for node in occupant.places:
            self._touch(node, uid)
        coming = self._assumed.of(uid)
        if coming is not None:
            self._touch(coming.pod.node, uid)

    def forget(self, uid: PodUid) -> None:
        """The pod is gone, or holds nothing any more."""
        occupant = self._pods.pop(uid, None)
        self._resizing.discard(uid)
        self._answers.forget(uid)
        if occupant is not None:
            self.workloads.forget(occupant.pod)
            if self._names.get(occupant.pod.key) == uid:
                del self._names[occupant.pod.key]
            if occupant.pod.node and not occupant.pod.terminal:
                self._left.append(occupant)
            self._untouch(uid, occupant.places)
        self.release(uid)
        self._assumed.forget(uid)

    # What this process is about to bind.

    def reserve(self, pod: Pod, node: str, placement: Mapping[str, tuple[Share, ...]]) -> None:
        """Count the pod as lying there, until the watch shows it bound or gone, or :meth:`release`."""
        known = self._pods.get(pod.uid) or pod_view(pod)
        occupant = known.on(node, placement)
        if (expected := self._assumed.expected(pod.uid)) == occupant:
            self._assumed.reserve(expected)
            return  # just as it is counted already
        self.release(pod.uid)
        self._assumed.reserve(occupant)
        self._go(known, node)

    def expect(
        self,
        asked: PodView,
        node: str,
        placement: Mapping[str, tuple[Share, ...]],
        now: float,
        most: float = math.inf,
        *,
        chosen: bool = True,
    ) -> None:
        """Count a waiting pod as lying there, as one that its scheduler will bind; ``asked`` is the pod as
        that has shown it; for ``most`` seconds. Without ``chosen`` its scheduler is still to ask about it:
        what it says of the pod until then ends nothing.

        Ends with :meth:`reserve`, when the watch shows the pod bound, gone, or given up by its scheduler,
        with :meth:`give_up`, or by :meth:`expire` once its place was kept for long enough.
        """
        uid = asked.uid
        known = self._pods.get(uid)
        if known is None or not known.waits or self._assumed.reserved(uid):
            return
        before = self._assumed.expected(uid)
        self.lapsed += before is not None and before.pod.node != node
        self.unexpect(uid)
        self._assumed.expect(known.on(node, placement), asked if chosen else None, now, most)
        self._go(known, node)

    def unexpect(self, uid: PodUid) -> None:
        """Its scheduler has decided otherwise."""
        occupant = self._assumed.unexpect(uid)
        if occupant is not None:
            self._leave(occupant)

    def give_up(self, uid: PodUid) -> None:
        """The pod does not come to where it is expected; its place is free, of which the API gives no
        notice.
        """
        self.lapsed += self._assumed.expected(uid) is not None
        self.unexpect(uid)

    def give_up_all(self) -> None:
        """Give up the places of all expected pods."""
        for uid in self._assumed.all_expected():
            self.give_up(uid)

    def expire(self, now: float) -> None:
        """End the expectations whose time is over."""
        for uid in self._assumed.expired(now):
            self.give_up(uid)

    def release(self, uid: PodUid) -> bool:
        """Undo a reservation; False if there is none any more."""
        self.unexpect(uid)
        occupant = self._assumed.release(uid)
        if occupant is not None:
            self._leave(occupant)
        return occupant is not None

    def learn(self, pod: Pod) -> bool:
        """The API server itself reported the pod as bound, before the watch did.

        False for a pod that the watch has never shown: it counts as reserved there until the watch shows it
        or :meth:`release`, because a list requested before the pod came may lack it.
        """
        known = self._pods.get(pod.uid)
        if known is not None:
            self.take(replace(pod_view(pod), cpu=known.cpu))
            return True
        self.release(pod.uid)
        self._assumed.reserve(replace(pod_view(pod), reserved=True))
        self._touch(pod.node, pod.uid)
        return False

    def answer(self, uid: PodUid, text: str | None) -> None:
        """Count the pod as if this answer were written, until the watch shows it; None: it was not
        written.
        """
        shown = self._answers.give(uid, text, self._pods.get(uid))
        if shown is not None:
            self.take(shown)

    # What is known.

    def get(self, uid: PodUid) -> PodView | None:
        """The pod as the watch shows it."""
        return self._pods.get(uid)

    def named(self, namespace: str, name: str) -> PodView | None:
        """The pod of that name."""
        uid = self._names.get(f"{namespace}/{name}")
        return None if uid is None else self._pods.get(uid)

    def all(self) -> Iterable[PodView]:
        """Every pod as the watch shows it."""
        return self._pods.values()

    def expected_on(self, uid: PodUid) -> str:
        """The node on which the pod's place is kept before its Binding has begun, empty if on none."""
        occupant = self._assumed.expected(uid)
        return occupant.pod.node if occupant else ""

    def reserved_on(self, uid: PodUid) -> str:
        """The node on which the pod is reserved, empty if on none."""
        occupant = self._assumed.reserved(uid)
        return occupant.pod.node if occupant else ""

    def reserved(self) -> Mapping[PodUid, str]:
        """Each pod whose Binding is in progress or expected, and its node."""
        return self._assumed.nodes()

    def resizing(self) -> tuple[PodView, ...]:
        """Pods with a request for another size, their own or their owner's, or an answer to one. The request
        that counts stands on each.
        """
        uids = self._resizing | (self.workloads.pods() & self._pods.keys())
        return tuple(self.workloads.asking(self._pods[uid]) for uid in uids)

    def on(self, node: str) -> list[PodView]:
        """The pods that count on the node, each as it will be once bound."""
        return [self._assumed.of(uid) or self._pods[uid] for uid in self._at.get(node, ())]

    def came(self) -> list[PodView]:
        """The pods that came since the last call, each once."""
        return _taken(self._came)

    def left(self) -> list[PodView]:
        """The pods that left a node, or ended there, since the last call, each once."""
        return _taken(self._left)

    def _with_shared_constraints(self, occupant: PodView) -> PodView:
        """The pod with one object for equal constraints, of which a cluster has few."""
        constraints = occupant.constraints
        if constraints == ANYWHERE:
            return occupant
        known = self._constraints.get(constraints)
        shared = None if known is None else known()
        if shared is None:
            self._constraints[constraints] = ref(constraints)
            return occupant
        return replace(occupant, constraints=shared)

    # Which nodes that changes.

    def _go(self, known: PodView, node: str) -> None:
        """It is coming to that node: where others made room for it, none is kept any more."""
        self.changed.update(known.places)
        self._touch(node, known.uid)

    def _leave(self, occupant: PodView) -> None:
        """It is not coming after all, or has come: back to what the watch shows of it."""
        self._untouch(occupant.uid, [occupant.pod.node])
        if occupant.uid in self._pods:
            for node in self._pods[occupant.uid].places:
                self._touch(node, occupant.uid)

    def _touch(self, node: str, uid: PodUid) -> None:
        self._at.setdefault(node, set()).add(uid)
        self.changed.add(node)

    def _untouch(self, uid: PodUid, nodes: Iterable[str]) -> None:
        for node in nodes:
            here = self._at.get(node, set())
            here.discard(uid)
            if not here:
                self._at.pop(node, None)
            self.changed.add(node)


def _taken(pods: deque[PodView]) -> list[PodView]:
    taken = list(pods)
    pods.clear()
    return taken


class UnshownAnswers:
    """Each answer, and the pod as the watch has shown it last. Not thread-safe."""

    def __init__(self) -> None:
        self._answers: dict[PodUid, tuple[str, PodView]] = {}

    def shown(self, occupant: PodView) -> PodView:
        """The pod that the watch shows, as it counts: with its answer, until that or another is shown."""
        text, before = self._answers.get(occupant.uid, ("", occupant))
        if not text:
            return occupant
        written = occupant.pod.annotations.get(RESIZED)
        if written == text or written != before.pod.annotations.get(RESIZED):
            del self._answers[occupant.uid]  # it is written, or another replica's is
            return occupant
        self._answers[occupant.uid] = text, occupant
        return answered(occupant, text)

    def give(self, uid: PodUid, text: str | None, known: PodView | None) -> PodView | None:
        """Count with this answer from now on, or with none for None: the answer was written, or was not.

        Returns the pod as the watch last showed it, ``known`` if no answer was pending.
        """
        _, before = self._answers.pop(uid, ("", known))
        if before is not None and text is not None:
            self._answers[uid] = text, before
        return before

    def forget(self, uid: PodUid) -> None:
        """The pod is gone."""
        self._answers.pop(uid, None)

"""Which pods are of which gang, and how many it wants at least, as the watches show them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from admission.gangs.marks import GangKey, GangMark, mark_of, minimum_of
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.untrusted import at, mapping, mappings, text, timestamp

Obj = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of a gang. ``bound`` while it lives on a node, ``ended`` once it is over or being deleted.
    ``created`` and ``succeeded`` are seconds since 1970, the latter 0 for a pod that has not succeeded.
    """

    mark: GangMark
    name: str
    bound: bool
    ended: bool
    created: float = 0.0
    succeeded: float = 0.0


class GangMembers:
    """All gangs. Thread-safe by ``lock``, that of the cluster's state."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._members: dict[PodUid, Member] = {}
        self._gangs: dict[GangKey, dict[PodUid, None]] = {}  # in the order in which they came
        self._minimums: dict[GangKey, int] = {}
        self._begun: set[GangKey] = set()  # a member was bound once

    def see(self, pod: Obj, *, gone: bool) -> None:
        """Take in a pod as the watch shows it."""
        meta, status = mapping(pod.get("metadata")), mapping(pod.get("status"))
        uid, mark = PodUid(text(meta.get("uid"))), None if gone else mark_of(pod)
        with self._lock:
            before = self._members.get(uid)
            if before is not None and (mark is None or mark.gang != before.mark.gang):
                self._forget(uid)
            if mark is None:
                return
            over = text(status.get("phase")) in ("Succeeded", "Failed") or bool(meta.get("deletionTimestamp"))
            on_node = bool(mapping(pod.get("spec")).get("nodeName"))
            created, succeeded = timestamp(meta.get("creationTimestamp")) or 0.0, _succeeded(status)
            name = text(meta.get("name"))
            self._members[uid] = Member(mark, name, on_node and not over, over, created, succeeded)
            self._gangs.setdefault(mark.gang, {})[uid] = None
            if on_node:
                self._begun.add(mark.gang)

    def retain(self, uids: Collection[PodUid]) -> None:
        """Forget the pods that a full list lacks."""
        with self._lock:
            for uid in [uid for uid in self._members if uid not in uids]:
                self._forget(uid)

    def take_group(self, api: str, group: Obj, *, gone: bool) -> None:
        """Take in a PodGroup of that API group."""
        minimum = None if gone else minimum_of(api, group)
        with self._lock:
            if minimum is None:
                self._minimums.pop(_key(api, group), None)
            else:
                self._minimums[_key(api, group)] = minimum

    def replace_groups(self, api: str, groups: Iterable[Obj], take: Callable[[Obj], None]) -> None:
        """Take in a full list of them by ``take``, which calls :meth:`take_group`."""
        with self._lock:
            unseen = {key for key in self._minimums if key.api == api}
        for group in groups:
            unseen.discard(_key(api, group))
            take(group)
        with self._lock:
            for key in unseen:
                self._minimums.pop(key, None)

    # What is known. Who calls it holds the lock.

    def gang_of(self, uid: PodUid) -> GangKey | None:
        """The gang that the pod is of."""
        found = self._members.get(uid)
        return found.mark.gang if found else None

    def of(self, gang: GangKey) -> Mapping[PodUid, Member]:
        """The members, the oldest first."""
        return {uid: self._members[uid] for uid in self._gangs.get(gang, ())}

    def minimum(self, gang: GangKey) -> int | None:
        """The least number of members of the gang; None if unknown."""
        found = self._minimums.get(gang)
        if found is None:
            totals = (self._members[uid].mark.total for uid in self._gangs.get(gang, ()))
            found = next(filter(None, totals), None)
        return found

    def has_begun(self, gang: GangKey) -> bool:
        """True if a member of it was bound once."""
        return gang in self._begun

    def done(self, gang: GangKey) -> int:
        """How many members have succeeded beside those that live: none of an earlier run of the same gang."""
        members = self.of(gang).values()
        began = min((one.created for one in members if not one.ended), default=None)
        return 0 if began is None else sum(one.succeeded > began for one in members)

    def all(self) -> list[GangKey]:
        """Every gang that has a member."""
        return list(self._gangs)

    def _forget(self, uid: PodUid) -> None:
        member = self._members.pop(uid, None)
        if member is None:
            return
        here = self._gangs[member.mark.gang]
        del here[uid]
        if not here:
            del self._gangs[member.mark.gang]
            self._begun.discard(member.mark.gang)


def _succeeded(status: Obj) -> float:
    """When the last container of a pod that has succeeded ended; 0 for one that has not."""
    ends = [
        at(one, "state", "terminated").get("finishedAt") for one in mappings(status.get("containerStatuses"))
    ]
    return max((timestamp(end) or 0.0 for end in ends if status.get("phase") == "Succeeded"), default=0.0)


def _key(api: str, group: Obj) -> GangKey:
    meta = mapping(group.get("metadata"))
    return GangKey(api, text(meta.get("namespace")), text(meta.get("name")))

"""Which pods are of which gang: its mark, its size, its members as the watches show them, its state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from admission.config import POD_GROUP_APIS
from gpu_manager.domain.errors import printable
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.untrusted import at, mapping, mappings, text, timestamp

# How a pod is marked as a member of a gang, and where the gang's size is stated.
# Each system has its own mark; the first in :func:`mark_of` counts. Three systems write the size into a
# PodGroup of their own API group, Kueue into each pod.


KUBERNETES, COSCHEDULING, VOLCANO = POD_GROUP_APIS
KUEUE: Final = "kueue.x-k8s.io"
_KUEUE_TOTAL: Final = f"{KUEUE}/pod-group-total-count"
_LARGEST: Final = 1 << 31  # of a size as Kubernetes writes one, an int32


@dataclass(frozen=True, slots=True)
class GangKey:
    """Identity of a gang: the API group of the system that marks it, its namespace and its name there."""

    api: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class GangMark:
    """A pod's gang, and the size that the pod itself states; None if a PodGroup has it."""

    gang: GangKey
    total: int | None = None


def mark_of(pod: Mapping[str, Any]) -> GangMark | None:
    """Read a core/v1 Pod in its JSON form; None for a pod that is in no gang."""
    meta = mapping(pod.get("metadata"))
    namespace = text(meta.get("namespace")) or "default"
    labels, annotations = mapping(meta.get("labels")), mapping(meta.get("annotations"))
    named = {
        KUBERNETES: mapping(mapping(pod.get("spec")).get("schedulingGroup")).get("podGroupName"),
        COSCHEDULING: labels.get(f"{COSCHEDULING}/pod-group"),
        VOLCANO: annotations.get("scheduling.k8s.io/group-name"),
        KUEUE: labels.get(f"{KUEUE}/pod-group-name"),
    }
    for api, name in named.items():
        if found := text(name):
            total = _whole(annotations.get(_KUEUE_TOTAL)) if api == KUEUE else None
            return GangMark(GangKey(api, namespace, found), total)
    return None


def minimum_of(api: str, group: Mapping[str, Any]) -> int | None:
    """The least number of members in a PodGroup of that API group; None if it defines no gang."""
    spec = mapping(group.get("spec"))
    if api == KUBERNETES:
        return _whole(mapping(mapping(spec.get("schedulingPolicy")).get("gang")).get("minCount"))
    return _whole(spec.get("minMember"))


def _whole(value: object) -> int | None:
    """A size that is a number, or a text of one as annotations have it."""
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value
    return number if type(number) is int and 0 < number < _LARGEST else None


# The published state of a gang.


MOST_MEMBERS: Final = 256  # that are missing; a larger gang is judged pod by pod
SHOWN: Final = 3  # names in one text


@dataclass(frozen=True, slots=True)
class GangState:
    """A gang at one moment. ``minimum``: the least number of members, None if unknown; ``members``: existing
    ones, ``bound`` those on a node, ``placed`` those with a kept place, ``missing`` those without a node.
    ``lacks``: why it had no places at the last question; else empty.
    """

    gang: GangKey
    minimum: int | None
    members: int
    bound: tuple[str, ...]
    placed: int
    missing: int
    lacks: str = ""

    @property
    def line(self) -> str:
        """One sentence about it."""
        name = f"{named(self.gang)} ({self.gang.api})"
        if self.minimum is None:
            return f"{name}: its size is not known here, so each of its pods is judged alone"
        if self.missing > MOST_MEMBERS:
            much = f"{self.missing} members are missing, more than {MOST_MEMBERS}"
            return f"{name}: {much}, so each of its pods is judged alone"
        on_nodes = f"{len(self.bound)} bound"
        if self.bound and self.missing:
            on_nodes += f" ({shown(self.bound)})"
        waits = f"{on_nodes}, {self.placed} with a place"
        return f"{name}: {self.members} members of at least {self.minimum}, {waits}"


def named(gang: GangKey) -> str:
    """The gang, for a text."""
    return f"gang {printable(gang.name)}"


def shown(names: Sequence[str]) -> str:
    """The first of these pods, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(map(printable, names[:SHOWN]))}{more}"


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

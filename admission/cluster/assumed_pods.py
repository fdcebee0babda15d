"""Pods that count as placed on a node before the watch shows them there.

A pod is *expected* from its scheduler's choice on: the bind may come minutes later, for volumes that are
provisioned for the chosen node and for gangs that wait until they are complete. It is *reserved* while its
Binding is in progress.

The place of an expected pod is kept for at most half of its remaining allowance, which is :data:`ROUNDS`
times ``keep_seconds`` a day: a pod that never comes has its place for 15 minutes, then for half of that, and
so on; one that is filtered again at once loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from admission.cluster.pod_view import PodView
from admission.config import KEEP_SECONDS, SHORTEST_KEEP_SECONDS
from gpu_manager.domain.kube.pod import PodUid

ROUNDS: Final = 2
_FORGOTTEN_SECONDS: Final = 86_400.0
_MOST_SPENT: Final = 1 << 14  # pods; the oldest go


@dataclass(frozen=True, slots=True)
class _Expected:
    occupant: PodView
    began: float
    until: float
    asked: PodView | None  # as its scheduler showed it when it asked; None: it has not asked yet


class AssumedPods:
    """Each pod as it will be once bound. A pod is reserved or expected, not both. Not thread-safe."""

    def __init__(self, keep_seconds: float = KEEP_SECONDS) -> None:
        self._keep = keep_seconds
        self._now = 0.0
        self._reserved: dict[PodUid, PodView] = {}
        self._expected: dict[PodUid, _Expected] = {}
        self._first_end = math.inf  # no place ends before that
        self._spent: dict[PodUid, tuple[float, float]] = {}  # since when, and how many seconds in vain

    def of(self, uid: PodUid) -> PodView | None:
        """The pod as it will be once placed; None if no place is assumed for it."""
        return self._reserved.get(uid) or self.expected(uid)

    def nodes(self) -> Mapping[PodUid, str]:
        """The node of each."""
        return {
            **{uid: each.occupant.pod.node for uid, each in self._expected.items()},
            **{uid: occupant.pod.node for uid, occupant in self._reserved.items()},
        }

    def reserved(self, uid: PodUid) -> PodView | None:
        """The pod as it will be once placed, if it is reserved."""
        return self._reserved.get(uid)

    def expected(self, uid: PodUid) -> PodView | None:
        """The pod as it will be once placed, if it is expected."""
        each = self._expected.get(uid)
        return None if each is None else each.occupant

    def all_expected(self) -> list[PodUid]:
        """Every pod that is expected."""
        return list(self._expected)

    def is_given_up(self, occupant: PodView) -> bool:
        """True if its scheduler has since reported that it found no node for the pod, or chose another
        one.
        """
        each = self._expected.get(occupant.uid)
        if each is None or each.asked is None:
            return False
        refused = occupant.verdict not in (0, each.asked.verdict)
        return refused or occupant.nominated not in ("", each.asked.nominated, each.occupant.pod.node)

    def expired(self, now: float) -> list[PodUid]:
        """The pods whose place was kept until ``now`` or earlier. Later calls use this ``now``."""
        self._now = now
        if now < self._first_end:
            return []
        self._first_end = min((e.until for e in self._expected.values() if e.until > now), default=math.inf)
        return [uid for uid, each in self._expected.items() if each.until <= now]

    def reserve(self, occupant: PodView) -> None:
        """Reserve the pod, whose Binding begins; it is no longer expected."""
        self._expected.pop(occupant.uid, None)
        self._reserved[occupant.uid] = occupant

    def expect(self, occupant: PodView, asked: PodView | None, now: float, most: float = math.inf) -> None:
        """Its scheduler has chosen, for ``most`` seconds; ``asked`` is the pod as that has shown it, None
        where it is still to choose: what it said of the pod before ends nothing then.
        """
        self._now = now
        since, spent = self._spent.get(occupant.uid, (now, 0.0))
        if now - since >= _FORGOTTEN_SECONDS:
            del self._spent[occupant.uid]
            spent = 0.0
        until = now + min(most, max(SHORTEST_KEEP_SECONDS, self._keep - spent / ROUNDS))
        self._expected[occupant.uid] = _Expected(occupant, now, until, asked)
        self._first_end = min(self._first_end, until)

    def release(self, uid: PodUid) -> PodView | None:
        """End the pod's reservation, and return it."""
        return self._reserved.pop(uid, None)

    def unexpect(self, uid: PodUid) -> PodView | None:
        """End the pod's expectation, and return it."""
        each = self._expected.pop(uid, None)
        if each is None:
            return None
        since, spent = self._spent.pop(uid, (each.began, 0.0))
        self._spent[uid] = since, spent + max(0.0, min(self._now, each.until) - each.began)
        if len(self._spent) > _MOST_SPENT:
            del self._spent[next(iter(self._spent))]
        return each.occupant

    def forget(self, uid: PodUid) -> None:
        """The pod is gone, or bound: its earlier places no longer count against its allowance."""
        self._spent.pop(uid, None)

    def copy(self) -> AssumedPods:
        """An independent copy."""
        other = AssumedPods(self._keep)
        other._reserved, other._expected = self._reserved.copy(), self._expected.copy()
        other._spent, other._now, other._first_end = self._spent.copy(), self._now, self._first_end
        return other

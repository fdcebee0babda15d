"""Pods that count as lying on a node before the watch shows them there.

One is expected from its scheduler's choice on, for some seconds, and reserved while its Binding is under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from admission.cluster.pod_view import PodView
from gpu_manager.domain.pod import PodUid


class AssumedPods:
    """Each pod as it will be once bound. A pod is reserved or expected, not both. Not thread-safe."""

    def __init__(self) -> None:
        self._reserved: dict[PodUid, PodView] = {}
        self._expected: dict[PodUid, tuple[float, PodView]] = {}  # until when; the oldest first

    def of(self, uid: PodUid) -> PodView | None:
        """The pod as it will be; None if nothing is assumed of it."""
        return self._reserved.get(uid) or self.expected(uid)

    def nodes(self) -> Mapping[PodUid, str]:
        """The node of each."""
        return {
            **{uid: occupant.pod.node for uid, (_, occupant) in self._expected.items()},
            **{uid: occupant.pod.node for uid, occupant in self._reserved.items()},
        }

    def reserved(self, uid: PodUid) -> PodView | None:
        """The pod as it will be, if it is reserved."""
        return self._reserved.get(uid)

    def expected(self, uid: PodUid) -> PodView | None:
        """The pod as it will be, if it is expected."""
        return self._expected.get(uid, (0.0, None))[1]

    def expired(self, now: float) -> list[PodUid]:
        """Who was expected until now, or before, and has not come."""
        return [uid for uid, _ in takewhile(lambda each: each[1][0] <= now, self._expected.items())]

    def reserve(self, occupant: PodView) -> None:
        """Its Binding begins; it is expected no more."""
        self._expected.pop(occupant.uid, None)
        self._reserved[occupant.uid] = occupant

    def expect(self, occupant: PodView, until: float) -> None:
        """Its scheduler has chosen."""
        self._expected[occupant.uid] = until, occupant

    def release(self, uid: PodUid) -> PodView | None:
        """End its reservation, and return what it was."""
        return self._reserved.pop(uid, None)

    def unexpect(self, uid: PodUid) -> PodView | None:
        """End its expectation, and return what it was."""
        return self._expected.pop(uid, (0.0, None))[1]

    def copy(self) -> AssumedPods:
        """The same, changed apart from these."""
        other = AssumedPods()
        other._reserved, other._expected = self._reserved.copy(), self._expected.copy()
        return other

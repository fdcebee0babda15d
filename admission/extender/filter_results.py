"""Filter's answers, kept for bind.

Bind accepts only a node that filter offered to the pod; an offer lasts as long as the pod waits, since pods
with volumes or gangs are bound minutes later, and bind judges the node again in any case.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final

from gpu_manager.domain.kube.pod import PodUid

_MOST_OFFERS: Final = 1 << 14  # pods between filter and bind
_MOST_RECENT: Final = 32  # kept uncompressed: more than a scheduler binds at one time
_ONE: Final = ord("1")


class FilterResults:
    """All nodes that filter has offered for each pod. Thread-safe; the oldest pods are dropped first.

    Most pods are bound a moment after filter has answered, so only the other answers are compressed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bits: dict[str, int] = {}
        self._recent: dict[PodUid, Sequence[str]] = {}  # the newest last
        self._made: dict[PodUid, int] = {}  # a bit per node
        self._inherited: frozenset[PodUid] = frozenset()

    def remember(self, uid: PodUid, nodes: Sequence[str]) -> None:
        """Store filter's answer for this pod. The caller must not change ``nodes`` afterwards."""
        with self._lock:
            self._inherited -= {uid}
            before = self._recent.pop(uid, None)
            if before is not None and before != nodes:
                self._make_small(uid, before)
            if len(nodes):
                self._recent[uid] = nodes
            if len(self._recent) > _MOST_RECENT:
                oldest = next(iter(self._recent))
                self._make_small(oldest, self._recent.pop(oldest))

    def bound(self, uid: PodUid, node: str) -> None:
        """The pod is bound: of its offers only this node is still needed."""
        with self._lock:
            self._made.pop(uid, None)
            if uid in self._recent:
                self._recent[uid] = (node,)

    def inherit(self, uids: Iterable[PodUid]) -> None:
        """Assume that another replica offered every node for these pods, before this replica answered for
        them.
        """
        with self._lock:
            self._inherited = frozenset(uids)

    def has(self, uid: PodUid, node: str) -> bool:
        """True if the node was offered for the pod, or may have been by another replica."""
        with self._lock:
            if uid in self._inherited or node in self._recent.get(uid, ()):
                return True
            made, bit = self._made.get(uid, 0), self._bits.get(node)
            return bit is not None and bool(made >> bit & 1)

    def _make_small(self, uid: PodUid, nodes: Sequence[str]) -> None:
        try:
            bits = list(map(self._bits.__getitem__, nodes))
        except KeyError:  # some are new
            bits = [self._bits.setdefault(name, len(self._bits)) for name in nodes]
        # One bit for each offered node: 5,000 nodes take 600 bytes. The bits are written as binary digits,
        # lowest bit last, because one int() of all digits is faster than 5,000 shifts.
        digits = bytearray(b"0") * (max(bits, default=0) + 1)
        for bit in bits:
            digits[-1 - bit] = _ONE
        self._made[uid] = int(digits, 2) | self._made.pop(uid, 0)
        while len(self._made) > _MOST_OFFERS:
            del self._made[next(iter(self._made))]
        if len(self._bits) > 1 << 17:  # includes names of deleted nodes
            self._bits.clear()
            self._made.clear()

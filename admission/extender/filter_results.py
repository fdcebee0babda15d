"""Where filter said that a pod fits: bind asks, for a scheduler may bind nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from gpu_manager.domain.pod import PodUid
from gpu_manager.ports.clock import Clock

OFFER_SECONDS: Final = 60.0  # how long filter's answer holds for bind
_MOST_OFFERS = 4096  # pods between filter and bind
_MOST_RECENT = 32  # kept as they came: more than a scheduler binds at one time
_ONE: Final = ord("1")


class FilterResults:
    """Which nodes filter offered for which pod, for a minute. Thread-safe; the oldest pods go first.

    Most pods are bound a moment after filter has answered, so only the answers for others are made small.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bits: dict[str, int] = {}
        self._recent: dict[PodUid, tuple[float, Sequence[str]]] = {}  # the newest last
        self._made: dict[PodUid, tuple[float, int, int]] = {}

    def remember(self, uid: PodUid, nodes: Sequence[str]) -> None:
        """The answer for the pod; replaces the last one. ``nodes`` is kept, and must not change."""
        with self._lock:
            self._recent.pop(uid, None)
            self._made.pop(uid, None)
            self._recent[uid] = self._clock.monotonic(), nodes
            if len(self._recent) > _MOST_RECENT:
                oldest = next(iter(self._recent))
                self._make_small(oldest, *self._recent.pop(oldest))

    def bound(self, uid: PodUid, node: str) -> None:
        """The pod is bound there: of its offer only that node is still of use."""
        with self._lock:
            if uid in self._recent:
                self._recent[uid] = self._recent[uid][0], (node,)

    def _make_small(self, uid: PodUid, at: float, nodes: Sequence[str]) -> None:
        try:
            bits = list(map(self._bits.__getitem__, nodes))
        except KeyError:  # some are new
            bits = [self._bits.setdefault(name, len(self._bits)) for name in nodes]
        # A bit a node: 5,000 names are 600 bytes. As digits first, to be read in one go.
        digits = bytearray(b"0") * (max(bits, default=0) + 1)
        for bit in bits:
            digits[bit] = _ONE
        self._made[uid] = at, int(digits, 2), len(digits)
        while len(self._made) > _MOST_OFFERS:
            del self._made[next(iter(self._made))]
        if len(self._bits) > 1 << 17:  # names of nodes that came and went
            self._bits.clear()
            self._made.clear()

    def has(self, uid: PodUid, node: str) -> bool:
        """True if the node was offered for the pod within the last minute."""
        with self._lock:
            recent = self._recent.get(uid)
            if recent is not None:
                at, nodes = recent
                return self._clock.monotonic() - at <= OFFER_SECONDS and node in nodes
            made, bit = self._made.get(uid), self._bits.get(node)
            if made is None or bit is None or self._clock.monotonic() - made[0] > OFFER_SECONDS:
                return False
            _, field, digits = made  # the first digit is the highest bit
            return bit < digits and bool(field >> (digits - 1 - bit) & 1)

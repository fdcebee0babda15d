"""Links between the node's cards by UUID: a lost card keeps the links it had."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.topology import SELF, Link, LinkKind, NumaPolicy, Topology

_UNKNOWN = Link(LinkKind.SYS)  # the weakest link


class KnownLinks:
    """The last known link of each pair of cards. Thread-safe."""

    def __init__(self, numa_policy: NumaPolicy = NumaPolicy.NONE) -> None:
        """Without any links. ``numa_policy``: the one of the node's kubelet."""
        self._numa_policy = numa_policy
        self._lock = threading.Lock()
        self._links: dict[tuple[CardUuid, CardUuid], Link] = {}
        self._noted: frozenset[tuple[CardUuid, bool]] | None = None

    def stale(self, states: Sequence[CardState]) -> bool:
        """True if the present or the healthy cards have changed since the links were last read."""
        return self._noted != _who(states)

    def note(self, states: Sequence[CardState], topology: Topology) -> None:
        """Take in a topology in the order of ``states``. Ignored if a card came or went in between."""
        if topology.size != len(states):
            return
        with self._lock:
            for i, a in enumerate(states):
                for j, b in enumerate(states):
                    pair = (a.card.uuid, b.card.uuid)
                    if (a.healthy and b.healthy) or pair not in self._links:
                        self._links[pair] = topology.links[i][j]
            self._noted = _who(states)

    def of(self, states: Sequence[CardState]) -> Topology:
        """The links of these cards, in their order; SYS where none was ever read."""
        uuids = [state.card.uuid for state in states]
        with self._lock:
            return Topology(
                tuple(
                    tuple(SELF if a == b else self._links.get((a, b), _UNKNOWN) for b in uuids) for a in uuids
                ),
                self._numa_policy,
            )


def _who(states: Sequence[CardState]) -> frozenset[tuple[CardUuid, bool]]:
    return frozenset((state.card.uuid, state.healthy) for state in states)

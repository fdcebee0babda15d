"""A node that is closed to smaller pods, so that it drains for one that waits. Frozen; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_manager.domain.pod import Pod


@dataclass(frozen=True, slots=True)
class KeptFor:
    """The pod that waits, the whole cards of one node that it asks for, and how many pods of the cluster may
    leave their nodes before this one is open again.

    ``seconds``: the node has room for the pod, and is open again so long after that was first so; None while
    it has none.
    """

    pod: Pod
    cards: int
    left: int
    seconds: int | None = None

    def refuses(self, pod: Pod, cards: int) -> bool:
        """True if a pod whose largest part asks for so many whole cards may not come."""
        return cards < self.cards and pod.priority <= self.pod.priority and pod.uid != self.pod.uid

    def as_json(self, namespace: str = "") -> Mapping[str, Any]:
        """Who waits since when, for how many cards, and how many pods may leave, or after how many seconds it
        is open again. ``namespace``: the only one whose pods are named, empty for all; else ``pod`` is empty.
        """
        name = self.pod.key if namespace in ("", self.pod.namespace) else ""
        found = {"pod": name, "since": self.pod.created, "cards": self.cards, "left": self.left}
        return found if self.seconds is None else {**found, "seconds": self.seconds}


@dataclass(slots=True)
class KeptNode:
    """Which node is closed now, and for whom. Not thread-safe."""

    node: str = ""
    kept: KeptFor | None = None

    def on(self, node: str) -> KeptFor | None:
        """For whom that node is closed."""
        return self.kept if node == self.node else None

    def change(self, node: str, kept: KeptFor | None) -> frozenset[str]:
        """Close that node instead, none without ``kept``; return the nodes of which something changed."""
        if (node, kept) == (self.node, self.kept):
            return frozenset()
        changed = frozenset(name for name in (self.node, node) if name)
        self.node, self.kept = node, kept
        return changed

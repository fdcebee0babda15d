"""What the page for people shows of the cluster: every card with its holders, and why pods wait.

The page asks every two seconds, and an explanation can take a second of a core in a large cluster. So one
picture serves everyone who asks within that time, and each picture works out only as many reasons as fit
into half a second, the oldest first; the others are as they were a moment ago.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.explain.explanation import Explanation
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_json import node_json
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.pod import PodUid
from gpu_manager.ports import Clock

MOST_NODES: Final = 200  # with their cards, the fullest first; the rest is counted
MOST_WAITING: Final = 200
KEPT_SECONDS: Final = 2.0
_REASONS_SECONDS: Final = 0.5
_NOT_YET: Final = "being worked out"


class ClusterPage:
    """Thread-safe. ``snapshot`` raises NodeUnready before the first lists; ``waiting`` is in no order."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        waiting: Callable[[], tuple[PodView, ...]],
        explain: Callable[[PodView], Explanation],
        clock: Clock,
    ) -> None:
        self._snapshot = snapshot
        self._waiting = waiting
        self._explain = explain
        self._clock = clock
        self._lock = threading.Lock()
        self._made: tuple[float, bytes] | None = None
        self._told: dict[PodUid, tuple[float, str, str]] = {}  # when it was worked out, what it asks, why

    def data(self) -> bytes:
        """JSON for ``/ui/data``. Raises NodeUnready."""
        with self._lock:
            now = self._clock.monotonic()
            if self._made is None or now - self._made[0] >= KEPT_SECONDS:
                text = json.dumps(self._draw(self._snapshot()), separators=(",", ":"))
                self._made = self._clock.monotonic(), text.encode()
            return self._made[1]

    def _draw(self, snapshot: Snapshot) -> Mapping[str, Any]:
        views = [view for view in snapshot.nodes.values() if view.node.cards]
        views.sort(key=lambda view: (-len(view.charges), view.name))
        shown = sorted(views[:MOST_NODES], key=lambda view: view.name)
        waiting = sorted(self._waiting(), key=lambda o: (-o.pod.priority, o.pod.began, o.uid))
        self._work_out(waiting[:MOST_WAITING])
        return {
            "nodes": [graph(view) for view in shown],
            "waiting": [self._row(o) for o in waiting[:MOST_WAITING]],
            "left_out": {"nodes": len(views) - len(shown), "waiting": max(0, len(waiting) - MOST_WAITING)},
        }

    def _work_out(self, waiting: list[PodView]) -> None:
        there = {o.uid for o in waiting}
        self._told = {uid: told for uid, told in self._told.items() if uid in there}
        ends = self._clock.monotonic() + _REASONS_SECONDS
        for occupant in sorted(waiting, key=lambda o: self._told.get(o.uid, (0.0, "", ""))[0]):
            explanation = self._explain(occupant)
            now = self._clock.monotonic()
            self._told[occupant.uid] = now, explanation.asks, explanation.line
            if now >= ends:
                return

    def _row(self, occupant: PodView) -> Mapping[str, str]:
        _, asks, why = self._told.get(occupant.uid, (0.0, "", _NOT_YET))
        return {"pod": occupant.pod.key, "asks": asks, "why": why}


def graph(view: NodeView) -> dict[str, Any]:
    """One node in the shape of the agent's ``/graph``. Usage is the agents': here it is None."""

    def more(holder: Allocation, _: CardUuid) -> Mapping[str, Any]:
        pod = view.bound.get(holder.pod)
        return {
            "planned": pod is not None and pod.reserved,
            "ended": pod is not None and holder.container in pod.pod.ended_inits,
            "gone": None if pod is not None else str(holder.pod),
            "memory_used": None,
            "core_used": None,
        }

    cards = [replace(state, reason=state.reason or view.problem) for state in view.node.cards]
    return node_json(view.name, cards, view.node.topology, view.ledger, more)

"""The product's policy in the replay: the scorer that the extender asks."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from bench.placement.policies import Offer, ways
from bench.placement.trace import Pod
from gpu_manager.domain.score.closing import ClosedNode, NodeClosing
from gpu_manager.domain.score.multi_gpu_slots import drained, left_to_end
from gpu_manager.domain.score.request_mix import Arrivals, FreeShape, RequestShape, Stock
from gpu_manager.domain.score.scorer import Scorer


class Ours:
    """The product's scorer. ``known``: the whole trace's mix from the start, else that of the arrivals.

    ``every_card``: the scorer chooses the card of a fraction too, as the roll-out knows it; the product
    takes the best fit, which one node's own judgement is. Without ``draining`` no node is kept for who
    waits, nor closed. ``options`` go to the scorer.
    """

    by_name = False

    def __init__(
        self,
        stock: dict[str, Stock],
        *,
        known: Sequence[Pod] = (),
        every_card: bool = False,
        draining: bool = True,
        first_number: int = 0,
        **options: Any,
    ) -> None:
        self._stock, self._options, self._every_card = stock, options, every_card
        self._draining = draining
        self._fixed = bool(known)
        self.arrivals = Arrivals()
        for pod in known:
            self.arrivals.add(pod.shape)
        self.first_number = first_number
        self.scorer = self._new()
        self.refreshes = 0
        self.evaluated = 0
        self.refresh_seconds = 0.0
        self._left: dict[RequestShape, dict[int, int | None]] = {}
        self._closing = NodeClosing[int, int]()

    def _new(self) -> Scorer:
        return Scorer(self.arrivals.mix(), self._stock, **self._options)

    def arrived(self, shape: RequestShape) -> bool:
        if self._fixed:
            return False
        self.arrivals.add(shape)
        if not self.arrivals.due:
            return False
        began = time.perf_counter()
        self.evaluated += len(self.scorer.waste)
        self.scorer = self._new()
        self.refreshes += 1
        self.refresh_seconds += time.perf_counter() - began
        return True

    def restart(self, shapes: Sequence[RequestShape], created: Sequence[float]) -> None:
        """Forget all that was counted, as an extender that starts anew beside pods created at these times, in
        seconds from when the nodes were: no node is closed any more, and waits begin anew.
        """
        self._closing = NodeClosing()
        self.arrivals = Arrivals()
        for shape in shapes:
            self.arrivals.add(shape)
        self.arrivals.began(created, 0.0)

    def left(self, shape: RequestShape) -> None:
        self.arrivals.leave()
        self._closing.left(shape.cores > 0)

    def started(self, number: int, cards: int, node: int) -> None:
        self._closing.started(number, cards, node)

    def tagged(self, shape: RequestShape, tag: Hashable) -> Hashable:
        return tag

    def places(self, room: FreeShape) -> Sequence[int]:
        return self.scorer.places.of((room,))

    def prices(self, free: int, places: Sequence[int]) -> Sequence[float]:
        return self.scorer.places.prices(free, places)

    def kept(
        self, waiting: Sequence[RequestShape], nodes: Iterable[tuple[int, FreeShape, int]]
    ) -> Mapping[int, int]:
        if not self._draining:
            return {}
        nearest = cache(partial(self._nearest, list(nodes)))
        return drained((shape.cards, nearest(shape)) for shape in waiting)

    def closed(
        self,
        waiting: Mapping[int, RequestShape],
        running: int,
        nodes: Sequence[tuple[int, FreeShape, int, int]],
    ) -> ClosedNode[int, int] | None:
        if not self._draining:
            return None

        def nearest(pod: int) -> tuple[int, int] | None:
            able = (
                (left, at)
                for at, room, cpu, kind in nodes
                if (left := self._to_end(waiting[pod], kind, room, cpu)) is not None
            )
            left, at = min(able, default=(0, None))
            return None if at is None else (at, left)

        cards = {pod: shape.cards for pod, shape in waiting.items()}
        return self._closing.look(cards, running, nearest)

    def _nearest(self, nodes: Sequence[tuple[int, FreeShape, int]], shape: RequestShape) -> list[int]:
        each = ((self._to_end(shape, *node), node[0]) for node in nodes)
        return [number for _, number in sorted((left, number) for left, number in each if left is not None)]

    def _to_end(self, shape: RequestShape, kind: int, room: FreeShape, cpu: int) -> int | None:
        known = self._left.setdefault(shape, {})
        if kind not in known:
            known[kind] = left_to_end(shape, (room,), cpu)
        return known[kind]

    def offers(
        self, shape: RequestShape, rooms: Sequence[FreeShape], tags: Sequence[Hashable]
    ) -> list[Offer]:
        moves: list[tuple[tuple[FreeShape], tuple[FreeShape]]] = []
        at: list[int] = []
        for n, room in enumerate(rooms):
            after = ways(shape, room)
            for way in after if self._every_card else after[:1]:
                moves.append(((room,), (way,)))
                at.append(n)
        found: list[Offer] = [None] * len(rooms)
        for n, move, cost in zip(at, moves, self.scorer.costs(moves), strict=True):
            best = found[n]
            if best is None or cost < best[0]:
                found[n] = (cost, move[1][0], self.scorer.places.lost(*move))
        return found

"""The published policies, each our own writing of its rule, and what a policy is to a replay.

A policy prices one shape on one kind of node; equal nodes are asked about once. The lowest key wins.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from bench.placement.trace import Pod, typical
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.closing import ClosedNode
from gpu_manager.domain.score.multi_gpu_slots import Loss
from gpu_manager.domain.score.request_mix import FreeShape, RequestShape

_MOST_CPU: Final = 128_000
_MOST_CORES: Final = 800
Key = Any
# What it costs, how the node is left, and the places for several cards that this takes; None: does not fit.
Offer = tuple[Key, FreeShape, Loss] | None


class Policy(Protocol):
    """``by_name``: equal keys are told apart by the node's name, else by its free host memory first."""

    by_name: bool

    def arrived(self, shape: RequestShape) -> bool:
        """One more; True if all prices changed."""

    def left(self, shape: RequestShape) -> None:
        """One of those that came is gone."""

    def started(self, number: int, cards: int, node: int) -> None:
        """A pod that asks for so many whole cards lies on the node."""

    def offers(
        self, shape: RequestShape, rooms: Sequence[FreeShape], tags: Sequence[Hashable]
    ) -> list[Offer]:
        """One for each room. ``tags``: what else the policy wants to know of the node."""

    def tagged(self, shape: RequestShape, tag: Hashable) -> Hashable:
        """The node's tag once the shape is on it."""

    def places(self, room: FreeShape) -> Sequence[int]:
        """What the policy counts of each node over the cluster; nothing for most."""

    def prices(self, free: int, places: Sequence[int]) -> Sequence[float]:
        """What the loss of one of each costs, with so many cores free and places there in the cluster."""

    def kept(
        self, waiting: Sequence[RequestShape], nodes: Iterable[tuple[int, FreeShape, int]]
    ) -> Mapping[int, int]:
        """The nodes kept for requests for several cards that wait, and for how many cards each. ``nodes``:
        each kind of node, what is free there, and its host CPU, used or not.
        """

    def closed(
        self,
        waiting: Mapping[int, RequestShape],
        running: int,
        nodes: Sequence[tuple[int, FreeShape, int, int]],
    ) -> ClosedNode[int, int] | None:
        """The node that is closed to smaller requests. ``running``: pods with cards that run; ``nodes``: the
        first of each kind, what is free there, its host CPU, used or not, and the kind.
        """


def fits(shape: RequestShape, room: FreeShape) -> bool:
    """True if the node can take it. The host's CPU is a hard limit, and so is the model."""
    if room.cpu is not None and room.cpu < shape.cpu:
        return False
    if not shape.cores:
        return True
    if not shape.allows(room.model):
        return False
    if shape.cards:
        return sum(cores == CORES_PER_CARD for cores, _ in room.free) >= shape.cards
    return any(cores >= shape.cores and memory >= shape.memory for cores, memory in room.free)


def ways(shape: RequestShape, room: FreeShape) -> list[FreeShape]:
    """The node after the shape, for each distinct card that would do, the fullest first."""
    if not fits(shape, room):
        return []
    if not shape.cores or shape.cards:
        return [room.less(shape)]
    cards = dict.fromkeys(card for card in room.free if card[0] >= shape.cores and card[1] >= shape.memory)
    return [room.less(shape, card) for card in cards]


class Plain:
    """What most of the published policies share: best fit on the node, ties by the node's name."""

    by_name = True

    def arrived(self, shape: RequestShape) -> bool:
        return False

    def left(self, shape: RequestShape) -> None:
        return

    def started(self, number: int, cards: int, node: int) -> None:
        return

    def tagged(self, shape: RequestShape, tag: Hashable) -> Hashable:
        return tag

    def places(self, room: FreeShape) -> Sequence[int]:
        return ()

    def prices(self, free: int, places: Sequence[int]) -> Sequence[float]:
        return ()

    def kept(
        self, waiting: Sequence[RequestShape], nodes: Iterable[tuple[int, FreeShape, int]]
    ) -> Mapping[int, int]:
        return {}

    def closed(
        self,
        waiting: Mapping[int, RequestShape],
        running: int,
        nodes: Sequence[tuple[int, FreeShape, int, int]],
    ) -> ClosedNode[int, int] | None:
        return None

    def offers(
        self, shape: RequestShape, rooms: Sequence[FreeShape], tags: Sequence[Hashable]
    ) -> list[Offer]:
        found: list[Offer] = []
        for room, tag in zip(rooms, tags, strict=True):
            after = ways(shape, room)
            found.append((-self.score(shape, room, after[0], tag), after[0], ()) if after else None)
        return found

    def score(self, shape: RequestShape, room: FreeShape, after: FreeShape, tag: Hashable) -> float:
        """The highest wins."""
        raise NotImplementedError


def _milli(room: FreeShape) -> int:
    return sum(cores for cores, _ in room.free)


class BestFit(Plain):
    """Least CPU and GPU left, half each."""

    def score(self, shape: RequestShape, room: FreeShape, after: FreeShape, tag: Hashable) -> float:
        left = (after.cpu or 0) / _MOST_CPU + _milli(after) / _MOST_CORES
        return int(100 * (1 - left / 2))


class DotProd(Plain):
    """Tetris: the node whose free amounts are least along the pod's."""

    def score(self, shape: RequestShape, room: FreeShape, after: FreeShape, tag: Hashable) -> float:
        along = (room.cpu or 0) * shape.cpu / _MOST_CPU**2 + _milli(room) * shape.cores / _MOST_CORES**2
        return int(100 * (1 - along / 2))


class GpuPacking(Plain):
    """Shared GPUs first, then free GPUs of a used node, then an idle node."""

    def score(self, shape: RequestShape, room: FreeShape, after: FreeShape, tag: Hashable) -> float:
        if not shape.cores:
            return 0
        idle = sum(cores == CORES_PER_CARD for cores, _ in room.free)
        if idle == len(room.free):
            return max(100 // 3 - idle, idle)
        taken = idle - sum(cores == CORES_PER_CARD for cores, _ in after.free)
        if taken:
            return max(50 - taken, 33)
        used = max(cores for cores, _ in room.free if (cores, _) not in after.free or cores >= shape.cores)
        return max(100 - used // 10, 50)


class GpuClustering(Plain):
    """Pods that ask for as much together: one GPU shared, or so many whole ones."""

    def tagged(self, shape: RequestShape, tag: Hashable) -> Hashable:
        kinds = tag if isinstance(tag, frozenset) else frozenset()
        return kinds | {_kind(shape)} if shape.cores else kinds

    def score(self, shape: RequestShape, room: FreeShape, after: FreeShape, tag: Hashable) -> float:
        if not shape.cores:
            return 0
        kinds = tag if isinstance(tag, frozenset) else frozenset()
        full = 25 * (_MOST_CORES - _milli(room)) // _MOST_CORES
        if _kind(shape) in kinds:
            return full + (75 if len(kinds) == 1 else 50)
        return full + (0 if kinds else 25)


def _kind(shape: RequestShape) -> int:
    return shape.cards


class Fragments:
    """FGD's measure of a node: GPU milli that a typical pod cannot use, averaged over typical pods."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        classes = typical(pods)
        self._shapes = [shape for shape, _ in classes]
        self._popularity = np.array([p for _, p in classes])
        self._cpu = np.array([s.cpu for s in self._shapes])
        self._cores = np.array([min(s.cores, CORES_PER_CARD) for s in self._shapes])
        self._cards = np.array([max(1, s.cards) for s in self._shapes])
        self._none = np.array([s.cores == 0 for s in self._shapes])
        self._models: dict[str, Any] = {}
        self._known: dict[FreeShape, float] = {}

    def of(self, rooms: Sequence[FreeShape]) -> list[float]:
        """In milli."""
        new = [room for room in dict.fromkeys(rooms) if room not in self._known]
        for at in range(0, len(new), 128):
            batch = new[at : at + 128]
            self._known.update(zip(batch, self._work_out(batch), strict=True))
        return [self._known[room] for room in rooms]

    def _work_out(self, rooms: Sequence[FreeShape]) -> list[float]:
        cards = max(len(room.free) for room in rooms)
        cores = np.zeros((len(rooms), cards), int)
        for at, room in enumerate(rooms):
            cores[at, : len(room.free)] = [c for c, _ in room.free]
        for room in rooms:
            if room.model not in self._models:
                self._models[room.model] = np.array([not s.allows(room.model) for s in self._shapes])
        cpu = np.array([room.cpu for room in rooms])
        useless = np.array([self._models[room.model] for room in rooms]) | self._none
        useless |= cpu[:, None] < self._cpu
        small = cores[:, :, None] < self._cores
        useless |= (~small).sum(1) < self._cards
        idle = cores.sum(1)
        lost = np.where(useless, idle[:, None], (cores[:, :, None] * small).sum(1))
        return [float(f) * 10 for f in (lost * self._popularity).sum(1)]


class Fgd(Plain):
    """Fragmentation gradient descent (USENIX ATC 2023), as its authors run it."""

    def __init__(self, fragments: Fragments) -> None:
        self._fragments = fragments

    def offers(
        self, shape: RequestShape, rooms: Sequence[FreeShape], tags: Sequence[Hashable]
    ) -> list[Offer]:
        after = [ways(shape, room) for room in rooms]
        before = self._fragments.of(rooms)
        self._fragments.of([way for each in after for way in each])
        found: list[Offer] = []
        for old, each in zip(before, after, strict=True):
            ranked = [(-_sigmoid(old - new), n) for n, new in enumerate(self._fragments.of(each))]
            best = min(ranked) if ranked else None
            found.append((best[0], each[best[1]], ()) if best else None)
        return found


def _sigmoid(milli: float) -> int:
    return int(100 / (1 + math.exp(-milli / 1000)))

"""Free cards of thousands of nodes, as arrays: which nodes have room for parts of cards or for some whole
cards, and in which order to examine them.

A new kind of request is answered from these arrays at once; the domain's placement computes the exact cards,
and only on the candidate nodes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from admission.cluster.node_view import NodeView
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.rules.request import PlacementPolicy, PodRequest, Request

_MOST_ROWS: Final = 1 << 16  # cached node states
_NOTHING: Final = -1  # cores of a card that takes no work, or that does not exist

_TOTAL_BITS: Final = 16  # of a key: the node's free cores in all
_MODEL_BITS: Final = 16
_LEFT: Final = CORES_PER_CARD  # added, since under ``spread`` free cores are negative

_state: Final = attrgetter("state")

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


class FreeCards:
    """Rows of cards by :attr:`~admission.cluster.node_view.NodeView.state`, computed at first use.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[str, int] = {}
        self._forget()

    def read(self, views: Sequence[NodeView]) -> None:
        """Compute the rows of these nodes where they are not yet known."""
        with self._lock:
            self._rows_of(views)

    def with_room(self, request: PodRequest, views: Sequence[NodeView]) -> _Bools:
        """Which nodes have room for the request's only container, which lists no UUIDs.

        Exact: the domain's placement finds cards on these nodes and on no others.
        """
        asked = request.containers[0].request
        with self._lock:
            cards = self._fitting(request, asked, self._rows_of(views)).sum(1)
        enough: _Bools = cards >= asked.width
        return enough

    def keys(self, request: PodRequest, views: Sequence[NodeView]) -> _Ints:
        """A number for each node, by which :func:`promising` sorts those that have room.

        Nodes that would be left alike (the card's free cores, an idle card broken, the number of idle cards)
        differ only in the lowest bits, which are the free cores in all. A pod of several containers gets
        nothing but these.
        """
        with self._lock:
            at = self._rows_of(views)
            total = self._total[at]
            if len(request.containers) > 1:
                return total
            asked = request.containers[0].request
            fits = self._fitting(request, asked, at)
            if asked.cards:
                left = self._idle[at].sum(1)
                broken = np.zeros_like(left)
                model = self._model[at, fits.argmax(1)]
            else:
                sign = -1 if request.placement is PlacementPolicy.SPREAD else 1
                free = np.where(fits, sign * self._cores[at], CORES_PER_CARD + 1)
                card = free.argmin(1)
                left = free.min(1) + _LEFT
                broken, model = self._idle[at, card], self._model[at, card]
        found: _Ints = (broken * (4 * _LEFT) + left << _MODEL_BITS) + model << _TOTAL_BITS
        return found + total

    # The methods below are called with the lock held.

    def _forget(self) -> None:
        self._rows: dict[int, int] = {}
        self._make(1024, 8)

    def _make(self, rows: int, cards: int) -> None:
        self._cores: _Ints = np.full((rows, cards), _NOTHING, np.int64)
        self._memory: _Ints = np.zeros((rows, cards), np.int64)
        self._model: _Ints = np.full((rows, cards), _NOTHING, np.int64)
        self._idle: _Bools = np.zeros((rows, cards), np.bool_)
        self._total: _Ints = np.zeros(rows, np.int64)

    def _fitting(self, request: PodRequest, asked: Request, at: _Ints) -> _Bools:
        """For each row, the cards of which the request could take one."""
        fits: _Bools = (
            self._idle[at]
            if asked.cards
            else (self._cores[at] >= asked.amount.cores) & (self._memory[at] >= asked.amount.memory)
        )
        allowed = [n for model, n in self._models.items() if request.allows_model(model)]
        return fits if len(allowed) == len(self._models) else fits & np.isin(self._model[at], allowed)

    def _rows_of(self, views: Sequence[NodeView]) -> _Ints:
        try:
            return self._known_rows(views)
        except KeyError:
            if len(self._rows) > _MOST_ROWS:
                self._forget()
            for view in views:
                if view.state not in self._rows:
                    self._add(view)
            return self._known_rows(views)

    def _known_rows(self, views: Sequence[NodeView]) -> _Ints:
        return np.fromiter(map(self._rows.__getitem__, map(_state, views)), np.int64, len(views))

    def _add(self, view: NodeView) -> None:
        row, cards = len(self._rows), view.node.cards
        self._grow(row + 1, len(cards))
        total = 0
        for at, state in enumerate(cards):
            if not state.open:
                continue
            room = view.ledger.room(state.card.uuid)
            if room.capacity.cores:
                self._cores[row, at], self._memory[row, at] = room.left
                self._idle[row, at] = room.idle
                self._model[row, at] = self._models.setdefault(state.card.model, len(self._models))
                total += max(0, room.left[0])
        self._total[row] = total
        self._rows[view.state] = row

    def _grow(self, rows: int, cards: int) -> None:
        old = self._cores, self._memory, self._model, self._idle, self._total
        had = self._cores.shape
        if rows <= had[0] and cards <= had[1]:
            return
        self._make(had[0] * (1 if rows <= had[0] else 2), max(cards, had[1]))
        new = self._cores, self._memory, self._model, self._idle, self._total
        for before, now in zip(old, new, strict=True):
            now[tuple(map(slice, before.shape))] = before


def promising(numbers: npt.NDArray[np.intp], keys: _Ints) -> npt.NDArray[np.intp]:
    """These numbers of nodes, each with its key, in the order in which to examine them.

    Nodes whose keys are equal but for the lowest bits form a group, the fullest group first; the order takes
    one of each group in turn, so that its beginning has some of every kind.
    """
    order = np.argsort(keys, kind="stable")
    group = keys[order] >> _TOTAL_BITS
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    place = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    found: npt.NDArray[np.intp] = numbers[order[np.argsort(place, kind="stable")]]
    return found

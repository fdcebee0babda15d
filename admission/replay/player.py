"""Judges recorded decisions again, by this release: states are built from what was recorded, and the same
functions answer as in the extender.

Nothing is carried from one decision to the next but the states and the prices that were recorded: a decision
that differs makes no other differ.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from admission.replay.lines import FORMAT, Line
from admission.replay.states import RecordedStates
from gpu_manager.domain.errors import RequestInvalid

_AHEAD: Final = 4096  # lines: so far a decision may lie behind the states that came while it was made
_DECISIONS: Final = ("filter", "rank", "bind")
Judge = Callable[[RecordedStates, Line], tuple[Line, Line]]
"""Returns the recorded answer and that of this release, in one form. Raises RequestInvalid: it has none."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One decision: its line, the pod's namespace and name, and both answers."""

    line: Line
    pod: str
    recorded: Line
    now: Line

    @property
    def same(self) -> bool:
        """True if this release answers as recorded."""
        return self.recorded == self.now


class Player:
    """Plays the lines of one ring. ``passed``: decisions that could not be judged again, by the reason."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.passed: Counter[str] = Counter()
        self._states = RecordedStates({})
        self._waiting: list[tuple[int, bool, int, Line]] = []

    def play(self, lines: Iterable[bytes]) -> Iterator[Judged]:
        """Yield each decision. Raises RequestInvalid: a line is no record, or one of another format.

        A line that a kill has cut off ends its segment.
        """
        offered: Line = {}
        for number, line in enumerate(entry for raw in lines for entry in _read(raw)):
            kind = line.get("k")
            if kind == "ring":
                yield from self._play(0)
                if line.get("format") != FORMAT:
                    raise RequestInvalid(
                        f"the record is of format {line.get('format')}, this release reads format {FORMAT}:"
                        " replay it with the release that wrote it"
                    )
                self._states = RecordedStates(line)
            elif kind in _DECISIONS or kind == "node":
                if kind == "filter":
                    offered = line
                elif kind == "rank" and "names" not in line:
                    line["offered"] = offered
                # A state comes before the decisions of its generation, whenever they were written.
                heapq.heappush(self._waiting, (int(line["turn"]), kind != "node", number, line))
                yield from self._play(_AHEAD)
            else:
                self._states.take(line)
        yield from self._play(0)

    def _play(self, most: int) -> Iterator[Judged]:
        while len(self._waiting) > most:
            turn, decides, _, line = heapq.heappop(self._waiting)
            states = self._states
            if not decides:
                states.take(line)
            elif turn != states.turn:
                self.passed["the state that it was judged by is not in the record"] += 1
            else:
                try:
                    yield Judged(line, states.pod(line).pod.key, *self._judge(states, line))
                except RequestInvalid as error:
                    self.passed[str(error)] += 1


def _read(line: bytes) -> list[Line]:
    try:
        found = json.loads(line)
    except ValueError:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) and "k" in one for one in found):
        raise RequestInvalid("this is no record of decisions: a line of it says not what it is")
    return found

"""Pods that came and pods that left, each reported once, for one consumer."""

from __future__ import annotations

from collections import deque
from typing import Final

from admission.cluster.pod_view import PodView

_MOST: Final = 1 << 16  # that nobody has counted yet; the oldest go


class Turnover:
    """The pods that came and left since the last call. Not thread-safe."""

    def __init__(self) -> None:
        self._came: deque[PodView] = deque(maxlen=_MOST)
        self._left: deque[PodView] = deque(maxlen=_MOST)

    def came(self, occupant: PodView) -> None:
        """A pod has come up."""
        self._came.append(occupant)

    def left(self, occupant: PodView) -> None:
        """A pod has left a node, or has ended there."""
        self._left.append(occupant)

    def take_came(self) -> list[PodView]:
        """The pods that came since the last call."""
        return _taken(self._came)

    def take_left(self) -> list[PodView]:
        """The pods that left since the last call."""
        return _taken(self._left)

    def copy(self) -> Turnover:
        """An independent copy."""
        other = Turnover()
        other._came, other._left = self._came.copy(), self._left.copy()
        return other


def _taken(pods: deque[PodView]) -> list[PodView]:
    taken = list(pods)
    pods.clear()
    return taken

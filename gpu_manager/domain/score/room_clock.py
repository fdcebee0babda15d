"""For how long a node may stay closed for a pod that fits there already: by the clock, node and tenant.

A pod that has room and does not come is kept off by something that is not seen here: a volume, a constraint
of its scheduler's own. A scheduler looks at every pod again within five minutes, so more helps nobody, and
costs everybody else an idle node. Whether the pod came in the end makes no difference: it could come late
each time, and leave at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

DAY: Final = 86_400.0  # seconds, as all that follows
NODE_SECONDS: Final = 600.0  # of one node, within a day, for whomever
TENANT_SECONDS: Final = 360.0  # of all nodes, within a week, for the pods of one tenant
_TENANT_WINDOW: Final = 7 * DAY
_ONE_STRETCH: Final = 60.0  # what follows within that is added to what was there

_Node = TypeVar("_Node", bound=Hashable)


@dataclass(slots=True)
class _Stretch(Generic[_Node]):
    node: _Node
    tenant: str
    seconds: float
    at: float  # its end


class RoomClock(Generic[_Node]):
    """Not thread-safe."""

    def __init__(self) -> None:
        self._stretches = deque[_Stretch[_Node]]()

    def spend(self, node: _Node, tenant: str, seconds: float, now: float) -> None:
        """The node was closed for a pod of this tenant that fitted there, for so long until now."""
        last = self._stretches[-1] if self._stretches else None
        if last is not None and (last.node, last.tenant) == (node, tenant) and now - last.at <= _ONE_STRETCH:
            last.seconds, last.at = last.seconds + seconds, now
        else:
            self._stretches.append(_Stretch(node, tenant, seconds, now))

    def left(self, node: _Node, tenant: str, now: float) -> float:
        """For how long it may be closed so from now on."""
        while self._stretches and now - self._stretches[0].at >= _TENANT_WINDOW:
            self._stretches.popleft()
        here = sum(s.seconds for s in self._stretches if s.node == node and now - s.at < DAY)
        theirs = sum(s.seconds for s in self._stretches if s.tenant == tenant)
        return min(NODE_SECONDS - here, TENANT_SECONDS - theirs)

"""Priority inside a card: which tenants' work waits for which others'.

Best-effort work waits while a protected tenant of the same card has work pending. Normal work neither waits
nor makes others wait, so protection holds only beside best-effort tenants.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum


class Priority(Enum):
    """The values of the pod annotation ``tencent.com/vcuda-priority``."""

    PROTECTED = "protected"
    NORMAL = "normal"
    BEST_EFFORT = "best-effort"


def unprotected_beside(priority: Priority, others: Collection[Priority]) -> int:
    """Return how little a card suits a share of this priority beside other pods' shares of priorities
    ``others``.

    0 is neutral, more is worse. A protected share avoids normal ones (2), then protected ones (1). A normal
    share avoids protected ones (2). A best-effort share seeks protected ones (-1), to use the time that they
    leave.
    """
    if priority is Priority.PROTECTED:
        return 2 * (Priority.NORMAL in others) + (Priority.PROTECTED in others)
    if Priority.PROTECTED not in others:
        return 0
    return 2 if priority is Priority.NORMAL else -1


def meant_priorities(written: str) -> tuple[str, ...]:
    """Return the one name that differs from ``written`` only in case, blanks and dashes, else all names."""
    plain = re.sub(r"[\s_-]+", "-", written.strip()).lower()
    names = tuple(priority.value for priority in Priority)
    return (plain,) if plain in names else names

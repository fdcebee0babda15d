"""How often the kubelet reports and the agent reclaims: as users have it, or faster for whoever tries one test.

``PERIODS=fast`` in the environment (``make cluster CMD=up PERIODS=fast``) names the faster profile. What is measured
and recorded is had with the periods that are shipped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.cluster.parts import MissingError

VARIABLE: Final = "PERIODS"


@dataclass(frozen=True, slots=True)
class Periods:
    """``kubelet`` and ``agent`` are what is said to each; both empty where its own periods hold."""

    name: str
    kubelet: Mapping[str, Any]  # fields of KubeletConfiguration
    agent: tuple[str, ...]  # options of ``gpu-manager run``
    reclaim_seconds: float  # from one round of the agent's reclaiming to the next

    @property
    def given_back_seconds(self) -> float:
        """The longest that the agent keeps what a dead pod held, and its directory.

        Nothing is concluded for 60 s after it registered; then the pod is missed in two rounds and its directory
        in two, of which one is the same.
        """
        return 60 + 4 * self.reclaim_seconds


SHIPPED: Final = Periods("shipped", {}, (), reclaim_seconds=30)
FAST: Final = Periods(
    "fast",
    {"nodeStatusUpdateFrequency": "2s", "nodeStatusReportFrequency": "30s"},
    ("--reclaim-seconds=2",),
    reclaim_seconds=2,
)


def chosen() -> Periods:
    """The profile that the environment names. Raises MissingError: there is none of that name."""
    wanted = os.environ.get(VARIABLE) or SHIPPED.name
    for periods in (SHIPPED, FAST):
        if periods.name == wanted:
            return periods
    raise MissingError(f"{VARIABLE}={wanted}: there are {SHIPPED.name} and {FAST.name}")

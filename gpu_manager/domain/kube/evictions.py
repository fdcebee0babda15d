"""Which marks of agents the evictor obeys. Pure: it believes no mark more than its agent may do."""

from __future__ import annotations

from typing import Final

from gpu_manager.domain.contract import EvictionMark
from gpu_manager.domain.kube.pod import Pod

RENEW_SECONDS: Final = 240.0
"""After so long an agent writes a mark anew that it still stands by."""

OBEYED_SECONDS: Final = 600.0
"""A mark that is older says nothing: its agent has ended, or has changed its mind."""

_SKEW_SECONDS: Final = 120.0  # between the clocks of two nodes


def why_not_evicted(pod: Pod, mark: EvictionMark | None, now: float) -> str:
    """Return why the evictor leaves the pod alone; empty if it may evict it. ``now``: seconds since 1970."""
    if mark is None:
        return "the mark cannot be read"
    if mark.uid != pod.uid:
        return "the mark is about another pod of that name"
    age = now - mark.at
    if not -_SKEW_SECONDS <= age <= OBEYED_SECONDS:
        return f"the mark is {age:.0f} s old: it counts for {OBEYED_SECONDS:.0f} s"
    if pod.static or not pod.controlled:
        return "no controller would replace the pod"
    return ""

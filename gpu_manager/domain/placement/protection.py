"""The effect of a pod's priority on its cards: which work waits for it, and which neighbours do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.priority import Priority

LONG_KERNEL: Final = 0.05
"""Seconds; beside longer kernels a protected tenant waits noticeably, since none is interrupted."""


def neighbours(ledger: Ledger, pod: PodUid, cards: Collection[CardUuid]) -> Counter[Priority]:
    """Return how many other pods and claims hold a share of these cards, by priority.

    A claim whose requests have several priorities counts under each.
    """
    beside = {(a.pod, a.priority) for a in ledger if a.pod != pod and not set(cards).isdisjoint(a.cards)}
    return Counter(priority for _, priority in beside)


def is_protected(beside: Counter[Priority]) -> bool:
    """True if protection holds for a protected pod beside these: only best-effort neighbours wait."""
    return not (beside[Priority.NORMAL] or beside[Priority.PROTECTED])


def explain_unprotected(priority: Priority, beside: Counter[Priority]) -> str:
    """Return a sentence if nothing protects a pod from neighbours, or these from it; else empty."""
    protected, normal = (_tenants(beside, each) for each in (Priority.PROTECTED, Priority.NORMAL))
    if priority is Priority.NORMAL and protected:
        have = "has" if beside[Priority.PROTECTED] == 1 else "have"
        return f"Priority normal: {protected} beside it {have} no protection from it"
    if priority is Priority.PROTECTED and not is_protected(beside):
        others = " and ".join(filter(None, (normal, protected)))
        return f"Priority protected, but not from {others} beside it: best-effort tenants alone wait"
    return ""


def explain_priority(priority: Priority, beside: Counter[Priority], *, gates: bool) -> str:
    """Return a sentence on a pod's priority beside these neighbours; empty if it has no effect.

    ``gates``: the agent of its node makes best-effort tenants wait.
    """
    if (said := explain_unprotected(priority, beside)) or priority is Priority.NORMAL:
        return said
    if not gates:
        return (
            f"Priority {priority.value} counts in placement alone: the agent of the node makes no tenant wait"
            " (it is of an earlier release, or cannot)"
        )
    if priority is Priority.BEST_EFFORT:
        protected = _tenants(beside, Priority.PROTECTED)
        return f"Priority best-effort: waits for {protected or 'protected tenants; none is beside it'}"
    best_effort = _tenants(beside, Priority.BEST_EFFORT)
    if not best_effort:
        return "Priority protected: no other tenant is beside it"
    wait = "waits" if beside[Priority.BEST_EFFORT] == 1 else "wait"
    return f"Priority protected: {best_effort} beside it {wait} for it"


def explain_wait(longest: float | None, ungated: int = 0) -> str:
    """Return what breaks protection beside best-effort neighbours; empty for nothing.

    ``longest``: seconds of their longest kernel, None if unknown; ``ungated``: number of them created before
    the node's agent supported priorities.
    """
    said = []
    if ungated:
        tenants = f"{ungated} best-effort tenant{'s'[: ungated - 1]}"
        was, waits = ("was", "waits") if ungated == 1 else ("were", "wait")
        said.append(f"{tenants} beside it {was} made before the agent knew priorities and {waits} for nobody")
    if longest is not None and longest > LONG_KERNEL:
        said.append(
            f"A best-effort tenant beside it has run a kernel or graph of {longest:.2g} s, and none is"
            " interrupted: a launch may wait that long"
        )
    return ". ".join(said)


def _tenants(beside: Counter[Priority], priority: Priority) -> str:
    count = beside[priority]
    return f"{count} {priority.value} tenant{'s'[: count - 1]}" if count else ""

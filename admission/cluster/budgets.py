"""PodDisruptionBudgets as the watch shows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gpu_manager.domain.kube.evictions import DisruptionBudget, read_budget


class KnownBudgets:
    """Not thread-safe. One that cannot be read changes nothing."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], DisruptionBudget] = {}

    def copy(self) -> KnownBudgets:
        """An independent copy."""
        other = KnownBudgets()
        other._known = self._known.copy()
        return other

    def apply(self, obj: Mapping[str, Any], *, gone: bool) -> None:
        """Apply one budget as it is now, or as it was when it was deleted."""
        budget = read_budget(obj)
        if budget is None:
            return
        key = budget.namespace, budget.name
        if gone:
            self._known.pop(key, None)
        else:
            self._known[key] = budget

    def keep(self, listed: Collection[tuple[str, str]]) -> None:
        """Forget all budgets but those with these namespaces and names."""
        self._known = {key: budget for key, budget in self._known.items() if key in listed}

    def all(self) -> tuple[DisruptionBudget, ...]:
        """Every one."""
        return tuple(self._known.values())

"""The price of neighbours: what a node costs more where a pod would lie beside tenants that do not suit it.

:func:`~gpu_manager.domain.priority.unprotected_beside` says how little each card suits. It is a preference:
where nothing else takes a pod, it still goes there. Without priorities nothing is added.
"""

from __future__ import annotations

from typing import Any, Final

BESIDE: Final = 10.0  # cores for each step by which a card suits less


def with_neighbours(cost: tuple[Any, ...], unsuited: int) -> tuple[Any, ...]:
    """Return the cost of a pod on cards that suit it less by so many steps in all."""
    return (cost[0] + BESIDE * unsuited, *cost[1:]) if unsuited else cost

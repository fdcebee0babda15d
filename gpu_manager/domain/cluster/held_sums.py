"""Sums of what is held, by namespace and model of card: what quotas are judged by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_manager.domain.resources import ZERO, Amount

Used = Mapping[str, Mapping[str, Amount]]
"""Namespace → model of card → what the namespace's pods and claims hold.

The model is empty where nobody knows it: that counts under every model. A claim that is not allocated yet
counts under each model that it may be given (:func:`one_of`).
"""

_BETWEEN = "\n"  # no model's name has it


def one_of(models: Iterable[str]) -> str:
    """The key in :data:`Used` of what is of one of these models, nobody knows which."""
    return _BETWEEN.join(sorted(models))


def models_of(key: str) -> tuple[str, ...]:
    """The models of a key in :data:`Used`; none where any model may be meant."""
    return tuple(key.split(_BETWEEN)) if key else ()


def added(used: Used, more: Used) -> Used:
    """Both sums together."""
    if not more:
        return used
    both = {namespace: dict(models) for namespace, models in used.items()}
    for namespace, models in more.items():
        mine = both.setdefault(namespace, {})
        for model, amount in models.items():
            mine[model] = mine.get(model, ZERO) + amount
    return both

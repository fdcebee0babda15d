"""Withdrawal by number: how many device ids to take from the kubelet, and which.

The kubelet counts ids, and a container keeps the number that it was admitted with. What is booked beside the
ids would be handed out again. So as many free ids are reported unhealthy as are free beyond the room in the
ledger and the plans: ``free - (room + planned)``. With ``total`` ids, ``free`` is ``total - held``, and room
and plans together are ``total - booked``; so that number is ``booked - held``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpu_manager.domain.card import CardUuid


def ids_to_withdraw(excess: int, free: int) -> int:
    """How many free ids of a resource not to hand out.

    ``excess``: units that are booked for admitted containers beyond the ids they hold, less those that are
    held beyond what is booked. ``free``: ids that nobody holds.
    """
    return max(0, min(excess, free))


def choose_ids(
    number: int,
    free: Mapping[CardUuid, Sequence[str]],
    first: Sequence[CardUuid],
    before: Collection[str] = frozenset(),
) -> frozenset[str]:
    """The ids to withdraw, fewer only if fewer are free: those of ``before`` that are still free, then of
    the cards named ``first``, then of any; on each the last ones, since the first are handed out first.
    """
    order = (*(card for card in first if card in free), *(card for card in free if card not in first))
    candidates = [device for card in order for device in reversed(free[card])]
    kept = [device for device in candidates if device in before][:number]
    held = frozenset(kept)
    fresh = (device for device in candidates if device not in held)
    return held.union(device for device, _ in zip(fresh, range(number - len(kept)), strict=False))

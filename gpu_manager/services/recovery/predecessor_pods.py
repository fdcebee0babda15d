"""Containers of the predecessor that run on across an upgrade are booked by its records.

The kubelet shows them with ids of the predecessor's form, which say nothing about the card. Its checkpoint
does, else the index in the pod's annotation. They keep running as they were started; none has control pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import ASSIGNED, CORE, MEMORY, PREDICATE_INDEX
from gpu_manager.domain.kube.pod import ContainerKind, Pod
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import CORES_PER_CARD, Amount
from gpu_manager.ports.kubelet import PredecessorPod
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.node_cards import NodeCards

_ABSENT = "nvidia"  # and the n of /dev/nvidia<n>: a card known from a record only; no UUID begins so
_CORE_ID = re.compile(re.escape(CORE) + r"-\d{1,9}")
_MEMORY_ID = re.compile(re.escape(MEMORY) + r"-(\d{1,13})-\d{1,9}")


def is_predecessor_pod(ids: Mapping[str, frozenset[str]]) -> bool:
    """True if these ids, by resource, are of the predecessor's form."""
    core = ids.get(CORE, frozenset())
    return bool(core) and all(_CORE_ID.fullmatch(device) for device in core)


def shares_by_record(record: PredecessorPod, node: NodeCards) -> tuple[Share, ...]:
    """The cards of a record of its checkpoint. An absent card keeps its number, since the container may still
    hold it; :func:`recognised` finds it when it is back.
    """
    whole = record.amount.cores >= CORES_PER_CARD
    absent = Amount(CORES_PER_CARD, 0) if whole else record.amount
    return tuple(
        Share(CardUuid(f"{_ABSENT}{minor}"), absent)
        if (state := _by_minor(node, minor)) is None
        else Share(state.card.uuid, state.card.capacity(node.unit) if whole else record.amount)
        for minor in record.minors
    )


def recognised(grant: Grant, node: NodeCards) -> Grant:
    """The shares with the UUIDs of cards that were known by number only and are present now."""
    shares = tuple(_recognised(share, node) for share in grant.allocation.shares)
    return replace(grant, allocation=replace(grant.allocation, shares=shares))


def _recognised(share: Share, node: NodeCards) -> Share:
    number = share.card.removeprefix(_ABSENT)
    if number == share.card or not number.isdecimal():
        return share
    state = _by_minor(node, int(number))
    if state is None:
        return share
    return Share(state.card.uuid, state.card.capacity(node.unit) if share.whole else share.amount)


def shares_by_annotation(
    pod: Pod | None, container: str, ids: Mapping[str, frozenset[str]], node: NodeCards
) -> tuple[Share, ...]:
    """The cards that its annotation names by index, with the amounts of its ids; empty without annotation."""
    apps = [c.name for c in pod.containers if c.kind is ContainerKind.APP] if pod else []
    if pod is None or container not in apps or pod.annotations.get(ASSIGNED) != "true":
        return ()
    written = pod.annotations.get(f"{PREDICATE_INDEX}{apps.index(container)}", "").split(",")
    by_index = {str(s.card.index): s for s in node.cards}
    found = [by_index[text.strip()] for text in written if text.strip() in by_index]
    cores = len(ids.get(CORE, ()))
    if not found or len(found) != len(written) or len(found) != max(1, cores // CORES_PER_CARD):
        return ()
    sizes = (_MEMORY_ID.fullmatch(device) for device in ids.get(MEMORY, ()))
    return _shares(found, Amount(cores, sum(int(match[1]) for match in sizes if match)), node)


def _shares(states: list[CardState], amount: Amount, node: NodeCards) -> tuple[Share, ...]:
    if amount.cores >= CORES_PER_CARD:
        return tuple(Share(s.card.uuid, s.card.capacity(node.unit)) for s in states)
    return (Share(states[0].card.uuid, amount),)


def _by_minor(node: NodeCards, minor: int) -> CardState | None:
    """By the number in ``/dev/nvidia<n>``, which is the index where the driver does not tell."""
    return next(
        (s for s in node.cards if (s.card.index if s.card.minor is None else s.card.minor) == minor), None
    )

"""Annotations that record a pod's cards: the extender writes them at bind, the agent corrects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import (
    ALLOCATION,
    ASSIGNED,
    PREDICATE_INDEX,
    PREDICATE_NODE,
    PREDICATE_TIME,
    Assignment,
    decode_assignment,
    encode_assignment,
)
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.pod import ContainerKind, Pod


def allocation_annotations(
    pod: Pod,
    node: str,
    placement: Mapping[str, Sequence[Share]],
    cards: Sequence[CardState],
    now: float,
    *,
    assigned: bool,
) -> dict[str, str]:
    """Return the annotations for this placement, in our format and in the predecessor's.

    ``now`` is seconds since the epoch; the predecessor's format has nanoseconds, and its index keys count
    only ``spec.containers``.
    """
    index: dict[CardUuid, int] = {s.card.uuid: s.card.index for s in cards}
    apps = [c.name for c in pod.containers if c.kind is ContainerKind.APP]
    return {
        ALLOCATION: encode_assignment(
            Assignment(
                node,
                pod.api_uid,
                {n: tuple((s.card, s.amount) for s in shares) for n, shares in placement.items()},
            )
        ),
        PREDICATE_NODE: node,
        PREDICATE_TIME: pod.annotations.get(PREDICATE_TIME) or str(int(now * 1e9)),
        ASSIGNED: "true" if assigned else "false",
        **{
            f"{PREDICATE_INDEX}{n}": ",".join(str(index[s.card]) for s in placement[name] if s.card in index)
            for n, name in enumerate(apps)
            if name in placement
        },
    }


def annotations_differ(pod: Pod, stamped: Mapping[str, str]) -> bool:
    """True if the pod's annotations differ from these. Order and spelling of the JSON do not matter."""
    ours = decode_assignment(pod.annotations.get(ALLOCATION))
    return ours != decode_assignment(stamped[ALLOCATION]) or any(
        pod.annotations.get(key) != value for key, value in stamped.items() if key != ALLOCATION
    )

"""Annotations that record a pod's cards: the extender writes them at bind, the agent corrects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_manager.domain import contract
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.kube.pod import ContainerKind, Pod
from gpu_manager.domain.placement.ledger import Share


def allocation_annotations(
    pod: Pod,
    node: str,
    placement: Mapping[str, Sequence[Share]],
    cards: Sequence[CardState],
    now: float,
    *,
    assigned: bool,
    numa_ids: Mapping[str, Mapping[int, tuple[int, int]]] | None = None,
) -> dict[str, str]:
    """The annotations for this placement, in this project's format and in the predecessor's.

    ``now`` is seconds since the epoch; the predecessor's format has nanoseconds, and its index keys count
    only ``spec.containers``. ``numa_ids`` as in :class:`~gpu_manager.domain.contract.Assignment`.
    """
    index: dict[CardUuid, int] = {s.card.uuid: s.card.index for s in cards}
    apps = [c.name for c in pod.containers if c.kind is ContainerKind.APP]
    return {
        contract.ALLOCATION: contract.encode_assignment(
            contract.Assignment(
                node,
                pod.api_uid,
                {n: tuple((s.card, s.amount) for s in shares) for n, shares in placement.items()},
                numa_ids=numa_ids or {},
            )
        ),
        contract.PREDICATE_NODE: node,
        contract.PREDICATE_TIME: pod.annotations.get(contract.PREDICATE_TIME) or str(int(now * 1e9)),
        contract.ASSIGNED: "true" if assigned else "false",
        **{
            f"{contract.PREDICATE_INDEX}{n}": ",".join(
                str(index[s.card]) for s in placement[name] if s.card in index
            )
            for n, name in enumerate(apps)
            if name in placement
        },
    }


def annotations_differ(pod: Pod, stamped: Mapping[str, str]) -> bool:
    """True if the pod's annotations differ from these. Order and spelling of the JSON do not matter."""
    ours = contract.decode_assignment(pod.annotations.get(contract.ALLOCATION))
    return ours != contract.decode_assignment(stamped[contract.ALLOCATION]) or any(
        pod.annotations.get(key) != value for key, value in stamped.items() if key != contract.ALLOCATION
    )

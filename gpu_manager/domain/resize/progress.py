"""How far the resize of a running container is: the size in its spec, the one asked for, the one it has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpu_manager.domain.contract import ALLOCATION, ASSIGNED, RESIZE, decode_assignment
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.pod import Pod
from gpu_manager.domain.resize.sizes import WantedSize, answer_of, digest, read_wanted, spec_sizes
from gpu_manager.domain.resources import Amount


class ResizeStage(Enum):
    """What became of a request for another size."""

    ASKED = "asked"  # the scheduler has not answered
    REFUSED = "refused"
    RESERVED = "reserved"  # the scheduler has reserved it, and the agent has not given it yet
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ResizeProgress:
    """One container. ``held`` is None before the agent has told what it booked; ``why`` a refusal's words."""

    spec: Amount
    wanted: Amount
    held: Amount | None
    stage: ResizeStage
    why: str = ""


def held_size(pod: Pod, container: str) -> Amount | None:
    """What the agent has booked for a container with a part of one card; None before it has told."""
    said = decode_assignment(pod.annotations.get(ALLOCATION))
    shares = said.containers.get(container, ()) if said and pod.annotations.get(ASSIGNED) == "true" else ()
    return shares[0][1] if len(shares) == 1 else None


def resize_progress(pod: Pod, container: str, unit: int) -> ResizeProgress | None:
    """How far the container's resize is; None if it has the size of its spec, and nobody asks for another.

    ``unit``: bytes of one unit of memory on its node.
    """
    spec = spec_sizes(pod, unit).get(container)
    if spec is None:
        return None
    answer, held, own = answer_of(pod), held_size(pod, container), digest(pod)
    wanted = _asked_of(pod, container, spec)
    if not own and answer is not None:  # its owner's request, which the answer names
        wanted = answer.sizes.get(container, spec)
    if own and (answer is None or answer.asked != own):
        stage, why = ResizeStage.ASKED, ""
    elif answer is not None and answer.refused:
        stage, why = ResizeStage.REFUSED, answer.refused
    else:
        stage, why = (ResizeStage.DONE if held == wanted else ResizeStage.RESERVED), ""
    if stage is not ResizeStage.REFUSED and wanted == spec and held in (spec, None):
        return None
    return ResizeProgress(spec, wanted, held, stage, why)


def _asked_of(pod: Pod, container: str, spec: Amount) -> Amount:
    """The size that the pod itself asks for; its spec's where that cannot be read."""
    written = pod.annotations.get(RESIZE)
    try:
        return read_wanted(written).get(container, WantedSize()).over(spec) if written is not None else spec
    except RequestInvalid:
        return spec

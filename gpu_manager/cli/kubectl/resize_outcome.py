"""What became of a request for another size, in words for the person who made it."""

from __future__ import annotations

from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.errors import DoesNotFit, quoted
from gpu_manager.domain.pod import Pod
from gpu_manager.domain.resize.progress import held_size
from gpu_manager.domain.resize.sizes import ResizeAnswer, answer_of, digest


def outcome(pod: Pod, name: str, former: ResizeAnswer | None) -> str | None:
    """What became of the request; None while that is open. ``former``: the answer before it was made.

    Without a request of its own the pod may have its owner's, which the answer then names.

    Raises:
        DoesNotFit: it is refused.
    """
    answer = answer_of(pod)
    if answer is None:
        return f"{pod.key} has the size of its spec" if RESIZE not in pod.annotations else None
    owners = RESIZE not in pod.annotations and answer != former
    if answer.asked != digest(pod) and not owners:
        return None
    if answer.refused:
        raise DoesNotFit(f"{pod.key} keeps its size: {answer.refused}")
    size = answer.sizes.get(name)
    held = held_size(pod, name)
    return f"container {quoted(name)} of {pod.key}: {held}" if held is not None and held == size else None


def pending(pod: Pod, name: str) -> str:
    """How far an open request is."""
    who = f"container {quoted(name)} of {pod.key}"
    answer = answer_of(pod)
    if answer is None or answer.asked != digest(pod):
        return f"{who}: the scheduler has not answered yet; kubectl describe pod shows its Events"
    booked = held_size(pod, name)
    return (
        f"{who}: the scheduler has reserved {answer.sizes.get(name)}, the agent has booked "
        f"{booked or 'none of it yet'}; less memory waits until the program frees it (Event VcudaResizeWaits)"
    )

"""Messages of libvcuda from inside a container, and the sentences in which the agent reports them.

A message is a code with numbers and one word. A tenant may forge it, so the agent composes the sentence
itself, and does nothing else with the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import MEMORY
from gpu_manager.domain.resources import LARGEST_COUNT, format_bytes


class LibraryMessageKind(Enum):
    """The kind of a library message; the value is the label of the metric."""

    MEMORY_REFUSED = "memory-refused"
    CUDA_REFUSED = "cuda-refused"
    UNKNOWN_FUNCTION = "unknown-function"
    ROUTED_BY_NAME = "routed-by-name"
    LIMITS_LOST = "limits-lost"


class Framework(Enum):
    """A framework that libvcuda knows by its loaded files; the value is its name."""

    VLLM = "vLLM"
    SGLANG = "SGLang"
    PYTORCH = "PyTorch"
    JAX = "JAX"
    TENSORFLOW = "TensorFlow"
    ONNXRUNTIME = "ONNX Runtime"
    TENSORRT = "TensorRT"
    GGML = "llama.cpp"
    CUPY = "CuPy"


_HELP: Final = {
    Framework.VLLM: "a lower --gpu-memory-utilization, --max-model-len or --max-num-seqs",
    Framework.SGLANG: "a lower --mem-fraction-static or --max-running-requests",
    Framework.PYTORCH: "a smaller batch, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    Framework.JAX: "a smaller batch, or a lower XLA_PYTHON_CLIENT_MEM_FRACTION",
    Framework.TENSORFLOW: "a smaller batch, or TF_FORCE_GPU_ALLOW_GROWTH=true",
    Framework.ONNXRUNTIME: "a smaller batch, or gpu_mem_limit and arena_extend_strategy=kSameAsRequested "
    "of its CUDA provider",
    Framework.TENSORRT: "a smaller batch, or a smaller workspace (setMemoryPoolLimit)",
    Framework.GGML: "a lower --n-gpu-layers or --ctx-size",
    Framework.CUPY: "smaller arrays, or free_all_blocks() of its memory pool",
}
FOR_THE_POD: Final = frozenset({LibraryMessageKind.MEMORY_REFUSED, LibraryMessageKind.CUDA_REFUSED})
"""Kinds that the pod's owner can fix; the others are for the operator."""
TROUBLE: Final = frozenset(LibraryMessageKind) - {LibraryMessageKind.MEMORY_REFUSED}
"""Kinds that indicate a fault; a program that reaches its limit does not."""


@dataclass(frozen=True, slots=True)
class LibraryMessage:
    """A library message: ``at`` in monotonic seconds, ``pid`` inside the container; sizes in bytes.

    ``pooled`` is the part of ``used`` that memory pools of the process have reserved; ``used`` is the whole
    container's.
    """

    number: int
    at: float
    kind: LibraryMessageKind
    pid: int
    card: CardUuid | None = None
    asked: int = 0
    used: int = 0
    limit: int = 0
    text: str = ""
    pooled: int = 0
    framework: Framework | None = None


def _refused(note: LibraryMessage, who: str, card: str, capacity: int, unit: int, parts: int) -> str:
    """A sentence part: what was requested, held and reserved by pools, and what would help."""
    if not note.limit:  # no share is empty
        return (
            f"{who} was refused a context or memory on {card}: its claim has admin access, which looks at "
            "cards and computes nothing; ask for a part of a card, by a request without adminAccess"
        )
    asked = format_bytes(note.asked) if note.asked < LARGEST_COUNT else "a graph of unknown size"
    pools = f", {format_bytes(note.pooled)} of it reserved by its memory pools" if note.pooled else ""
    helps = _HELP[note.framework] if note.framework else "a smaller batch or model"
    units = -(-(note.used + note.asked) // unit)
    if units * unit <= capacity:
        each = f" on {parts} cards" if parts > 1 else ""
        helps = f"{MEMORY}: {units * parts} ({format_bytes(units * parts * unit)}{each}), {helps}"
    else:
        helps += f"; {card} has {format_bytes(capacity)} in all" if capacity else ""
    return (
        f"{who} was refused {asked} of {card}: the container holds "
        f"{format_bytes(note.used)} of its {format_bytes(note.limit)}{pools}; what would help: {helps}"
    )


def sentence(note: LibraryMessage, card: str, capacity: int, unit: int, parts: int = 1) -> str:
    """Format the message as a sentence.

    ``card`` is the card's name for the reader, ``capacity`` the most of its memory that a container can have,
    ``unit`` the bytes of one ``tencent.com/vcuda-memory``, and ``parts`` the number of cards of which that
    counts the total.
    """
    who = f"process {note.pid}" + (f" ({note.framework.value})" if note.framework else "")
    match note.kind:
        case LibraryMessageKind.MEMORY_REFUSED:
            return _refused(note, who, card, capacity, unit, parts)
        case LibraryMessageKind.CUDA_REFUSED:
            return f"{who} was refused CUDA: {note.text}"
        case LibraryMessageKind.UNKNOWN_FUNCTION:
            return (
                f"{who} asked the driver for {note.text}, which this libvcuda does not know: "
                "what it takes is held by no limit; a newer gpu-manager may know it"
            )
        case LibraryMessageKind.ROUTED_BY_NAME:
            return (
                f"{who} was given {note.text} by an address that the driver does not export: "
                "its limit is held by the function's name; please report the driver's version"
            )
        case LibraryMessageKind.LIMITS_LOST:
            return f"{who} finds its limits page broken ({note.text}): the last limits it read stay in force"

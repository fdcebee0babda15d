"""Texts and readers that several systems share."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from gpu_manager.domain.contract import GPU_MODEL, GPU_UUID, PRIORITY
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.resources import parse_quantity

Asked = Mapping[str, Fraction]

NO_DENY_LIST: Final = (
    "there are lists of what may be used, none of what may not: name the models in " + GPU_MODEL
)
NO_DENY_UUID: Final = (
    "there are lists of what may be used, none of what may not: name the cards in " + GPU_UUID
)
NODES: Final = "which node is taken is decided for the whole cluster, not by the pod"
MODEL_NOTE: Final = (
    "models match whole words of a name here (V100 of Tesla-V100-SXM2-32GB), not any piece of it"
)
PROTECTED: Final = f"annotate the pod with {PRIORITY}: protected, which its namespace's quota must grant"
BEST_EFFORT: Final = f"annotate the pod with {PRIORITY}: best-effort"
OTHER_LIBRARY: Final = (
    "the limits stand in a file that the container cannot write; the variable has no effect here"
)


def models(text: str) -> str:
    """Return a comma-separated list without blanks and empty entries."""
    return ",".join(part.strip() for part in text.split(",") if part.strip())


def number(text: str) -> Fraction:
    """Return a number written as text. Raises RequestInvalid if it is none, or negative."""
    value = parse_quantity(text.strip())
    if value < 0:
        raise RequestInvalid(f"{quoted(text)} is negative")
    return value

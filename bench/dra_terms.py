"""What random claims say in parameters, and what their containers have of it: page, preloaded library, gates.

What holds is worked out here from what was written, without the product's own reading of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from gpu_manager.domain.contract import DRA_DRIVER, GATES_DIR, PRELOAD_PATH
from sandbox import cdi
from vcuda.page.limits import read_limits

BATCH: Final = "batch"
"""Name of a class whose requests are best-effort, and have no preloaded library."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for a request: ``ceiling`` in percent (0: none), priority, preloaded library."""

    ceiling: int
    priority: str
    preload: bool


def write_terms(rng: Random, request: Mapping[str, Any]) -> tuple[dict[str, Any] | None, Terms]:
    """Return an entry of the claim's ``config`` for a request, if it says anything, and what then holds."""
    exactly = request["exactly"]
    is_part = "capacity" in exactly
    of_batch = exactly["deviceClassName"] == BATCH
    said: dict[str, Any] = {}
    if rng.random() < 0.4:
        said["preload"] = rng.random() < 0.5
    if is_part and rng.random() < 0.4:
        said["priority"] = rng.choice(("protected", "normal", "best-effort"))
    if is_part and rng.random() < 0.4:
        said["coreLimit"] = rng.randint(int(exactly["capacity"]["requests"]["cores"]) + 1, 100)
    terms = Terms(
        said.get("coreLimit", 0),
        said.get("priority", "best-effort" if of_batch and is_part else "normal"),
        preload=said.get("preload", not of_batch),
    )
    if exactly.get("adminAccess"):  # it computes nothing
        terms = Terms(0, "normal", preload=terms.preload)
    return (_config(said, request["name"]) if said else None), terms


def seen_terms(edits: cdi.ContainerEdits, page: str) -> Terms | None:
    """Return what a container's page and mounts say; None if they disagree."""
    try:
        cards = read_limits(Path(page).read_bytes()).cards
    except OSError:
        return None
    found = {
        Terms(
            0 if card.core_ceiling == card.core_limit else int(card.core_ceiling or 0),
            "protected" if card.protected else "best-effort" if card.best_effort else "normal",
            preload=PRELOAD_PATH in edits.mounts,
        )
        for card in cards
    }
    gates = any(path.startswith(f"{GATES_DIR}/") for path in edits.mounts)
    terms = found.pop() if len(found) == 1 else None
    return terms if terms is not None and gates is (terms.priority == "best-effort") else None


def _config(said: Mapping[str, Any], *requests: str) -> dict[str, Any]:
    told = {"apiVersion": f"{DRA_DRIVER}/v1", "kind": "ShareParameters", **said}
    named = {"requests": list(requests)} if requests else {}
    return {**named, "opaque": {"driver": DRA_DRIVER, "parameters": told}}


BATCH_CLASS: Final = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": BATCH},
    "spec": {"config": [_config({"priority": "best-effort", "preload": False})]},
}

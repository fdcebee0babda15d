"""What was last measured on the cluster, kept beside the code: bench/results/cluster.json.

Each tool leaves its own result in ``build/cluster`` (the suite ``e2e.json``, the soak ``soak.json``, the starts
``starts.json`` and ``claim_starts.json``, claims in waves ``claim_waves.json``, the rollouts ``rollouts.json`` and ``rollouts_backlog.json``, other ends of the agent ``agent_kills.json``, polite ones alone ``agent_terms.json``, deletions at random moments
``other_cards.json``, lost checkpoints ``lost_checkpoint.json``, nodes that join ``joins.json``, the second plugin ``double_offers.json``, CDI switched off
``cdi_off.json``, topology policies ``numa.json``, resizes ``resizes.json``, another line of Kubernetes ``e2e-1.33.json``);
``python -m tests.cluster record`` puts them together. What was never run stays out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.cluster import images
from tests.cluster.parts import BUILD, PRODUCT, ROOT, Parts, usual

RESULTS: Final = ROOT / "bench/results/cluster.json"
BESIDE: Final = "BESIDE"  # variable of the environment: what else the machine did, as "other work"
KINDS: Final = (
    "e2e",
    "soak",
    "starts",
    "claim_starts",
    "claim_waves",
    "rollouts",
    "rollouts_backlog",
    "agent_kills",
    "agent_terms",
    "other_cards",
    "lost_checkpoint",
    "joins",
    "double_offers",
    "cdi_off",
    "numa",
    "resizes",
)


def keep(kind: str, result: Mapping[str, object], parts: Parts) -> None:
    """Write a tool's result with the versions that it was had on, and what else the machine did if that is said."""
    BUILD.mkdir(parents=True, exist_ok=True)
    found = {**result, "versions": parts.versions()}
    if beside := os.environ.get(BESIDE):
        found["beside"] = beside
    _path(kind, parts).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def image() -> str:
    """The digest of the image that runs, by which runs are added up."""
    return images.digest(PRODUCT)


def last(kind: str, parts: Parts) -> Mapping[str, Any]:
    """A tool's last result; empty if there is none that was had with these programs."""
    path = _path(kind, parts)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found if found.get("versions") == parts.versions() else {}


def added(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """A result that begins with ``image``, and an earlier one of the same image: numbers are added up, of those
    whose names begin with ``longest`` the greater one stays. ``now`` alone if ``before`` is another image's.
    """
    if before.get("image") != now["image"]:
        return dict(now)
    found = dict(now)
    for name, value in now.items():
        if name.startswith("longest"):
            found[name] = max(value, before[name])
        elif name != "image":
            found[name] = round(value + before[name], 1)
    return found


def _path(kind: str, parts: Parts) -> Path:
    other = "" if parts.kubernetes == usual() else f"-{'.'.join(parts.kubernetes[1:].split('.')[:2])}"
    return BUILD / f"{kind}{other}.json"


def commit() -> list[str]:
    """Write the results' file from what is in ``build/cluster``; returns the kinds that were found."""
    before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    paths = (path for kind in KINDS for path in (BUILD / f"{kind}.json", *BUILD.glob(f"{kind}-*.json")))
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in paths if path.exists()}
    RESULTS.write_text(json.dumps({**before, **found}, indent=1) + "\n", encoding="utf-8")
    return sorted(found)

"""The locked sets agree: what the product runs with, is built with and is put into its image is what was tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GROUPS = ("build", "sandbox", "test", "check", "docs")
PARTS = ("locks/product.lock", "locks/image.lock", *(f"locks/{g}.lock" for g in GROUPS))


def pins(name: str) -> dict[str, frozenset[str]]:
    """``name==version`` → hashes. Markers are left out: who needs a package on another system may differ."""
    found: dict[str, frozenset[str]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / name).read_text().strip()):
        requirement, *hashes = re.split(r"\s*\\\n\s*--hash=", entry)
        found[requirement.partition(" ;")[0]] = frozenset(hashes)
    return found


@pytest.mark.parametrize("name", PARTS)
def test_every_pin_is_one_that_is_tested(name: str) -> None:
    tested, part = pins("locks/dev.lock"), pins(name)
    assert len(part) >= 4
    assert all(part.values()), "a requirement without a hash"
    assert {p: h for p, h in part.items() if tested.get(p) != h} == {}


@pytest.mark.parametrize("name", GROUPS)
def test_every_group_is_locked_whole(name: str) -> None:
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"][name]
    wanted = {re.split(r"[<>=]", entry)[0].lower() for entry in group if isinstance(entry, str)}
    assert wanted <= {pin.partition("==")[0] for pin in pins(f"locks/{name}.lock")}

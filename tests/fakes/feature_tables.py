"""A page's table of how a capability goes with other features, as its tests read it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def feature_rows(page: str) -> dict[str, str]:
    """Feature → what the table under ``## With other features`` says of it."""
    table = page.partition("## With other features")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    return {feature: says for feature, says in found if feature not in {"feature", "---"}}


def sentences_of(says: str) -> list[str]:
    """The refusals that a row quotes."""
    return [text for text in re.findall(r"`([^`]+)`", says) if " " in text]


def is_a_test(name: str) -> bool:
    """True if a test of that name exists."""
    return any(f"def {name}(" in path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))

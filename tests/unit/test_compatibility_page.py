"""docs/compatibility.md claims nothing that nobody ran: every "runs" names a command or a test of this repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"(?m)^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))


def rows() -> list[tuple[str, str, str]]:
    """(what, answer, how we know) of all tables."""
    lines = re.findall(r"(?m)^\| (.*) \|$", PAGE)
    cells = [re.split(r" \| ", line) for line in lines if not line.startswith(("---", "what |"))]
    assert all(len(row) == 3 for row in cells)
    return [(what, answer, known) for what, answer, known in cells]


def test_what_runs_names_the_command_or_test_that_ran_it() -> None:
    found = [row for row in rows() if row[1].startswith("runs")]
    assert len(found) > 8
    for what, _, known in found:
        evidence = re.findall(r"`(make [a-z0-9-]+(?: CMD=[a-z0-9-]+)?|tests/[\w./]+)`", known)
        assert evidence or known == "every test", what


def test_every_command_and_test_that_is_named_exists() -> None:
    for target in re.findall(r"`make ([a-z0-9-]+)(?: CMD=[a-z0-9-]+)?`", PAGE):
        assert target in TARGETS
    for path in re.findall(r"`((?:tests|deploy)/[\w./-]+)`", PAGE):
        assert (ROOT / path).exists(), path


def test_what_nobody_ran_says_so() -> None:
    for what, answer, known in rows():
        if answer.startswith("built for") or not answer.startswith(("runs", "no")):
            assert re.search(r"not run|no pod was run|no real driver", known), what

"""The page of the stand-in driver's behaviour names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "vcuda/lib/test/standin/README.md"


def test_each_behaviour_has_a_source_and_a_test_that_exists() -> None:
    rows = [line.strip("|").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")][
        2:
    ]
    assert len(rows) > 5
    for behaviour, source, test in rows:
        assert source.strip(), behaviour
        named = re.fullmatch(r"`(test_\w+\.py)::(test_\w+)`", test.strip())
        assert named, behaviour
        assert f"def {named[2]}(" in (ROOT / "tests/native" / named[1]).read_text(), behaviour

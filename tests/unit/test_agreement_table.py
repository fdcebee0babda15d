"""The table of what stand-ins and real parts must both do: each case says what it proves, the page counts them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.agreement.api_reads import READS
from tests.agreement.api_writes import WRITES
from tests.agreement.books_cases import BOOKS
from tests.agreement.plugin_cases import PLUGINS
from tests.agreement.scheduler_cases import SCHEDULER

PAGE = Path(__file__).resolve().parents[2] / "docs/cluster.md"
PARTS = {"API server": [*WRITES, *READS], "scheduler": SCHEDULER, "kubelet": [*PLUGINS, *BOOKS]}


def test_every_case_has_a_name_of_its_own_and_says_what_it_proves() -> None:
    for cases in PARTS.values():
        assert len({case.name for case in cases}) == len(cases)
        assert all(len(case.proves.split()) > 4 for case in cases)


def test_the_page_counts_the_cases() -> None:
    said = re.findall(r"^\| ([\w ]+) \| (\d+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert dict(said) == {part: str(len(cases)) for part, cases in PARTS.items()}

"""Texts are drawn for a reader: from everywhere, the same ones for a seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import prose

HEADER = """/* What it is
 * and why. */
int f(void); // no text
"""
MODULE = '''"""The module."""

def public(): "It says what it does."

def _private(): "Nobody reads this."

OPTION = dict(help="Which card; default: the first.")
'''
PAGE = """# Heading

A paragraph of the page.

| a | table |
```
code
```
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for place, text in {
        "gpu_manager/domain/a.py": MODULE,
        "vcuda/lib/src/a.h": HEADER,
        "vcuda/lib/test/b.h": HEADER,
        "README.md": PAGE,
        "docs/page.md": PAGE,
    }.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text, encoding="utf-8")
    return tmp_path


def test_each_source_yields_what_a_reader_reads_and_where_it_stands(tree: Path) -> None:
    assert {(one.place, one.words) for one in prose.docstrings(tree)} == {
        ("gpu_manager/domain/a.py:1", "The module."),
        ("gpu_manager/domain/a.py:3", "It says what it does."),
    }
    assert [one.words for one in prose.helps(tree)] == ["Which card; default: the first."]
    assert [(one.place, one.words) for one in prose.comments(tree)] == [
        ("vcuda/lib/src/a.h:1", "What it is and why.")
    ]
    assert [(one.place, one.words) for one in prose.paragraphs(tree)] == [
        ("README.md:3", "A paragraph of the page."),
        ("docs/page.md:3", "A paragraph of the page."),
    ]


def test_a_seed_draws_the_same_texts_of_all_sources(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = prose.draw(7)
    assert len(set(drawn)) == prose.TEXTS
    ends = [one.place.partition(":")[0].rpartition(".")[2] for one in drawn]
    assert ends.count("h") == ends.count("md") == prose.TEXTS // 4
    assert prose.main(["--seed", "7"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("seed 7\n")
    assert all(one.place in printed for one in drawn)

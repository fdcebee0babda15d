"""Chinese pages give what their English pages give: headings, commands, options, names, rows and links."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
ZH = DOCS / "zh"
PAGES = sorted(path.name for path in ZH.glob("*.md") if path.name != "index.md")
_BLOCK = re.compile(r"(?ms)^ *```[^\n]*\n.*?^ *```$")


@dataclass(frozen=True, slots=True)
class Outline:
    """What has to be the same in both languages."""

    anchors: list[str]
    blocks: list[str]
    spans: set[str]
    rows: int
    links: set[str]


def outline(path: Path) -> Outline:
    text = path.read_text(encoding="utf-8")
    prose = _BLOCK.sub("", text)
    headings = re.findall(r"(?m)^#+ (.*)$", prose)
    targets = re.findall(r"\]\((?!http)([^)]+)\)", prose)
    return Outline(
        anchors=[anchor(heading) for heading in headings],
        blocks=[without_comments(block) for block in _BLOCK.findall(text)],
        spans=set(re.findall(r"`([^`\n]+)`", prose)),
        rows=len(re.findall(r"(?m)^\|", prose)),
        links={target.removeprefix("../") for target in targets},
    )


def anchor(heading: str) -> str:
    """As mkdocs makes it, or as it is written behind a Chinese heading."""
    if written := re.search(r"\{#([a-z0-9-]+)\}$", heading):
        return written[1]
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def without_comments(block: str) -> str:
    """Comments of commands may be translated."""
    return "\n".join(re.split(r"\s+#\s", line)[0] for line in textwrap.dedent(block).splitlines())


def test_ten_pages_are_there_and_the_index_names_each() -> None:
    assert len(PAGES) == 10
    assert {f"{name}" for name in PAGES} <= outline(ZH / "index.md").links


@pytest.mark.parametrize("name", PAGES)
def test_a_chinese_page_gives_what_its_english_page_gives(name: str) -> None:
    theirs, ours = outline(DOCS / name), outline(ZH / name)
    assert ours.anchors == theirs.anchors
    assert ours.blocks == theirs.blocks
    assert sorted(ours.spans ^ theirs.spans) == []
    assert ours.rows == theirs.rows
    assert sorted(ours.links ^ theirs.links) == []


@pytest.mark.parametrize("name", [*PAGES, "index.md"])
def test_a_chinese_page_leads_to_chinese_pages_where_there_are_some(name: str) -> None:
    english = re.findall(r"\]\(\.\./([a-z-]+\.md)", (ZH / name).read_text(encoding="utf-8"))
    assert sorted(set(english) & set(PAGES)) == []

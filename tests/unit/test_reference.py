"""docs/reference is what the code says: pages are printed by the program, and leave nothing out."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_manager.cli.reference import CommandPage, text_of
from gpu_manager.domain import contract

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", list(CommandPage))
def test_the_page_in_the_docs_is_what_the_program_prints(page: CommandPage) -> None:
    place = "doctor.md" if page is CommandPage.DOCTOR else f"reference/{page.value}.md"
    written = (DOCS / place).read_text(encoding="utf-8")
    assert written == text_of(page), f"gpu-manager reference {page.value} > docs/{place}"


def test_every_name_of_the_contract_is_explained() -> None:
    text = text_of(CommandPage.ANNOTATIONS)
    names = {
        value
        for key, value in vars(contract).items()
        if key.isupper() and isinstance(value, str) and ("/" in value or "_" in value)
    }
    assert len(names) > 25
    missing = {name for name in names if f"`{name}" not in text and f"`${name}`" not in text}
    assert missing == set()


def test_a_table_has_as_many_cells_in_each_row_as_in_its_head() -> None:
    for page in CommandPage:
        cells = 0
        for line in text_of(page).splitlines():
            if not line.startswith("|"):
                cells = 0
                continue
            found = line.replace("\\|", "").count("|")
            assert cells in (0, found), line
            cells = found

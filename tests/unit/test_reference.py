"""Pages of docs that are made from the code are what the code says, and leave nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_manager.domain import contract
from tools.docs import PAGES
from tools.docs.admission import described

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_in_the_docs_is_what_the_code_says(page: str) -> None:
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == PAGES[page](), "run make reference"


def test_every_name_of_the_contract_is_explained() -> None:
    text = PAGES["reference/annotations.md"]()
    names = {
        value
        for key, value in vars(contract).items()
        if key.isupper() and isinstance(value, str) and ("/" in value or "_" in value)
    }
    assert len(names) > 25
    missing = {name for name in names if f"`{name}" not in text and f"`${name}`" not in text}
    assert missing == set()


@pytest.mark.parametrize("page", PAGES)
def test_a_table_has_as_many_cells_in_each_row_as_in_its_head(page: str) -> None:
    cells = 0
    for line in PAGES[page]().splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        found = line.replace("\\|", "").count("|")
        assert cells in (0, found), line
        cells = found


def test_every_metric_of_admission_named_in_the_code_is_described() -> None:
    """A family that is shown only under some condition must not be left out."""
    found = {family.name for family in described()}
    for module in ("serving/metrics", "extender/cluster_metrics"):
        text = (ROOT / "admission" / f"{module}.py").read_text(encoding="utf-8")
        for name in re.findall(r'"(vcuda_admission_\w+)"', text):
            assert name in found, name
        for name in re.findall(r'_gauge\(\s*"(\w+)"', text):
            assert f"vcuda_admission_{name}" in found, name

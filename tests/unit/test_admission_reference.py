"""docs/reference about admission is what the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from admission.__main__ import run
from admission.reference import AdmissionPage, described

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "reference"


@pytest.mark.parametrize("page", list(AdmissionPage))
def test_the_page_in_the_docs_is_what_the_program_prints(
    page: AdmissionPage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--print-reference", page.value]) == 0
    written = (DOCS / f"admission-{page.value}.md").read_text(encoding="utf-8")
    name = page.value
    assert written == capsys.readouterr().out, (
        f"gpu-quota-admission --print-reference {name} > docs/reference/admission-{name}.md"
    )


def test_an_unknown_page_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--print-reference", "poems"]) == 2
    assert "use flags or metrics" in capsys.readouterr().err


def test_every_metric_named_in_the_code_is_described() -> None:
    """A family that is shown only under some condition must not be left out."""
    found = {family.name for family in described()}
    for module in ("serving/metrics", "extender/cluster_metrics"):
        text = (ROOT / "admission" / f"{module}.py").read_text(encoding="utf-8")
        for name in re.findall(r'"(vcuda_admission_\w+)"', text):
            assert name in found, name
        for name in re.findall(r'_gauge\(\s*"(\w+)"', text):
            assert f"vcuda_admission_{name}" in found, name

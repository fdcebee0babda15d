"""The pages about what runs beside: what was not tried says so, and manifests to copy are legal."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_manager.cli.main import run

BESIDE = Path(__file__).parents[2] / "docs" / "beside"
PAGES = sorted(BESIDE.glob("*.md"))
MANIFESTS = sorted((BESIDE / "manifests").glob("*.yaml"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_says_whether_it_was_tried(page: Path) -> None:
    marked = page.read_text().splitlines()[2]
    assert marked.startswith(("By its documentation (", "By their documentation (", "Tried with "))
    assert "not tried" in marked or marked.startswith("Tried with ")


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.stem)
def test_manifests_to_copy_are_legal(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(manifest)]) == 0
    said = capsys.readouterr().out
    assert "legal" in said
    assert "illegal" not in said


def test_there_are_pages_and_manifests() -> None:
    names = {"jupyter", "pytorch-ddp", "pytorch-ddp-parts", "triton-server", "vllm", "vllm-two-halves"}
    assert names == {path.stem for path in MANIFESTS}
    assert len(PAGES) >= 11

"""Manifests of other systems, as their projects document them, against what was worked out by hand."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout

from bench.rows import Row
from gpu_manager.cli.kubectl.main import run
from tests.oracle.migration import CASES, DATA, Case, faults


def rows(*, full: bool) -> Iterator[Row]:  # noqa: ARG001 - as every group has it
    """The row; ``full`` makes no difference."""
    wrong = {case.file: found for case in CASES if (found := tuple(_faults(case)))}
    told = "; ".join(f"{file}: {', '.join(found)}" for file, found in wrong.items())
    note = (
        f"{len(CASES)} manifests of Volcano, KAI, Run:ai, KServe, Argo, MPS, HAMi-core, gpushare and others: "
        "shares right, every foreign name that stays told with exit code 1, comments and anchors kept"
    )
    right = len(CASES) - len(wrong)
    yield Row("migrate_cases", right, "cases", f"≥ {len(CASES)}", note=f"{note}. {told}".rstrip(". "))


def _faults(case: Case) -> Iterator[str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(["migrate", "-o", "yaml", str(DATA / case.file), *case.options])
    yield from faults(case, out.getvalue(), err.getvalue(), code)

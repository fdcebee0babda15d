"""``pod_cases_wrong``: manifests as people have them beside other controllers, each with its right answer."""

from __future__ import annotations

from collections.abc import Iterator

from bench.rows import Row
from tests.oracle.pod_cases import CASES, given, wrong


def rows(*, full: bool) -> Iterator[Row]:  # noqa: ARG001 - as every part has it
    """The row; none where the cases are not on this machine."""
    folder = given()
    if folder is not None:
        found = wrong(folder)
        told = "; ".join(f"{name}: {', '.join(faults)}" for name, faults in found.items())
        note = f"{len(CASES)} manifests and values beside Kueue, Ray, KServe, Spark, HAMi and others. {told}"
        yield Row("pod_cases_wrong", len(found), "count", "= 0", note=note.rstrip(". "))

"""``kubectl vcuda doctor``: what is wrong in the cluster, as far as the API server shows it."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, log_in
from gpu_manager.cli.output import TABLE, Printing, coloured
from gpu_manager.domain.doctor import CLUSTER_CHECKS, examine
from gpu_manager.domain.doctor.facts import DoctorCheck, Facts, Report, Severity
from gpu_manager.domain.errors import printable


def command(printing: Printing = TABLE, access: Access = BY_KUBECONFIG) -> int:
    """Find what is wrong in the cluster: nodes, agents, webhooks, schedulers, pods. Each with its cure.

    Changes nothing, and looks with your own rights: what you may not see is said. `gpu-manager doctor` on a
    node looks at driver, runtime and kubelet. Exit code: 0 good (or warnings alone), 1 trouble, 2 bad input.

    Examples:
      kubectl vcuda doctor
      kubectl vcuda doctor -o json
    """
    from gpu_manager.adapters.diagnosis.cluster import gather_cluster  # noqa: PLC0415  # as in log_in

    with log_in(access) as login:
        facts = Facts(now=time.time(), cluster=gather_cluster(login.connection))
    return show(examine(facts, CLUSTER_CHECKS), printing)


_SEVERITY_COLOURS = {Severity.TROUBLE: "red", Severity.WARNING: "yellow"}
_WIDTH = 100


def show(report: Report, printing: Printing) -> int:
    """Print the report. The exit code: 1 where there is trouble."""
    if printing.for_program:
        printing.emit(document(report))
    else:
        print("\n".join(_lines(report)))
    return 0 if report.healthy else 1


def _lines(report: Report) -> Iterator[str]:
    for note in report.notes:
        yield from _wrapped(printable(note), "")
    last: DoctorCheck | None = None
    for finding in report.findings:
        if finding.check is not last:
            word = coloured(f"{finding.check.severity.value:7}", _SEVERITY_COLOURS[finding.check.severity])
            head, *rest = _wrapped(f"{finding.check.id}: {finding.check.what}", "         ")
            yield from (f"{word}  {head.strip()}", *rest)
        last = finding.check
        yield from _wrapped(printable(finding.text), "         - ")
        if finding is _last_of(report, finding.check):
            yield from _wrapped(f"cure: {finding.check.cure}", "         ")
    for skipped in report.skipped:
        yield from _wrapped(f"not looked at: {printable(skipped.why)} ({', '.join(skipped.checks)})", "")
    yield _sum(report)


def _last_of(report: Report, check: DoctorCheck) -> object:
    return [finding for finding in report.findings if finding.check is check][-1]


def _wrapped(text: str, indent: str) -> list[str]:
    rest = " " * len(indent)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=rest or "  ", break_on_hyphens=False
    )


def _sum(report: Report) -> str:
    counts = {s: len({f.check.id for f in report.findings if f.check.severity is s}) for s in Severity}
    skipped = sum(len(one.checks) for one in report.skipped)
    return (
        f"{len(report.passed)} checks good, {counts[Severity.TROUBLE]} in trouble, "
        f"{counts[Severity.WARNING]} with a warning, {skipped} not looked at"
    )


def document(report: Report) -> Mapping[str, Any]:
    """The report for programs."""
    return {
        "healthy": report.healthy,
        "notes": list(report.notes),
        "findings": [
            {
                "check": f.check.id,
                "severity": f.check.severity.value,
                "text": f.text,
                "meaning": f.check.what,
                "cure": f.check.cure,
            }
            for f in report.findings
        ],
        "passed": list(report.passed),
        "skipped": [{"checks": list(one.checks), "why": one.why} for one in report.skipped],
    }

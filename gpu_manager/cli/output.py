"""How commands print: the forms of an answer, columns, the doctor's report, and colour only on a terminal."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Final

from gpu_manager.domain.doctor import DoctorCheck, Report, Severity
from gpu_manager.domain.errors import printable
from gpu_manager.runtime.arguments import Option


class Output(Enum):
    """The forms of an answer."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class WideOutput(Enum):
    """The same, where there is more to show than fits."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


_COLOURS: Final = {"red": 31, "green": 32, "yellow": 33, "cyan": 36}
Form = Annotated[Output, Option("--output", "-o", help="Form of the answer.")]
WideForm = Annotated[WideOutput, Option("--output", "-o", help="Form of the answer.")]


def for_program(output: Output | WideOutput) -> bool:
    """True for the forms that programs read."""
    return output.value in ("json", "yaml")


def emit(data: Mapping[str, Any] | Sequence[Any], output: Output | WideOutput) -> None:
    """Print one value for programs."""
    if output.value == "json":
        print(json.dumps(data, indent=1))
        return
    import yaml  # noqa: PLC0415  # only here

    print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip("\n"))


def columns(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns, one line a row, as kubectl prints them. What others wrote cannot move the cursor."""
    lines = [list(titles), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(titles))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def painted(text: str, colour: str) -> str:
    """The text in that colour, for a terminal."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def coloured(word: str, colour: str) -> str:
    """The word in that colour on a terminal; plain elsewhere and where NO_COLOR is set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return word
    return f"\x1b[1m{painted(word, colour)}"


_SEVERITY_COLOURS = {Severity.TROUBLE: "red", Severity.WARNING: "yellow"}
_WIDTH = 100


def show(report: Report, output: Output) -> int:
    """Print the report. The exit code: 1 where there is trouble."""
    if for_program(output):
        emit(_document(report), output)
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


def _document(report: Report) -> Mapping[str, Any]:
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

"""Print our figures beside published ones, as tables in Markdown: ``python3 -m tests.gpu.beside.table RESULTS.jsonl...``.

Of several files the later one's rows count. Without a file, and for rows of a dry run, our columns say that nothing was
measured: docs/side-by-side.md has these tables as this prints them.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.gpu.beside.models import COSTED, JOBS, RESIDENTS, SERVICES
from tests.gpu.beside.splits import KERNELS_US, SPLITS
from tests.gpu.results import rows
from tests.gpu.unbroken import say

EMPTY = "not measured on a card yet"
Figures = Mapping[str, float | None]
DYNAMO = {2: (44.5, 63.5), 8: (51.2, 68.0), 32: (72.8, 87.9)}


def tables(found: Figures) -> str:
    """All tables with these rows."""
    parts = [_two_llms, _latency, _server, _cost, _killed, _splits]
    return "\n\n".join("\n".join(part(found)) for part in parts) + "\n"


def measured(paths: Sequence[Path]) -> Figures:
    """Figures by name of the rows of these results files that were measured on a card."""
    found: dict[str, float | None] = {}
    for path in paths:
        with path.open(encoding="utf-8") as file:
            machine = json.loads(file.readline()).get("machine", {})
        if machine.get("measured_on_a_card"):
            found |= {str(row["name"]): row["figure"] for row in rows(path)}  # type: ignore[misc]
    return found


def _cell(found: Figures, name: str, unit: str = "") -> str:
    figure = found.get(name)
    return EMPTY if figure is None else f"{figure:g}{unit}"


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _head(title: str, *columns: str) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    yield _line(*columns)
    yield _line(*["---"] * len(columns))


def _two_llms(found: Figures) -> Iterator[str]:
    yield from _head(
        "Two language models on a card {#t1}", "requests on the card", "KAI and HAMi, A100", "MPS halves, A100",
        "two bare", "hard", "elastic", "turns by the hardware",
    )  # fmt: skip
    for residents in RESIDENTS:
        ours = [
            _cell(found, f"gpu_two_llms_{residents}_{arm}_percent", " %")
            for arm in ("two_bare", "hard", "elastic", "hardware")
        ]
        yield _line(residents, *(f"{figure:g} %" for figure in DYNAMO[residents]), *ours)


def _latency(found: Figures) -> Iterator[str]:
    yield from _head(
        "p99 beside training {#t2}", "service", "job that trains", "p99 over alone, two bare", "protected",
        "job's part of what is left, two bare", "protected",
    )  # fmt: skip
    figures = [f"{arm}_{what}_ratio" for what in ("p99", "job") for arm in ("two_bare", "protected")]
    means: dict[str, list[float]] = {figure: [] for figure in figures}
    for service in SERVICES:
        for job in JOBS:
            names = {figure: f"gpu_beside_{service.name}_and_{job.name}_{figure}" for figure in figures}
            yield _line(service.name, job.name, *(_cell(found, name) for name in names.values()))
            for figure, name in names.items():
                known = found.get(name)
                means[figure] += [] if known is None else [known]
    ours = [f"{statistics.mean(known):.3f} of {len(known)}" if known else EMPTY for known in means.values()]
    yield _line("mean", "", *ours)
    yield _line("[Tally](#sources), mean", "", "", "1.072", "", "at least 0.8 of TGS's")
    yield _line("TGS, as Tally measured it, mean", "", "", "2.889", "", "")


def _server(found: Figures) -> Iterator[str]:
    yield from _head(
        "Requests a second within a bound, beside training {#t3}",
        "service, p99 within",
        "two bare, of alone",
        "protected, of alone",
    )
    for name, bound in (("resnet50", 15), ("bert", 130)):
        ours = (_cell(found, f"gpu_server_{name}_{arm}_kept") for arm in ("two_bare", "protected"))
        yield _line(f"{name}, {bound} ms", *ours)


def _cost(found: Figures) -> Iterator[str]:
    yield from _head("What the library costs {#t4}", "program", "at 100, times bare", "at 99, times bare")
    for model in COSTED:
        kind = model.arguments[0]
        yield _line(
            f"{model.name}, {'first token' if kind == 'first' else kind}",
            *(_cell(found, f"gpu_cost_{kind}_{model.name}_at_{limit}") for limit in (100, 99)),
        )


def _killed(found: Figures) -> Iterator[str]:
    yield from _head("Neighbours of killed tenants {#t5}", "", "MPS", "in containers", "bare")
    published = "neighbours get an illegal-address error, later clients hang in `cuInit`"
    for figure, what, theirs in (
        ("neighbours_errors", "neighbours' errors", published),
        ("longest_gap_ms", "longest gap, ms", ""),
        ("start_ms", "slowest start of the next, ms", ""),
    ):
        yield _line(what, theirs, *(_cell(found, f"gpu_killed_{arm}_{figure}") for arm in ("hard", "bare")))


def _splits(found: Figures) -> Iterator[str]:
    yield from _head(
        "Splits {#t6}",
        "split",
        "kernels",
        "furthest from its part, points",
        "sum, of one alone",
        "HAMi's own word",
    )
    for split in SPLITS:
        for us in KERNELS_US:
            name = f"gpu_beside_split_{'_'.join(map(str, split))}_{us}us"
            ours = _cell(found, f"{name}_error"), _cell(found, f"{name}_sum")
            yield _line("/".join(map(str, split)), f"{us / 1000:g} ms", *ours, "")
    yield _line("10/90", "", "", "", "1 to 6 or 8")


def main() -> int:
    """The command line."""
    say(tables(measured([Path(name) for name in sys.argv[1:]])).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())

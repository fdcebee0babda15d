"""``gpu-manager replay-node FILE``: judge an agent's recorded decisions again, by this release."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import structlog

from gpu_manager.adapters.record_ring import segments
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.runtime.arguments import Argument, Option
from gpu_manager.services.allocation.record import AgentPlayer, JudgedOnNode


def command(
    file: Annotated[Path, Argument(help="A file of an agent's recorded decisions, or their directory.")],
    most: Annotated[int, Option(min=0, help="Differences that are listed.")] = 20,
    timeline: Annotated[
        bool, Option("--timeline", help="Print every decision as it was recorded, too.")
    ] = False,
) -> int:
    """Judge every decision of an agent again, and print those that differ with both answers.

    These are the answers to GetPreferredAllocation, and what Allocate booked. Exit status: 0 if none
    differs, 1 if one does, 2 for a file that is no such record.

    Examples:
      gpu-manager replay-node /var/lib/gpu-manager/records
      gpu-manager replay-node decisions-00000001.jsonl --timeline
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    player, counts, differ = AgentPlayer(), Counter[str](), 0
    for one in player.play(_lines(file)):
        counts[one.line["k"]] += 1
        if timeline:
            print(f"{_about(one)}: {_short(one.recorded)}")
        if one.recorded != one.now:
            differ += 1
            if differ <= most:
                print(f"{_about(one)} differs: {_short(one.recorded)} -> {_short(one.now)}")
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())) or "none"
    print(f"{counts.total()} decisions ({kinds}); {f'{differ} differ' if differ else 'none differs'}")
    for reason, count in player.passed.items():
        print(f"{count} more not judged: {reason}")
    return 1 if differ else 0


def _lines(path: Path) -> Iterator[bytes]:
    try:
        files = segments(path) if path.is_dir() else [path]
        if not files:
            raise RequestInvalid(f"{path} holds no recorded decisions: name a directory of them, or one file")
        for each in files:
            with each.open("rb") as stream:
                yield from stream
    except OSError as error:
        raise RequestInvalid(f"cannot read {quoted(str(path))}: {error.strerror}") from error


def _about(one: JudgedOnNode) -> str:
    at = dt.datetime.fromtimestamp(one.line["at"], dt.UTC).isoformat(timespec="milliseconds")
    where = f"{one.pod}, container {one.line['container']}, {one.line['resource']}"
    return f"{at.removesuffix('+00:00')}Z {one.line['k']} of {printable(where)}"


def _short(answer: dict[str, object]) -> str:
    return printable(json.dumps(answer, ensure_ascii=False))

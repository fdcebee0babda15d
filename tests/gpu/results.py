"""The results file: a JSON object a line, on the disk before the next row is measured.

The first line says what was measured on (``{"machine": ...}``), each row is ``{"case": ..., "row": ...}``, and
``{"case": ..., "seconds": ...}`` follows the last row of a case. A run that is cut keeps what it has; the next
run with the same file goes on after the last whole case.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.rows import Row


class OtherMachine(Exception):  # noqa: N818 - the file is in order, it is only another machine's
    """The file holds results of another card, driver or library."""


class Results:
    """Appends to ``path``; what it already holds of ``machine`` counts as measured."""

    def __init__(self, path: Path, machine: Mapping[str, object]) -> None:
        """Raises OtherMachine."""
        self.path = path
        self._done: set[str] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = list(_lines(path))
        for line in lines:
            if "machine" in line and line["machine"] != dict(machine):
                raise OtherMachine(f"{path} was measured on {line['machine']}: name another file")
            if "seconds" in line:
                self._done.add(str(line["case"]))
        self._file = path.open("a", encoding="utf-8")
        if _torn(path):
            self._file.write("\n")
        if not lines:
            self._write({"machine": dict(machine)})

    def has(self, case: str) -> bool:
        """True if every row of the case was measured before."""
        return case in self._done

    def row(self, case: str, row: Row) -> None:
        """Write a row; it is on the disk when this returns."""
        self._write({"case": case, "row": row.as_json()})

    def done(self, case: str, seconds: float) -> None:
        """The case has no more rows; it took so many seconds."""
        self._done.add(case)
        self._write({"case": case, "seconds": round(seconds, 1)})

    def left_out(self, cases: list[str]) -> None:
        """The time was out before these."""
        self._write({"left_out": cases})

    def ended(self, why: str) -> None:
        """Somebody ended the run here."""
        self._write({"ended": why})

    def close(self) -> None:
        """No row is lost without it."""
        self._file.close()

    def _write(self, line: Mapping[str, object]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def rows(path: Path) -> list[dict[str, object]]:
    """Every row of a results file, by name: of a case that was begun twice, the later one's."""
    found = {row["name"]: row for line in _lines(path) if isinstance(row := line.get("row"), dict)}
    return list(found.values())


def _lines(path: Path) -> Iterator[dict[str, object]]:
    """Whole lines; the last one of a run that was cut may be torn."""
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line


def _torn(path: Path) -> bool:
    content = path.read_bytes()
    return bool(content) and not content.endswith(b"\n")

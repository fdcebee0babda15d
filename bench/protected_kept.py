"""Outcomes of constellations, kept from call to call: all of them at full size take an hour.

A call measures for some minutes and keeps what it has under ``build/protected``, with a digest of the code;
the next call goes on, and the rows' notes count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bench.code_digest import code_digest
from bench.rows import OUTPUT

KEPT: Final = OUTPUT.with_name("protected")
ROOT: Final = Path(__file__).resolve().parents[1]


def kept(
    path: Path, measure: Callable[[], Mapping[str, Any]], goes_on: Callable[[], bool]
) -> Mapping[str, Any] | None:
    """What is kept there, or is measured now and kept while the call ``goes_on``; else None."""
    if not path.exists():
        if not goes_on():
            return None
        found = json.dumps(measure())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found + "\n", encoding="utf-8")
    read: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def digest() -> str:
    """Twelve hex digits of the C sources that the programs run and of the Python that measures them."""
    library, tests = ROOT / "vcuda/lib", ROOT / "tests/native"
    python = [tests / f"{name}.py" for name in ("gates", "core_world", "card_watch", "programs")]
    total = hashlib.sha256(code_digest([ROOT / "bench/protected_cells.py", *python]).encode())
    sources = [tests / name for name in ("core_load.c", "core_service.c", "core_program.h", "core_watch.c")]
    for folder in (library / "src", library / "include", library / "watcher", library / "test/standin"):
        sources += [path for path in folder.rglob("*.*") if path.suffix in {".c", ".h", ".S", ".def"}]
    for path in sorted(sources):
        total.update(path.read_bytes())
    return total.hexdigest()[:12]

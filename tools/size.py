"""``python -m tools.size``: lines of code of each package; ``--check`` holds them to their ceilings.

A line counts if it holds any code: blank lines, comments and docstrings don't, nor do files without code, nor
what protoc has written. Of the C library count ``src``, ``include``, ``hook``, ``watcher`` and ``score``. The
ceilings stand in ``pyproject.toml``, in ``[tool.size]``: whoever raises one says so in the first commit that
needs it.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PYTHON: Final = ("gpu_manager", "admission", "vcuda")  # what users install
LIBRARY: Final = "vcuda/lib"
C: Final = tuple(f"{LIBRARY}/{room}" for room in ("src", "include", "hook", "watcher", "score"))
_NOT_OURS: Final = ("gpu_manager/pb", LIBRARY)  # protoc's, and generators and tests of the library
_LAYOUT: Final = frozenset(
    (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.ENCODING,
    )
)
_C_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def python_lines(text: str) -> int:
    """Lines that hold any token of code."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - set(_docstrings(ast.parse(text))))


def c_lines(text: str) -> int:
    """Lines that hold more than comments."""

    def without(found: re.Match[str]) -> str:
        token = found.group()
        return token if token.startswith('"') else "\n" * token.count("\n")

    return sum(bool(line.strip()) for line in _C_TOKEN.sub(without, text).splitlines())


def _docstrings(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def files(root: Path = ROOT) -> Iterator[tuple[str, int]]:
    """Path from ``root`` and lines of each file of the product that has code."""
    for package in PYTHON:
        for path in sorted((root / package).rglob("*.py")):
            place = path.relative_to(root)
            if not any(place.is_relative_to(other) for other in _NOT_OURS):
                yield place.as_posix(), python_lines(path.read_text(encoding="utf-8"))
    for room in C:
        for path in sorted((root / room).rglob("*.[ch]")):
            yield path.relative_to(root).as_posix(), c_lines(path.read_text(encoding="utf-8"))


def package(path: str) -> str:
    """The package that a file counts for: a room of ``gpu_manager``, another package, or ``C``."""
    top, *rooms = path.split("/")
    if path.startswith(f"{LIBRARY}/"):
        return "C"
    return f"{top}/{rooms[0]}" if top == "gpu_manager" and len(rooms) > 1 else top


def beyond(sizes: Mapping[str, int], ceilings: Mapping[str, int]) -> list[str]:
    """Each package that is larger than its ceiling, or has none, in words."""
    return [
        f"{name}: {lines:,} lines of code; [tool.size] in pyproject.toml allows {ceilings.get(name, 0):,}"
        for name, lines in sizes.items()
        if lines > ceilings.get(name, 0)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print a line a package and the sums of Python and C."""
    parser = argparse.ArgumentParser(prog="python -m tools.size", description="Count lines of code.")
    parser.add_argument("--check", action="store_true", help="Fail where a package is beyond its ceiling.")
    check = parser.parse_args(arguments).check
    lines, counted = Counter[str](), Counter[str]()
    for path, size in files():
        lines[package(path)] += size
        counted[package(path)] += size > 0
    if check:
        settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        wrong = beyond(lines, settings["tool"]["size"])
        print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
        return bool(wrong)
    print(f"{'':24} {'lines':>7} {'files':>6}")
    for name in sorted(lines):
        print(f"{name:24} {lines[name]:7,} {counted[name]:6,}")
    python, sources = lines.total() - lines["C"], counted.total() - counted["C"]
    print(f"{'product Python':24} {python:7,} {sources:6,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tools.code_lines``: lines of code of each package, without blank lines, comments and
docstrings; with ``--since COMMIT`` also what each area's commits have added to the product since.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PACKAGES = ("gpu_manager", "admission", "vcuda", "sandbox", "tools", "tests", "bench")
PRODUCT = ("gpu_manager", "admission", "vcuda")
_NOT_OURS = "gpu_manager/pb"  # protoc has written it
_NOT_SHIPPED = (
    "vcuda/lib",
    "gpu_manager/sandbox",
)  # generators and tests of the C library; where the sandbox was
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def code_lines(text: str) -> int:
    """Lines that hold any token of code."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - set(_docstrings(ast.parse(text))))


def _docstrings(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def counts(path: str) -> bool:
    """True for a Python file that is written here and, in a package of the product, shipped with it."""
    place = PurePosixPath(path)
    return place.suffix == ".py" and not any(place.is_relative_to(p) for p in (_NOT_OURS, *_NOT_SHIPPED))


def package_lines(package: str) -> int:
    """All code of a package."""
    files = (path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py"))
    return sum(code_lines((ROOT / path).read_text(encoding="utf-8")) for path in files if counts(path))


def added_since(commit: str) -> Counter[str]:
    """Area → lines that its commits have added to the product; the area is what a subject begins with."""
    log = _git("log", "--raw", "--no-abbrev", "--no-renames", "--format=@%s", f"{commit}..HEAD")
    added: Counter[str] = Counter()
    area = ""
    for line in log.splitlines():
        if line.startswith("@"):
            area = line[1:].partition(":")[0]
        elif line.startswith(":"):
            change, path = line.split("\t", 1)
            before, after = change.split()[2:4]
            if path.split("/")[0] in PRODUCT and counts(path):
                added[area] += _blob_lines(after) - _blob_lines(before)
    return added


@cache
def _blob_lines(name: str) -> int:
    return code_lines(_git("cat-file", "blob", name)) if name.strip("0") else 0


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, check=True, text=True).stdout


def main() -> None:
    """Print a line a package, and the sum of what users install."""
    parser = argparse.ArgumentParser(prog="python -m tools.code_lines", description="Count lines of code.")
    parser.add_argument(
        "--since", metavar="COMMIT", help="Show what each area has added to the product since."
    )
    since = parser.parse_args().since
    lines = {package: package_lines(package) for package in PACKAGES}
    for package, count in lines.items():
        print(f"{package:20} {count:7,}")
    print(f"{'product':20} {sum(lines[package] for package in PRODUCT):7,}")
    if since:
        added = added_since(since)
        print(f"since {since[:12]:14} {added.total():+7,}")
        for area, count in added.most_common():
            if count:
                print(f"  {area[:40]:40} {count:+7,}")


if __name__ == "__main__":
    main()

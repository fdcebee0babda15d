"""``python -m tools.code_lines``: lines of code of each package, without blank lines, comments and
docstrings; with ``--since COMMIT`` also what the commits since have added to the product.

Two sums are kept apart: commits that restructure what was there, and commits that add something to it. The
first are listed in ``tools/restructuring.txt``, or say so with the trailer ``Kind: restructuring``.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PACKAGES = ("gpu_manager", "admission", "vcuda", "sandbox", "tools", "tests", "bench")
PRODUCT = ("gpu_manager", "admission", "vcuda")
RESTRUCTURING = ROOT / "tools/restructuring.txt"  # lines of hash (12 digits) and subject
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


@dataclass(frozen=True)
class Added:
    """Lines added to the product, by area: by commits that restructure it, and by all others. The area is
    what a subject begins with.
    """

    restructuring: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)


def added_since(commit: str) -> Added:
    """What the commits since have added. Raises CalledProcessError: git does not know the commit."""
    listed = {line.split()[0] for line in RESTRUCTURING.read_text(encoding="utf-8").splitlines() if line}
    header = "@%H\t%(trailers:key=Kind,valueonly,separator=%x20)\t%s"
    log = _git("log", "--raw", "--no-abbrev", "--no-renames", f"--format={header}", f"{commit}..HEAD")
    added = Added()
    sums, area = added.features, ""
    for line in log.splitlines():
        if line.startswith("@"):
            name, kind, subject = line[1:].split("\t", 2)
            is_listed = name[:12] in listed or kind == "restructuring"
            sums, area = added.restructuring if is_listed else added.features, subject.partition(":")[0]
        elif line.startswith(":"):
            change, path = line.split("\t", 1)
            before, after = change.split()[2:4]
            if path.split("/")[0] in PRODUCT and counts(path):
                sums[area] += _blob_lines(after) - _blob_lines(before)
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
        "--since",
        metavar="COMMIT",
        help="Show what restructuring and features have added to the product since.",
    )
    since = parser.parse_args().since
    lines = {package: package_lines(package) for package in PACKAGES}
    for package, count in lines.items():
        print(f"{package:20} {count:7,}")
    product = sum(lines[package] for package in PRODUCT)
    print(f"{'product':20} {product:7,}")
    if since:
        added = added_since(since)
        for title, areas in (("restructuring", added.restructuring), ("features", added.features)):
            print(f"{title:20} {areas.total():+7,}  since {since[:12]}")
            for area, count in areas.most_common():
                if count:
                    print(f"  {area[:40]:40} {count:+7,}")
        print(f"{'without features':20} {product - added.features.total():7,}")


if __name__ == "__main__":
    main()

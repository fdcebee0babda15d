"""``python -m tools.code_lines``: lines of code of each package, without blank lines, comments and
docstrings.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("gpu_manager", "admission", "vcuda", "sandbox", "tools", "tests", "bench")
PRODUCT = ("gpu_manager", "admission", "vcuda")
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


def package_lines(package: str) -> int:
    """All of a package but what protoc has written."""
    files = (path for path in (ROOT / package).rglob("*.py") if "pb" not in path.relative_to(ROOT).parts)
    return sum(code_lines(path.read_text(encoding="utf-8")) for path in files)


def main() -> None:
    """Print a line a package, and the sum of what users install."""
    counts = {package: package_lines(package) for package in PACKAGES}
    for package, count in counts.items():
        print(f"{package:12} {count:7,}")
    print(f"{'product':12} {sum(counts[package] for package in PRODUCT):7,}")


if __name__ == "__main__":
    main()

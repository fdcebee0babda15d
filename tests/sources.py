"""The product's Python files, parsed once for all tests of a process that read them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("gpu_manager", "admission", "vcuda", "sandbox")
GENERATED = "gpu_manager/pb"


@functools.cache
def sources() -> list[tuple[str, ast.Module]]:
    """Path from the root, and the tree, of each file that people write."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    places = [(path.relative_to(ROOT).as_posix(), path) for path in paths]
    return [(p, ast.parse(path.read_text("utf-8"))) for p, path in places if not p.startswith(GENERATED)]

"""Plugin of pytest: which lines of the packages that coverage judges a run reaches (``-p tests.lines_run``).

Before Python 3.12 a tool hears of each line only by tracing all of them, which doubles the time of the unit tests. Here
the judged modules are compiled with a mark before each statement instead: an assignment of a byte. What was marked is
written as coverage's own data, so ``coverage combine`` and ``coverage report`` judge it as if coverage had traced it.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import coverage

ROOT = Path(__file__).parents[1]
CONFIG = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
PACKAGES = tuple(f"{ROOT / package}{os.sep}" for package in CONFIG.get_option("run:source"))
MARKS = "@marks"
"""A global name of each module that no source can spell."""
BLOCKS = ("body", "orelse", "finalbody")

_marks: dict[str, bytearray] = {}  # file → a byte a line


class MarkedLoader(SourceFileLoader):
    """Loads a module that marks the lines it runs."""

    def get_code(self, fullname: str) -> CodeType:
        return compile(with_marks(ast.parse(self.get_data(self.path))), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        lines = self.get_data(self.path).count(b"\n") + 1
        vars(module)[MARKS] = _marks.setdefault(self.path, bytearray(lines + 1))
        exec(code, vars(module))


class MarkedFinder(MetaPathFinder):
    """Finds what the other finders find; a judged module is loaded with marks."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        others = [finder.find_spec for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (find(fullname, path, target) for find in others)), None)
        if spec and spec.origin and spec.origin.startswith(PACKAGES) and spec.origin.endswith(".py"):
            spec.loader = MarkedLoader(fullname, spec.origin)
        return spec


def with_marks(module: ast.Module) -> ast.Module:
    """The module with a mark before each statement of each block."""
    for node in [*ast.walk(module)]:
        for name in BLOCKS:
            block = getattr(node, name, None)
            if isinstance(block, list):  # a lambda's body is none
                setattr(node, name, [*_marked(_head(node) if name == "body" else [], block)])
    return module


def _head(node: ast.AST) -> list[int]:
    """The line of what led to a block and is no statement by itself: an exception caught, a case matched."""
    if isinstance(node, ast.ExceptHandler):
        return [node.lineno]
    return [node.pattern.lineno] if isinstance(node, ast.match_case) else []


def _marked(lines: list[int], block: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in block:
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        lines += [*(decorator.lineno for decorator in decorators), statement.lineno]
        if not _comes_first(statement):
            yield from (_mark(line, statement) for line in lines)
            lines = []
        yield statement
    yield from (_mark(line, block[-1]) for line in lines)


def _comes_first(statement: ast.stmt) -> bool:
    """A docstring and an import of the future are what they are at the beginning alone; their marks follow them."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")


def _mark(line: int, place: ast.stmt) -> ast.stmt:
    at = ast.Subscript(ast.Name(MARKS, ast.Load()), ast.Constant(line), ast.Store())
    return ast.fix_missing_locations(ast.copy_location(ast.Assign([at], ast.Constant(1)), place))


def pytest_load_initial_conftests() -> None:
    """Before anything of the packages is imported."""
    sys.meta_path.insert(0, MarkedFinder())


def pytest_sessionfinish() -> None:
    """Write what this process has reached, and that there are files which it has not loaded."""
    data = coverage.CoverageData(str(ROOT / CONFIG.get_option("run:data_file")), suffix=str(os.getpid()))
    data.add_lines({file: [line for line, run in enumerate(marks) if run] for file, marks in _marks.items()})
    data.touch_files(str(file) for package in PACKAGES for file in Path(package).rglob("*.py"))
    data.write()

"""Lines that the plugin of the coverage gates calls run are those that coverage itself sees run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import coverage

from tests.lines_run import MARKS, with_marks

SOURCE = '''"""A docstring."""
from __future__ import annotations

import functools
from dataclasses import (
    dataclass,
)

COUNT = 0


def twice(times):
    return lambda function: (
        function
    )


@dataclass
class Point:
    """A docstring and a field."""

    x: int = 0

    @property
    @functools.cache
    def sum(self) -> int:
        """Nothing but a docstring and what follows."""
        return self.x


@twice(
    2
)
def count(value, *,
          other=lambda: 1):
    global COUNT
    COUNT += 1
    if value > 5:
        return "many"
    elif value == 3:
        found = [
            each
            for each in range(value)
        ]
    else:
        found = None; COUNT += 1
    for each in found or ():
        if each:
            continue
        pass
    else:
        COUNT += 1
    while found:
        found.pop()
        if len(found) == 1:
            break
    else:
        COUNT += 10
    try:
        found.pop()
    except AttributeError:
        COUNT += 1
    except (
        ValueError
    ):
        raise
    else:
        COUNT += 2
    finally:
        COUNT += 3
    match value:
        case 1:
            return other()
        case int() | (
            float()
        ):
            pass
        case _:
            return "never"

    def inner():
        yield from range(3)
        return "never asked"

    with open(__file__) as file, \\
            file:
        return next(inner())


def only_a_docstring():
    """It has no more."""


async def never():
    async with never() as x:
        await x
    async for y in x:
        yield y


results = [count(1), count(3), count(4), only_a_docstring()]
'''


def judged(file: Path, data: coverage.CoverageData | None = None) -> tuple[list[int], list[int]]:
    """Statements of the file, and those that did not run: as coverage traced it, or by this data."""
    judge = coverage.Coverage(data_file=None, config_file=False, include=[str(file)])
    if data is None:
        run: dict[str, Any] = {"__file__": str(file)}
        with judge.collect():
            exec(compile(file.read_text(), str(file), "exec", dont_inherit=True), run)
    else:
        judge.get_data().update(data)
    _, statements, _, missing, _ = judge.analysis2(str(file))
    return statements, missing


def test_lines_that_ran_are_those_that_coverage_traces(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text(SOURCE)
    marks = bytearray(SOURCE.count("\n") + 1)
    code = compile(with_marks(ast.parse(SOURCE)), str(file), "exec", dont_inherit=True)
    run: dict[str, Any] = {"__file__": str(file), MARKS: marks}
    exec(code, run)
    data = coverage.CoverageData(no_disk=True)
    data.add_lines({str(file): [line for line, ran in enumerate(marks) if ran]})
    assert run["results"] == [1, 0, 0, None]
    assert run["Point"].__doc__ == "A docstring and a field."
    statements, missing = judged(file, data)
    assert (statements, missing) == judged(file)
    assert 10 < len(missing) < len(statements) - 30

"""What keeps tests from failing by chance: one seed, one profile of hypothesis, one bound of waiting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.fakes.waiting import PATIENCE
from tests.sources import ROOT

WAITING = {
    "wait": 0,
    "join": 0,
    "result": 0,
    "exception": 0,
    "until": 1,
}  # which of their arguments is a bound
FOLDERS = ("agreement", "component", "deploy", "fakes", "unit")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / "tests" / folder).glob("*.py"))]
DECIDES = re.compile(r"derandomize=|deadline=None|random\.(Random|seed)\(\)|(?<!\.)\brandom\(\)")


def bounds(source: str) -> Iterator[tuple[int, float]]:
    """Line and seconds of each wait that gives up by a number of its own.

    Less than two seconds are a pause, or a wait for what must not come.
    """
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            said = [word.value for word in call.keywords if word.arg == "timeout"]
            said += call.args[WAITING[name] :][:1] if name in WAITING else []
            numbers = [one.value for one in said if isinstance(one, ast.Constant)]
            for seconds in numbers:
                if isinstance(seconds, int | float) and 2 <= seconds < PATIENCE:
                    yield call.lineno, seconds


def test_no_wait_gives_up_earlier_than_all_others() -> None:
    found = [
        f"{path.name}:{line}: {seconds} s"
        for path in FILES
        for line, seconds in bounds(path.read_text("utf-8"))
    ]
    assert found == [], "wait for PATIENCE, or for a clock that the test moves"


@pytest.mark.parametrize(
    "source",
    ["ended.wait(10)", "thread.join(5.0)", "until(lambda: x, 3)", "ask(timeout=20)", "job.result(9)"],
)
def test_a_bound_of_its_own_is_found(source: str) -> None:
    assert [seconds for _, seconds in bounds(source)]


@pytest.mark.parametrize(
    "source", ["ended.wait(0.3)", "ended.wait(PATIENCE)", "ask(timeout=300)", "join('x')"]
)
def test_a_pause_and_the_common_bound_are_none(source: str) -> None:
    assert not list(bounds(source))


def test_no_test_draws_or_decides_by_itself_what_the_seed_decides() -> None:
    lines = [
        f"{path.name}:{number}: {line.strip()}"
        for path in FILES
        if path.name != "test_steady_tests.py"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if DECIDES.search(line)
    ]
    assert lines == []

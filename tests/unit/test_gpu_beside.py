"""The tables side by side, without a card: what is told over the pipe, what is printed, and that the page has no figure of its own."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gpu import __main__ as program
from tests.gpu.beside import table
from tests.gpu.beside.models import COSTED, JOBS, SERVICES
from tests.gpu.beside.workers import Model, Tenant, Workers, together
from tests.gpu.container import GIB, Failed
from tests.gpu.plan import Settings

ROOT = Path(__file__).parents[2]
ECHO = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    _, seconds, rate, seed = line.split()
    print("words of its own", flush=True)
    print(f"iterations {float(rate) * 2:g} wall 2 p50 {seed}", flush=True)
"""


class AnyMachine:
    """Starts Python programs; its card has room for ten."""

    stand_in = tiny = False
    card = SimpleNamespace(memory=10 * GIB)

    def __init__(self) -> None:
        self.started: list[Any] = []

    def python(self, package: str) -> str:
        return sys.executable

    def bare(self, *command: str) -> Any:
        import subprocess  # noqa: PLC0415 - as the machine does it

        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.started.append(subprocess.Popen(command, text=True, **pipes))
        return self.started[-1]


class Script(Model):
    """A program of one text."""

    def command(self, machine: Any) -> tuple[str, ...]:
        return (sys.executable, "-c", self.arguments[0])


def tenant(number: int = 0, text: str = ECHO, gib: float = 4) -> Tenant:
    return Tenant(Script("echo", (text,), gib, ()), number=number)


@pytest.fixture
def on_card() -> Any:
    machine = AnyMachine()
    workers = Workers(machine)  # type: ignore[arg-type]
    yield machine, workers
    workers.close()


def test_tenants_are_started_once_and_answer_each_line(on_card: Any) -> None:
    machine, workers = on_card
    one, other = workers.ready(tenant(0), tenant(1))
    assert one.run(0.1, 7.0).rate == 7
    first, second = together([(one, 3.0), (other, 5.0)], 0.1, seed=4)
    assert (first.rate, first["p50"], second.rate, second["p50"]) == (3, 4, 5, 5)
    assert workers.ready(tenant(1), tenant(0)) == [other, one]
    assert len(machine.started) == 2


def test_those_that_wait_leave_the_card_when_it_has_no_room_and_one_that_was_ended_is_started_again(
    on_card: Any,
) -> None:
    machine, workers = on_card
    (one,) = workers.ready(tenant(0))
    (other,) = workers.ready(tenant(1))
    assert one.process.poll() is None, "two have room"
    (third,) = workers.ready(tenant(2))
    assert one.process.poll() is not None, "who was there first went first"
    assert other.process.poll() is None
    third.process.kill()
    third.process.wait()
    assert workers.ready(tenant(2)) != [third]
    assert len(machine.started) == 4


def test_a_program_that_does_not_begin_or_ends_says_why(on_card: Any) -> None:
    _, workers = on_card
    with pytest.raises(Failed, match="no such model"):
        workers.ready(tenant(text="raise SystemExit('no such model')"))
    (one,) = workers.ready(
        tenant(text="print('ready', flush=True); input(); raise SystemExit('out of memory')")
    )
    with pytest.raises(Failed, match="out of memory"):
        one.run(0.1)


def test_the_page_has_the_tables_as_they_are_printed_without_a_card() -> None:
    page = (ROOT / "docs/side-by-side.md").read_text()
    assert table.tables({}) in page
    assert not re.search(r"measured on an? H\d00", page)


def test_figures_of_a_card_are_printed_and_those_of_a_dry_run_are_not(tmp_path: Path) -> None:
    def file(name: str, *, card: bool, figure: float) -> Path:
        row = {"name": "gpu_two_llms_2_elastic_percent", "figure": figure}
        lines = [{"machine": {"measured_on_a_card": card}}, {"case": "1/two_llms_2", "row": row}]
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)) + "\n")
        return tmp_path / name

    dry, first, second = (
        file("a", card=False, figure=99),
        file("b", card=True, figure=61),
        file("c", card=True, figure=64.5),
    )
    assert table.measured([dry]) == {}
    assert table.measured([first, second, dry]) == {"gpu_two_llms_2_elastic_percent": 64.5}
    shown = table.tables(table.measured([first, second])).splitlines()
    assert shown[4] == f"| 2 | 44.5 % | 63.5 % | {table.EMPTY} | {table.EMPTY} | 64.5 % | {table.EMPTY} |"


def test_the_first_call_finds_its_cases_and_the_page_names_them() -> None:
    """A call of minutes is not lost to a name that is none."""
    page = (ROOT / "docs/real-card.md").read_text()
    for groups, cases in re.findall(r"--groups (\S+) --cases (\S+) --seconds 2.5", page):
        known = {**{name: group.cases for name, group in program.GROUPS.items()}, **program.BESIDE}
        names = [f"{letter}/{case.name}" for letter in groups for case in known[letter](Settings(2.5))]
        for part in cases.split(","):
            assert any(part in name for name in names), part
    assert len(page.split("--groups 0p25 ")) == 2
    assert sum(case.seconds for letter in "0p5" for case in program.BESIDE[letter](Settings(2.5))) < 240


def test_every_model_of_a_table_is_one_that_the_worker_makes() -> None:
    text = "".join(
        (ROOT / "tests/gpu/programs" / name).read_text() for name in ("torch_models.py", "torch_decoder.py")
    )
    for model in (*SERVICES, *JOBS, *COSTED):
        assert f'"{model.arguments[1]}"' in text

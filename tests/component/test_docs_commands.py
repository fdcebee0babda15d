"""Every command that README and quickstart show works as written: run here, or by a target of CI. Events are told."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_manager.domain import contract
from tests.fakes.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "README.zh.md", "docs/quickstart.md", "docs/zh/quickstart.md")


def commands(page: str) -> list[str]:
    """Lines of the fenced blocks that name no language, without their comments."""
    found, language = [], None
    for line in (ROOT / page).read_text().splitlines():
        text = line.strip()
        if text.startswith("```"):
            language = text.removeprefix("```") if language is None else None
        elif language == "":
            found.append(text.split(" #")[0].strip())
    return [line for line in found if line.startswith(("make ", ".venv/", "helm ", "kubectl "))]


SHOWN = sorted({command for page in PAGES for command in commands(page)})
RUN_BY_CI = [command for command in SHOWN if command.startswith("make ")]
PROGRAMS = [command for command in SHOWN if command.startswith(".venv/")]


def test_every_event_that_is_sent_is_explained_and_no_other() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    told = re.findall(r"^\| `(\w+)` \|", page.partition("## Events")[2], re.MULTILINE)
    events = [value for name, value in vars(contract).items() if name.startswith("EVENT_")]
    assert sorted(told) == sorted(events)


def test_there_are_commands_of_each_kind() -> None:
    assert {"make demo", "make test"} <= set(RUN_BY_CI)
    assert len(PROGRAMS) >= 3
    assert set(SHOWN) == {*RUN_BY_CI, *PROGRAMS}


def made_by(target: str) -> set[str]:
    """What this target of the Makefile needs, or has made by its recipe."""
    makefile = (ROOT / "Makefile").read_text()
    rule = re.search(rf"^{target}:(.*?)(?:##.*)?$((?:\n\t.*)*)", makefile, re.MULTILINE)
    assert rule is not None
    inner = re.findall(r"\$\(MAKE\)(.*)", rule[2])
    return {word for part in (rule[1], *inner) for word in part.split() if re.fullmatch(r"[a-z-]+", word)}


@pytest.mark.parametrize("command", RUN_BY_CI)
def test_a_make_target_that_is_shown_is_one_that_ci_runs(command: str) -> None:
    by_ci, shown = made_by("ci"), command.removeprefix("make ")
    assert shown in by_ci or set() < made_by(shown) <= by_ci


@pytest.mark.parametrize("command", PROGRAMS)
def test_a_program_that_is_shown_runs_as_written(command: str) -> None:
    program, *arguments = shlex.split(command)
    path = Path(sys.executable).parent / Path(program).name  # the environment that runs this test
    started = subprocess.Popen(
        [path, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert started.stdout is not None
        first = started.stdout.readline()
        if arguments == ["sandbox"]:  # it stays up until Ctrl-C
            while first and "Ctrl-C ends it" not in first:
                first = started.stdout.readline()
            assert first, "the sandbox ended before it was up"
            started.send_signal(signal.SIGINT)
        rest, _ = started.communicate(timeout=PATIENCE)
        assert started.returncode == 0, first + rest
        assert first.strip()
        assert "Traceback" not in rest
    finally:
        started.kill()
        started.wait()

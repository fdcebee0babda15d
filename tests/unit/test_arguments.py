"""Command lines from signatures: every type that a parameter may have, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest

from gpu_manager.cli.main import run
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.runtime.arguments import Argument, Command, Option, Rest, completions


class Colour(Enum):
    RED = "red"
    GREEN = "green"


def paint(
    things: Annotated[list[str], Argument(metavar="THING...")],
    colour: Annotated[Colour, Option("--colour", "-c", help="100 % of it.")] = Colour.RED,
    coats: Annotated[int, Option(min=1, max=3, envvar="COATS")] = 1,
    litres: Annotated[float, Option(min=0.5)] = 1.0,
    tin: Annotated[Path | None, Option()] = None,
    note: Annotated[list[str] | None, Option()] = None,
    dry: Annotated[bool, Option(help="Wait.")] = True,
    quiet: Annotated[bool, Option("--quiet", "-q")] = False,
) -> dict[str, Any]:
    """Paint things."""
    return dict(locals())


PAINT = Command("house paint", paint)


def test_what_is_left_out_has_its_default() -> None:
    defaults = {"colour": Colour.RED, "coats": 1, "litres": 1.0, "tin": None, "note": None}
    assert PAINT.call(["door"]) == {"things": ["door"], **defaults, "dry": True, "quiet": False}


def test_options_stand_anywhere_between_arguments() -> None:
    words = [
        "-c",
        "green",
        "door",
        "--coats=2",
        "wall",
        "--no-dry",
        "-q",
        "--note",
        "a",
        "--note=b",
        "--tin",
        "t",
    ]
    found = PAINT.call(words)
    assert found["things"] == ["door", "wall"]
    assert (found["colour"], found["coats"], found["tin"]) == (Colour.GREEN, 2, Path("t"))
    assert (found["note"], found["dry"], found["quiet"]) == (["a", "b"], False, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "THING... missing"),
        (["a", "--colour", "blue"], "'blue' is none of red or green"),
        (["a", "--coats", "4"], "4 is out of bounds: use 1 to 3"),
        (["a", "--coats", "two"], "'two' is not a whole number"),
        (["a", "--litres", "nan"], "use 0.5 or more"),
        (["a", "--litres"], "--litres"),
        (["a", "--col", "red"], "unrecognized arguments: --col"),
        (["a", "--tin", "x\0y"], "NUL"),
        (["--nope"], "--nope"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], said: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        PAINT.call(words)
    assert said in str(refused.value)


def test_the_environment_stands_in_for_an_option_and_is_judged_like_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COATS", "3")
    assert PAINT.call(["a"])["coats"] == 3
    assert PAINT.call(["a", "--coats", "2"])["coats"] == 2
    monkeypatch.setenv("COATS", "9")
    with pytest.raises(RequestInvalid, match=r"\$COATS: 9 is out of bounds"):
        PAINT.call(["a"])


def test_words_that_no_option_takes_go_to_the_parameter_that_is_marked() -> None:
    def command(
        old: Annotated[list[str], Rest], name: Annotated[str, Option()] = ""
    ) -> tuple[list[str], str]:
        return old, name

    # The names in a function's own scope cannot be looked up by their text.
    command.__annotations__ = {"old": Annotated[list[str], Rest], "name": Annotated[str, Option()]}
    assert Command("x", command).call(["--v=4", "--name", "n", "-logtostderr"]) == (
        ["--v=4", "-logtostderr"],
        "n",
    )


def test_help_names_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert PAINT.call(["--help", "--nope"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        "Usage: house paint [options] THING...",
        "Paint things.",
        "100 % of it. (default: red)",
        "--no-dry",
    ):
        assert text in shown
    assert "[$COATS]" in shown


@pytest.mark.parametrize(
    ("before", "begun", "offered"),
    [
        ([], "--co", ["--colour", "--coats"]),
        (["-c"], "", ["red", "green"]),
        (["-c"], "g", ["green"]),
        ([], "x", []),
    ],
)
def test_completion_offers_names_and_values(before: list[str], begun: str, offered: list[str]) -> None:
    assert list(completions(PAINT.parameters, before, begun)) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_one_that_it_reads(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_GPU_MANAGER_COMPLETE=1 gpu-manager" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script.encode(), check=True)

"""The stand-in driver answers each question as real cards were recorded to answer it (``tests/data/cards``).

Where it does not, the difference is listed here with its reason, and a listed one that is gone fails too.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.gpu.guesses import answers, questions
from tests.gpu.machine import PROGRAMS
from tests.native import standin
from tests.native.tools import ROOT, run

CARDS = ROOT / "tests/data/cards"

OPEN_GLOBALS = "open: variables of modules take nothing in the model"
HEAP = "the model reads no code: it cannot know which takes a heap or prints"

MEANT: Mapping[str, Mapping[str, str]] = {
    "h100-580.159.04": {
        "fabric_handle": "that machine had no IMEX channel: what is modelled is documented, not seen",
        "globals": OPEN_GLOBALS,
        "heap_of_kernels.got_kib": HEAP,
        "heap_of_kernels.launched_kib": HEAP,
        "printf_of_kernels": HEAP,
        "graph_nodes": "nodes of graphs take nothing in the model, 2.4 KiB each on the card",
        "event_steps.two_in_a_row_ns": "the model's events tell half microseconds, as documented; the card's tell less",
    }
}
"""Card → question or question.answer → why the stand-in answers otherwise."""

SETTINGS: Mapping[str, Mapping[str, object]] = {
    # A module with so little code lies in what its context took; times are those of its README.
    "h100-580.159.04": {"module_kib": 0, "quantum_us": 2430, "switch_us": 100, "stamp_ns": 1247}
}
"""Card → what the stand-in is told of it beside its model."""

UNASKED: Mapping[str, Mapping[str, str]] = {
    "h100-580.159.04": {
        "managed_by_size": "asked since: is what is set twice what it should be, whatever its size?",
        "prohibited_beside_capture": "asked since: which calls, beside those of beside_global_capture?",
        "memory_of_the_same_user": "asked since: may one container of a user reach the memory of another?",
    }
}
"""Card → question → why nothing is recorded: these come with the next run."""

TIMED = {"event_steps", "host_function", "launch_queue", "two_streams", "queue_of_the_killed", "turns"}
"""Questions whose answers are lengths of time."""


def recorded(card: str) -> dict[str, dict[str, str]]:
    """Question → what was asked → the card's answer."""
    found: dict[str, dict[str, str]] = json.loads((CARDS / card / "answers.json").read_text(encoding="utf-8"))
    return found


def cases() -> list[object]:
    return [
        pytest.param(card, question, id=f"{card}-{question}", marks=[pytest.mark.timed] * (question in TIMED))
        for card in sorted(MEANT)
        for question in recorded(card)
    ]


@pytest.fixture(scope="session")
def programs(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Question → the program that asks it."""
    base = tmp_path_factory.mktemp("guesses")
    made = {}
    for subject in sorted(set(questions().values())):
        made[subject] = base / f"guesses_{subject}"
        run(compiler, "-O2", PROGRAMS / f"guesses_{subject}.c", "-o", made[subject], "-ldl", "-lpthread")
    return {question: made[subject] for question, subject in questions().items()}


def asked(program: Path, question: str, card: str, state: Path) -> Mapping[str, str]:
    env = standin.environment(state, model=card.split("-", maxsplit=1)[0], **SETTINGS[card])
    return answers(
        subprocess.Popen(
            [program, question], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
    )


@pytest.mark.parametrize(("card", "question"), cases())
def test_the_stand_in_answers_as_the_card_did(
    card: str, question: str, programs: Mapping[str, Path], tmp_path: Path
) -> None:
    real, model = recorded(card)[question], asked(programs[question], question, card, tmp_path)
    meant = MEANT[card]
    if question in meant:
        assert model != real, f"no longer differs: {meant[question]}"
        return
    different = {
        what: f"{model.get(what)}, on the card {real.get(what)}"
        for what in {**real, **model}
        if model.get(what) != real.get(what)
    }
    listed = {what.partition(".")[2] for what in meant if what.startswith(f"{question}.")}
    assert {what: said for what, said in different.items() if what not in listed} == {}
    assert listed <= different.keys(), "listed, and no longer different"


@pytest.mark.parametrize("card", sorted(MEANT))
def test_each_question_has_the_cards_answer_or_a_reason_why_not(card: str) -> None:
    known = questions().keys()
    assert known == recorded(card).keys() | UNASKED[card].keys()
    assert not recorded(card).keys() & UNASKED[card].keys()
    assert {what.partition(".")[0] for what in MEANT[card]} <= known


def test_every_recorded_card_is_compared() -> None:
    assert {path.parent.name for path in CARDS.glob("*/answers.json")} == set(MEANT)

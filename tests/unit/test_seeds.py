"""Two runs draw the same; with another ``STEADY_SEED`` they draw otherwise: order, examples, numbers, hashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import seeds
from tests.sources import ROOT

DRAWING = """
import json, os
from hypothesis import given, strategies as st
from tests.seeds import generator, seeds

DRAWN = {"order": [], "examples": []}

def test_a(): DRAWN["order"].append("a")
def test_b(): DRAWN["order"].append("b")
def test_c(): DRAWN["order"].append("c")
def test_d(): DRAWN["order"].append("d")
def test_e(): DRAWN["order"].append("e")

@given(st.integers())
def test_property(number): DRAWN["examples"].append(number)

def teardown_module():
    DRAWN.update(numbers=[generator(3).random(), *seeds(2)], hashes=os.environ["PYTHONHASHSEED"])
    with open(os.environ["DRAWN"], "w") as file:
        json.dump(DRAWN, file)
"""


def drawn(place: Path, seed: str = "") -> dict[str, object]:
    """What a run with this ``STEADY_SEED`` draws, and what its workers and programs hash with."""
    (place / "test_drawing.py").write_text(DRAWING)
    ours = ("PYTEST_", "PYTHONHASHSEED", seeds.VARIABLE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    plugins = ("pytest_randomly", "_hypothesis_pytestplugin", "tests.conftest")
    options = [word for plugin in plugins for word in ("-p", plugin)]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, *options, str(place)],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env={
            **kept,
            "DRAWN": str(place / "drawn.json"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            **({seeds.VARIABLE: seed} if seed else {}),
        },
    )
    found: dict[str, object] = json.loads((place / "drawn.json").read_text())
    return found


def test_every_run_draws_the_same_until_it_is_given_another_seed(tmp_path: Path) -> None:
    usual, seven = drawn(tmp_path), drawn(tmp_path, "7")
    assert drawn(tmp_path) == usual
    assert {what for what in usual if usual[what] == seven[what]} == set()

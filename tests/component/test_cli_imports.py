"""What a command of ``kubectl vcuda`` loads: it starts as fast as what it imports, and runs from one file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.cli.kubectl.main import PROGRAM
from sandbox.api import StandInApi

# Prints the top-level modules that a command has loaded and that Python does not bring itself.
PROGRAM_TEXT = """\
import contextlib, io, json, sys
before = set(sys.modules)
from gpu_manager.cli.kubectl.main import run
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    run(sys.argv[1:])
loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(json.dumps(sorted(name for name in loaded if not name.startswith(("_cython", "cython_runtime", "_yaml")))))
"""
OURS = {"gpu_manager"}
ASKS = OURS | {"yaml"}  # the API server, by a kubeconfig
COMMANDS: dict[str, tuple[list[str], set[str]]] = {
    "--help": ([], OURS),
    "version": (["--client"], OURS),
    "check": (["{pod}"], OURS | {"yaml"}),
    "migrate": (["{pod}"], OURS | {"yaml"}),
    "advise": ([], ASKS),
    "autoscaler": (["template", "n1"], ASKS),
    "top": ([], ASKS),
    "graph": ([], ASKS),
    "quota": ([], ASKS),
    "report": (["-f", "{pod}.report"], ASKS),
    "resize": (["x", "--cores", "5"], ASKS),
    "cordon": (["GPU-x"], ASKS),
    "uncordon": (["GPU-x"], ASKS),
    "defrag": (["default/p"], ASKS),
    "simulate": (["{pod}"], ASKS),
    "explain": (["{pod}", "--admission", "-"], ASKS),
    "cost": ([], ASKS),
    "doctor": ([], ASKS),
    "ui": (["--no-browser"], ASKS),
}


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with StandInApi() as api:
        yield api.kubeconfig(tmp_path_factory.mktemp("api") / "config")


def test_every_command_is_in_this_table() -> None:
    assert set(COMMANDS) == {*PROGRAM.commands, "--help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_loads_no_more_than_it_needs(name: str, kubeconfig: Path, tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n")
    words, allowed = COMMANDS[name]
    login = ["--kubeconfig", str(kubeconfig)] if allowed is ASKS else []
    command = [sys.executable, "-c", PROGRAM_TEXT, name, *(word.format(pod=pod) for word in words), *login]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) <= allowed

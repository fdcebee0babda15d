"""Bad input to every command of both programs: exit code 2, one line that says what is wrong, no traceback."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_manager.cli.kubectl.main import PROGRAM as KUBECTL
from gpu_manager.cli.main import PROGRAM as NODE
from gpu_manager.cli.program import LazyProgram, load
from gpu_manager.runtime.arguments import Parameter

EVERY = [(program, name) for program in (NODE, KUBECTL) for name in program.commands]
IDS = [f"{program.name} {name}" for program, name in EVERY]
CONTROL = "\x1b[2J\x00\n"


def refused(
    program: LazyProgram,
    arguments: Sequence[str],
    capsys: pytest.CaptureFixture[str],
    codes: Sequence[int] = (2,),
) -> str:
    """What the program says against these arguments: one line for people, and an exit code of ``codes``."""
    code = program.run(arguments)
    captured = capsys.readouterr()
    assert code in codes, captured
    assert captured.err.startswith(f"{program.name}: "), captured
    assert captured.err.endswith("\n")
    line = captured.err[:-1]
    assert line.isprintable(), line
    assert "Traceback" not in captured.out + captured.err
    return line


def parameters(program: LazyProgram, name: str) -> Sequence[Parameter]:
    return load(program.name, name, program.commands[name][0]).parameters


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("KUBECONFIG", "VCUDA_ADMISSION", "EXTRA_FLAGS", "GPU_MANAGER_TOKEN", "LOG_LEVEL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("program", "name"), EVERY, ids=IDS)
def test_an_option_that_does_not_exist(
    program: LazyProgram, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no-such-option" in refused(program, [name, f"--no-such-option{CONTROL}"], capsys)


@pytest.mark.parametrize(("program", "name"), EVERY, ids=IDS)
def test_an_argument_too_many(program: LazyProgram, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [p for p in parameters(program, name) if p.positional]
    many = any(p.many for p in arguments)
    # Where any number is taken: a name that nothing can have.
    words = [CONTROL] if many else ["x"] * len(arguments) + ["one-too-many"]
    refused(program, [name, *words], capsys)


def options() -> list[tuple[LazyProgram, str, str]]:
    return [
        (program, name, option.names[0])
        for program, name in EVERY
        for option in parameters(program, name)
        if not option.positional and option.convert is not None
    ]


# Options whose value is any text: what it means is found out by asking, or it is kept as it is.
FREE = {
    "--token", "--stand-in", "--libraries", "--native", "--control", "--node-labels", "--checkpoint-path",
    "--state-dir", "--pages-dir", "--kubelet-dir", "--driver-root", "--host-root", "--http-address",
    "--kubelet-pods-url", "--node-name", "--api-url", "--extra-config", "--directory",
}  # fmt: skip
# `check` names a file that it cannot read and judges the others; an option of old first says its new name.
ELSEWHERE = {("check", "--filename"), ("run", "--dra-cards")}
CHECKED = [o for o in options() if o[2] not in FREE and o[1:] not in ELSEWHERE]


@pytest.mark.parametrize(
    ("program", "name", "option"), CHECKED, ids=[f"{p.name} {n} {o}" for p, n, o in CHECKED]
)
def test_an_options_value_that_is_garbage(
    program: LazyProgram, name: str, option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n")
    matrix = tmp_path / "topo.txt"
    matrix.write_text("\tGPU0\nGPU0\t X \n")
    needed = {
        "check": [str(manifest)],
        "completion": ["bash"],
        "cordon": ["GPU-x"],
        "explain": [str(manifest)],
        "migrate": [str(manifest)],
        "topology": [str(matrix), "--pick", "1"],
        "uncordon": ["GPU-x"],
    }
    refused(program, [name, *needed.get(name, []), option, f"non:sense{CONTROL}"], capsys)


@pytest.mark.parametrize("program", [NODE, KUBECTL], ids=lambda program: program.name)
def test_a_name_of_no_file_beside_others_is_named_by_check(
    program: LazyProgram, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n")
    assert program.run(["check", str(manifest), "--filename", f"non:sense{CONTROL}"]) == 2
    out, err = capsys.readouterr()
    assert "1 legal" in out
    assert err.endswith(": no such file\n")
    assert err[:-1].isprintable()


def test_an_option_of_old_is_judged_as_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert NODE.run(["run", "--dra-cards", f"non:sense{CONTROL}"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("gpu-manager: --claim-cards is ")
    assert line.isprintable()


def test_the_table_of_free_options_names_only_options_that_exist() -> None:
    assert {option for _, _, option in options()} >= FREE


FILES = [(NODE, ["check"]), (KUBECTL, ["check"]), (KUBECTL, ["explain"]), (NODE, ["topology", "--pick", "1"])]
FILES += [(NODE, ["sandbox", "--apply"]), (KUBECTL, ["migrate"])]
FILES += [(KUBECTL, ["simulate", "--drain", "n1", "--from"]), (KUBECTL, ["defrag", "p", "--from"])]


@pytest.mark.parametrize(("program", "words"), FILES, ids=[f"{p.name} {w[0]}" for p, w in FILES])
@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"[" * 5000, b"a: [", b"3"], ids=repr)
def test_a_file_that_is_missing_or_garbage(
    program: LazyProgram,
    words: list[str],
    content: bytes | None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    file = tmp_path / "bad.yaml"
    if content is not None:
        file.write_bytes(content)
    assert "bad.yaml" in refused(program, [*words, str(file)], capsys) or "topology" in words


@pytest.mark.parametrize(("program", "words"), FILES, ids=[f"{p.name} {w[0]}" for p, w in FILES])
def test_a_directory_is_no_file(
    program: LazyProgram, words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refused(program, [*words, f"{tmp_path}/"], capsys)


CLUSTER = {
    "advise": [],
    "autoscaler": ["template", "n1"],
    "resize": ["x", "--cores", "5"],
    "top": [],
    "graph": [],
    "quota": [],
    "report": [],
    "doctor": [],
    "explain": ["p"],
    "cost": [],
    "cordon": ["GPU-x"],
    "defrag": ["p"],
    "migrate": ["pod.yaml", "--like", "n1"],
    "simulate": ["--drain", "n1"],
    "ui": ["--no-browser"],
    "uncordon": ["GPU-x"],
    "version": [],
}


def test_every_command_of_the_plugin_that_logs_in_is_in_this_table() -> None:
    able = {
        name
        for name in KUBECTL.commands
        if "--kubeconfig" in {o for p in parameters(KUBECTL, name) for o in p.names}
    }
    assert able == set(CLUSTER)


@pytest.mark.parametrize("name", CLUSTER)
@pytest.mark.parametrize("text", ["", "[]", "a: [", "contexts: 3", "kind: Config", "\x00"], ids=repr)
def test_a_kubeconfig_that_is_none(
    name: str, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(text)
    assert "kubeconfig" in refused(KUBECTL, [name, *CLUSTER[name], "--kubeconfig", str(config)], capsys)


@pytest.mark.parametrize("name", CLUSTER)
def test_an_api_server_that_is_away_is_no_bad_input(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
    user = {"name": "c", "user": {"token": "t"}}
    config.write_text(
        json.dumps({"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "c"})
    )
    said = refused(KUBECTL, [name, *CLUSTER[name], "--kubeconfig", str(config)], capsys, codes=(1,))
    assert "no answer from the API server" in said


@pytest.mark.parametrize("program", [NODE, KUBECTL], ids=lambda p: p.name)
def test_a_command_that_does_not_exist(program: LazyProgram, capsys: pytest.CaptureFixture[str]) -> None:
    assert "frobnicate" in refused(program, ["frobnicate"], capsys)


@pytest.mark.parametrize(("program", "name"), EVERY, ids=IDS)
def test_help_says_what_the_command_does_and_colours_nothing_in_a_pipe(
    program: LazyProgram, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.run([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: {program.name} {name}" in out
    assert "\x1b" not in out

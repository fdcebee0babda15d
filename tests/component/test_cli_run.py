"""``gpu-manager run`` with bad settings and on bad nodes: one line, the right exit code, no traceback."""

from __future__ import annotations

import ctypes.util
import json
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.agent.backends import build_cards
from gpu_manager.agent.config import Config
from gpu_manager.cli.main import run
from gpu_manager.domain.errors import NodeUnready
from sandbox.api import StandInApi
from sandbox.kubelet import StandInKubelet
from tests.fakes.agent import NODE, agent_command
from tests.fakes.waiting import PATIENCE


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--memory-unit", "3"], '--memory-unit is "3"'),
        (["--log-level", "loud"], "--log-level is 'loud'"),
        (["--cards", "simulated:nope"], "there is no profile 'nope'"),
        (["--cards", "floppy"], "--cards is 'floppy'"),
        (["--device-injection", "magic"], "--device-injection is 'magic'"),
        (["--http-port", "99999"], "--http-port"),
        (["--metrics-auth", "/nowhere/token"], "--metrics-auth /nowhere/token"),
        (["--metrics-auth", "/dev/null"], "--metrics-auth /dev/null is empty"),
        (["--program-xids", "31,x"], "'x' is no XID"),
        (["--card-xids", "-1"], "--card-xids is '-1'"),
        (["--quiet-seconds", "-1"], "--quiet-seconds"),
        (["--surprise"], "unknown argument '--surprise'"),
    ],
)
def test_a_bad_setting_is_one_line_and_2(
    tmp_path: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], own_log: None
) -> None:
    _python, _module, _package, *line = agent_command(tmp_path, *arguments)
    assert run(line) == 2
    out, err = capsys.readouterr()
    assert text in err.splitlines()[-1]
    assert out == ""


def test_the_program_ends_with_2_for_a_bad_setting_and_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        agent_command(tmp_path, "--cards", "floppy"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--cards is 'floppy'" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_ledger_that_cannot_be_written_ends_the_agent_with_1(tmp_path: Path) -> None:
    """Better no plugin than one that refuses each pod: a node without devices gets none."""
    api = StandInApi()
    api.start()
    try:
        done = subprocess.run(
            agent_command(tmp_path, "--state-dir", "/proc/self/nowhere", api=api.url),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    finally:
        api.stop()
    assert done.returncode == 1, done.stderr
    assert "cannot write the ledger in /proc/self/nowhere/ledger" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(
    ctypes.util.find_library("nvidia-ml") is not None, reason="this machine has an NVML library"
)
def test_without_nvml_the_agent_runs_on_without_cards_and_says_so(tmp_path: Path) -> None:
    api, kubelet = StandInApi(), StandInKubelet(tmp_path / "kubelet")
    api.start()
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    kubelet.start()
    agent = subprocess.Popen(
        agent_command(
            tmp_path, "--cards", "nvml", "--program-xids", "31, 43", "--card-xids", "13", api=api.url
        ),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": ""},
    )
    assert agent.stderr is not None
    lines: list[str] = []
    try:
        port = 0
        for line in agent.stderr:
            lines.append(line)
            if '"event": "running"' in line:
                port = json.loads(line)["port"]
                break
        reader = threading.Thread(target=lambda: lines.extend(agent.stderr or ()))
        reader.start()
        answer = _not_ready(port)
        assert answer["cards"] is False
        assert "could not load the NVML library" in answer["why"]
        assert "install the NVIDIA driver" in answer["why"]
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(PATIENCE) == 0
        reader.join(PATIENCE)
    finally:
        agent.kill()
        agent.wait()
        agent.stderr.close()
        kubelet.stop()
        api.stop()
    assert "Traceback" not in "".join(lines)
    assert any("cards_unreadable" in line for line in lines)


def _not_ready(port: int) -> dict[str, Any]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE)
    with refused.value as answer:
        assert answer.code == 503
        return dict(json.loads(answer.read()))


def test_the_nvml_library_is_loaded_from_where_it_is_said_to_be(tmp_path: Path) -> None:
    """Here it is not. What the operator says of XIDs goes the same way."""
    library = tmp_path / "libnvidia-ml.so.1"
    cards = build_cards(
        Config(NODE, nvml=library, program_xids=frozenset({31}), quiet_seconds=5), lambda: False
    )
    try:
        with pytest.raises(NodeUnready, match=f"could not load the NVML library: {library}"):
            cards.list()
    finally:
        cards.close()

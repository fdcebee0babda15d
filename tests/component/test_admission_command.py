"""The admission service as a command: what its flags mean, what it says when they are wrong, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from admission.__main__ import run
from gpu_manager.domain.contract import PREDICATE_NODE
from sandbox.api import StandInApi
from tests.fakes.https import Caller, issued, trusting
from tests.fakes.reviews import container, pod, review
from tests.fakes.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cluster() -> Iterator[StandInApi]:
    with StandInApi() as api:
        yield api


def test_the_program_serves_files_and_ends_with_sigterm(tmp_path: Path, cluster: StandInApi) -> None:
    pair = issued().pair
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    (tmp_path / "tls.key").write_bytes(pair.key)
    command = [
        sys.executable, "-m", "admission", f"--tls-cert-file={tmp_path / 'tls.crt'}",
        f"--tls-private-key-file={tmp_path / 'tls.key'}", "--webhook-address=127.0.0.1", "--webhook-port=0",
        f"--api-url={cluster.url}", "--extender-address=127.0.0.1:0", "--probe-address=127.0.0.1:0",
        "--drain-seconds=0", "--default-memory=4", "--pprofAddress", "127.0.0.1:1", "--logtostderr=true",
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k not in ("LOG_LEVEL", "EXTRA_FLAGS")}
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=environment, text=True) as program:
        try:
            assert program.stderr is not None
            lines = [json.loads(program.stderr.readline()) for _ in range(3)]
            assert [line["event"] for line in lines] == [
                "predecessor_flags_ignored",
                "certificate_loaded",
                "running",
            ]
            with Caller(lines[-1]["port"], trusting(issued().authority)) as caller:
                _, answer = caller.post("/mutate", review(pod(container(core="30"))))
                assert "4 units (1 GiB)" in answer["response"]["warnings"][0]
                assert PREDICATE_NODE not in str(answer)
                program.send_signal(signal.SIGTERM)
                assert program.wait(PATIENCE) == 0
            assert '"stopping"' in program.stderr.read()
        finally:
            program.kill()


@pytest.mark.usefixtures("own_log")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--tls-cert-file=/x"], 2, "together"),
        (["--tls-cert-file=/x", "--tls-private-key-file=/y"], 1, "cannot read /x"),
        (["--memory-unit=1"], 2, "use whole bytes"),
        (["--unknown"], 2, "unknown argument"),
        (["--minimum-cores=0"], 2, "--minimum-cores"),
        (["--log-level=loud"], 2, "debug, info"),
    ],
)
def test_a_wrong_command_line_says_what_to_change(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    assert says in capsys.readouterr().err

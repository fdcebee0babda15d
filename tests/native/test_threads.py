"""Programs of many threads under the library: every race that the thread sanitizer knows ends them with its report.

``make native-tsan`` builds library, driver and programs so (``VCUDA_SANITIZE=thread``); otherwise the same programs
run as they are, and must end well.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.native.driven import MIB, SANITIZE, Container, program
from tests.native.programs import HERE
from tests.native.tools import ROOT, run, tool

SECONDS = 100
"""For what takes one without a sanitizer, on a busy machine."""


WORDS = (
    "t{ 20{ k:A:5:1 } h:10:1 k:B:200:1 s:1 } t{ g:2{ k:C:10:2 k:D:20:2 } e:1:2 k:A:5:2 q:2 p:300 }"
    " t{ 8{ k:A:5:1 } e:2:3 o:E:20:3 r:3 E:3 } k:F:10:0 k:A:30:21 b:100 S"
)
"""Of core_shape: threads that share streams, graphs, host functions, streams that wait for each other, every wait."""


def load(name: str = "core_load") -> Path:
    """A program of this directory as sanitised as the rest."""
    target = ROOT / "build" / "driven" / f"{name}{'-' + SANITIZE.replace(',', '-') if SANITIZE else ''}"
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}")
    options = [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer"] if SANITIZE else []
    run(tool("cc"), "-O2", "-g", *options, "-o", fresh, HERE / f"{name}.c", "-ldl", "-lpthread", "-lm")
    return fresh.rename(target)


def ends_well(container: Container, *command: object) -> str:
    """What the program says. A race that the sanitizer sees is 66 and a report; so is its own complaint 3."""
    env = container.env() | {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66"}
    done = subprocess.run(
        [str(part) for part in command], env=env, capture_output=True, text=True, check=False, timeout=SECONDS,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-6000:]
    return done.stdout


@pytest.mark.parametrize("version", ["12.2", "13.5"])
def test_four_threads_take_and_give_back_memory_in_every_way(tmp_path: Path, version: str) -> None:
    with Container(tmp_path, 300 * MIB, version=version, sanitize=SANITIZE) as container:
        said = ends_well(container, program("prog_hammer", SANITIZE), 7, 4, 400)
        granted, refused = map(int, said.splitlines()[-1].split())
        assert granted > 200
        assert refused > 0, "threads that never meet the limit prove little"


@pytest.mark.parametrize("mode", ["threads", "stream", "graph"])
def test_threads_that_launch_are_held_to_their_share(tmp_path: Path, mode: str) -> None:
    with Container(tmp_path, 1 << 30, sanitize=SANITIZE) as container:
        container.change(core_limit=30.0)
        said = ends_well(container, load(), mode, 1000, 1.5, 500)
        share = float(said.splitlines()[-1].split()[1])
        assert 0 < share < 0.6
        assert container.usage.cards[0].throttle_ns > 0


@pytest.mark.parametrize(
    "kind",
    [{}, {"granted": 30.0, "protected": True}, {"granted": 30.0, "best_effort": True}],
    ids=["normal", "protected", "best-effort"],
)
def test_streams_that_wait_for_each_other_and_for_the_host_are_metered(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    with Container(tmp_path, 1 << 30, sanitize=SANITIZE) as container:
        container.change(core_limit=60.0, **kind)
        env = container.env() | {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66"}
        with subprocess.Popen(
            [load("core_shape"), "1.5", "7", *WORDS.split()], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as running:  # fmt: skip
            assert running.stdout
            assert running.stdout.readline() == "ready\n"
            out, err = running.communicate(f"{time.monotonic_ns()}\n\n", timeout=SECONDS)
        assert (running.returncode, err) == (0, ""), err[-6000:]
        assert int(out.split()[-1]) > 100
        assert container.usage.cards[0].busy_ns > 0


def test_limits_that_change_all_the_time_are_read_by_threads_that_launch(tmp_path: Path) -> None:
    with Container(tmp_path, 1 << 30, sanitize=SANITIZE) as container:
        container.change(core_limit=30.0)
        env = container.env() | {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66"}
        running = subprocess.Popen(
            [load(), "threads", "200", "1.5", "500"], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        for turn in range(1_000_000):
            container.change(core_limit=20.0 + turn % 60)
            if running.poll() is not None:
                break
        _, err = running.communicate(timeout=SECONDS)
        assert (running.returncode, err) == (0, ""), err[-6000:]
        assert container.usage.generation_seen > 2

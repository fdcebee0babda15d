"""The witness of a machine that stands still, and what follows from its word."""

from __future__ import annotations

import fcntl
import signal
import time
from pathlib import Path

import pytest

from tests.native import timed
from tests.native.core_world import until
from tests.native.timed import ATTEMPTS, FAILURES, Stalls, StallWitness, repeated

STILL = Stalls(worst_us=40_000, sum_us=50_000, watched_us=2_000_000)
RUNNING = Stalls(worst_us=300, sum_us=0, watched_us=2_000_000)


def test_the_witness_tells_of_a_machine_that_stood_still() -> None:
    with StallWitness() as witness:
        witness.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        assert until(lambda: time.monotonic() > begin + 0.05)
        witness.process.send_signal(signal.SIGCONT)
    assert witness.stalls.worst_us >= 45_000
    assert witness.stalls.disturbing
    assert "late" in str(witness.stalls)


@pytest.mark.parametrize(
    ("outcomes", "made"),
    [
        ([(True, STILL)], 1),
        ([(False, RUNNING), (False, RUNNING), (True, RUNNING)], 2),
        ([(False, RUNNING), (True, RUNNING)], 2),
        ([(False, STILL), (True, STILL)], 2),
        ([(False, STILL), (False, RUNNING), (False, RUNNING), (True, RUNNING)], 3),
        ([(False, STILL)] * (ATTEMPTS + 1), ATTEMPTS),
    ],
    ids=["passed", "failed twice", "failed once", "passed then", "failed then", "never passed"],
)
def test_the_second_failure_without_a_stall_is_the_tests_own(
    outcomes: list[tuple[bool, Stalls]], made: int
) -> None:
    said: list[str] = []
    left = iter(outcomes)
    repeated(lambda: next(left), said.append)
    assert len(outcomes) - len(list(left)) == made
    failed = [stalls for passed, stalls in outcomes[:made] if not passed]
    assert len(said) == len(failed) - (failed.count(RUNNING) == FAILURES)


def test_lateness_that_adds_up_counts_as_well() -> None:
    assert Stalls(worst_us=3_000, sum_us=30_000, watched_us=2_000_000).disturbing
    assert not RUNNING.disturbing


def test_who_measures_in_real_time_keeps_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed, "ALONE", tmp_path / "lock")
    with timed.alone(), timed.ALONE.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with timed.ALONE.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

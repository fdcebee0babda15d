"""A program that is told to end does so, whatever its main thread is about when it is told."""

from __future__ import annotations

import subprocess
import sys

from tests.fakes.waiting import PATIENCE

HEAD = """
import signal, threading
from gpu_manager.runtime.program import Ending
ending = Ending()
"""


def ended(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    return done.stdout


def test_a_signal_that_comes_before_the_wait_is_not_lost() -> None:
    assert ended("signal.raise_signal(signal.SIGTERM); ending.wait(); print('ended')") == "ended\n"


def test_a_signal_that_does_not_wake_the_main_thread_ends_it_too() -> None:
    """One that the kernel gives to another thread interrupts nothing the main thread waits in."""
    other = "threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))"
    assert ended(f"threading.Timer(0.5, {other}.start).start(); ending.wait(); print('ended')") == "ended\n"

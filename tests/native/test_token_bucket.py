"""The arithmetic of core limits on a virtual clock: vcuda/lib/test/unit_*.c say what holds."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.native.tools import build_tests


@pytest.mark.parametrize(
    "unit",
    [
        "unit_token_bucket",
        "unit_gpu_time",
        "unit_known_busy",
        "unit_shared_cost",
        "unit_measuring_window",
        "unit_alone_cost",
        "unit_stall",
        "unit_launch_wait",
        "unit_timeline",
        "unit_held_idle",
        "unit_sharers",
        "unit_gate",
        "unit_gate_decision",
        "unit_gate_deferred",
        "unit_gate_tickets",
        "unit_turn",
        "unit_turn_threads",
    ],
)
def test_the_arithmetic_holds_on_a_virtual_clock(unit: str) -> None:
    program = build_tests(unit, sanitize=os.environ.get("VCUDA_SANITIZE", "")) / unit
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all hold\n"

"""The credit arithmetic on a virtual clock: vcuda/lib/test/unit_core.c says what holds."""

from __future__ import annotations

import os
import subprocess

from tests.native.core_world import built_front


def test_credit_spans_and_costs_hold_on_a_virtual_clock() -> None:
    program = built_front(os.environ.get("VCUDA_SANITIZE", "")) / "unit_core"
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all hold\n"

"""The credit arithmetic on a virtual clock: vcuda/lib/test/unit_token_bucket.c says what holds."""

from __future__ import annotations

import os
import subprocess

from tests.native.core_world import built_interposer


def test_credit_spans_and_costs_hold_on_a_virtual_clock() -> None:
    program = built_interposer(os.environ.get("VCUDA_SANITIZE", "")) / "unit_token_bucket"
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all hold\n"

"""The table from pointers to charges, alone: threads, forks and sweeps, under sanitizers too."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tests.native.tools import LIB, ROOT, run, tool


def built(sanitize: str) -> Path:
    """The test program, built so."""
    build = ROOT / "build" / f"native-held{'-' + sanitize.split(',', maxsplit=1)[0] if sanitize else ''}"
    build.mkdir(parents=True, exist_ok=True)
    with (build / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ninja = tool("ninja")
        run(tool("cmake"), "-S", LIB, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}",
            "-DVCUDA_TESTS=ON", f"-DVCUDA_SANITIZE={sanitize}")  # fmt: skip
        run(ninja, "-C", build, "unit_held")
    return build / "unit_held"


# ``VCUDA_SANITIZE`` in the environment of the tests asks for one (make native-tsan).
ASKED = os.environ.get("VCUDA_SANITIZE", "")


@pytest.mark.parametrize("sanitize", [ASKED] if ASKED else ["", "address,undefined"])
def test_nothing_is_lost_or_found_twice_whatever_threads_and_forks_do(sanitize: str) -> None:
    assert run(built(sanitize)) == "whole\n"

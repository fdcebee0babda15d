"""Commands that tests of the native tree run."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIB = ROOT / "vcuda" / "lib"
FULL = bool(os.environ.get("FULL"))
"""``make native FULL=1``: random cases in their thousands; otherwise as many as find what was ever found wrong."""


def tool(name: str) -> str:
    """A build tool: the environment's own, else the system's."""
    own = Path(sys.executable).parent / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed, so the native tree cannot be built")
    return found


def flags(sanitize: str) -> str:
    """How a build of the tests is compiled: optimised as what is delivered is, without what only a debugger reads; a
    sanitizer names lines, and compiles in half the time at ``-O1``."""
    return "-O1 -g1 -DNDEBUG" if sanitize else "-O2 -DNDEBUG"


def build_tree(
    name: str, *targets: str, source: Path = LIB, sanitize: str = "", options: Sequence[str] = ()
) -> Path:
    """``build/<name>`` with these targets of a CMake tree (none: all of it) built in it.

    One build for all workers of a run; kept between runs, a second one takes a fraction of a second.
    """
    directory = ROOT / "build" / name
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ninja = tool("ninja")
        run(tool("cmake"), "-S", source, "-B", directory, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}",
            f"-DVCUDA_SANITIZE={sanitize}", f"-DCMAKE_C_FLAGS_RELWITHDEBINFO={flags(sanitize)}", *options)  # fmt: skip
        run(ninja, "-C", directory, *targets)
    return directory


def build_tests(*targets: str, sanitize: str = "") -> Path:
    """These targets of the library and its unit tests; each sanitizer has a directory of its own."""
    name = f"native-{sanitize.split(',', maxsplit=1)[0]}" if sanitize else "native-test"
    return build_tree(name, *targets, sanitize=sanitize, options=("-DVCUDA_TESTS=ON",))


def run(*command: str | Path) -> str:
    """Standard output of a command that must succeed; its whole output in the failure otherwise."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout

"""Commands that tests of the native tree run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIB = ROOT / "vcuda" / "lib"


def tool(name: str) -> str:
    """A build tool: the environment's own, else the system's."""
    own = Path(sys.executable).parent / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed, so the native tree cannot be built")
    return found


def run(*command: str | Path) -> str:
    """Standard output of a command that must succeed; its whole output in the failure otherwise."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout

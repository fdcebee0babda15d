"""How Triton finds the driver, and torch.compile through it: what it consults, and in which order.

Facts of Triton 3.9 (triton/backends/nvidia/driver.py), the same since 2.1: ``TRITON_LIBCUDA_PATH`` is taken as the one
directory; else the directories of the lines of ``/sbin/ldconfig -p`` that name libcuda.so.1; else those of
``LD_LIBRARY_PATH`` that hold it. Unless one of them holds libcuda.so.1, it stops.

Prints the directories, or ``not found``. With a wheel named in ``TRITON_WHEEL`` the wheel's own function is asked.
"""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import types
import zipfile
from collections.abc import Sequence

NAME = "libcuda.so.1"
SETTING = "TRITON_LIBCUDA_PATH"


def consulted() -> Sequence[str]:
    """The directories; none if Triton would stop."""
    named = os.environ.get(SETTING)
    if named:
        return _holding([named])
    listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    listed = [os.path.dirname(line.split()[-1]) for line in listing.splitlines() if NAME in line]  # noqa: PTH120
    return _holding(listed or os.environ.get("LD_LIBRARY_PATH", "").split(":"))


def _holding(directories: Sequence[str]) -> Sequence[str]:
    held = [d for d in directories if d and os.path.exists(f"{d}/{NAME}")]  # noqa: PTH110
    return list(directories) if held else []


def by_wheel(path: str) -> Sequence[str]:
    """What the function of a Triton wheel answers."""
    with zipfile.ZipFile(path) as wheel:
        source = wheel.read("triton/backends/nvidia/driver.py").decode()
        assert f'"{SETTING}"' in wheel.read("triton/knobs.py").decode(), "the setting has another name now"
    (function,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "libcuda_dirs"
    )
    knobs = types.SimpleNamespace(nvidia=types.SimpleNamespace(libcuda_path=os.environ.get(SETTING)))
    names = {"knobs": knobs, "subprocess": subprocess, "os": os, "functools": functools}
    exec(compile(ast.Module([function], []), path, "exec"), names)
    try:
        return names["libcuda_dirs"]()  # type: ignore[operator, no-any-return]
    except AssertionError as error:
        if "cannot found" not in str(error):
            raise
        return []


if __name__ == "__main__":
    wheel_path = os.environ.get("TRITON_WHEEL")
    found = by_wheel(wheel_path) if wheel_path else consulted()
    print(" ".join(dict.fromkeys(found)) or "not found")  # noqa: T201

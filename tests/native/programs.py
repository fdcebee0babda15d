"""The library for a laptop's sandbox, and this directory's C programs, built once for all workers of a run."""

from __future__ import annotations

import fcntl
import functools
from pathlib import Path

from tests.native.tools import LIB, build_tests, run, tool

HERE = Path(__file__).parent


@functools.cache
def built_interposer(sanitize: str = "") -> Path:
    """The interposer for a laptop's sandbox, and the unit tests beside it; built once for all workers of a run."""
    return build_tests("sandbox-cuda", "unit_token_bucket", sanitize=sanitize)


@functools.cache
def compiled(source: str, *options: str) -> Path:
    """One of this directory's C programs, built once for all workers of a run."""
    target = built_interposer() / Path(source).stem
    with (built_interposer() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        model = (LIB / "test" / "standin").glob("*.[ch]")
        newest = max(path.stat().st_mtime for path in (HERE / source, HERE / "core_program.h", *model))
        if not target.exists() or target.stat().st_mtime < newest:
            run(
                tool("cc"),
                "-O2",
                "-Wall",
                "-Wextra",
                *options,
                "-o",
                target,
                HERE / source,
                "-ldl",
                "-lpthread",
                "-lm",
            )
    return target

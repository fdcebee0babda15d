"""Containers on modelled cards for benches: the same as the tests use, and the benches' own C programs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.rows import in_memory
from tests.native.driven import Container
from tests.native.tools import ROOT, run, tool

HERE: Final = Path(__file__).resolve().parent


@functools.cache
def compiled(name: str) -> Path:
    """A program of this directory."""
    target = ROOT / "build" / "bench" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    run(tool("cc"), "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o", target, HERE / f"{name}.c",
        "-ldl", "-lpthread")  # fmt: skip
    return target


@contextmanager
def container(memory: int | None = 5 << 30, **settings: object) -> Iterator[Container]:
    """A container on a card of 16 GiB; its pages lie in memory, as on a node."""
    with in_memory() as base, Container(base, memory, **settings) as made:  # type: ignore[arg-type]
        yield made

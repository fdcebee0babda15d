"""Reads the manifests that a command line names; what cannot be read is one sentence with the file's name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpu_manager.adapters.manifests import LONGEST_BYTES, Manifest, read_manifests, read_objects
from gpu_manager.domain.errors import RequestInvalid, printable

T = TypeVar("T")


def shown(name: str) -> str:
    """The file's name for people."""
    return "standard input" if name == "-" else name


def load_manifests(name: str) -> tuple[Manifest, ...]:
    """Every object of the file (``-``: standard input). Raises RequestInvalid."""
    return _parsed(name, read_manifests)


def load_objects(name: str) -> tuple[tuple[int, Mapping[str, Any]], ...]:
    """The same as they stand there, with the number of their document. Raises RequestInvalid."""
    return _parsed(name, read_objects)


def _parsed(name: str, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(_read(name))
    except OSError as error:
        raise RequestInvalid(f"{printable(shown(name))}: {error.strerror or error}") from error
    except RequestInvalid as error:
        raise RequestInvalid(f"{printable(shown(name))}: {error}") from error
    except ValueError as error:  # a NUL in the name
        raise RequestInvalid(f"{printable(shown(name))}: no such file") from error


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read(LONGEST_BYTES + 1)
    with Path(name).open("rb") as file:
        return file.read(LONGEST_BYTES + 1)

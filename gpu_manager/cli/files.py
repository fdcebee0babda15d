"""Reads the manifests that a command line names; what cannot be read is one sentence with the file's name.

As with kubectl, ``-f`` may stand before each, and a directory means the manifests in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

from gpu_manager.adapters.manifests import LONGEST_BYTES
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.runtime.arguments import Argument, Option

T = TypeVar("T")
SUFFIXES: Final = (".yaml", ".yml", ".json")
Files = Annotated[
    list[str] | None,
    Argument(metavar="FILE...", help="Manifests, YAML or JSON, or directories; - reads standard input."),
]
Filenames = Annotated[
    list[str] | None, Option("--filename", "-f", help="The same, as with kubectl; may be repeated.")
]


def chosen_files(files: list[str] | None, filenames: list[str] | None) -> list[str]:
    """Every file that was named, directories taken apart. Raises RequestInvalid: none was."""
    named = [*(files or ()), *(filenames or ())]
    if not named:
        raise RequestInvalid("FILE missing: name a manifest or a directory, or - for standard input")
    return [file for name in named for file in _in_directory(name)]


def _in_directory(name: str) -> list[str]:
    path = Path(name)
    try:
        if name == "-" or not path.is_dir():
            return [name]
        found = sorted(str(one) for one in path.iterdir() if one.suffix in SUFFIXES and one.is_file())
    except (OSError, ValueError):
        return [name]  # whoever opens it says why not
    if not found:
        raise RequestInvalid(f"{printable(name)}: no manifest ({', '.join(SUFFIXES)}) in this directory")
    return found


def shown(name: str) -> str:
    """The file's name for people."""
    return "standard input" if name == "-" else name


def load(name: str, parse: Callable[[bytes], T], data: bytes | None = None) -> T:
    """What ``parse`` makes of the file's bytes, or of ``data``, if they were read before.

    Raises RequestInvalid with the file's name.
    """
    try:
        return parse(_read(name) if data is None else data)
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

"""The settings of the agent that runs beside, from its command line: what a diagnosis has to judge by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_manager.cli.run import command
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.runtime.arguments import Command

_PROGRAM = "gpu-manager"
_COMMAND_BYTES = 1 << 16


def find_agent_settings(proc: Path = Path("/proc")) -> dict[str, Any] | None:
    """The arguments of the ``gpu-manager run`` that sees the same files as this process, as in its pod.

    None if there is no such process, or several that differ.
    """
    own = _mounts(proc / "self")
    try:
        pids = [entry for entry in proc.iterdir() if entry.name.isdecimal()]
    except OSError:
        return None
    # An agent that is held and its holder have one command line.
    found = {tuple(words) for p in pids if own and _mounts(p) == own and (words := _words(p)) is not None}
    if len(found) != 1:
        return None
    try:
        return Command(f"{_PROGRAM} run", command).values(found.pop())
    except RequestInvalid:  # of another version
        return None


def _mounts(process: Path) -> str:
    """Its mount namespace; empty if that is hidden."""
    try:
        return str((process / "ns/mnt").readlink())
    except OSError:
        return ""


def _words(process: Path) -> Sequence[str] | None:
    """What stands behind ``gpu-manager run`` in its command line; None if it is another program."""
    try:
        text = (process / "cmdline").read_bytes()[:_COMMAND_BYTES]
    except OSError:
        return None
    words = text.decode(errors="replace").rstrip("\0").split("\0")
    at = next((n for n, word in enumerate(words[:3]) if word.rpartition("/")[2] == _PROGRAM), None)
    return words[at + 2 :] if at is not None and words[at + 1 : at + 2] == ["run"] else None

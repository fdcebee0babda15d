"""The demo from beginning to end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpu_manager.domain.contract import HTTP_PORT
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from sandbox.admission import LEFT_OUT
from sandbox.demo import limits, scenes, scheduling
from sandbox.demo.metrics import metrics
from sandbox.demo.output import DemoOutput
from sandbox.demo.stage import Stage
from sandbox.runtime import free_port
from sandbox.simulated_cluster import Sandbox, SandboxSettings

PROFILE: Final = "a100x8"
_LONGEST: Final = 60  # characters of a directory that has room for sockets below it


def run(
    profile: str = PROFILE,
    port: int | None = None,
    directory: Path | None = None,
    native: Path | None = None,
    *,
    admission: bool = True,
) -> int:
    """Show everything and check it: 0 if all holds, else 1. Without ``directory``, leaves nothing behind."""
    if profile != PROFILE:
        raise RequestInvalid(f"--demo shows 8 A100 cards ({PROFILE}): leave out --profile")
    paper = DemoOutput()
    chosen = port or free_port(HTTP_PORT) or 0
    place = directory or _directory()
    sandbox = Sandbox(SandboxSettings(place.absolute(), PROFILE, chosen, admission=admission, native=native))
    try:
        with sandbox:
            _show(Stage(sandbox), paper, moved=port is None and chosen == 0)
    except NodeUnready as error:
        paper.check(False, f"the demo comes to its end: {error}")  # noqa: FBT003  # see Paper.check
    finally:
        if directory is None and not paper.failed:
            shutil.rmtree(place, ignore_errors=True)
    return _sum(paper, place)


def _show(stage: Stage, paper: DemoOutput, *, moved: bool) -> None:
    sandbox = stage.sandbox
    real = "the real agent and admission service" if sandbox.admission else "the real agent"
    paper.line(f"One node, {len(sandbox.cards)} simulated cards ({sandbox.cards[0].model}), {real}.")
    paper.line(f"Metrics: {sandbox.metrics_url}", "dim")
    if sandbox.admission is None:
        paper.line(f"Admission: {LEFT_OUT if sandbox.settings.admission else 'left out'}", "dim")
    if moved:
        paper.line(f"(port {HTTP_PORT} is taken on this machine)", "dim")
    chapters: list[Callable[[Stage, DemoOutput], None]] = [
        scenes.fraction,
        scenes.pair,
        scenes.prepare,
        scenes.whole,
        scheduling.denied if sandbox.admission else scenes.illegal,
    ]
    if sandbox.native.complete:
        chapters += [limits.memory, limits.inside, limits.cores]
    if sandbox.admission:
        chapters.append(scheduling.quota)
    chapters += [scenes.burst, scenes.booked]
    if sandbox.admission:
        chapters += [scheduling.no_room, scheduling.explained, scheduling.preempted]
    else:
        chapters.append(scenes.no_room)
    chapters.append(metrics)
    for chapter in chapters:
        chapter(stage, paper)
    if not sandbox.native.complete:
        limits.left_out(paper)


def _sum(paper: DemoOutput, place: Path) -> int:
    paper.line("")
    if paper.failed:
        paper.line(f"{len(paper.failed)} of {paper.held + len(paper.failed)} checks do NOT hold:", "bold red")
        paper.lines((f"- {what}" for what in paper.failed), "red")
        paper.line(f"logs are in {place}", "dim")
        return 1
    paper.line(f"All {paper.held} checks hold. {paper.seconds:.1f} seconds.", "bold green")
    paper.line("Next: gpu-manager sandbox keeps such a node up; --apply FILE gives it your own pods.", "dim")
    return 0


def _directory() -> Path:
    usual = tempfile.gettempdir()
    base = usual if len(os.fsencode(usual)) <= _LONGEST - 20 else "/tmp"  # noqa: S108  # mkdtemp makes it ours
    return Path(tempfile.mkdtemp(prefix="gpu-manager-", dir=base))

"""Builds the cluster's Go programs before any cluster is made: no test waits for a compiler.

``make cluster CMD=build``. The first time it takes twenty to forty minutes on two cores and tells how far it is;
Go keeps what is compiled, so an interrupted build goes on where it was.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Final

from tests.cluster.parts import GoPrograms, MissingError, containerd, kubernetes

TAGS: Final = "no_btrfs no_devmapper no_zfs no_aufs"  # of containerd: those want C libraries
ENVIRONMENT: Final = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-mod=readonly",
    "GOGC": "400",  # the compiler looks for garbage less often
}
TELL_SECONDS: Final = 10.0


def main() -> None:
    """Build what is not built yet. Raises MissingError."""
    for programs in (containerd(), kubernetes()):
        if not programs.built:
            build(programs)
        _say(f"{programs.name} is in {programs.directory}")


def build(programs: GoPrograms) -> None:
    """Compile and link the programs in a draft directory, then put all of them in their place at once.

    Raises:
        MissingError: there is no Go, a module cannot be downloaded, or the compiler fails.
    """
    go = shutil.which("go")
    if go is None:
        raise MissingError(f"Go is not installed, and {programs.name} is not built: get Go 1.26 or newer")
    draft = programs.directory.with_name(f"draft-{programs.directory.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    variables = [f"-X {name}={value}" for name, value in programs.variables.items()]
    # The linker's -s drops what debuggers read: the compiler need not write it.
    flags = ["-trimpath", "-tags", TAGS, "-gcflags=all=-dwarf=false", "-ldflags"]
    flags.append(" ".join(("-s -w", *variables)))
    packages = list(programs.packages.values())
    _say(f"{programs.name}: downloading modules")
    stale = [go, "list", *flags, "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", *packages]
    wanted = len(list(_lines(programs, stale, lambda: "looking what is built already")))
    _say(f"{programs.name}: {wanted} packages to compile")
    began, done = time.monotonic(), 0

    def doing() -> str:
        what = f"{done} of {wanted} packages" if done < wanted else f"linking {len(packages)} programs"
        return f"{what}, {(time.monotonic() - began) / 60:.1f} min"

    # With -v a line is written for each package that is compiled; the programs are linked after the last.
    for _ in _lines(programs, [go, "build", "-v", *flags, "-o", f"{draft}/", *packages], doing):
        done += 1
    shutil.rmtree(programs.directory, ignore_errors=True)
    draft.rename(programs.directory)
    _say(f"{programs.name}: built in {(time.monotonic() - began) / 60:.1f} min")


def _lines(programs: GoPrograms, command: list[str], doing: Callable[[], str]) -> Iterator[str]:
    """The packages that a Go command writes, one a line; its downloads are shown, and every ten seconds a line says
    what it does.

    Raises MissingError with its last words: hundreds of packages may follow the one that could not be had.
    """
    environment = {**os.environ, **ENVIRONMENT}
    last: list[str] = []
    nice = [] if os.nice(0) else ["nice"]  # who is nice already would be twice as nice
    with subprocess.Popen(
        [*nice, *command],
        cwd=programs.module,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        assert running.stdout is not None
        lines: SimpleQueue[str | None] = SimpleQueue()
        Thread(target=_read, args=(running.stdout, lines), daemon=True).start()
        told = time.monotonic()
        while True:
            with suppress(Empty):
                line = lines.get(timeout=max(0.0, told + TELL_SECONDS - time.monotonic()))
                if line is None:
                    break
                if line.startswith("go: downloading "):
                    _say(line.strip())
                elif " " in line:  # no package: what went wrong
                    last = [*last[-9:], line]
                else:
                    yield line
            if time.monotonic() - told >= TELL_SECONDS:
                _say(f"{programs.name}: {doing()}")
                told = time.monotonic()
    if running.returncode:
        raise MissingError(f"building {programs.name} failed:\n{''.join(last)}".rstrip())


def _read(stream: IO[str], lines: SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

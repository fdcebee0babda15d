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
from collections.abc import Iterator
from typing import Final

from tests.cluster.parts import GoPrograms, MissingError, containerd, kubernetes

TAGS: Final = "no_btrfs no_devmapper no_zfs no_aufs"  # of containerd: those want C libraries
ENVIRONMENT: Final = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
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
    flags = ["-trimpath", "-tags", TAGS, "-ldflags", " ".join(("-s -w", *variables))]
    packages = list(programs.packages.values())
    _say(f"{programs.name}: downloading modules")
    stale = [go, "list", *flags, "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", *packages]
    wanted = len(list(_lines(programs, stale)))
    _say(f"{programs.name}: {wanted} packages to compile")
    began = told = time.monotonic()
    # With -v a line is written for each package that is compiled; the programs are linked after the last.
    for done, _ in enumerate(_lines(programs, [go, "build", "-v", *flags, "-o", f"{draft}/", *packages]), 1):
        now = time.monotonic()
        if now - told >= TELL_SECONDS:
            _say(f"{programs.name}: {done} of {wanted} packages, {(now - began) / 60:.1f} min")
            told = now
    shutil.rmtree(programs.directory, ignore_errors=True)
    draft.rename(programs.directory)
    _say(f"{programs.name}: built in {(time.monotonic() - began) / 60:.1f} min")


def _lines(programs: GoPrograms, command: list[str]) -> Iterator[str]:
    """What a Go command writes, but for its downloads, which are shown. Raises MissingError with its last words."""
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
        for line in running.stdout:
            if line.startswith("go: downloading "):
                _say(line.strip())
                continue
            last = [*last[-9:], line]
            yield line
    if running.returncode:
        raise MissingError(f"building {programs.name} failed:\n{''.join(last)}".rstrip())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

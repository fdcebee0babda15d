"""Building the stand-in drivers, and running programs on them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.native.tools import LIB, ROOT, build_tree

INSTANCES = int(os.environ.get("VCUDA_INSTANCES", "0"))
"""1: every device is a MIG instance, which ``make native-mig`` asks for."""
VERSIONS = ("12.2", "12.4", "12.9", "13.0", "13.5")


@functools.cache
def built(sanitize: str = "") -> Path:
    """The directory with a driver per version and the C client; built once for all workers of a run."""
    name = f"standin-test{'-' + sanitize.replace(',', '-') if sanitize else ''}"
    return build_tree(name, source=LIB / "test", sanitize=sanitize) / "standin"


def chosen(**settings: object) -> dict[str, str]:
    """Settings of the machine, as a process is told them."""
    return {f"VCUDA_STANDIN_{key.upper()}": str(value) for key, value in settings.items()}


def environment(state: Path, version: str = "13.0", **settings: object) -> dict[str, str]:
    """What a process needs to find the stand-in: its directory, the machine's state, and settings of the machine."""
    plain = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(built() / version)}
    known = {"state": state, "model": "small", "instances": INSTANCES}
    return {**plain, **chosen(**known), **chosen(**settings)}


def python(code: str, env: dict[str, str], *arguments: object) -> subprocess.Popen[str]:
    """A Python process with a ``Driver`` at hand (see standin_driver.py); it reads lines and prints lines."""
    head = "from tests.native.standin_driver import *\n"
    command = [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=env,
    )


def said(process: subprocess.Popen[str], *, timeout: float = 60) -> list[str]:
    """All that the process still prints, line by line; it must end well."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, f"ended with {process.returncode}\n{out}{err}"
    return out.split("\n")[:-1]


def client(env: dict[str, str], *arguments: object) -> subprocess.Popen[str]:
    command = [str(built() / "vcuda-client"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def line(process: subprocess.Popen[str]) -> str:
    """The next line that the process prints."""
    assert process.stdout
    text = process.stdout.readline()
    assert text, process.stderr.read() if process.stderr else ""
    return text.rstrip("\n")


def end(process: subprocess.Popen[str]) -> None:
    """Kill it without a chance to tidy up, and wait until it is gone."""
    process.kill()
    process.communicate()

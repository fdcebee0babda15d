"""The sources of a release: a copy of the commit with the version put in."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.release import PLACEHOLDER, ROOT

_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(rc[0-9]+)?")
CHART: Final = "deploy/helm/gpu-manager/Chart.yaml"
RUNBOOKS: Final = Path("docs/runbooks.md")  # published beside the chart, whose alerts name it
_STAMPED: Final = (
    # file, how often the placeholder stands in it
    ("pyproject.toml", 1),
    ("sandbox/pyproject.toml", 2),
    (CHART, 2),
    ("deploy/image/Dockerfile", 2),
)


def version_of(tag: str) -> str:
    """The version that a git tag names: ``v1.2.3`` or ``v1.2.3rc1``.

    Raises:
        SystemExit: the tag names none; the text says how tags are written.
    """
    version = tag.removeprefix("v")
    if not tag.startswith("v") or not _VERSION.fullmatch(version):
        sys.exit(f"the tag {tag!r} names no version: releases are tagged v1.2.3, trials v1.2.3rc1")
    return version


def chart_version(version: str) -> str:
    """The version as Helm wants it: ``1.2.3rc1`` is ``1.2.3-rc1``."""
    return version.replace("rc", "-rc")


def current_tag() -> str:
    """The tag of the commit that is checked out.

    Raises:
        SystemExit: the commit has none.
    """
    done = _git("describe", "--exact-match", "--tags", check=False)
    if done.returncode:
        sys.exit("this commit has no tag: git tag v1.2.3, or make release TAG=v1.2.3rc1 for a trial")
    return done.stdout.decode().strip()


def export(version: str, target: Path, url: str = "") -> None:
    """Lay the commit out in ``target``, with ``version`` wherever the placeholder stands.

    Args:
        version: as :func:`version_of` gives it.
        target: a directory that is made anew.
        url: where the release is published, for the packages' metadata and the alerts' runbooks; empty: they
            name no address.

    Raises:
        SystemExit: a file does not carry the placeholder as often as it should.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    archive = _git("archive", "--format=tar", "HEAD").stdout
    subprocess.run(("tar", "-x", "-C", str(target)), input=archive, check=True)
    for name, times in _STAMPED:
        path = target / name
        text = path.read_text("utf-8")
        if text.count(PLACEHOLDER) != times:
            sys.exit(f"{name} holds {PLACEHOLDER} {text.count(PLACEHOLDER)} times, {times} expected")
        if name == CHART:  # whose own version is SemVer's; appVersion is the image's tag
            text = text.replace(f"\nversion: {PLACEHOLDER}", f"\nversion: {chart_version(version)}")
        if url and name == CHART:
            values = path.with_name("values.yaml")
            filled = f"  runbookUrl: {json.dumps(f'{url}/{RUNBOOKS.name}')}\n"
            values.write_text(values.read_text("utf-8").replace('  runbookUrl: ""\n', filled), "utf-8")
        if url and path.suffix == ".toml":
            text += f"\n[project.urls]\nHomepage = {json.dumps(url)}\n"
        path.write_text(text.replace(PLACEHOLDER, version), "utf-8")


def commit() -> str:
    """The commit's full name."""
    return _git("rev-parse", "HEAD").stdout.decode().strip()


def commit_time() -> str:
    """Seconds since 1970, as SOURCE_DATE_EPOCH takes it."""
    return _git("log", "-1", "--format=%ct").stdout.decode().strip()


def _git(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, check=check)

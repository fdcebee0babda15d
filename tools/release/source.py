"""The sources of a release: a copy of the commit with the version put in."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.release import PLACEHOLDER, ROOT

_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(rc[0-9]+)?")
CHART: Final = "deploy/helm/gpu-manager/Chart.yaml"
ICON: Final = Path("docs/assets/icon.svg")  # published beside the chart, which names it
RUNBOOKS: Final = Path("docs/runbooks.md")  # published beside the chart, whose alerts name it
_STAMPED: Final = (
    # file, how often the placeholder stands in it
    ("pyproject.toml", 1),
    ("sandbox/pyproject.toml", 2),
    (CHART, 2),
    ("deploy/image/Dockerfile", 2),
)
NO_CONTACT: Final = "the contact that your release names in its `SECURITY.md`"
"""What stands in the tree where a release has an address: anybody may publish the sources."""
_CONTACTED: Final = ("SECURITY.md", "CODE_OF_CONDUCT.md")
_SHOWN: Final = (
    (r"((?<=image\.tag=)|(?<=REGISTRY/gpu-manager:)|(?<=oci-archive:gpu-manager-))0\.1\.0\b", "{version}"),
    (r"(?<=targetRevision: )0\.1\.0\b", "{chart}"),
    (r"(?<=helm (?:install|upgrade) gpu-manager )deploy/helm/gpu-manager\b", "gpu-manager-{chart}.tgz"),
)
"""What commands of the pages name, and what a release's pages have there: its image's tag, its chart."""


@dataclass(frozen=True, slots=True)
class Published:
    """Where a release can be had; what is empty is named nowhere.

    Attributes:
        url: of its files, ``https://host/path``.
        image: of the image, ``registry/path/gpu-manager``.
        contact: who is told of a vulnerability: an address of mail or a URL.
    """

    url: str = ""
    image: str = ""
    contact: str = ""


def version_of(tag: str) -> str:
    """The version that a git tag names: ``v1.2.3`` or ``v1.2.3rc1``.

    Raises:
        SystemExit: the tag names none; the text says how tags are written.
    """
    version = tag.removeprefix("v")
    if not tag.startswith("v") or not _VERSION.fullmatch(version):
        sys.exit(f"the tag {tag!r} names no version: releases are tagged v1.2.3, trials v1.2.3rc1")
    return version


def is_trial(version: str) -> bool:
    """Whether the version is a release candidate, ``1.2.3rc1``."""
    return "rc" in version


def chart_version(version: str) -> str:
    """The version as Helm and krew want it, SemVer's: ``1.2.3rc1`` is ``1.2.3-rc1``."""
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


def export(version: str, target: Path, published: Published, revision: str = "HEAD") -> None:
    """Lay a commit out in ``target``, with ``version`` wherever the placeholder stands.

    Args:
        version: as :func:`version_of` gives it.
        target: a directory that is made anew.
        published: addresses for packages, chart, alerts' runbooks, and pages that name whom to write to.
        revision: which commit.

    Raises:
        SystemExit: a file does not carry the placeholder as often as it should.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    archive = _git("archive", "--format=tar", revision).stdout
    subprocess.run(("tar", "-x", "-C", str(target)), input=archive, check=True)
    for name, times in _STAMPED:
        path = target / name
        text = path.read_text("utf-8")
        if text.count(PLACEHOLDER) != times:
            sys.exit(f"{name} holds {PLACEHOLDER} {text.count(PLACEHOLDER)} times, {times} expected")
        if name == CHART:  # whose own version is SemVer's; appVersion is the image's tag
            text = text.replace(f"\nversion: {PLACEHOLDER}", f"\nversion: {chart_version(version)}")
            text += _of_the_chart(version, published)
        if published.url and path.suffix == ".toml":
            text += f"\n[project.urls]\nHomepage = {json.dumps(published.url)}\n"
        path.write_text(text.replace(PLACEHOLDER, version), "utf-8")
    _fill_values(target / CHART, published)
    for name in _CONTACTED:
        if published.contact:
            _replace(target / name, NO_CONTACT, published.contact)
    for page in (*(target / "docs").rglob("*.md"), target / "README.md", target / "README.zh.md"):
        text = page.read_text("utf-8")
        for shown, own in _SHOWN:
            text = re.sub(shown, own.format(version=version, chart=chart_version(version)), text)
        page.write_text(text, "utf-8")


def _of_the_chart(version: str, published: Published) -> str:
    """Lines behind the tree's ``Chart.yaml``, which ends with its annotations."""
    added = f'  artifacthub.io/prerelease: "{str(is_trial(version)).lower()}"\n'
    if published.image:
        image = f"{published.image}:{version}"
        added += "  artifacthub.io/images: |\n    - name: gpu-manager\n"
        added += f"      image: {image}\n      platforms: [linux/amd64, linux/arm64]\n"
    if url := published.url:
        added += f"  artifacthub.io/links: |\n    - name: runbooks\n      url: {url}/{RUNBOOKS.name}\n"
        added += f"home: {url}\nicon: {url}/{ICON.name}\nsources:\n- {url}/gpu_manager-{version}.tar.gz\n"
    return added


def _fill_values(chart: Path, published: Published) -> None:
    """Write the addresses into the chart's default values."""
    values = chart.with_name("values.yaml")
    if url := published.url:
        _replace(values, '  runbookUrl: ""\n', f"  runbookUrl: {json.dumps(f'{url}/{RUNBOOKS.name}')}\n")
    if published.image:
        _replace(values, "  repository: gpu-manager\n", f"  repository: {published.image}\n")


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    if old not in text:
        sys.exit(f"{path.name} does not hold {old.strip()!r}, which a release replaces")
    path.write_text(text.replace(old, new), "utf-8")


def must_be_committed(root: Path = ROOT) -> None:
    """A release is what its commit holds, and nothing else.

    Args:
        root: of the checkout.

    Raises:
        SystemExit: tracked files are changed, or files lie beside them that nobody ignores.
    """
    changed = _git("status", "--porcelain", at=root).stdout.decode().splitlines()
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        names = ", ".join(line[3:] for line in changed[:3])
        sys.exit(f"a release is built from a commit alone, and {names}{more} is in none: commit or remove it")


def commit() -> str:
    """The commit's full name."""
    return _git("rev-parse", "HEAD").stdout.decode().strip()


def commit_time() -> str:
    """Seconds since 1970, as SOURCE_DATE_EPOCH takes it."""
    return _git("log", "-1", "--format=%ct").stdout.decode().strip()


def _git(*arguments: str, check: bool = True, at: Path = ROOT) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(("git", *arguments), cwd=at, capture_output=True, check=check)

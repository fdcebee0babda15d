"""The Dockerfile names what is there, installs by hash alone, and ends as the image of `make image` does.

No Docker is needed for this; `buildah bud --isolation chroot -f deploy/image/Dockerfile .` builds it without one.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

from tests.deploy.chart import ROOT

IMAGE = ROOT / "deploy" / "image"
BUILD = runpy.run_path(str(IMAGE / "build.py"))


def steps() -> list[tuple[str, str]]:
    """(instruction, the rest), continued lines joined."""
    text = re.sub(r"^#.*\n", "", (IMAGE / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines) if word]


def copied() -> Iterator[str]:
    for word, rest in steps():
        if word == "COPY" and not rest.startswith("--from"):
            yield from rest.split()[:-1]


def test_everything_that_is_copied_is_there_and_reaches_the_builder() -> None:
    ignore = (IMAGE / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignore if line.startswith("!")}
    assert ignore[1] == "*"
    assert set(copied()) == let_in
    assert [path for path in let_in if not (ROOT / path).exists()] == []


def test_what_is_downloaded_is_installed_by_hash() -> None:
    installs = [part for word, rest in steps() if word == "RUN" for part in rest.split("&&")]
    pip = [part for part in installs if part.split()[:2] == ["pip", "install"]]
    assert len(pip) == 3
    assert [part for part in pip if "--require-hashes" not in part and "--no-index" not in part] == []


def test_it_ends_as_the_other_image_does() -> None:
    mine, wanted = dict(steps()), BUILD["describe"]("x86_64", 0)
    assert mine["USER"] == wanted.config["User"]
    assert mine["CMD"] == '["gpu-manager", "run"]'
    assert wanted.config["Cmd"] == ["gpu-manager", "run"]
    labels = set(re.findall(r"org\.opencontainers\.image\.[a-z.]+", mine["LABEL"]))
    assert labels == set(wanted.config["Labels"]) - {"org.opencontainers.image.created"}  # the builder's
    version = wanted.config["Labels"]["org.opencontainers.image.version"]
    assert ("ARG", f"VERSION={version}") in steps()


def test_both_images_leave_the_same_out() -> None:
    text = (IMAGE / "Dockerfile").read_text()
    for pattern in BUILD["PRUNED_WHEELS"]:
        last = Path(pattern).name
        if last != "_pyinstaller":  # a hook for a packer, some bytes
            assert last in text, pattern

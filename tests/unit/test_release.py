"""A release has one version, the tag's: how it is read, where it is put in, what the notes and the bill say."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
import yaml

from tools.release import PLACEHOLDER, ROOT, source
from tools.release.__main__ import image_module
from tools.release.notes import NOT_RUN, notes
from tools.release.sbom import bill

CHANGELOG = """# Changelog

## Unreleased

- to come

## 1.2.3 (2026-11-22)

### Added

- this

## 1.2.2

- that
"""


@pytest.mark.parametrize(("tag", "version"), [("v1.2.3", "1.2.3"), ("v10.0.12rc4", "10.0.12rc4")])
def test_a_tag_names_the_version(tag: str, version: str) -> None:
    assert source.version_of(tag) == version


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2", "v1.2.3-rc1", "release", "v1.2.3 ", "v1.2.3/../x", ""])
def test_a_tag_that_names_none_is_refused_with_how_it_is_written(tag: str) -> None:
    with pytest.raises(SystemExit, match=r"releases are tagged v1\.2\.3"):
        source.version_of(tag)


def test_the_version_is_put_in_wherever_the_tree_has_the_placeholder(tmp_path: Path) -> None:
    source.export("7.8.9", tmp_path / "copy")
    copy = tmp_path / "copy"
    for name in ("pyproject.toml", "sandbox/pyproject.toml"):
        project = tomllib.loads((copy / name).read_text())["project"]
        assert project["version"] == "7.8.9"
    assert "gpu-manager[admission]==7.8.9" in project["dependencies"]
    chart = yaml.safe_load((copy / "deploy/helm/gpu-manager/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == ("7.8.9", "7.8.9")
    assert "ARG VERSION=7.8.9" in (copy / "deploy/image/Dockerfile").read_text()


def test_alerts_name_the_runbooks_where_the_release_is_published(tmp_path: Path) -> None:
    for url, named in (("https://host/v7", "https://host/v7/runbooks.md"), ("", "")):
        source.export("7.8.9", tmp_path / "copy", url)
        values = yaml.safe_load((tmp_path / "copy/deploy/helm/gpu-manager/values.yaml").read_text())
        assert values["monitoring"]["runbookUrl"] == named
    assert (tmp_path / "copy" / source.RUNBOOKS).exists()


def test_the_chart_of_a_trial_has_a_version_that_helm_takes(tmp_path: Path) -> None:
    source.export("7.8.9rc2", tmp_path / "copy")
    chart = yaml.safe_load((tmp_path / "copy/deploy/helm/gpu-manager/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == ("7.8.9-rc2", "7.8.9rc2")


def test_the_tree_says_that_it_is_no_release() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == PLACEHOLDER


def test_the_notes_are_the_changelogs_section_and_what_was_not_run() -> None:
    text = notes(CHANGELOG, "1.2.3")
    assert text.startswith("# gpu-manager 1.2.3\n\n### Added\n\n- this\n")
    assert text.endswith(NOT_RUN)
    assert "that" not in text.removesuffix(NOT_RUN)
    assert "to come" in notes(CHANGELOG, "2.0.0rc1")
    with pytest.raises(SystemExit, match=r"no section '## 1\.2\.4'"):
        notes(CHANGELOG, "1.2.4")


def test_the_bill_names_every_locked_wheel_once() -> None:
    lock = (ROOT / "locks/image.lock").read_text()
    document = json.loads(bill("1.2.3", lock, ("python3.11",), "bookworm", "2026-11-22T00:00:00+00:00"))
    wheels = [c["purl"] for c in document["components"] if c["purl"].startswith("pkg:pypi/")]
    assert len(wheels) == len(set(wheels)) == sum("==" in line for line in lock.splitlines())
    assert {c["bom-ref"] for c in document["components"]} == set(document["dependencies"][0]["dependsOn"])


def test_a_wheel_for_another_machine_is_cross_compiled_or_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build = image_module(ROOT)
    other = next(machine for machine in build.ARCHITECTURES if machine != os.uname().machine)
    assert "CMAKE_ARGS" not in set(build.compiling(os.uname().machine)) - set(os.environ)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=rf"{other}-linux-gnu-gcc is needed .*apt-get install gcc-"):
        build.compiling(other)
    (tmp_path / f"{other}-linux-gnu-gcc").touch(0o755)
    environment = build.compiling(other)
    assert f"-DCMAKE_C_COMPILER={other}-linux-gnu-gcc" in environment["CMAKE_ARGS"].split()
    assert environment["_PYTHON_HOST_PLATFORM"] == f"linux-{other}", "pip names the wheel after it"

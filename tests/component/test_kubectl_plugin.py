"""The released ``kubectl-vcuda``: one file that a Python without any package runs."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from gpu_manager.cli.kubectl.main import COMMANDS
from gpu_manager.cli.program import ROOM
from sandbox.api import StandInApi
from tools.release import ROOT
from tools.release.plugin import krew, plugin

DATED = 1_700_000_000
BARE = [sys.executable, "-I", "-S"]  # no site-packages


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plugin") / "kubectl-vcuda"
    path.write_bytes(plugin(ROOT, "1.2.3", DATED))
    return path


def output(*command: str | Path) -> str:
    return subprocess.run([*BARE, *map(str, command)], capture_output=True, text=True, check=True).stdout


def test_it_reads_a_cluster_without_any_package_beside_it(program: Path, tmp_path: Path) -> None:
    with StandInApi() as api:
        config = tmp_path / "config"
        config.write_text(yaml.safe_dump(json.loads(api.kubeconfig(tmp_path / "json").read_text())))
        login = ("--kubeconfig", config)
        assert output(program, "version", "--client") == "kubectl vcuda 1.2.3\n"
        assert "no container" in output(program, "top", *login)
        command = [*BARE, str(program), "doctor", *map(str, login)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, ""), "no webhook guards this cluster"


def test_every_command_is_in_it_and_nothing_compiled(program: Path) -> None:
    names = zipfile.ZipFile(program).namelist()
    assert {(ROOM + place).partition(":")[0].replace(".", "/") for place, _ in COMMANDS.values()} <= {
        name.removesuffix(".py").removesuffix("/__init__") for name in names
    }
    assert {Path(name).suffix for name in names} <= {".py", ".pyc", "", ".txt", ".md"}
    assert {"LICENSE"} <= set(names)
    assert sum("licenses" in name for name in names) >= 1, "of PyYAML"


def test_under_its_other_name_it_completes(program: Path) -> None:
    link = program.with_name("kubectl_complete-vcuda")
    link.symlink_to(program.name)
    assert output(link, "gr").splitlines() == ["graph", ":4"]


def test_the_same_sources_give_the_same_file(program: Path) -> None:
    assert plugin(ROOT, "1.2.3", DATED) == program.read_bytes()


@pytest.mark.parametrize(("url", "uri"), [
    ("", "kubectl-vcuda-1.2.3.tar.gz"),
    ("https://releases.example/v1.2.3", "https://releases.example/v1.2.3/kubectl-vcuda-1.2.3.tar.gz"),
])  # fmt: skip
def test_krew_gets_an_archive_with_the_sum_that_its_manifest_names(url: str, uri: str) -> None:
    files = krew(b"program", b"licence", "1.2.3", url, DATED)
    manifest = yaml.safe_load(files["vcuda.yaml"])
    (platform,) = manifest["spec"]["platforms"]
    data = files["kubectl-vcuda-1.2.3.tar.gz"]
    assert (platform["uri"], platform["sha256"]) == (uri, hashlib.sha256(data).hexdigest())
    assert manifest["spec"].get("homepage", "") == url
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert {entry.name: oct(entry.mode) for entry in archive} == {
            "kubectl-vcuda": "0o755",
            "LICENSE": "0o644",
        }
        assert {entry["from"] for entry in platform["files"]} == set(archive.getnames())
        assert platform["bin"] in archive.getnames()


def test_under_an_old_python_it_goes_on_with_a_newer_one(program: Path, tmp_path: Path) -> None:
    first = zipfile.ZipFile(program).read("__main__.py").decode().partition("\nfrom gpu_manager")[0]
    old = f"import sys\nsys.version_info, sys.version = (3, 9, 18), '3.9.18 (main)'\n{first}\n"

    def started(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*BARE, "-c", old, *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)}
        )

    refused = started("top")
    assert refused.returncode == 1
    assert "python3 is 3.9.18, and there is no python3.11 or newer on PATH: install one" in refused.stderr
    (newer := tmp_path / "python3.12").write_text('#!/bin/sh\necho newer "$@"\n')
    newer.chmod(0o755)
    assert started("top", "-A").stdout == "newer -c top -A\n"

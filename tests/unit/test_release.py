"""A release has one version, the tag's: how it is read, where it is put in, what the notes and the bill say."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from tools.release import PLACEHOLDER, ROOT, index, source
from tools.release.__main__ import image_module
from tools.release.notes import NOT_RUN, must_be_ready, notes
from tools.release.plugin import krew
from tools.release.provenance import statement
from tools.release.sbom import bill
from tools.release.signature import TRIAL, signer

sys.path.insert(0, str(ROOT / "deploy/image"))

import archive

CHANGELOG = """# Changelog

## Unreleased

### Added

- to come

## 1.2.3 (2026-11-22)

It shares, see [a page](docs/reference/x.md).

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
    source.export("7.8.9", tmp_path / "copy", source.Published())
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
        source.export("7.8.9", tmp_path / "copy", source.Published(url))
        values = yaml.safe_load((tmp_path / "copy/deploy/helm/gpu-manager/values.yaml").read_text())
        assert values["monitoring"]["runbookUrl"] == named
    assert (tmp_path / "copy" / source.RUNBOOKS).exists()


def test_the_chart_of_a_trial_has_a_version_that_helm_takes(tmp_path: Path) -> None:
    source.export("7.8.9rc2", tmp_path / "copy", source.Published())
    chart = yaml.safe_load((tmp_path / "copy/deploy/helm/gpu-manager/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == ("7.8.9-rc2", "7.8.9rc2")


def test_the_tree_says_that_it_is_no_release() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == PLACEHOLDER


def test_the_notes_are_the_head_of_the_changelogs_section_how_to_install_and_what_was_not_run() -> None:
    text = notes(CHANGELOG, "1.2.3", "sha256:abc", "")
    assert text.startswith("# gpu-manager 1.2.3\n\nIt shares, see a page: `reference/x.html`.\n")
    assert text.endswith(NOT_RUN)
    assert "- this" not in text
    assert "image.digest=sha256:abc" in text
    with pytest.raises(SystemExit, match=r"no section '## 1\.2\.4'"):
        notes(CHANGELOG, "1.2.4", "sha256:abc", "")


def test_a_trial_shows_its_releases_section_or_what_is_unreleased_and_that_its_key_is_nobodys() -> None:
    assert "It shares, see" in notes(CHANGELOG, "1.2.3rc1", "sha256:abc", TRIAL)
    text = notes(CHANGELOG, "2.0.0rc1", "sha256:abc", TRIAL)
    assert "in the changelog under *Unreleased*" in text
    assert "-verify TRIAL-cosign.pub" in text
    assert "nothing of who built them" in text


def test_a_release_needs_a_dated_section_and_nothing_that_is_unreleased() -> None:
    done = CHANGELOG.replace("### Added\n\n- to come\n\n", "")
    must_be_ready(done, "1.2.3")
    with pytest.raises(SystemExit, match=r"no heading '## 1\.2\.2 \(20"):
        must_be_ready(done, "1.2.2")
    for entry in ("### Added\n\n- to come\n", "- to come\n"):
        with pytest.raises(SystemExit, match=r"move them below '## 1\.2\.3'"):
            must_be_ready(done.replace("Unreleased\n", f"Unreleased\n\n{entry}"), "1.2.3")


def test_a_release_is_refused_while_something_is_not_committed(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(("git", "-c", "user.name=a", "-c", "user.email=a@b", *words), cwd=tmp_path, check=True)

    (tmp_path / ".gitignore").write_text("build\n")
    git("init", "--quiet")
    git("add", ".gitignore")
    git("commit", "--quiet", "--message=x")
    (tmp_path / "build").mkdir()
    source.must_be_committed(tmp_path)
    for number in range(4):
        (tmp_path / f"new{number}").touch()
    with pytest.raises(SystemExit, match="new0, new1, new2 and 1 more is in none: commit or remove it"):
        source.must_be_committed(tmp_path)


def test_the_notes_of_the_newest_release_fit_one_screen() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.findall(r"(?m)^## ([0-9.]+) \(", changelog)[0]
    assert len(notes(changelog, newest, f"sha256:{'0' * 64}", "").splitlines()) <= 50


def test_addresses_are_put_in_where_they_are_given_and_the_tree_names_none(tmp_path: Path) -> None:
    contact, image = "security@example.org", "registry.example.org/team/gpu-manager"
    for given in (source.Published("https://host/v7", image, contact), source.Published()):
        source.export("7.8.9rc1", tmp_path / "copy", given)
        chart = yaml.safe_load((tmp_path / "copy" / source.CHART).read_text())
        values = yaml.safe_load((tmp_path / "copy" / source.CHART).with_name("values.yaml").read_text())
        notes = chart["annotations"]
        assert notes["artifacthub.io/prerelease"] == "true"
        assert values["image"]["repository"] == (given.image or "gpu-manager")
        assert (contact in (tmp_path / "copy/SECURITY.md").read_text()) == bool(given.contact)
        assert (contact in (tmp_path / "copy/CODE_OF_CONDUCT.md").read_text()) == bool(given.contact)
        assert (chart.get("icon"), chart.get("home")) == (
            ("https://host/v7/icon.svg", "https://host/v7") if given.url else (None, None)
        )
        if given.url:
            assert chart["sources"] == ["https://host/v7/gpu_manager-7.8.9rc1.tar.gz"]
            [listed] = yaml.safe_load(notes["artifacthub.io/images"])
            assert listed["image"] == f"{image}:7.8.9rc1"
            [link] = yaml.safe_load(notes["artifacthub.io/links"])
            assert link["url"] == "https://host/v7/runbooks.md"


def test_the_pages_of_a_release_show_its_own_image_and_chart(tmp_path: Path) -> None:
    source.export("7.8.9rc1", tmp_path / "copy", source.Published())
    for page in ("quickstart", "zh/quickstart", "install", "upgrade", "zh/upgrade"):
        text = (tmp_path / f"copy/docs/{page}.md").read_text()
        assert "image.tag=7.8.9rc1" in text
        assert "gpu-manager-7.8.9-rc1.tgz" in text
        assert "0.1.0" not in text
    assert "targetRevision: 7.8.9-rc1" in (tmp_path / "copy/docs/beside/argocd.md").read_text()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the checksums of one file."""
    (tmp_path / "file").write_text("content")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'content').hexdigest()}  file\n")
    return tmp_path


def verified(place: Path, mark: str = "") -> bool:
    """As a user does it, by openssl."""
    plain = place / "plain"
    plain.write_bytes(base64.b64decode((place / f"{mark}SHA256SUMS.sig").read_bytes()))
    key = ("openssl", "dgst", "-sha256", "-verify", f"{mark}cosign.pub", "-signature", "plain")
    return subprocess.run((*key, "SHA256SUMS"), cwd=place, capture_output=True, check=False).returncode == 0


def test_openssl_verifies_the_signature_and_refuses_changed_checksums(place: Path) -> None:
    key = place / "own.key"
    made = ("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
    subprocess.run(made, check=True)
    signer(str(key), "1.2.3").sign(place)
    assert verified(place)
    (place / "SHA256SUMS").write_text("0000  file\n")
    assert not verified(place)


def test_a_trial_signs_with_a_pair_of_its_own_and_marks_its_files(place: Path) -> None:
    signer("", "1.2.3rc1").sign(place)
    assert verified(place, TRIAL)
    assert not list(place.glob("cosign.pub"))
    assert not [path for path in place.iterdir() if b"PRIVATE KEY" in path.read_bytes()]


def test_a_release_without_a_usable_key_is_refused_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, sealed = tmp_path / "wrong", tmp_path / "cosign.key"
    wrong.write_text("no key")
    sealed.write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    for key, said in (
        ("", r"make release COSIGN_KEY=cosign\.key"),
        (str(tmp_path / "none"), "cannot be read: No such file"),
        (str(wrong), "is no private key"),
    ):
        with pytest.raises(SystemExit, match=said):
            signer(key, "1.2.3")
    with pytest.raises(SystemExit, match="needs the program cosign"):
        signer(str(sealed), "1.2.3").sign(tmp_path)


def test_the_provenance_names_files_commit_and_locks() -> None:
    text = statement({"b": "2", "a": "1"}, version="1.2.3", commit="c0ffee", locks={"x.lock": "3"}, url="")
    document = json.loads(text)
    assert [one["name"] for one in document["subject"]] == ["a", "b"]
    sources, lock = document["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert (sources["digest"], lock) == (
        {"gitCommit": "c0ffee"},
        {"name": "x.lock", "digest": {"sha256": "3"}},
    )
    assert document["predicate"]["runDetails"]["builder"]["id"] == "urn:gpu-manager#make-release"


def test_one_archive_has_the_images_of_all_architectures_under_one_name(tmp_path: Path) -> None:
    archives = []
    for architecture in ("amd64", "arm64"):
        layer = tmp_path / architecture
        layer.mkdir()
        (layer / "file").write_text(architecture)
        image = archive.Image("gpu-manager:7.8.9", architecture, "1970-01-01T00:00:00+00:00", {})
        image.layers.append(archive.pack(layer, 0))
        archives.append(tmp_path / f"{architecture}.tar")
        archive.write_archive(image, archives[-1], 0)
    digest = index.join(archives, tmp_path / "both.tar", 0)
    with tarfile.open(tmp_path / "both.tar") as tar:
        files = {entry.name: tar.extractfile(entry).read() for entry in tar}
    [whole] = json.loads(files["index.json"])["manifests"]
    assert whole["digest"] == digest
    assert whole["annotations"]["org.opencontainers.image.ref.name"] == "7.8.9"
    manifests = json.loads(files[blob(digest)])["manifests"]
    assert [one["platform"]["architecture"] for one in manifests] == ["amd64", "arm64"]
    for one in manifests:
        manifest = json.loads(files[blob(one["digest"])])
        assert one["size"] == len(files[blob(one["digest"])])
        assert {blob(part["digest"]) for part in (manifest["config"], *manifest["layers"])} <= set(files)
    tags = [tag for one in json.loads(files["manifest.json"]) for tag in one["RepoTags"]]
    assert tags == ["gpu-manager:7.8.9-amd64", "gpu-manager:7.8.9-arm64"]


def blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def test_krews_manifest_keeps_krews_rules() -> None:
    """Names as the archive has them, SemVer with ``v``, a short line that krew's list does not cut."""
    for url in ("", "https://host/v7"):
        files = krew(b"program", b"licence", "7.8.9rc1", url, 0)
        manifest = yaml.safe_load(files["vcuda.yaml"])
        spec = manifest["spec"]
        assert spec["version"] == "v7.8.9-rc1"
        assert len(spec["shortDescription"]) <= 50
        assert not spec["shortDescription"].endswith(".")
        [platform] = spec["platforms"]
        packed = files["kubectl-vcuda-7.8.9rc1.tar.gz"]
        assert platform["sha256"] == hashlib.sha256(packed).hexdigest()
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            assert {one["from"] for one in platform["files"]} == set(tar.getnames())
        assert spec.get("homepage") == (url or None)


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

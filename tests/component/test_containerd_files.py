"""Containerd's files of several versions and makers: socket, CDI, cgroup driver, or that they start nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_manager.adapters.diagnosis.machine import gather_runtime
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.domain.doctor.facts import RuntimeFacts

FIRST = "etc/containerd/config.toml"
DROP_IN = "etc/containerd/conf.d/99-nvidia.toml"
SOCKET = "/run/containerd/containerd.sock"
OLD, NEW = 'plugins."io.containerd.grpc.v1.cri"', "plugins.'io.containerd.cri.v1.runtime'"
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'


def read(root: Path, files: dict[str, str], socket: str = SOCKET) -> RuntimeFacts:
    for path, text in {**files, socket.lstrip("/"): ""}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return gather_runtime(HostFiles(root), socket, sysfs=root)


def options(part: str, runtime: str, *, systemd: bool) -> str:
    name = "nvidia-container-runtime" if runtime == "nvidia" else runtime
    binary = f'BinaryName = "/usr/bin/{name}"\n'
    return f"[{part}.containerd.runtimes.{runtime}.options]\n{binary}SystemdCgroup = {str(systemd).lower()}\n"


def test_version_4_names_its_socket_under_a_plugin_and_has_cdi_on(tmp_path: Path) -> None:
    own = "/run/containerd-k8s/containerd.sock"
    text = f"version = 4\n[plugins.'io.containerd.server.v1.grpc']\naddress = \"{own}\"\n"
    found = read(tmp_path, {FIRST: text + options(NEW, "runc", systemd=True)}, own)
    assert (found.strategy, found.cdi, found.systemd_cgroup) == ("cdi", True, True)
    assert "version 4" in found.why
    assert found.config == f"/{FIRST}"


def test_a_later_version_s_table_says_nothing_to_an_earlier_one(tmp_path: Path) -> None:
    text = "version = 3\n[plugins.'io.containerd.server.v1.grpc']\naddress = \"/run/other.sock\"\n"
    assert read(tmp_path, {FIRST: text}).cdi is True


@pytest.mark.parametrize(("first", "above"), [(2, 3), (2, 4), (3, 4), (1, 2)])
def test_an_imported_file_above_the_first_keeps_containerd_from_starting(
    tmp_path: Path, first: int, above: int
) -> None:
    drop_in = f"version = {above}\n[{NEW if above > 2 else OLD}]\nenable_cdi = true\n"
    found = read(tmp_path, {FIRST: f"version = {first}\n{IMPORTS}", DROP_IN: drop_in})
    assert f"is of version {above}, above the {first} of /{FIRST}: containerd will not start" in found.broken
    assert (found.cdi, found.systemd_cgroup, found.default_runtime, found.strategy) == (
        None,
        None,
        "",
        "direct",
    )


def test_an_imported_file_of_the_same_or_an_earlier_version_is_read(tmp_path: Path) -> None:
    drop_in = f"version = 2\n[{OLD}]\nenable_cdi = false\n"
    found = read(tmp_path, {FIRST: f"version = 2\n{IMPORTS}[{OLD}]\nenable_cdi = false\n", DROP_IN: drop_in})
    assert (found.broken, found.cdi) == ("", False)


def test_what_two_versions_of_containerd_read_differently_is_not_known(tmp_path: Path) -> None:
    """The drop-in has the CRI plugin's section without runc: containerd 1 then knows no runc's options."""
    first = f"version = 2\n{IMPORTS}" + options(OLD, "runc", systemd=True)
    drop_in = "version = 2\n" + options(OLD, "nvidia", systemd=True)
    assert read(tmp_path, {FIRST: first, DROP_IN: drop_in}).systemd_cgroup is None


@pytest.mark.parametrize("systemd", [True, False])
def test_the_default_runtime_s_own_switch_counts(tmp_path: Path, systemd: bool) -> None:
    text = f'version = 2\n[{OLD}.containerd]\ndefault_runtime_name = "nvidia"\n'
    only = text + options(OLD, "nvidia", systemd=systemd)
    assert read(tmp_path / "only", {FIRST: only}).systemd_cgroup is systemd
    beside = only + options(OLD, "runc", systemd=not systemd)
    assert read(tmp_path / "beside", {FIRST: beside}).systemd_cgroup is systemd


def test_a_default_runtime_that_is_not_configured_leaves_runc_s_switch(tmp_path: Path) -> None:
    text = f'version = 2\n[{OLD}.containerd]\ndefault_runtime_name = "gone"\n'
    assert read(tmp_path, {FIRST: text + options(OLD, "runc", systemd=True)}).systemd_cgroup is True


@pytest.mark.parametrize(
    ("settings", "strategy", "why"),
    [
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n", "direct", "unprivileged pods"),
        ('[nvidia-container-runtime]\nmode = "cdi"\n', "direct", "mode cdi"),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = true\n", "nvidia", "is nvidia"),
        ('[nvidia-container-runtime]\nmode = "auto"\n', "nvidia", "is nvidia"),
        ("= torn [", "nvidia", "is nvidia"),
    ],
)
@pytest.mark.parametrize("place", ["etc", "usr/bin/.config"])
def test_a_toolkit_that_ignores_the_variable_makes_its_runtime_useless(
    tmp_path: Path, settings: str, strategy: str, why: str, place: str
) -> None:
    text = f'version = 2\n[{OLD}.containerd]\ndefault_runtime_name = "nvidia"\n'
    toolkit = f"{place}/nvidia-container-runtime/config.toml"
    found = read(tmp_path, {FIRST: text + options(OLD, "nvidia", systemd=True), toolkit: settings})
    assert found.strategy == strategy
    assert why in found.why


@pytest.mark.parametrize(
    ("binary", "settings", "shows"),
    [
        ("nvidia-container-runtime", "", True),
        ("nvidia-container-runtime.cdi", "", True),
        ("nvidia-container-runtime", '[nvidia-container-runtime]\nmode = "cdi"\n', True),
        (
            "nvidia-container-runtime",
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n",
            False,
        ),
        ("runc", "", False),
    ],
)
def test_a_default_runtime_that_shows_cards_to_whoever_names_them_is_named_under_cdi_too(
    tmp_path: Path, binary: str, settings: str, shows: bool
) -> None:
    text = f'version = 3\n[{NEW}.containerd]\ndefault_runtime_name = "gpu"\n'
    text += f'[{NEW}.containerd.runtimes.gpu.options]\nBinaryName = "/usr/bin/{binary}"\n'
    found = read(tmp_path, {FIRST: text, "etc/nvidia-container-runtime/config.toml": settings})
    assert (found.strategy, found.by_variable) == ("cdi", shows)

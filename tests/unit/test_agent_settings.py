"""The doctor in the agent's pod finds the agent's own settings; beside a stranger, or several, it finds none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_manager.cli.doctor import find_agent_settings

RUN = ("/usr/bin/python3", "/usr/local/bin/gpu-manager", "run")
OPTIONS = (
    "--host-root=/host",
    "--driver-root",
    "/run/nvidia/driver",
    "--device-injection=cdi",
    "--http-port=9",
)


def process(proc: Path, pid: int | str, *words: str, mounts: str = "mnt:[1]") -> None:
    here = proc / str(pid)
    (here / "ns").mkdir(parents=True)
    (here / "ns/mnt").symlink_to(mounts)
    (here / "cmdline").write_bytes("".join(f"{word}\0" for word in words).encode())


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    process(tmp_path, "self", "gpu-manager", "doctor")
    process(tmp_path, 1, "/sbin/init", mounts="mnt:[9]")
    process(tmp_path, 2, "python3", "-c", "gpu-manager run")
    (tmp_path / "3").mkdir()
    return tmp_path


def test_the_agents_command_line_says_how_it_sees_the_node(proc: Path) -> None:
    process(proc, 7, *RUN, *OPTIONS, "--sample-period=1")  # an option of old, which it passes over
    process(proc, 8, *RUN, "--host-root=/other", mounts="mnt:[2]")  # another pod's
    found = find_agent_settings(proc)
    assert found is not None
    assert (found["config"].host_root, found["config"].driver_root) == (
        Path("/host"),
        Path("/run/nvidia/driver"),
    )
    assert (found["device_injection"], found["config"].http_port) == ("cdi", 9)
    assert found["kubelet_dir"] == Path("/var/lib/kubelet")


def test_without_an_agent_in_the_container_there_are_no_settings(proc: Path) -> None:
    assert find_agent_settings(proc) is None
    assert find_agent_settings(proc / "none") is None


def test_of_two_agents_that_differ_neither_is_taken(proc: Path) -> None:
    process(proc, 7, *RUN, *OPTIONS)
    process(proc, 8, *RUN, *OPTIONS, "--http-port=10")
    assert find_agent_settings(proc) is None


def test_an_agent_and_who_holds_its_registration_are_one(proc: Path) -> None:
    for pid in (7, 8):
        process(proc, pid, *RUN, *OPTIONS)
    found = find_agent_settings(proc)
    assert found is not None
    assert found["config"].http_port == 9


def test_an_agent_of_another_version_is_not_guessed_at(proc: Path) -> None:
    process(proc, 7, *RUN, "--http-port=none")
    assert find_agent_settings(proc) is None

"""The sandbox's processes and containers: environment, mounts as links, exit codes, kills, no orphan ever."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.adapters.driver_files.delivery import NativeLibraries, native_in
from gpu_manager.adapters.driver_files.driver import multiarch
from gpu_manager.adapters.simulated import SimulatedCards
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse, Mount
from sandbox import programs
from sandbox.processes import ProcessTable
from sandbox.runtime import Runtime, free_port
from tests.fakes.sandbox import alive, until
from tests.fakes.waiting import PATIENCE

NOTHING = ContainerAllocateResponse()


class Rig:
    def __init__(self, directory: Path, native: NativeLibraries | None = None, **runtime: Any) -> None:
        self.directory = directory
        self.processes = ProcessTable()
        self.runtime = Runtime(directory, self.processes, native=native, **runtime)
        self.codes: queue.Queue[int] = queue.Queue()

    def start(self, command: list[str], response: ContainerAllocateResponse = NOTHING, **fields: Any) -> Any:
        pod = {
            "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
            "spec": {"nodeName": "n1", "containers": []},
        }
        container = {"name": "c", "command": command, **fields}
        return self.runtime.start(pod, container, response, self.codes.put)

    def run(self, command: list[str], response: ContainerAllocateResponse = NOTHING, **fields: Any) -> str:
        started = self.start(command, response, **fields)
        assert self.codes.get(timeout=PATIENCE) == 0, started.log.read_text()
        return str(started.log.read_text())

    def environment(self, response: ContainerAllocateResponse = NOTHING, **fields: Any) -> dict[str, str]:
        lines = self.run(["env"], response, **fields).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.processes.close()


def test_a_container_sees_the_plugins_variables_and_the_pods_own_over_them(rig: Rig) -> None:
    response = ContainerAllocateResponse(envs={"VCUDA_CARDS": "GPU-1", "LEVEL": "plugin"})
    env = rig.environment(
        response,
        env=[
            {"name": "LEVEL", "value": "pod"},
            {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "BOTH", "value": "$(WHO)-$(LEVEL)-$$(WHO)-$(ABSENT)"},
        ],
    )
    assert env["VCUDA_CARDS"] == "GPU-1"
    assert env["LEVEL"] == "pod"
    assert env["BOTH"] == "p-pod-$(WHO)-$(ABSENT)"
    assert env["HOSTNAME"] == "p"


def test_a_container_inherits_nothing_of_the_sandboxs_own_environment(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    assert "AWS_SECRET_ACCESS_KEY" not in rig.environment()


def test_the_loader_looks_into_the_containers_root_first(rig: Rig) -> None:
    env = rig.environment(env=[{"name": "LD_LIBRARY_PATH", "value": "/opt/own"}])
    root = env["VCUDA_ROOT"]
    assert env["LD_LIBRARY_PATH"].split(":") == [
        f"{root}/usr/lib/{multiarch()}",
        f"{root}/usr/lib64",
        "/opt/own",
    ]
    assert f"{root}/usr/bin" in env["PATH"].split(":")


def test_a_variable_that_the_sandbox_cannot_fill_in_is_named(rig: Rig) -> None:
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    with pytest.raises(NodeUnready, match='"TOKEN"'):
        rig.start(["env"], env=[secret])


def test_mounts_are_links_at_their_paths_in_the_root(rig: Rig, tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text("limits of p")
    response = ContainerAllocateResponse(
        mounts=[Mount(container_path="/etc/vcuda/limits", host_path=str(page))]
    )
    started = rig.start(["sh", "-c", 'cat "$VCUDA_ROOT/etc/vcuda/limits"'], response)
    assert rig.codes.get(timeout=PATIENCE) == 0
    assert started.log.read_text() == "limits of p"
    assert (started.root / "etc/vcuda/limits").readlink() == page


@pytest.mark.parametrize("path", ["../../escape", "/etc/../../../escape", "relative"])
def test_a_mount_cannot_leave_the_root(rig: Rig, path: str, tmp_path: Path) -> None:
    (tmp_path / "page").touch()
    mount = Mount(container_path=path, host_path=str(tmp_path / "page"))
    with pytest.raises(NodeUnready, match="no absolute path"):
        rig.start([], ContainerAllocateResponse(mounts=[mount]))


def test_a_mount_without_a_source_is_refused_as_a_runtime_would(rig: Rig) -> None:
    mount = Mount(container_path="/x", host_path="/nowhere/at/all")
    with pytest.raises(NodeUnready, match="the node has no"):
        rig.start([], ContainerAllocateResponse(mounts=[mount]))


def test_our_libraries_are_exchanged_for_their_sandbox_build(tmp_path: Path) -> None:
    place, given = tmp_path / "native", tmp_path / "lib"
    place.mkdir()
    (place / "libvcuda.so").touch()
    for directory, names in (
        (place / "sandbox", ("libcuda.so.1", "libnvidia-ml.so.1")),
        (place / "standin/12.4", ("libcuda.so.1", "libnvidia-ml.so.1")),
        (place / "standin/13.0", ("libcuda.so.1", "libnvidia-ml.so.1")),
        (given, ("libvcuda.so", "libvcuda-ml.so", "libcuda.so.1")),
    ):
        directory.mkdir(parents=True)
        for name in names:
            (directory / name).touch()
    native = native_in(place)
    assert native.driver == place / "standin/13.0"
    assert native.complete
    cards = [state.card for state in SimulatedCards.named("a100x8").list()]
    rig = Rig(tmp_path / "s", native, cards=cards)
    front, real = "/usr/lib64/libcuda.so.1", "/usr/local/vcuda/real/libcuda.so.1"
    response = ContainerAllocateResponse(
        envs={"VCUDA_CARDS": cards[5].uuid},
        mounts=[
            Mount(container_path=front, host_path=str(given / "libvcuda.so")),
            Mount(container_path="/usr/lib64/libnvidia-ml.so.1", host_path=str(given / "libvcuda-ml.so")),
            Mount(container_path=real, host_path=str(given / "libcuda.so.1")),
        ],
    )
    try:
        started = rig.start(["sh", "-c", 'cat "$VCUDA_STANDIN_CONFIG"'], response)
        assert rig.codes.get(timeout=PATIENCE) == 0
        machine = started.log.read_text()
        assert (started.root / front[1:]).readlink() == place / "sandbox/libcuda.so.1"
        assert (
            started.root / "usr/lib64/libnvidia-ml.so.1"
        ).readlink() == place / "sandbox/libnvidia-ml.so.1"
        assert (started.root / real[1:]).readlink() == given / "libcuda.so.1"
    finally:
        rig.processes.close()
    assert "cards = 1\n" in machine
    assert f"card.0.uuid = {cards[5].uuid}\n" in machine
    assert "card.0.model = a100\n" in machine
    assert "card.0.memory_mib = 40960\n" in machine


def test_nothing_native_is_found_where_nothing_was_built(tmp_path: Path) -> None:
    assert native_in(tmp_path) == NativeLibraries()
    assert not native_in(tmp_path).complete


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$$$", 137), ("kill $$$$", 143)]
)
def test_exit_codes_are_a_containers(rig: Rig, script: str, code: int) -> None:
    rig.start(["sh", "-c", script])
    assert rig.codes.get(timeout=PATIENCE) == code


def test_arguments_are_never_read_by_a_shell(rig: Rig) -> None:
    assert rig.run(["echo"], args=["$(touch /tmp/never)", ";", "`id`"]) == "$(touch /tmp/never) ; `id`\n"


def test_a_command_that_does_not_exist_is_named(rig: Rig) -> None:
    with pytest.raises(NodeUnready, match="no-such-program"):
        rig.start(["no-such-program"])


def test_a_container_of_which_only_the_image_is_known_waits_until_it_is_told(rig: Rig) -> None:
    started = rig.start([], args=["--flag"])
    assert alive(started.pid)
    rig.runtime.signal(started.id, signal.SIGTERM)
    assert rig.codes.get(timeout=PATIENCE) == 0


def test_signals_reach_the_whole_group(rig: Rig, tmp_path: Path) -> None:
    child = tmp_path / "child"
    started = rig.start(["sh", "-c", f"sleep 60 & echo $! > {child}; wait"])
    pid = int(until(lambda: child.exists() and child.read_text().strip()))
    rig.runtime.signal(started.id, signal.SIGKILL)
    assert rig.codes.get(timeout=PATIENCE) == 137
    until(lambda: not alive(pid))


def test_what_a_container_leaves_behind_dies_with_it(rig: Rig, tmp_path: Path) -> None:
    """Also a process that left the group: a PID namespace would have taken it along."""
    child = tmp_path / "child"
    rig.start(
        [
            "sh",
            "-c",
            f"setsid sh -c 'echo $$$$ > {child}; exec sleep 60' & while [ ! -s {child} ]; do :; done",
        ]
    )
    assert rig.codes.get(timeout=PATIENCE) == 0
    until(lambda: not alive(int(child.read_text())))


def test_closing_ends_everything_even_what_ignores_signals(tmp_path: Path) -> None:
    rig, child = Rig(tmp_path), tmp_path / "child"
    rig.start(
        ["sh", "-c", f"trap '' TERM INT HUP; setsid sleep 60 & echo $! > {child}; while :; do sleep 1; done"]
    )
    pid = int(until(lambda: child.exists() and child.read_text().strip()))
    rig.processes.close()
    assert not alive(pid)
    with pytest.raises(NodeUnready, match="ending"):
        rig.start(["true"])


def test_everything_ends_when_the_sandbox_is_killed(tmp_path: Path) -> None:
    script = f"""
import threading
from pathlib import Path
from sandbox.processes import ProcessTable
processes = ProcessTable()
pid = processes.spawn("a", ["sh", "-c", "setsid sleep 60 & echo $!; exec sleep 60"], env={{"PATH": "/usr/bin:/bin"}},
    cwd=Path("/"), log=Path({str(tmp_path / "log")!r}), ended=lambda code: None)
print(pid, processes.pid, flush=True)
threading.Event().wait()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as sandbox:
        assert sandbox.stdout is not None
        first, shim = map(int, sandbox.stdout.readline().split())
        second = int(until(lambda: (tmp_path / "log").read_text().strip()))
        sandbox.kill()
    until(lambda: not any(map(alive, (first, second, shim))))


def test_the_first_processes_end_even_when_their_keeper_is_killed(rig: Rig) -> None:
    started = rig.start(["sleep", "60"])
    os.kill(rig.processes.pid, signal.SIGKILL)
    assert rig.codes.get(timeout=PATIENCE) == 137
    until(lambda: not alive(started.pid))


def test_output_is_found_by_the_names_of_pod_and_container(rig: Rig, tmp_path: Path) -> None:
    rig.run(["echo", "hello"])
    assert (tmp_path / "logs/ns_p_c.log").read_text() == "hello\n"


def test_shipped_programs_are_on_the_path_and_say_in_one_line_what_they_miss(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "with 'quotes'", programs=programs.commands())
    try:
        for name in programs.commands():
            assert (tmp_path / "with 'quotes'" / "bin" / name).exists()
        assert rig.environment()["PATH"].startswith(str(tmp_path / "with 'quotes'/bin"))
    finally:
        rig.processes.close()


def test_a_taken_port_is_seen() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert free_port(taken) is None
    assert free_port() is not None

"""The device-plugins directory is not ours alone: what stands under our sockets' names, and who takes them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from gpu_manager.adapters.kubelet.client import unix_target
from gpu_manager.domain.contract import CORE
from gpu_manager.servers.plugin_registration import SOCKETS
from tests.fakes.metrics import counts
from tests.fakes.node import NodeRig


def failures(rig: NodeRig) -> int:
    return counts(rig.metrics.registration_failures).get("", 0)


def test_a_directory_in_place_of_a_socket_is_said_and_waited_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod that mounts the socket before it exists makes one."""
    rig = NodeRig(tmp_path, back_off=(0.1, 0.1))
    rig.kubelet.start()
    path = rig.kubelet.device_plugins / SOCKETS[CORE]
    path.mkdir()
    rig.start_agent(wait=False)
    try:
        rig.until(lambda: failures(rig) >= 2)
        assert f"{path}: a directory has that name" in capsys.readouterr().out
        path.rmdir()
        rig.await_registered()
    finally:
        rig.stop_agent()
        rig.kubelet.stop()


def test_a_fault_that_nobody_foresaw_does_not_end_the_plugin(tmp_path: Path) -> None:
    """A thread that dies would leave an agent that answers every probe and serves nobody."""
    rig = NodeRig(tmp_path, back_off=(0.1, 0.1))
    rig.kubelet.start()
    rig.start_agent()
    serve, rig.plugin.sockets = rig.plugin.sockets, {CORE: "no/such\0name"}
    try:
        rig.kubelet.restart()
        rig.until(lambda: failures(rig) >= 2)
        rig.plugin.sockets = serve
        rig.await_registered()
    finally:
        rig.stop_agent()
        rig.kubelet.stop()


def test_our_socket_is_not_fought_over_without_a_pause(tmp_path: Path) -> None:
    """Two agents on one node, or the predecessor beside us: each takes the socket from the other at sight."""
    with NodeRig(tmp_path, back_off=(300.0, 300.0)) as rig:
        path = rig.kubelet.device_plugins / SOCKETS[CORE]
        path.unlink()
        thief = grpc.server(ThreadPoolExecutor(1))
        thief.add_insecure_port(unix_target(path))
        thief.start()
        rig.until(lambda: not rig.plugin.registered.is_set())
        assert not rig.plugin.registered.wait(1)
        assert rig.kubelet.registrations[CORE] == 1
        thief.stop(0).wait()
        rig.kubelet.restart()
        rig.await_registered()

"""The agent as a service of the host: it says when it serves, and is there before the kubelet admits pods after a boot."""

from __future__ import annotations

import configparser
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from gpu_manager.cli.run import command
from gpu_manager.domain.contract import CORE, EVENT_REFUSED
from gpu_manager.domain.resources import GIB
from gpu_manager.runtime.arguments import Command
from gpu_manager.runtime.program import tell_started
from sandbox.kubelet import StandInKubelet
from tests.component.test_held_registration import World, limits
from tests.fakes.agent import agent_command
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.sandbox import short_directory
from tests.fakes.waiting import PATIENCE

UNITS = Path(__file__).parents[2] / "deploy/systemd"


class Host(World):
    """A node that boots: first the agent, and once it has told systemd that it serves, the kubelet."""

    def reboot(self) -> None:
        self.holder.kill()
        self.holder.wait()
        self.kubelet.stop()
        shutil.rmtree(self.directory / "pages")  # a tmpfs
        heard = self.directory / "notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, self.log.open("a") as log:
            systemd.bind(str(heard))
            systemd.settimeout(PATIENCE)
            told = {**os.environ, "NOTIFY_SOCKET": str(heard)}
            words = agent_command(self.directory, "--hold-registration", "600", api=self.api.url)
            self.holder = subprocess.Popen(words, stderr=log, env=told)
            assert systemd.recv(64) == b"READY=1"
        self.kubelet.restart(reboot=True)
        self.await_devices()


def test_pods_keep_their_cards_through_a_reboot_where_the_agent_comes_before_the_kubelet() -> None:
    with short_directory() as directory, Host(directory) as host:
        before = {}
        for number in range(3):
            result = host.run(pod(f"p{number}", container("c", 30 + number, 8)))
            before[result.uid] = number, list(result.ids["c"][CORE])
        host.reboot()
        results = host.kubelet.resume()
        assert [r.message for r in results if not r.admitted] == []
        assert len(results) == 3
        for result in results:
            number, ids = before[result.uid]
            assert set(result.ids["c"][CORE]) == set(ids)
            host.kubelet.start_container(result.uid, "c")
            assert limits(result) == [(30 + number, 2 * GIB)]


def test_without_it_they_fail() -> None:
    with short_directory() as directory, World(directory) as node:
        node.run(pod("p", container("c", 30, 8)))
        node.holder.kill()
        node.holder.wait()
        kubelet: StandInKubelet = node.kubelet
        kubelet.restart(reboot=True)
        (result,) = kubelet.resume()
        assert (result.admitted, result.reason) == (False, "UnexpectedAdmissionError")


def test_systemd_is_told_once_the_agent_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell_started()  # nobody waits
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    tell_started()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0vcuda-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@vcuda-{os.getpid()}")
        tell_started()
        assert systemd.recv(64) == b"READY=1"


def test_the_unit_starts_the_agent_before_the_kubelet_with_options_that_there_are() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS / "gpu-manager.service")
    assert "kubelet.service" in unit["Unit"]["Before"].split()
    assert unit["Service"]["Type"] == "notify"
    program, what, *words = unit["Service"]["ExecStart"].split()
    assert (program.rpartition("/")[2], what, words.pop()) == ("gpu-manager", "run", "$AGENT_OPTIONS")
    assert Command("gpu-manager run", command).values(words)["hold_registration"] == 30


@pytest.mark.parametrize(
    ("controlled", "cure"), [(True, "its controller makes another one"), (False, "create it again")]
)
def test_a_pod_that_failed_because_no_agent_served_is_told_once_why(
    tmp_path: Path, controlled: bool, cure: str
) -> None:
    message = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices x, which is unexpected"
    with NodeRig(tmp_path) as rig:
        for name, reason, words in (
            ("late", "UnexpectedAdmissionError", message),
            (
                "ours",
                "UnexpectedAdmissionError",
                "rpc error: code = FailedPrecondition desc = no card has room",
            ),
            ("evicted", "Evicted", message),
        ):
            obj = pod(name, container("c", 30, 8), controlled=controlled)
            obj["status"] = {"phase": "Failed", "reason": reason, "message": words}
            rig.pods.bind(rig.parsed(obj))
        for _ in range(3):
            rig.stranded.look()
        told = [(who, why, text) for who, why, text in rig.pods.events if why == EVENT_REFUSED]
        assert len(told) == 1
        assert told[0][0] == "default/late"
        assert cure in told[0][2]

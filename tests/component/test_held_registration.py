"""The agent's process is killed at every step of an admission: its parent holds the registration, and no pod fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.resources import GIB
from gpu_manager.runtime.program import SPARED
from gpu_manager.servers.plugin_registration import SOCKETS
from sandbox.api import StandInApi
from sandbox.kubelet import AdmissionResult, StandInKubelet
from sandbox.kubelet.values import Step
from tests.fakes.agent import NODE, agent_command
from tests.fakes.node import container, pod
from tests.fakes.sandbox import alive, short_directory
from tests.fakes.waiting import PATIENCE, until
from vcuda.page.limits import read_limits

STEPS = ("GetPreferredAllocation", "Allocate", "PreStartContainer")


class World:
    """The kubelet's stand-in, an API server, and the agent below its holder, each a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.api, self.kubelet = StandInApi(), StandInKubelet(directory / "kubelet", seed=7)
        self.log = directory / "agent.log"

    def __enter__(self) -> Self:
        self.api.start()
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.kubelet.start()
        with self.log.open("w") as log:
            command = agent_command(self.directory, "--hold-registration", "600", api=self.api.url)
            self.holder = subprocess.Popen(command, stderr=log)
        try:
            self.await_devices()
        except BaseException:
            self.__exit__()
            raise
        self.kubelet.publish_node()
        return self

    def __exit__(self, *_: object) -> None:
        self.kubelet.hooks.before = self.kubelet.hooks.after = lambda _: None
        sys.stdout.write(self.log.read_text())  # shown where the test fails
        self.holder.kill()
        self.holder.wait()
        self.kubelet.stop()
        self.api.stop()

    def await_devices(self, cores: int = 400) -> None:
        def there() -> bool:
            found = self.kubelet.allocatable()
            return found.get(CORE) == cores and bool(found.get(MEMORY)) == bool(cores)

        until(there)

    def agent(self) -> int:
        """Its process; 0 while there is none."""
        text = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text()
        return next((pid for pid in map(int, text.split()) if alive(pid)), 0)

    def kill(self) -> int:
        """SIGKILL the agent. Returns which process it was."""
        found: int = until(self.agent)
        os.kill(found, signal.SIGKILL)
        until(lambda: not alive(found))
        return found

    def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        """A pod that is bound already, and that the kubelet has not heard of."""
        return self.api.create({**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "uid"}})

    def run(self, obj: dict[str, Any]) -> AdmissionResult:
        """Create, admit and start a pod that is bound already."""
        made = self.create(obj)
        result = self.kubelet.admit(made)
        if result.admitted:
            for entry in made["spec"]["containers"]:
                self.kubelet.start_container(made["metadata"]["uid"], entry["name"])
        return result


@pytest.fixture
def world() -> Iterator[World]:
    with short_directory() as directory, World(directory) as made:
        yield made


def limits(result: AdmissionResult) -> list[tuple[int, int]]:
    """Cores and bytes under the mounts of container ``c``."""
    mounts = {m.container_path: m.host_path for m in result.containers["c"].mounts}
    return [
        (c.core_limit, c.memory_limit)
        for c in read_limits(Path(mounts["/etc/vcuda/limits"]).read_bytes()).cards
    ]


def test_no_pod_fails_though_the_agent_is_killed_before_and_after_every_step(world: World) -> None:
    """A Job with backoffLimit 0 would end at the first that does."""
    killed: list[str] = []

    def kill_at(wanted: str, when: str) -> Callable[[Step], None]:
        def kill(step: Step) -> None:
            if step.name == wanted and not killed:
                killed.append(f"{when} {wanted} of {step.resource}")
                world.kill()

        return kill

    for number, name in enumerate(STEPS):
        for when in ("before", "after"):
            killed.clear()
            setattr(world.kubelet.hooks, when, kill_at(name, when))
            result = world.run(pod(f"{when}-{number}", container("c", 20, 8)))
            world.kubelet.hooks.before = world.kubelet.hooks.after = lambda _: None
            assert result.admitted, (killed, result.message)
            assert killed, f"no {name} was asked"
            assert limits(result) == [(20, 2 * GIB)]
    assert world.kubelet.allocatable()[CORE] == 400, "nothing was withdrawn meanwhile"
    assert world.kubelet.registrations[CORE] == 1, "the kubelet has seen none of it"


def oom_score(pid: int | str) -> str:
    return Path(f"/proc/{pid}/oom_score_adj").read_text().strip()


def test_no_pod_fails_though_the_memory_killer_ends_the_whole_container(world: World) -> None:
    """Under cgroup v2 it kills all processes of the control group but those that are spared."""
    agent = until(world.agent)
    until(lambda: oom_score(agent) == oom_score("self"))
    if oom_score(world.holder.pid) == oom_score("self"):
        pytest.skip("without CAP_SYS_RESOURCE nobody is spared")
    assert oom_score(world.holder.pid) == SPARED
    killed: list[int] = []

    def kill(step: Step) -> None:
        if step.name == "Allocate" and not killed:
            killed.extend(pid for pid in (world.holder.pid, agent) if oom_score(pid) != SPARED)
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    world.kubelet.hooks.before = kill
    result = world.run(pod("a", container("c", 20, 8)))
    assert result.admitted, result.message
    assert killed == [agent]
    assert world.kubelet.registrations[CORE] == 1, "the kubelet has seen none of it"


@pytest.mark.parametrize("resource", [CORE, MEMORY])
def test_what_was_decided_for_a_pod_is_booked_by_the_next_agent_though_others_of_its_shape_wait(
    world: World, resource: str
) -> None:
    """Its memory, booked for another pod, would take that one's room, and move the next to another card."""
    for number in range(3):
        world.create(pod(f"waits-{number}", container("c", 20, 8)))
    killed: list[str] = []

    def kill(step: Step) -> None:
        if (step.name, step.resource) == ("GetPreferredAllocation", resource) and not killed:
            killed.append(step.pod)
            world.kill()

    world.kubelet.hooks.after = kill
    assert world.run(pod("one", container("c", 20, 8))).admitted
    assert killed
    said = world.log.read_text()
    assert "granted_to_unidentified_pod" not in said
    assert said.count('"event": "placed"') == 2


def test_an_agent_that_is_killed_in_the_middle_of_a_call_is_asked_again(world: World) -> None:
    for number in range(3):
        first = until(world.agent)
        stopped = threading.Event()

        def stop(step: Step, pid: int = first, stopped: threading.Event = stopped) -> None:
            if step.name in STEPS[:2] and not stopped.is_set():
                os.kill(pid, signal.SIGSTOP)  # so that the call is with it when it dies
                stopped.set()

        world.kubelet.hooks.before = stop
        killer = threading.Thread(
            target=lambda s=stopped, p=first: (s.wait(PATIENCE), os.kill(p, signal.SIGKILL))
        )
        killer.start()
        result = world.run(pod(f"in-{number}", container("c", 10, 4)))
        killer.join()
        world.kubelet.hooks.before = lambda _: None
        assert result.admitted, result.message
        assert limits(result) == [(10, GIB)]
        until(lambda first=first: world.agent() not in (0, first))


def test_a_refusal_of_the_agent_is_passed_on_as_it_is(world: World) -> None:
    world.run(pod("whole", container("c", 100, 0)))
    many = pod("many", *(container(f"c{n}", 60, 8) for n in range(4)))
    result = world.run(many)
    assert not result.admitted
    assert "60 cores" in result.message
    assert "the agent is away" not in result.message


def test_a_kubelet_that_restarts_has_the_plugin_again_with_and_without_an_agent(world: World) -> None:
    before = world.run(pod("a", container("c", 20, 8)))
    world.kubelet.restart()
    world.await_devices()
    world.kubelet.resume()
    assert world.run(pod("b", container("c", 20, 8))).admitted
    world.kill()
    world.kubelet.restart()
    world.await_devices()
    world.kubelet.resume()
    assert world.run(pod("c", container("c", 20, 8))).admitted
    assert before.admitted


def test_sigterm_ends_agent_and_holder_and_leaves_no_socket_behind(world: World) -> None:
    child = until(world.agent)
    world.holder.send_signal(signal.SIGTERM)
    assert world.holder.wait(PATIENCE) == 0
    assert not alive(child)
    assert [n for n in SOCKETS.values() if (world.kubelet.device_plugins / n).exists()] == []
    assert "Traceback" not in world.log.read_text()
    world.await_devices(0)


def test_the_agent_ends_with_its_holder_and_never_serves_beside_the_next(world: World) -> None:
    child = until(world.agent)
    world.holder.kill()
    world.holder.wait()
    until(lambda: not alive(child))


def test_an_agent_that_ends_by_itself_takes_its_holder_along(world: World) -> None:
    """It wants its container to be made anew."""
    os.kill(until(world.agent), signal.SIGTERM)
    assert world.holder.wait(PATIENCE) == 0


def test_bad_settings_end_both_with_the_code_of_bad_input(tmp_path: Path) -> None:
    command = agent_command(tmp_path, "--hold-registration", "30", "--cards", "floppy")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert "floppy" in done.stderr
    assert "Traceback" not in done.stderr

"""A series and a bill end with the container, although the books wait for the kubelet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.services.enforcement.usage import ABSENT_SECONDS, EndedContainers
from tests.fakes.ports import FakeClock, FakePods, FakeProcesses

UID = PodUid("u1")
KEYS = frozenset({(UID, "prepare"), (UID, "main")})


def pod(phase: str = "Running", prepare: dict[str, Any] | None = None, **init: Any) -> Pod:
    return parse_pod(
        {
            "metadata": {"name": "p", "namespace": "a", "uid": UID},
            "spec": {"initContainers": [{"name": "prepare", **init}], "containers": [{"name": "main"}]},
            "status": {
                "phase": phase,
                "initContainerStatuses": [{"name": "prepare", "state": prepare or {"running": {}}}],
            },
        }
    )


class Node:
    def __init__(self) -> None:
        self.pods, self.processes = FakePods(), FakeProcesses()
        self.clock = FakeClock()
        self.ended = EndedContainers(self.pods, self.processes, self.clock)

    def show(self, shown: Pod | None, *, tombstone: bool = False) -> frozenset[str]:
        self.pods.known = {"a/p": [KnownPod(shown, tombstone=tombstone)]} if shown else {}
        self.clock.pass_(ABSENT_SECONDS)
        return frozenset(name for _, name in self.ended.among(KEYS))


@pytest.mark.parametrize(
    ("state", "ends"),
    [
        ({"terminated": {"exitCode": 0}}, True),
        ({"terminated": {"exitCode": 1}}, False),  # the kubelet may start it again
        ({"waiting": {"reason": "CrashLoopBackOff"}}, False),
        ({"running": {"startedAt": "2026-11-22T00:00:00Z"}}, False),
        ({"terminated": {}}, False),
    ],
)
def test_an_init_container_has_ended_once_it_has_done_its_work(state: dict[str, Any], ends: bool) -> None:
    assert Node().show(pod(prepare=state)) == ({"prepare"} if ends else set())


def test_a_sidecar_that_ends_is_started_again() -> None:
    assert not Node().show(pod(prepare={"terminated": {"exitCode": 0}}, restartPolicy="Always"))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_has_ended_by_its_phase_once_no_process_of_it_runs(phase: str) -> None:
    node = Node()
    node.processes.living.add(UID)
    assert not node.show(pod(phase))
    node.processes.living.clear()
    assert node.show(pod(phase)) == {"prepare", "main"}


def test_pods_that_run_on_are_not_compared_again_and_one_that_ends_is_seen_at_once() -> None:
    node = Node()
    node.show(pod())
    first = node.ended.among(KEYS)
    assert node.ended.among(KEYS) is first
    assert node.show(pod("Failed")) == {"prepare", "main"}


def test_a_pod_that_was_deleted_has_ended_with_its_last_process() -> None:
    node = Node()
    node.processes.living.add(UID)
    assert not node.show(pod(), tombstone=True), "deleted by force: it runs on"
    node.processes.living.clear()
    assert node.show(pod(), tombstone=True) == {"prepare", "main"}


def test_a_pod_that_the_watch_does_not_show_may_be_about_to_start() -> None:
    node = Node()
    assert not node.show(None)
    assert node.show(None) == {"prepare", "main"}
    node = Node()
    node.processes.living.add(UID)
    assert not node.show(None)
    assert not node.show(None), "deleted while no agent ran, and still there"


def test_without_the_hosts_processes_the_api_is_believed_and_absence_proves_nothing() -> None:
    node = Node()
    node.processes.blind = True
    assert node.show(pod("Succeeded")) == {"prepare", "main"}
    node = Node()
    node.processes.blind = True
    assert not node.show(None) | node.show(None)


def test_whose_end_is_known_is_not_looked_for_among_the_processes_again() -> None:
    node = Node()
    node.show(pod("Succeeded"))
    asked = len(node.processes.asked)
    assert node.show(pod("Succeeded")) == {"prepare", "main"}
    assert len(node.processes.asked) == asked


def test_a_namesake_that_runs_is_another_pod() -> None:
    node = Node()
    node.show(pod(), tombstone=True)
    node.pods.known = {"a/p": [KnownPod(replace(pod(), uid=PodUid("u2"))), KnownPod(pod(), tombstone=True)]}
    assert {name for _, name in node.ended.among(KEYS)} == {"prepare", "main"}

"""The sandbox's node loop on the two stand-ins: order, restarts, deletions, rejections, binding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.errors import NodeUnready
from sandbox.kubelet import Step
from tests.fakes.sandbox import GPU, NODE, BareNode, alive, shell, short_directory, until


@pytest.fixture
def node() -> Iterator[BareNode]:
    with short_directory() as directory, BareNode(directory) as running:
        yield running


def pid_of(node: BareNode, pod: str, name: str) -> int:
    """The process of a container whose script has echoed its own."""
    log = node.directory / "logs" / f"default_{pod}_{name}.log"
    return int(until(lambda: log.exists() and log.read_text().split())[0])


LASTING = "echo $$$$; exec sleep 60"
WANTS = {"resources": {"limits": {GPU: 1}}}


def test_a_pod_is_bound_admitted_started_and_reported(node: BareNode) -> None:
    node.create("web", shell("app", LASTING, **WANTS))
    status = node.phase("web", "Running")
    assert node.pod("web")["spec"]["nodeName"] == NODE
    assert status["startTime"]
    row = node.container("web", "app")
    scheme, _, container_id = row["containerID"].partition("://")
    assert scheme == "sandbox"
    assert len(container_id) == 64
    assert row["ready"]
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions == {
        "PodScheduled": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
    }
    assert {"Scheduled", "Started"} <= set(until(lambda: node.events("web")))


def test_the_node_shows_what_its_plugins_offer(node: BareNode) -> None:
    status: dict[str, Any] = until(
        lambda: (
            (found := (node.api.get("nodes", NODE) or {}).get("status", {})).get("allocatable", {}).get(GPU)
            and found
        )
    )
    assert status["allocatable"][GPU] == "4"
    assert status["capacity"]["pods"] == "250"
    assert status["conditions"][0]["type"] == "Ready"


def test_init_containers_run_one_by_one_and_before_the_apps(node: BareNode, tmp_path: Path) -> None:
    order = tmp_path / "order"
    node.create(
        "staged",
        shell("app", f"echo app >> {order}; exec sleep 60"),
        initContainers=[
            shell("one", f"echo one >> {order}; sleep 0.2; echo one-ends >> {order}"),
            shell("two", f"echo two >> {order}"),
        ],
    )
    node.phase("staged", "Running")
    until(lambda: order.read_text().split()[-1] == "app")
    assert order.read_text().split() == ["one", "one-ends", "two", "app"]
    assert node.container("staged", "one")["state"]["terminated"]["exitCode"] == 0
    assert node.container("staged", "two")["ready"]


def test_a_sidecar_starts_in_its_turn_and_runs_beside_the_apps(node: BareNode, tmp_path: Path) -> None:
    order = tmp_path / "order"
    node.create(
        "escorted",
        shell("app", f"echo app >> {order}; sleep 0.1"),
        restartPolicy="Never",
        initContainers=[
            shell("before", f"echo before >> {order}"),
            {**shell("side", f"echo side >> {order}; exec sleep 60"), "restartPolicy": "Always"},
            shell("after", f"while ! grep -q side {order}; do :; done; echo after >> {order}"),
        ],
    )
    node.phase("escorted", "Succeeded")
    assert order.read_text().split() == ["before", "side", "after", "app"]
    assert "terminated" in node.container("escorted", "side")["state"]


def test_a_failing_init_container_is_tried_again(node: BareNode, tmp_path: Path) -> None:
    mark = tmp_path / "second"
    node.create(
        "stubborn",
        shell("app", "exec sleep 60"),
        initContainers=[shell("setup", f"test -e {mark} || {{ touch {mark}; exit 3; }}")],
    )
    node.phase("stubborn", "Running")
    row = node.container("stubborn", "setup")
    assert row["restartCount"] == 1
    assert row["lastState"]["terminated"]["exitCode"] == 3


def test_a_failing_init_container_fails_the_pod_that_never_restarts(node: BareNode) -> None:
    node.create(
        "once", shell("app", "true"), restartPolicy="Never", initContainers=[shell("setup", "exit 3")]
    )
    node.phase("once", "Failed")
    assert "waiting" in node.container("once", "app")["state"]


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [("Never", 0, "Succeeded"), ("Never", 4, "Failed"), ("OnFailure", 0, "Succeeded")],
)
def test_a_pod_that_ends_says_how(node: BareNode, policy: str, code: int, phase: str) -> None:
    node.create("job", shell("app", f"exit {code}"), restartPolicy=policy)
    node.phase("job", phase)
    assert node.container("job", "app")["state"]["terminated"]["exitCode"] == code


@pytest.mark.parametrize(("policy", "code"), [("Always", 0), ("Always", 1), ("OnFailure", 1)])
def test_a_container_is_restarted_as_the_policy_says(node: BareNode, policy: str, code: int) -> None:
    node.create("loop", shell("app", f"exit {code}"), restartPolicy=policy)
    until(lambda: node.container("loop", "app").get("restartCount", 0) >= 2)
    row = node.container("loop", "app")
    assert row["lastState"]["terminated"]["exitCode"] == code
    until(lambda: "CrashLoopBackOff" in str(node.container("loop", "app")["state"]))


def test_a_command_that_does_not_exist_is_a_start_error(node: BareNode) -> None:
    node.create("typo", {"name": "app", "command": ["no-such-program"]}, restartPolicy="Never")
    node.phase("typo", "Failed")
    ended = node.container("typo", "app")["state"]["terminated"]
    assert ended["reason"] == "StartError"
    assert "no-such-program" in ended["message"]


def test_a_plugin_that_refuses_the_start_holds_the_container_up_until_it_does_not(node: BareNode) -> None:
    refusals: list[str] = []
    real = node.kubelet.start_container

    def hesitant(uid: str, name: str, container_id: str = "") -> Any:
        if len(refusals) < 2:
            refusals.append(name)
            raise NodeUnready("device plugin PreStartContainer rpc failed with err: wrong card")
        return real(uid, name, container_id)

    node.kubelet.start_container = hesitant  # type: ignore[method-assign]  # what the agent's refusal looks like
    node.create("held", shell("app", LASTING, **WANTS))
    node.phase("held", "Running")
    assert refusals == ["app", "app"]
    assert "wrong card" in node.events("held")["Failed"]


def test_a_deleted_pod_gets_its_grace_and_its_devices_come_back(node: BareNode) -> None:
    node.create("all", shell("app", LASTING, resources={"limits": {GPU: 4}}))
    node.phase("all", "Running")
    pid = pid_of(node, "all", "app")
    node.api.delete("pods", "all")
    until(lambda: not node.pod("all"))
    assert not alive(pid)
    node.create("next", shell("app", LASTING, resources={"limits": {GPU: 4}}))
    node.phase("next", "Running")


def test_a_pod_that_ignores_its_end_is_killed_after_the_grace(node: BareNode) -> None:
    node.create("deaf", shell("app", "trap '' TERM; echo $$$$; while :; do sleep 0.05; done"))
    node.phase("deaf", "Running")
    pid = pid_of(node, "deaf", "app")
    node.api.delete("pods", "deaf", grace=1)
    assert node.pod("deaf")["metadata"]["deletionTimestamp"]
    until(lambda: not node.pod("deaf"))
    assert not alive(pid)


def test_a_pod_deleted_by_force_is_gone_at_once_and_its_processes_soon(node: BareNode) -> None:
    node.create("forced", shell("app", "trap '' TERM; " + LASTING, **WANTS))
    node.phase("forced", "Running")
    pid = pid_of(node, "forced", "app")
    uid = node.pod("forced")["metadata"]["uid"]
    node.api.delete("pods", "forced", grace=0)
    assert not node.pod("forced")
    until(lambda: not alive(pid))
    until(lambda: all(p["metadata"]["uid"] != uid for p in node.kubelet.pods()))


def test_a_namesake_of_a_pod_deleted_by_force_starts_anew(node: BareNode) -> None:
    for generation in ("first", "second"):
        node.create("same", shell("app", f"echo {generation}; exec sleep 60", **WANTS))
        node.phase("same", "Running")
        uid = node.pod("same")["metadata"]["uid"]
        log = node.directory / "logs/default_same_app.log"
        until(lambda: generation in log.read_text())  # noqa: B023  # used within this turn
        if generation == "first":
            node.api.delete("pods", "same", grace=0)
            first = uid
    assert uid != first
    assert node.status("same")["phase"] == "Running"


def test_a_pod_of_more_than_the_node_has_waits_and_says_why(node: BareNode) -> None:
    node.create("large", shell("app", LASTING, resources={"limits": {GPU: 5}}))
    message = until(lambda: node.events("large").get("FailedScheduling"))
    assert message == f"0/1 nodes are available: 1 Insufficient {GPU}."
    condition = next(c for c in node.status("large")["conditions"] if c["type"] == "PodScheduled")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert not node.pod("large")["spec"].get("nodeName")


def test_a_waiting_pod_is_bound_once_another_has_gone(node: BareNode) -> None:
    node.create("first", shell("app", LASTING, resources={"limits": {GPU: 3}}))
    node.phase("first", "Running")
    node.create("second", shell("app", LASTING, resources={"limits": {GPU: 2}}))
    until(lambda: node.events("second").get("FailedScheduling"))
    node.api.delete("pods", "first", grace=0)
    node.phase("second", "Running")


def test_a_rejected_pod_fails_with_the_kubelets_reason_and_message(node: BareNode) -> None:
    def refuse(step: Step) -> None:
        if step.name == "Allocate":
            raise NodeUnready("Allocate failed due to rpc error: no card has room")

    node.kubelet.hooks.before = refuse
    node.create("unlucky", shell("app", LASTING, **WANTS))
    status = node.phase("unlucky", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert status["message"].startswith("Pod was rejected: ")
    assert "no card has room" in status["message"]
    assert "no card has room" in until(lambda: node.events("unlucky").get("UnexpectedAdmissionError"))
    node.api.delete("pods", "unlucky")
    assert not node.pod("unlucky")
    node.kubelet.hooks.before = lambda _step: None
    node.create("unlucky", shell("app", LASTING, **WANTS))
    node.phase("unlucky", "Running")


def test_running_containers_outlive_a_restart_of_the_kubelet(node: BareNode) -> None:
    node.create("steady", shell("app", LASTING, **WANTS))
    node.phase("steady", "Running")
    pid = pid_of(node, "steady", "app")
    node.node.restart_kubelet()
    node.create("later", shell("app", LASTING, **WANTS))
    node.phase("later", "Running")
    assert alive(pid)
    assert node.container("steady", "app")["restartCount"] == 0
    node.api.delete("pods", "steady")
    until(lambda: not node.pod("steady"))
    assert not alive(pid)


def test_a_pod_bound_while_the_kubelet_is_away_is_admitted_once_it_is_back(node: BareNode) -> None:
    until(lambda: node.kubelet.publish_node().get(GPU) == 4)
    node.kubelet.stop()
    node.create("patient", shell("app", LASTING, **WANTS))
    until(lambda: node.pod("patient")["spec"].get("nodeName"))
    node.node.restart_kubelet()
    node.phase("patient", "Running")


def test_many_pods_at_once_all_run_and_all_go(node: BareNode) -> None:
    names = [f"many-{i}" for i in range(15)]
    for name in names:
        node.create(name, {"name": "app", "image": "nginx"})
    for name in names:
        node.phase(name, "Running")
    for name in names:
        node.api.delete("pods", name)
    until(lambda: not node.api.list("pods"))

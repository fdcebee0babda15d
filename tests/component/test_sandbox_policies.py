"""A sandbox whose kubelet aligns devices to NUMA nodes, and whose agent offers whole cards as NVIDIA's too."""

from __future__ import annotations

from typing import Any

from gpu_manager.domain.contract import CORE, NVIDIA
from sandbox import commands
from sandbox.kubelet import NumaPolicy
from sandbox.simulated_cluster import Sandbox, SandboxSettings
from tests.fakes.sandbox import short_directory, until


def manifest(name: str, resource: str, count: int) -> dict[str, Any]:
    one = {"name": "main", "image": "sandbox", "resources": {"limits": {resource: str(count)}}}
    spec = {"containers": [one], "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def status(sandbox: Sandbox, name: str) -> dict[str, Any]:
    return dict((sandbox.api.get("pods", name) or {}).get("status") or {})


def test_the_kubelets_policy_and_the_agents_flag_are_as_asked() -> None:
    with short_directory() as directory:
        settings = SandboxSettings(
            directory / "s", admission=False, numa=NumaPolicy.SINGLE, nvidia_resource=True
        )
        with Sandbox(settings) as sandbox:
            until(lambda: sandbox.kubelet.capacity().get(NVIDIA) == 8)
            commands.apply(sandbox.api, [manifest("lent", NVIDIA, 1)])
            until(lambda: status(sandbox, "lent").get("phase") == "Running")
            commands.apply(sandbox.api, [manifest("across", CORE, 300)])
            until(lambda: status(sandbox, "across").get("phase") == "Failed")
            assert status(sandbox, "across")["reason"] == "TopologyAffinityError", "two cards a NUMA node"


def test_a_pod_that_the_kubelet_would_fail_waits_and_the_scheduler_says_why() -> None:
    with short_directory() as directory:
        settings = SandboxSettings(directory / "s", numa=NumaPolicy.SINGLE)
        with Sandbox(settings) as sandbox:
            commands.apply(sandbox.api, [manifest("across", CORE, 300), manifest("together", CORE, 200)])
            until(lambda: status(sandbox, "together").get("phase") == "Running")
            until(lambda: "single-numa-node" in _why_unscheduled(sandbox, "across"))
            assert status(sandbox, "across").get("phase") == "Pending"


def _why_unscheduled(sandbox: Sandbox, name: str) -> str:
    conditions = status(sandbox, name).get("conditions") or ()
    return next((str(c.get("message")) for c in conditions if c.get("type") == "PodScheduled"), "")

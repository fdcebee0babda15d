"""A node that the predecessor ran, upgraded in place in the sandbox: the agent and admission as they ship.

Left behind are its checkpoint, its annotations on pods, its device ids in the kubelet's books, and its quota
ConfigMap. Containers run on; cards and quota know of them; their place is not given to anybody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.adapters.kubelet.checkpoint import OLD_FILE_NAME as FILE_NAME
from gpu_manager.domain.contract import (
    ALLOCATION,
    CORE,
    GPU_UUID,
    MEMORY,
    MODEL_LABEL_GAIA,
    decode_assignment,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.resources import GIB
from sandbox import commands
from sandbox.kubelet import StandInKubelet
from sandbox.simulated_cluster import NODE, Sandbox, SandboxSettings
from tests.fakes.admission import Process
from tests.fakes.plugin import Plugin, device
from tests.fakes.sandbox import short_directory, until

UNIT = 268435456
QUOTA = {"vision": {"quota": {"A100": 3}, "pool": []}}


class Node(Sandbox):
    """A sandbox whose agent finds the predecessor's checkpoint."""

    def _agent_arguments(self) -> list[str]:
        return [*super()._agent_arguments(), "--checkpoint-path", str(self.directory / "old")]

    def upgrade(self) -> None:
        self.agent.start()

        def serves() -> bool:
            try:
                return all(
                    json.loads(self.ask("/readyz", "application/json")).get(k)
                    for k in ("registered", "cards")
                )
            except (NodeUnready, ValueError):
                return False

        self.wait(serves, 30.0, "the agent is not ready")


def old_pod(name: str, cores: int, units: int, *indices: int) -> dict[str, Any]:
    """As the predecessor's scheduler and manager had annotated it."""
    limits = {CORE: cores, **({MEMORY: units} if units else {})}
    annotations = {
        "tencent.com/predicate-gpu-idx-0": ",".join(map(str, indices)),
        "tencent.com/predicate-node": NODE,
        "tencent.com/predicate-time": "1669712345678901234",
        "tencent.com/gpu-assigned": "true",
    }
    one = {"name": "main", "image": "sandbox", "command": ["sleep", "600"], "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "vision", "annotations": annotations},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [one]},
    }


def new_pod(name: str, cores: int, units: int) -> dict[str, Any]:
    made = old_pod(name, cores, units)
    del made["metadata"]["annotations"]
    made["metadata"]["namespace"] = "later"
    return made


def plugins(kubelet: StandInKubelet) -> list[Plugin]:
    """The predecessor's two, with ids of its form."""
    ids = {
        CORE: [f"{CORE}-{n}" for n in range(800)],
        MEMORY: [f"{MEMORY}-{UNIT}-{n}" for n in range(1024)],
    }
    made = []
    for resource, names in ids.items():
        plugin = Plugin(
            resource, [device(name) for name in names], endpoint=resource.replace("/", "-") + ".sock"
        )
        plugin.serve(kubelet.device_plugins).register(kubelet.device_plugins)
        made.append(plugin)
    kubelet.wait({resource: len(names) for resource, names in ids.items()})
    return made


@dataclass
class Upgraded:
    node: Node
    pids: dict[str, str]
    directory: Path

    def pod(self, name: str) -> dict[str, Any]:
        return self.node.api.get("pods", name, "vision") or {}

    def container(self, name: str) -> dict[str, Any]:
        return next(iter((self.pod(name).get("status") or {}).get("containerStatuses") or ()), {})

    def cards(self, name: str) -> list[tuple[int, int]]:
        """The cards a pod is booked on, with the cores."""
        picture = self.node.graph()
        return [(c["index"], h["cores"]) for c in picture["cards"] for h in c["holders"] if h["pod"] == name]


@pytest.fixture(scope="module")
def upgraded() -> Iterator[Upgraded]:
    with short_directory() as directory:
        node = Node(SandboxSettings(directory / "s", admission=False))
        try:
            node.prepare()
            quota = {"name": "gpuquota", "namespace": "kube-system"}
            data = {"gpu_quota": json.dumps(QUOTA)}
            commands.apply(
                node.api,
                [
                    *(
                        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                        for name in ("vision", "later")
                    ),
                    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": quota, "data": data},
                ],
            )
            old = plugins(node.kubelet)
            until(node.ready)
            commands.apply(
                node.api,
                [old_pod("part", 30, 20, 5), old_pod("whole", 200, 0, 2, 3), old_pod("hinted", 20, 8, 6)],
            )
            one = Upgraded(node, {}, directory)
            for name in ("part", "whole", "hinted"):
                until(lambda name=name: (one.container(name).get("state") or {}).get("running"))
                one.pids[name] = one.container(name)["containerID"]
            for plugin in old:
                plugin.stop()
            mapping = {
                one.pod("part")["metadata"]["uid"]: {"main": row([5], 30, 5 * GIB)},
                one.pod("whole")["metadata"]["uid"]: {"main": row([2, 3], 200, 0)},
                "ended-long-ago": {"main": row([0], 100, 0)},
            }
            (node.directory / "old").mkdir()
            (node.directory / "old" / FILE_NAME).write_text(json.dumps({"PodGPUMapping": mapping}))
            node.upgrade()
            yield one
        finally:
            node.stop()


def row(minors: list[int], cores: int, memory: int) -> dict[str, Any]:
    return {"Devices": [f"/dev/nvidia{n}" for n in minors], "Cores": cores, "Memory": memory}


def test_containers_run_on_untouched(upgraded: Upgraded) -> None:
    for name, before in upgraded.pids.items():
        assert upgraded.container(name)["containerID"] == before
        assert upgraded.container(name)["restartCount"] == 0


def test_they_are_booked_where_the_checkpoint_or_the_annotation_says(upgraded: Upgraded) -> None:
    assert upgraded.cards("part") == [(5, 30)]
    assert upgraded.cards("whole") == [(2, 100), (3, 100)]
    assert upgraded.cards("hinted") == [(6, 20)], "not in the checkpoint: its annotation names card 6"
    free = {c["index"]: c["cores_free"] for c in upgraded.node.graph()["cards"]}
    assert (free[5], free[2], free[3], free[6]) == (70, 0, 0, 80)


def test_their_pods_get_our_annotation_with_the_truth(upgraded: Upgraded) -> None:
    def written() -> Any:
        found = decode_assignment(upgraded.pod("part")["metadata"]["annotations"].get(ALLOCATION))
        return found and found.containers["main"]

    ((uuid, amount),) = until(written)
    assert uuid == upgraded.node.cards[5].uuid
    assert (amount.cores, amount.memory) == (30, 5 * GIB)


def test_the_old_metrics_speak_of_them(upgraded: Upgraded) -> None:
    text = upgraded.node.ask("/metric")
    line = (
        'container_request_gpu_memory{container_name="main",namespace="vision",node="sandbox",pod_name="part"'
    )
    assert f'{line},req_of_gpu_memory="total"}} 5120' in text


def test_new_pods_come_beside_them_and_never_on_top(upgraded: Upgraded) -> None:
    api = upgraded.node.api
    names = [f"new{n}" for n in range(5)]
    commands.apply(api, [new_pod(name, 100, 0) for name in names])

    def refused() -> list[str]:
        pods = [api.get("pods", name, "later") or {} for name in names]
        reasons = {p["metadata"]["name"]: (p.get("status") or {}).get("reason") for p in pods}
        return [name for name, reason in reasons.items() if reason == "UnexpectedAdmissionError"]

    # The node's sum still counts 150 cores free, so the fifth is bound; no single card has them.
    until(lambda: sum(bool(upgraded.cards(name)) for name in names) == 4 and len(refused()) == 1)
    taken = sorted(card for name in names for card, _ in upgraded.cards(name))
    assert taken == [0, 1, 4, 7], "cards 2 and 3 are whole pods', 5 and 6 are shared"


@pytest.fixture(scope="module")
def admission(upgraded: Upgraded) -> Iterator[Process]:
    """Installed after the agent."""
    with Process(f"--kubeconfig={upgraded.node.kubeconfig}", "--leader-mode=alone") as found:
        until(lambda: found.get("/readyz")[0] == 200)
        yield found


def refusal(admission: Process, asks: dict[str, Any]) -> str:
    """What the scheduler is told of the node; empty if the pod fits."""
    asks["metadata"]["uid"] = f"u-{asks['metadata']['name']}"
    said = admission.filter(asks, [NODE])
    assert not said.get("Error"), said
    return str({**(said["FailedNodes"] or {}), **(said["FailedAndUnresolvableNodes"] or {})}.get(NODE, ""))


def test_the_scheduler_knows_on_which_card_they_are(upgraded: Upgraded, admission: Process) -> None:
    def on_card_5(cores: int) -> str:
        asks = new_pod(f"beside-{cores}", cores, 4)
        asks["metadata"]["annotations"] = {GPU_UUID: upgraded.node.cards[5].uuid}
        return refusal(admission, asks)

    until(lambda: on_card_5(71))
    assert on_card_5(70) == ""
    assert "71 cores" in on_card_5(71)
    assert "70" in on_card_5(71)


def test_the_old_quota_counts_what_runs_since_before_and_refuses_more(
    upgraded: Upgraded, admission: Process
) -> None:
    node = upgraded.node.api.get("nodes", NODE) or {}
    assert "A100" in node["metadata"]["labels"][MODEL_LABEL_GAIA]
    figure = "vcuda_admission_quota_cards_used", ("A100", "vision")
    until(lambda: admission.figures().get(figure))
    assert admission.figures()[figure] == pytest.approx(2.5), "30 + 200 + 20 cores"
    asks = new_pod("one-more", 80, 8)  # whole cards were refused at the node a moment ago
    asks["metadata"]["namespace"] = "vision"
    assert refusal(admission, asks).startswith(
        'ExceedsGPUQuota: namespace "vision": 3 cards of A100, 2.5 used'
    )

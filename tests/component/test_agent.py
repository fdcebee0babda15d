"""The whole agent over stand-ins: simulated cards, a kubelet and an API server on real sockets, real pages."""

from __future__ import annotations

import json
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from gpu_manager.adapters.machine import LABEL
from gpu_manager.agent.composition import Agent
from gpu_manager.agent.config import Config
from gpu_manager.domain.cluster.usage_json import read_usage
from gpu_manager.domain.contract import (
    ALLOCATION,
    CORE,
    GPU_UUID,
    INVENTORY,
    MEMORY,
    NVIDIA,
    PRIORITY,
    decode_inventory,
)
from gpu_manager.domain.priority import Priority
from sandbox.api import ADMIN_TOKEN, StandInApi
from sandbox.kubelet import AdmissionResult, StandInKubelet
from tests.fakes.node import container, pod
from tests.fakes.waiting import PATIENCE, until
from vcuda.page.layout import uuid_text
from vcuda.page.limits import read_limits

NODE = "n1"


class World:
    """Everything, started; ``agent`` may be stopped and made again."""

    def __init__(
        self,
        directory: Path,
        profile: str = "a100x8",
        *,
        lending: bool = False,
        proc: Path = Path("/proc"),
        **settings: Any,
    ) -> None:
        self.directory, self.profile, self.lending, self.proc = directory, profile, lending, proc
        self.settings = settings
        self.api = StandInApi()
        self.kubelet = StandInKubelet(directory / "kubelet")

    def __enter__(self) -> Self:
        self.api.start()
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.kubelet.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.agent.stop()
        self.kubelet.stop()
        self.api.stop()

    def start(self) -> None:
        self.agent = Agent(
            Config(
                node=NODE,
                api_url=self.api.url,
                device_plugins=self.kubelet.device_plugins,
                pod_resources=self.kubelet.pod_resources,
                state=self.directory / "state",
                pages=self.directory / "pages",
                http_address="127.0.0.1",
                http_port=0,
                cards=f"simulated:{self.profile}",
                control=self.directory / "control.yaml",
                injection="simulated",
                lending=self.lending,
                proc=self.proc,
                **self.settings,
            )
        )
        self.agent.start()
        until(
            lambda: (
                self.kubelet.allocatable().get(CORE, 0) > 0 and self.kubelet.allocatable().get(MEMORY, 0) > 0
            )
        )
        self.kubelet.publish_node()

    def get(self, path: str, accept: str = "") -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.agent.http.port}{path}",
            headers={"Accept": accept, "Authorization": f"Bearer {ADMIN_TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def run(self, obj: dict[str, Any]) -> AdmissionResult:
        """Create, admit and start a pod that is bound already."""
        made = self.api.create({**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "uid"}})
        result = self.kubelet.admit(made)
        if result.admitted:
            for entry in made["spec"]["containers"]:
                self.kubelet.start_container(made["metadata"]["uid"], entry["name"])
        return result

    def limits_card(self, result: AdmissionResult) -> str:
        """The card whose limits are under the mounts of container ``c``."""
        mounts = {m.container_path: m.host_path for m in result.containers["c"].mounts}
        (card,) = read_limits(Path(mounts["/etc/vcuda/limits"]).read_bytes()).cards
        return uuid_text(card.uuid, card.instance)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="gm-") as directory, World(Path(directory)) as running:
        yield running


def series(text: str, name: str, **labels: str) -> list[float]:
    return [
        s.value
        for family in parse_prometheus(text)
        for s in family.samples
        if s.name == name and labels.items() <= s.labels.items()
    ]


def test_the_seeds_pod_is_on_the_predecessors_metrics_from_the_first_scrape_on(world: World) -> None:
    result = world.run(pod("nginx", container("nginx", 30, 20)))
    assert result.admitted, result.message
    world.agent.running.usage.sample()
    text = world.get("/metric")
    labels = {"container_name": "nginx", "namespace": "default", "node": NODE, "pod_name": "nginx"}
    assert series(text, "container_request_gpu_memory", **labels, req_of_gpu_memory="total") == [5120]
    assert series(text, "container_request_gpu_utilization", **labels, req_of_gpu="total") == [0.3]
    assert series(text, "container_gpu_memory_total", **labels, gpu_memory="total") == [0]
    assert series(text, "container_gpu_utilization", **labels, gpu="total") == [0]


def test_case_57_the_metrics_parse_in_both_formats(world: World) -> None:
    assert list(parse_prometheus(world.get("/metrics")))
    assert list(parse_openmetrics(world.get("/metrics", "application/openmetrics-text; version=1.0.0")))


def test_the_inventory_and_the_model_labels_are_published(world: World) -> None:
    def published() -> bool:
        node = world.api.get("nodes", NODE)
        return node is not None and INVENTORY in node["metadata"].get("annotations", {})

    until(published)
    node = world.api.get("nodes", NODE)
    assert node is not None
    inventory = decode_inventory(node["metadata"]["annotations"][INVENTORY])
    assert inventory is not None
    assert len(inventory.cards) == 8
    assert str(inventory.topology.link(0, 1)) == "NV12"
    assert "A100" in node["metadata"]["labels"]["tencent.com/gpu-model"]


def test_an_event_tells_the_success_in_one_sentence(world: World) -> None:
    world.run(pod("told", container("c", 10, 4)))

    def told() -> bool:
        events = world.api.list("events")
        return any(
            e["reason"] == "VcudaAllocated" and "10 cores, 1 GiB of card" in e["message"] for e in events
        )

    until(told)


def test_priorities_reach_the_pages_the_inventory_and_the_event_of_a_pod_that_nothing_protects(
    world: World,
) -> None:
    """They name one card, so that a normal and a protected pod must meet there."""
    uuid = world.agent.state.node.cards[-1].card.uuid
    wanted = {"plain": "normal", "service": "protected", "batch": "best-effort"}
    for (name, priority), cores in zip(wanted.items(), (20, 30, 10), strict=True):
        world.run(pod(name, container("c", cores, 8), annotations={PRIORITY: priority, GPU_UUID: uuid}))
    cards = json.loads(world.get("/graph", "application/json"))["cards"]
    assert {h["pod"]: h["priority"] for h in cards[-1]["holders"]} == wanted
    world.agent.running.usage.sample()
    rows = read_usage(json.loads(world.get("/usage")))
    assert {u.pod: u.priority for u in rows.values() if u.pod in wanted} == {
        name: Priority(priority) for name, priority in wanted.items()
    }

    def messages() -> list[str]:
        return [e["message"] for e in world.api.list("events") if "Priority" in e["message"]]

    until(messages)
    (text,) = messages()
    assert text.startswith('container "c": 30 cores, 2 GiB of card ')
    assert text.endswith(
        ". Priority protected, but not from 1 normal tenant beside it: best-effort tenants alone wait"
    )
    node = world.api.get("nodes", NODE)
    assert node is not None
    inventory = decode_inventory(node["metadata"]["annotations"][INVENTORY])
    assert inventory is not None
    assert inventory.gates


def test_the_pages_for_people_answer(world: World) -> None:
    world.run(pod("seen", container("c", 20, 8)))
    graph = json.loads(world.get("/graph", "application/json"))
    assert len(graph["cards"]) == 8
    assert any(h["pod"] == "seen" and h["cores"] == 20 for c in graph["cards"] for h in c["holders"])
    assert "default/seen c: 20 cores, 2 GiB" in world.get("/graph")
    world.agent.running.usage.sample()
    usage = json.loads(world.get("/usage"))["usage"]
    assert any(p["pod"] == "seen" and p["spec"]["c"] == {"gpu": 0.2, "mem": 2048} for p in usage.values())
    assert json.loads(world.get("/readyz")) == {
        "registered": True,
        "cards": True,
        "pods": True,
        "only_plugin": True,
        "injection": True,
        "front": True,
    }
    assert world.get("/healthz") == "ok\n"
    assert "version" in json.loads(world.get("/version"))


def test_the_limits_under_the_mounts_are_the_containers_own(world: World) -> None:
    result = world.run(pod("paged", container("c", 25, 12)))
    mounts = {m.container_path: m for m in result.containers["c"].mounts}
    limits = read_limits(Path(mounts["/etc/vcuda/limits"].host_path).read_bytes())
    assert mounts["/etc/vcuda/limits"].read_only
    (card,) = limits.cards
    assert card.memory_limit == 12 * 256 << 20
    assert not mounts["/etc/vcuda/usage"].read_only


def test_a_killed_agent_finds_its_books_again(tmp_path: Path) -> None:
    with World(tmp_path, "t4x4") as world:
        kept = world.run(pod("kept", container("c", 60, 20)))
        before = [(a.key, a.shares) for a in world.agent.state.view.ledger]
        world.agent.stop()
        world.start()
        assert [(a.key, a.shares) for a in world.agent.state.view.ledger] == before
        assert kept.admitted
        world.agent.stop()
        for path in (tmp_path / "state" / "ledger").iterdir():
            path.write_bytes(b"torn")
        world.start()
        after = [(a.key, a.shares) for a in world.agent.state.view.ledger]
        assert after == before, "the copy in the kubelet's checkpoint is exact"


def test_a_pod_written_for_nvidias_plugin_runs_beside_a_fraction_and_both_are_told(tmp_path: Path) -> None:
    """The whole agent with --nvidia-resource: the API, the kubelet, the metrics and a restart."""
    with World(tmp_path, lending=True) as world:
        fraction = world.run(pod("fraction", container("c", 30, 20)))
        old = pod("old", {"name": "c", "image": "x", "resources": {"limits": {NVIDIA: "2"}}})
        result = world.run(old)
        assert result.admitted, result.message
        lent = set(result.containers["c"].envs["VCUDA_CARDS"].split(","))
        assert result.ids["c"] == {NVIDIA: lent}
        assert world.limits_card(fraction) not in lent

        def told() -> bool:
            shown = decode_inventory(
                (world.api.get("nodes", NODE) or {})["metadata"]["annotations"][INVENTORY]
            )
            return shown is not None and {s.card.uuid for s in shown.cards if s.held == NVIDIA} == lent

        until(told)
        until(lambda: world.kubelet.allocatable()[NVIDIA] == 7)
        text = world.get("/metric")
        labels = {"pod_name": "old", "req_of_gpu": "total"}
        assert series(text, "container_request_gpu_utilization", **labels) == [2.0]
        stamped = world.api.get("pods", "old") or {}
        until(lambda: ALLOCATION in (world.api.get("pods", "old") or stamped)["metadata"]["annotations"])
        world.agent.stop()
        world.start()
        until(lambda: world.kubelet.allocatable()[NVIDIA] == 7)
        assert world.kubelet.allocatable()[CORE] == 600


@pytest.mark.skipif(os.geteuid() != 0, reason="security attributes can be set by root alone")
def test_on_a_node_with_selinux_the_agent_labels_what_it_mounts(tmp_path: Path) -> None:
    try:
        os.setxattr(tmp_path, "security.selinux", LABEL)
    except OSError as error:
        pytest.skip(f"this file system or kernel takes no security attributes: {error}")
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "filesystems").write_text("nodev\tselinuxfs\n")
    with World(tmp_path, proc=proc) as world:
        result = world.run(pod("p", container("c", 30, 20)))
        assert result.admitted, result.message
        for mount in result.containers["c"].mounts:
            assert os.getxattr(mount.host_path, "security.selinux") == LABEL, mount

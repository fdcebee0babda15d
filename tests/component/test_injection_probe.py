"""Whether a container can be injected now, on nodes whose driver comes, goes, or is half there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpu_manager.adapters.driver_files.device_nodes import DeviceNodes
from gpu_manager.adapters.driver_files.driver import multiarch
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.injector import DriverFiles
from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.adapters.http import HttpClient
from gpu_manager.agent.composition import Agent
from gpu_manager.agent.config import Config
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import CORE, INVENTORY, Inventory, decode_inventory
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.containers import Injectable
from sandbox.api import StandInApi
from sandbox.kubelet import StandInKubelet
from tests.component.driver_roots import CONTROL, DriverRoot, Objects, machine_is_supported
from tests.fakes.node import container, pod
from tests.fakes.waiting import until

pytestmark = pytest.mark.skipif(
    not machine_is_supported(), reason="the driver exists for x86-64 and aarch64 only"
)

CARDS = tuple(
    CardState(Card(i, CardUuid(f"GPU-{i:08x}-0000-4000-8000-000000000000"), "A100", 80 * GIB, minor=i))
    for i in range(2)
)
DEVICES = """Character devices:
  1 mem
195 nvidia-frontend
236 nvidia-uvm

Block devices:
  7 loop
236 nvidia-none
"""


class Node:
    """A node in a directory; ``made`` are the device nodes that were made on it."""

    def __init__(self, base: Path, objects: Objects) -> None:
        self.root = DriverRoot(base / "node", objects)
        self.root.install()
        self.root.nodes(range(2))
        self.base = base
        self.made: list[tuple[str, int, int]] = []
        self.refuses = ""

    def mknod(self, path: Path, major: int, minor: int) -> None:
        if self.refuses:
            raise PermissionError(1, self.refuses)
        self.made.append((str(path.relative_to(self.root.root)), major, minor))
        path.write_text("")

    def lose(self, *names: str) -> None:
        for name in names:
            (self.root.root / name).unlink()

    def devices(self, text: str = DEVICES) -> None:
        (self.base / "proc").mkdir(exist_ok=True)
        (self.base / "proc" / "devices").write_text(text)

    def injector(self, strategy: Strategy = Strategy.DIRECT, driver_root: str = "/") -> DriverFiles:
        host = HostFiles(self.root.root)
        return DriverFiles(
            strategy,
            cards=lambda: CARDS,
            state=self.base / "state",
            pages=self.base / "pages",
            libraries=None,
            host=host,
            driver_root=driver_root,
            cdi_dir=self.base / "cdi",
            nodes=DeviceNodes(host, driver_root, proc=self.base / "proc", mknod=self.mknod),
        )


@pytest.fixture
def node(tmp_path: Path, objects: Objects) -> Node:
    return Node(tmp_path, objects)


@pytest.mark.parametrize("strategy", [Strategy.DIRECT, Strategy.CDI, Strategy.NVIDIA])
def test_a_node_with_driver_and_nodes_can_inject(node: Node, strategy: Strategy) -> None:
    assert node.injector(strategy).probe(CARDS) == Injectable()
    assert node.made == []


def test_a_stand_in_driver_that_is_gone_is_missed(tmp_path: Path, objects: Objects) -> None:
    """Simulated cards have no device nodes; a container gets nothing where their driver's files are gone."""
    stand_in = DriverRoot(tmp_path / "stand-in", objects)
    stand_in.place("/libcuda.so.1", "libcuda.so.1")
    stand_in.place("/libnvidia-ml.so.1", "libnvidia-ml.so.1")
    injector = DriverFiles(
        Strategy.SIMULATED,
        cards=lambda: CARDS,
        state=tmp_path / "state",
        pages=tmp_path / "pages",
        libraries=None,
        stand_in=stand_in.root,
    )
    assert injector.probe(CARDS) == Injectable()
    stand_in.root.rename(tmp_path / "away")
    assert str(stand_in.root) in injector.probe(CARDS).why
    (tmp_path / "away").rename(stand_in.root)
    assert injector.probe(CARDS) == Injectable()


def test_a_driver_that_lies_elsewhere_is_none_and_the_cure_is_said(tmp_path: Path, objects: Objects) -> None:
    """As on GKE, whose driver lies below /home/kubernetes/bin/nvidia."""
    node = Node(tmp_path, objects)
    made_up = node.root.root / f"usr/lib/{multiarch()}"
    made_up.rename(made_up.with_name("elsewhere"))
    assert "--driver-root" in node.injector().probe(CARDS).why


def test_a_driver_that_is_replaced_is_missed_and_found_again(node: Node) -> None:
    """As by the operator's driver container: its root is empty for a while."""
    injector, place = node.injector(), node.root.root / f"usr/lib/{multiarch()}"
    assert injector.probe(CARDS).why == ""
    place.rename(place.with_name("away"))
    assert "install the NVIDIA driver" in injector.probe(CARDS).why
    place.with_name("away").rename(place)
    assert injector.probe(CARDS).why == ""


@pytest.mark.parametrize("lost", ["nvidia-uvm", "nvidiactl"])
def test_a_control_node_that_is_missing_is_made_where_the_driver_has_a_number_for_it(
    node: Node, lost: str
) -> None:
    """After each boot, until a program of CUDA has run, /dev/nvidia-uvm is."""
    node.lose(f"dev/{lost}")
    injector = node.injector()
    assert f"no /dev/{lost}" in injector.probe(CARDS).why, "nothing lists the driver's numbers"
    node.devices()
    assert injector.probe(CARDS) == Injectable()
    assert node.made == [(f"dev/{lost}", *{"nvidia-uvm": (236, 0), "nvidiactl": (195, 255)}[lost])]


def test_where_it_may_not_be_made_the_cure_is_said_until_somebody_makes_it(node: Node) -> None:
    node.devices()
    node.lose("dev/nvidia-uvm")
    node.refuses = "not permitted"
    injector = node.injector()
    assert "nvidia-modprobe -u -c=0" in injector.probe(CARDS).why
    node.root.file("/dev/nvidia-uvm")
    assert injector.probe(CARDS) == Injectable()


def test_a_module_that_is_not_loaded_has_no_number(node: Node) -> None:
    node.devices(DEVICES.replace("236 nvidia-uvm\n", "", 1))
    node.lose("dev/nvidia-uvm")
    assert "no /dev/nvidia-uvm" in node.injector().probe(CARDS).why
    assert node.made == []


def test_a_card_without_its_node_is_closed_alone_or_its_node_made(node: Node) -> None:
    node.lose("dev/nvidia1")
    injector = node.injector()
    found = injector.probe(CARDS)
    assert (found.why, list(found.cards)) == ("", [CARDS[1].card.uuid])
    node.devices()
    assert injector.probe(CARDS) == Injectable()
    assert node.made == [("dev/nvidia1", 195, 1)]


@pytest.mark.parametrize("dxg", [True, False])
def test_cards_without_a_number_are_offered_to_nobody_and_wsl_is_named(node: Node, dxg: bool) -> None:
    if dxg:
        node.root.file("/dev/dxg")
    card = CardState(Card(0, CARDS[0].card.uuid, "RTX 4090", 24 * GIB))
    (why,) = node.injector().probe((card,)).cards.values()
    assert "no device node of its own" in why
    assert ("Windows Subsystem for Linux" in why) is dxg


def test_a_card_in_mig_mode_has_other_nodes(node: Node) -> None:
    card = CardState(Card(5, CARDS[0].card.uuid, "A100", 80 * GIB, mig=True, minor=5))
    assert node.injector().probe((card,)) == Injectable()


def test_a_driver_container_has_nodes_of_its_own_and_they_are_made_there(
    tmp_path: Path, objects: Objects
) -> None:
    node = Node(tmp_path, objects)
    node.root.install("/run/nvidia/driver/usr/lib64")
    node.root.nodes(range(2), "/run/nvidia/driver/dev")
    node.lose(*(f"dev/{name}" for name in (*CONTROL, "nvidia0", "nvidia1")))
    node.lose("run/nvidia/driver/dev/nvidia-uvm")
    node.devices()
    assert node.injector(driver_root="/run/nvidia/driver").probe(CARDS) == Injectable()
    assert node.made == [("run/nvidia/driver/dev/nvidia-uvm", 236, 0)]


def test_a_pod_that_comes_before_the_probe_gets_the_node_too(node: Node) -> None:
    node.devices()
    node.lose("dev/nvidia-uvm")
    whole = (Share(CARDS[0].card.uuid, Amount(100, 80 * GIB)),)
    paths = [device.path for device in node.injector().inject("a" * 32, whole, None, "{}").devices]
    assert "/dev/nvidia-uvm" in paths


def test_without_a_driver_a_pod_is_refused_with_the_same_words(node: Node) -> None:
    node.lose("dev/nvidia-uvm")
    injector = node.injector()
    whole = (Share(CARDS[0].card.uuid, Amount(100, 80 * GIB)),)
    with pytest.raises(NodeUnready) as refusal:
        injector.inject("a" * 32, whole, None, "{}")
    assert str(refusal.value) == injector.probe(CARDS).why


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_node_that_is_made_is_everybodys_to_open(node: Node) -> None:
    node.devices()
    node.lose("dev/nvidia-uvm")
    nodes = DeviceNodes(HostFiles(node.root.root), "/", proc=node.base / "proc")
    try:
        nodes.require("nvidia-uvm")
    except NodeUnready:
        pytest.skip("this machine lets nobody make device nodes")
    made = (node.root.root / "dev/nvidia-uvm").stat()
    assert (made.st_mode & 0o777, os.major(made.st_rdev), os.minor(made.st_rdev)) == (0o666, 236, 0)


def test_a_pod_waits_for_the_driver_instead_of_failing_and_starts_once_it_is_there(
    tmp_path: Path, objects: Objects
) -> None:
    """The whole agent, on a node whose driver comes late."""
    node = Node(tmp_path, objects)
    node.devices()
    place = node.root.root / f"usr/lib/{multiarch()}"
    place.rename(place.with_name("away"))
    with StandInApi() as api:
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        kubelet = StandInKubelet(tmp_path / "kubelet")
        kubelet.start()
        agent = Agent(
            Config(
                node="n1",
                api_url=api.url,
                device_plugins=kubelet.device_plugins,
                pod_resources=kubelet.pod_resources,
                state=tmp_path / "state",
                pages=tmp_path / "pages",
                http_address="127.0.0.1",
                http_port=0,
                cards="simulated:t4x4",
                injection="direct",
                host_root=node.root.root,
            )
        )
        agent.start()
        try:
            until(lambda: kubelet.capacity().get(CORE) == 400)
            until(lambda: agent.ready()["registered"])
            assert kubelet.allocatable()[CORE] == 0, "not even for a moment"
            ready = HttpClient(f"http://127.0.0.1:{agent.http.port}")
            answer = ready.ask("GET", "/readyz")
            told = json.loads(answer.body)
            assert (answer.status, told["injection"]) == (200, False)
            assert "--driver-root" in told["why"]
            ready.close()

            def inventory() -> Inventory | None:
                shown = (api.get("nodes", "n1") or {})["metadata"].get("annotations") or {}
                return decode_inventory(shown.get(INVENTORY))

            until(lambda: (found := inventory()) is not None and "--driver-root" in found.no_injection)
            node.root.nodes(range(4))
            place.with_name("away").rename(place)
            until(lambda: kubelet.allocatable()[CORE] == 400)
            until(lambda: (found := inventory()) is not None and found.no_injection == "")
            kubelet.publish_node()
            assert kubelet.admit(api.create(pod("late", container("c", 100, 0)))).admitted
        finally:
            agent.stop()
            kubelet.stop()


def test_a_container_is_admitted_while_the_driver_is_away_for_a_moment(node: Node) -> None:
    """Its start waits; its pod, which the kubelet would fail for good, does not fail."""
    whole = (Share(CARDS[0].card.uuid, Amount(100, 80 * GIB)),)
    injector = node.injector()
    theirs = node.root.root / "run/nvidia/driver/dev"
    theirs.parent.mkdir(parents=True)
    (node.root.root / "dev").rename(theirs)  # as with the operator's driver container
    assert injector.probe(CARDS) == Injectable()
    before = injector.inject("a" * 32, whole, None, "{}")
    place = node.root.root / f"usr/lib/{multiarch()}"
    place.rename(place.with_name("away"))
    theirs.rename(theirs.with_name("gone"))
    assert injector.probe(CARDS).why
    again = injector.inject("a" * 32, whole, None, "{}")
    assert (again.mounts, again.env) == (before.mounts, before.env)
    assert again.devices == before.devices[: len(again.devices)]
    assert len(again.devices) == 3  # the card's and both control nodes; what is optional may be left out
    with pytest.raises(NodeUnready, match="no libcuda"):
        node.injector().inject("a" * 32, whole, None, "{}")  # of an agent that has never seen a driver

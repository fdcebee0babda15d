"""Device nodes of a MIG instance, by the kubelet and by CDI: those that NVIDIA's toolkit gives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.mig import capabilities
from gpu_manager.adapters.driver_files.device_nodes import DeviceNodes
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.injector import DriverFiles
from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.domain.card import CardState
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.containers import Injectable
from tests.component.driver_roots import DriverRoot, Objects, machine_is_supported
from tests.unit.test_mig import DIVIDED, NODE, SLICE

pytestmark = pytest.mark.skipif(
    not machine_is_supported(), reason="the driver exists for x86-64 and aarch64 only"
)

STATES = tuple(map(CardState, NODE))
NAME = "0123456789abcdef0123456789abcdef"
EXPECTED = ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"]
CONTROL = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
DEVICES = "Character devices:\n195 nvidia-frontend\n236 nvidia-uvm\n{caps}\nBlock devices:\n"


class Node:
    """A node in a directory with the driver's list of capabilities; ``made`` are nodes that were made."""

    def __init__(self, base: Path, objects: Objects, *, caps: str = "238 nvidia-caps") -> None:
        self.base = base
        self.root = DriverRoot(base / "node", objects)
        self.root.install()
        self.root.nodes(range(2))
        self.made: list[tuple[str, int, int]] = []
        (base / "proc/driver/nvidia-caps").mkdir(parents=True)
        (base / "proc/driver/nvidia-caps/mig-minors").write_text(capabilities(2))
        (base / "proc/devices").write_text(DEVICES.format(caps=caps))

    def mknod(self, path: Path, major: int, minor: int) -> None:
        self.made.append((str(path.relative_to(self.root.root)), major, minor))
        path.write_text("")

    def injector(self, strategy: Strategy, states: tuple[CardState, ...] = STATES) -> DriverFiles:
        host = HostFiles(self.root.root)
        sysfs = self.base / "sys"
        return DriverFiles(
            strategy,
            cards=lambda: states,
            state=self.base / "state",
            pages=self.base / "pages",
            libraries=None,
            host=host,
            cdi_dir=self.base / "cdi",
            nodes=DeviceNodes(host, "/", proc=self.base / "proc", sysfs=sysfs, mknod=self.mknod),
        )


@pytest.fixture
def node(tmp_path: Path, objects: Objects) -> Node:
    return Node(tmp_path, objects)


WHOLE = (Share(NODE[2].uuid, Amount(100, 18 * GIB)),)


def test_a_container_gets_the_parent_and_both_capabilities(node: Node) -> None:
    injector = node.injector(Strategy.DIRECT)
    assert injector.probe(STATES) == Injectable()
    given = injector.inject(NAME, WHOLE, None, "")
    assert [device.path for device in given.devices][:5] == [*EXPECTED, *CONTROL]
    assert given.env["VCUDA_CARDS"] == SLICE
    assert node.made[:2] == [
        ("dev/nvidia-caps/nvidia-cap66", 238, 66),
        ("dev/nvidia-caps/nvidia-cap67", 238, 67),
    ], "made where the driver has only said their numbers"


def test_cdi_has_them_too(node: Node) -> None:
    injector = node.injector(Strategy.CDI)
    injector.probe(STATES)
    injector.inject(NAME, WHOLE, None, "")
    (spec,) = (json.loads(path.read_text()) for path in (node.base / "cdi").glob("*.json"))
    edits = spec["devices"][0]["containerEdits"]["deviceNodes"]
    assert [one["path"] for one in edits][:5] == [*EXPECTED, *CONTROL]


@pytest.mark.parametrize("strategy", [Strategy.DIRECT, Strategy.CDI])
@pytest.mark.parametrize(
    ("model", "asked", "given"),
    [
        (
            "NVIDIA-RTX-PRO-6000-MIG-1g.24gb+gfx",
            "compute,graphics",
            ["/dev/dri/card1", "/dev/dri/renderD129"],
        ),
        ("NVIDIA-RTX-PRO-6000-MIG-1g.24gb+me.gfx", "all", ["/dev/dri/card1", "/dev/dri/renderD129"]),
        ("NVIDIA-RTX-PRO-6000-MIG-1g.24gb+gfx", "compute,utility", []),
        ("NVIDIA-RTX-PRO-6000-MIG-1g.24gb", "graphics", []),
    ],
)
def test_an_instance_with_graphics_has_its_cards_drm_nodes_for_who_draws(
    node: Node, strategy: Strategy, model: str, asked: str, given: list[str]
) -> None:
    """What is no node of the kernel's (``card1-DP-1``: a connector) or is not in /dev is left out."""
    place = node.base / "sys/bus/pci/devices/0000:3b:00.0/drm"
    for name in ("card1", "card1-DP-1", "renderD129", "renderD130"):
        (place / name).mkdir(parents=True)
    (node.root.root / "dev/dri").mkdir()
    for name in ("card0", "card1", "renderD129"):
        (node.root.root / "dev/dri" / name).touch()
    card = replace(NODE[2], model=model, pci_bus_id="0000:3b:00.0")
    injector = node.injector(strategy, (CardState(card),))
    injector.probe([CardState(card)])
    entry = {"name": "c", "env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": asked}]}
    pod = parse_pod({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [entry]}})
    devices = [one.path for one in injector.inject(NAME, WHOLE, pod, "").devices]
    if strategy is Strategy.CDI:
        (spec,) = (json.loads(path.read_text()) for path in (node.base / "cdi").glob("*.json"))
        devices = [one["path"] for one in spec["devices"][0]["containerEdits"]["deviceNodes"]]
    assert [path for path in devices if path.startswith("/dev/dri")] == given


def test_nvidias_runtime_is_told_the_uuid(node: Node) -> None:
    given = node.injector(Strategy.NVIDIA).inject(NAME, WHOLE, None, "")
    assert given.env["NVIDIA_VISIBLE_DEVICES"] == SLICE


def test_an_instance_without_nodes_is_closed_with_the_cure(tmp_path: Path, objects: Objects) -> None:
    node = Node(tmp_path, objects, caps="")
    closed = node.injector(Strategy.DIRECT).probe(STATES).cards
    assert closed.keys() == {card.uuid for card in NODE[2:]}
    assert (
        "the node has no /dev/nvidia-caps/nvidia-cap66: load the driver with nvidia-modprobe -f"
        in (closed[NODE[2].uuid])
    )
    (tmp_path / "proc/driver/nvidia-caps/mig-minors").unlink()
    closed = node.injector(Strategy.DIRECT).probe(STATES).cards
    assert "the driver lists no capability gpu0/gi7/access" in closed[NODE[2].uuid]


def test_a_parent_without_a_number_closes_its_instances(node: Node) -> None:
    lost = replace(NODE[2], minor=None)
    (why,) = node.injector(Strategy.DIRECT).probe([CardState(DIVIDED), CardState(lost)]).cards.values()
    assert "no device node of its own" in why

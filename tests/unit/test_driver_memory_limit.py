"""The last limit on memory: found cgroups, the driver's call, the kernel's file, and when each is used."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpu_manager.adapters.driver_memory_limit import CgroupMemoryLimit
from gpu_manager.adapters.nvml.usage import NvmlMemoryLimits
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.enforcement.evasion import CONTEXT_BYTES
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.services.allocation.books import Books, Grant
from gpu_manager.services.enforcement.container_starts import RETRY_SECONDS, DriverMemoryLimits
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeClock, FakePods, cards
from tests.fakes.state import put, state_of

CARD = CardUuid("GPU-00000000-0000-4000-8000-000000000000")
BUS = "0000:3b:00.0"
ID = "3f2a9c4be1d07f6589ab4c3d2e1f00112233445566778899aabbccddeeff0011"
OTHER = "a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90"
NODE = "d" * 64  # the container that is the node
POD = "5fd4f087_86c1_4a7b_9d1e_3c2b1a0f9e8d"
PLACES = {
    "systemd": f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD}.slice/cri-containerd-{ID}.scope",
    "cgroupfs": f"kubepods/besteffort/pod{POD.replace('_', '-')}/{ID}",
    "cri-o": f"kubepods.slice/kubepods-pod{POD}.slice/crio-{ID}.scope",
    "mismatched drivers": f"kubepods-pod{POD}.slice:cri-containerd:{ID}",
    "kind": (
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{POD}.slice/cri-containerd-{ID}.scope"
    ),
    "the kubelet's root below another": f"machine.slice/site/tenants/kubepods/pod{POD.replace('_', '-')}/{ID}",
    "a root without Kubernetes in any name": f"a.slice/a-b.slice/a-b-pod{POD}.slice/cri-containerd-{ID}.scope",
    "k3d with cgroupfs": f"docker/{NODE}/kubepods/burstable/pod{POD.replace('_', '-')}/{ID}",
    "k3d with systemd": f"system.slice/docker-{NODE}.scope/kubepods/pod{POD.replace('_', '-')}/{ID}",
    "k3d in podman": f"machine.slice/libpod-{NODE}.scope/container/kubepods/pod{POD.replace('_', '-')}/{ID}",
    "a static pod": f"kubepods.slice/kubepods-pod{POD.replace('_', '')}.slice/cri-containerd-{ID}.scope",
}


class Driver:
    def __init__(self, *, able: bool = True) -> None:
        self.able = able
        self.limits: dict[Path, int | None] = {}

    def hold(self, cgroup: Path, card: CardUuid, limit: int | None) -> bool:
        if self.able:
            self.limits[cgroup] = limit
        return self.able


def tree(root: Path, place: str = PLACES["systemd"], *, dmem: bool = False, regions: str = "") -> Path:
    """A cgroup v2 tree with one container's cgroup in it."""
    cgroup = root / place
    cgroup.mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu memory dmem\n")
    (root / "system.slice/a-service.service").mkdir(parents=True)
    if dmem:
        (root / "dmem.capacity").write_text(regions or f"drm/{BUS}/vram0 16106127360\n")
        (cgroup / "dmem.max").write_text("")
    return cgroup


def driver_limit(root: Path, driver: Driver | None = None, *, bus: str = BUS) -> CgroupMemoryLimit:
    states = (CardState(Card(0, CARD, "Tesla-T4", 16 * GIB, pci_bus_id=bus)),)
    return CgroupMemoryLimit(root, lambda: states, driver)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_container_s_own_cgroup_is_found_under_every_runtime(tmp_path: Path, place: str) -> None:
    cgroup, driver = tree(tmp_path, place), Driver()
    assert driver_limit(tmp_path, driver).hold(ID, CARD, 5 * GIB) == "nvml"
    assert driver.limits == {cgroup: 5 * GIB}


def test_a_cgroup_that_a_tenant_named_like_another_container_is_not_believed(tmp_path: Path) -> None:
    outer = tree(tmp_path, PLACES["systemd"].replace(ID, OTHER))
    (outer / "kubepods" / ID).mkdir(parents=True)
    with pytest.raises(NodeUnready, match="3f2a9c4be1d07f65"):
        driver_limit(tmp_path, Driver()).hold(ID, CARD, GIB)


def test_in_a_hybrid_hierarchy_the_v2_tree_is_beside_the_v1_controllers(tmp_path: Path) -> None:
    cgroup, driver = tree(tmp_path / "unified"), Driver()
    (tmp_path / "memory/kubepods").mkdir(parents=True)
    assert driver_limit(tmp_path, driver).hold(ID, CARD, 5 * GIB) == "nvml"
    assert driver.limits == {cgroup: 5 * GIB}


def test_a_container_beside_the_pods_is_not_taken_for_one_of_theirs(tmp_path: Path) -> None:
    tree(tmp_path, f"docker/{ID}")
    with pytest.raises(NodeUnready):
        driver_limit(tmp_path, Driver()).hold(ID, CARD, GIB)


def test_a_pod_is_found_on_a_node_with_thousands_of_other_cgroups(tmp_path: Path) -> None:
    cgroup, driver = tree(tmp_path), Driver()
    for n in range(2000):
        (tmp_path / f"user.slice/user-{n % 50}.slice/session-{n}.scope").mkdir(parents=True)
    assert driver_limit(tmp_path, driver).hold(ID, CARD, GIB) == "nvml"
    assert set(driver.limits) == {cgroup}


def test_the_monitor_beside_a_container_is_not_taken_for_it(tmp_path: Path) -> None:
    tree(tmp_path, PLACES["cri-o"].replace(f"crio-{ID}", f"crio-conmon-{ID}"))
    with pytest.raises(NodeUnready):
        driver_limit(tmp_path, Driver()).hold(ID, CARD, GIB)


@pytest.mark.parametrize("name", ["", "../../etc", ID[:-1], ID.upper(), ID + "\n"])
def test_what_is_no_container_id_is_looked_for_nowhere(tmp_path: Path, name: str) -> None:
    tree(tmp_path)
    with pytest.raises(NodeUnready, match="64 hex digits"):
        driver_limit(tmp_path, Driver()).hold(name, CARD, GIB)


def test_the_kernel_holds_it_where_the_driver_cannot(tmp_path: Path) -> None:
    cgroup = tree(tmp_path, dmem=True)
    held = driver_limit(tmp_path, Driver(able=False))
    assert held.hold(ID, CARD, 5 * GIB) == "dmem"
    assert (cgroup / "dmem.max").read_text() == f"drm/{BUS}/vram0 {5 * GIB}\n"
    held.let_go(ID, CARD)
    assert (cgroup / "dmem.max").read_text() == f"drm/{BUS}/vram0 max\n"


@pytest.mark.parametrize(
    "regions",
    ["drm/0000:13b:00.0/vram0 1\n", "drm/0000:af:00.0/vram0 1\n", "\n", "drm/vram0 1\n"],
    ids=["longer address", "other card", "empty", "no address"],
)
def test_the_region_of_another_card_is_never_limited(tmp_path: Path, regions: str) -> None:
    cgroup = tree(tmp_path, dmem=True, regions=regions)
    assert driver_limit(tmp_path).hold(ID, CARD, GIB) is None
    assert (cgroup / "dmem.max").read_text() == ""


def test_nobody_holds_it_where_neither_can(tmp_path: Path) -> None:
    tree(tmp_path)
    assert driver_limit(tmp_path, Driver(able=False)).hold(ID, CARD, GIB) is None
    assert driver_limit(tmp_path).hold(ID, CARD, GIB) is None
    assert driver_limit(tmp_path / "absent", Driver()).hold(ID, CARD, GIB) is None, (
        "cgroup v1 or not ours to see"
    )


def test_a_kernel_that_refuses_is_told_with_what_it_refused(tmp_path: Path) -> None:
    cgroup = tree(tmp_path, dmem=True)
    (cgroup / "dmem.max").unlink()
    (cgroup / "dmem.max").mkdir()
    with pytest.raises(NodeUnready, match=f"did not take {GIB} for drm/{BUS}/vram0"):
        driver_limit(tmp_path).hold(ID, CARD, GIB)


def test_a_container_that_is_gone_needs_no_lifting(tmp_path: Path) -> None:
    cgroup, driver = tree(tmp_path), Driver()
    held = driver_limit(tmp_path, driver)
    held.let_go(ID, CARD)
    held.hold(ID, CARD, GIB)
    cgroup.rmdir()
    held.let_go(ID, CARD)
    assert driver.limits == {cgroup: GIB}


# --- the driver's call -----------------------------------------------------------------------------


class Nvml:
    """The binding with the real constants, structs and errors; one card."""

    def __init__(self, total: int = 16 * GIB, code: int = 0) -> None:
        self.total, self.code = total, code
        self.calls: list[tuple[str, int, int]] = []
        self.open = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:  # noqa: N802 - the binding's name
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != CARD:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(total=self.total)

    def nvmlDeviceSetMemoryLimits_v1(self, handle: str, limits: Any) -> None:  # noqa: N802
        if self.code:
            raise pynvml.NVMLError(self.code)
        self.calls.append((limits.nameSpace, limits.softLimit, limits.hardLimit))


def test_the_driver_is_given_the_cgroup_no_soft_limit_and_the_hard_one() -> None:
    nvml = Nvml()
    assert NvmlMemoryLimits(nvml).hold(Path("/sys/fs/cgroup/x"), CARD, 5 * GIB)
    assert NvmlMemoryLimits(nvml).hold(Path("/sys/fs/cgroup/x"), CARD, None)
    assert nvml.calls == [("/sys/fs/cgroup/x", 0, 5 * GIB), ("/sys/fs/cgroup/x", 0, (1 << 64) - 1)]
    assert nvml.open == 0


def test_a_limit_above_the_card_is_cut_to_it() -> None:
    nvml = Nvml(total=16 * GIB)
    assert NvmlMemoryLimits(nvml).hold(Path("/c"), CARD, 17 * GIB)
    assert nvml.calls == [("/c", 0, 16 * GIB)]


@pytest.mark.parametrize(
    "code",
    [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION],
)
def test_a_driver_or_card_without_the_limit_says_so_without_an_error(code: int) -> None:
    nvml = Nvml(code=code)
    assert not NvmlMemoryLimits(nvml).hold(Path("/c"), CARD, GIB)
    assert nvml.open == 0


def test_a_binding_older_than_the_function_says_so_too() -> None:
    assert not NvmlMemoryLimits(SimpleNamespace()).hold(Path("/c"), CARD, GIB)


def test_a_card_that_failed_is_the_operator_s_and_names_card_and_cgroup() -> None:
    nvml = Nvml(code=pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(NodeUnready, match=f"limit the memory of card {CARD} for /c"):
        NvmlMemoryLimits(nvml).hold(Path("/c"), CARD, GIB)
    assert nvml.open == 0


# --- when ------------------------------------------------------------------------------------------


class Held:
    """A backstop that remembers; ``kind`` is who holds, ``absent`` the containers without a cgroup yet."""

    def __init__(self) -> None:
        self.kind: str | None = "nvml"
        self.absent: set[str] = set()
        self.asked = 0
        self.limits: dict[tuple[str, CardUuid], int] = {}

    def hold(self, container_id: str, card: CardUuid, limit: int) -> str | None:
        self.asked += 1
        if container_id in self.absent:
            raise NodeUnready("not there yet")
        if self.kind is not None:
            self.limits[container_id, card] = limit
        return self.kind

    def let_go(self, container_id: str, card: CardUuid) -> None:
        del self.limits[container_id, card]


class Rig:
    def __init__(self) -> None:
        self.held, self.pods, self.clock = Held(), FakePods(), FakeClock()
        self.state = state_of(cards(1))
        self.backstops = DriverMemoryLimits(self.state, self.pods, self.held, self.clock, service_metrics())

    def run(self, name: str, runtime_id: str, *, cores: int = 30, proven: bool = True) -> None:
        container = Container("c", ContainerKind.APP, runtime_id=runtime_id)
        self.pods.bind(Pod(PodUid(name), "team", name, (container,)))
        share = Share(CARD, Amount(cores, 5 * GIB))
        allocation = Allocation(PodUid(name), "c", ContainerKind.APP, 0, (share,), "team", name)
        ids = {CORE: frozenset[str](), MEMORY: frozenset[str]()}
        put(self.state, Grant(allocation, f"dir-{name}", 0, ids, proven))


def test_a_fraction_is_held_with_room_for_a_context_from_the_moment_its_container_is_known() -> None:
    rig = Rig()
    rig.run("a", "")
    rig.backstops.look()
    assert not rig.held.limits, "no container yet"
    rig.run("a", ID)
    rig.held.absent = {ID}
    rig.backstops.look()
    assert rig.backstops.kinds == {"none": 1}, "its cgroup is not there yet"
    rig.held.absent = set()
    for _ in range(3):
        rig.backstops.look()
    assert rig.held.limits == {(ID, CARD): 5 * GIB + CONTEXT_BYTES}
    assert rig.held.asked == 2, "once it holds, nobody is asked again"
    assert rig.backstops.kinds == {"nvml": 1}


def test_whole_cards_and_unproven_grants_are_not_limited() -> None:
    rig = Rig()
    rig.run("whole", ID, cores=100)
    rig.run("early", OTHER, proven=False)
    rig.backstops.look()
    assert not rig.held.limits
    assert not rig.backstops.kinds


def test_a_container_that_starts_again_is_held_anew_and_the_old_one_let_go() -> None:
    rig = Rig()
    rig.run("a", ID)
    rig.backstops.look()
    rig.run("a", OTHER)
    rig.backstops.look()
    assert set(rig.held.limits) == {(OTHER, CARD)}
    rig.state.open(Books(rig.state.node))
    rig.backstops.look()
    assert not rig.held.limits
    assert not rig.backstops.kinds


def test_where_nobody_can_it_is_said_and_tried_again_now_and_then() -> None:
    rig = Rig()
    rig.held.kind = None
    rig.run("a", ID)
    for _ in range(5):
        rig.backstops.look()
        rig.clock.pass_(1)
    assert rig.held.asked == 1
    assert rig.backstops.kinds == {"none": 1}
    rig.held.kind = "dmem"
    rig.clock.pass_(RETRY_SECONDS)
    rig.backstops.look()
    assert rig.backstops.kinds == {"dmem": 1}

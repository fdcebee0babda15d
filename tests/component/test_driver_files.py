"""What a container receives: golden values for each strategy, and what holds whatever the node looks like."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_manager.adapters.driver_files.device_nodes import DeviceNodes, extra_devices
from gpu_manager.adapters.driver_files.driver import multiarch
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.injector import DriverFiles
from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.errors import Bug, NodeUnready, RequestInvalid
from gpu_manager.domain.injection import DeviceNode, Injection, Mount
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import Amount
from tests.component.driver_roots import SONAMES, VERSION, DriverRoot, Objects, machine_is_supported

pytestmark = pytest.mark.skipif(
    not machine_is_supported(), reason="the driver exists for x86-64 and aarch64 only"
)

GIB = 1 << 30
NAME = "0123456789abcdef" * 2
OTHER = "f" * 32
COMPUTE = SONAMES - {"libGLX_nvidia.so.0"}
UUIDS = tuple(CardUuid(f"GPU-{i:08x}-0000-4000-8000-000000000000") for i in range(8))
CARDS = tuple(
    CardState(Card(index=i, uuid=uuid, model="A100", memory=80 * GIB, minor=7 - i))
    for i, uuid in enumerate(UUIDS)
)
FRACTION = (Share(UUIDS[3], Amount(30, 5 * GIB)),)
WHOLE = (Share(UUIDS[0], Amount(100, 80 * GIB)), Share(UUIDS[1], Amount(100, 80 * GIB)))
REAL = STRATEGIES = (Strategy.DIRECT, Strategy.CDI, Strategy.NVIDIA)
ARCH = f"/usr/lib/{multiarch()}"
OPTED_OUT = Pod(PodUid("u"), "default", "train", (), annotations={"tencent.com/vcuda-preload": "false"})


@dataclass
class World:
    """A node in a directory, and an agent's own places beside it."""

    base: Path
    node: DriverRoot

    @property
    def pages(self) -> Path:
        return self.base / "pages"

    @property
    def state(self) -> Path:
        return self.base / "state"

    @property
    def cdi(self) -> Path:
        return self.base / "cdi"

    @property
    def package(self) -> Path:
        return self.base / "package"

    def paged(self, *names: str) -> None:
        for name in names:
            for page in ("limits", "usage"):
                (self.pages / name).mkdir(parents=True, exist_ok=True)
                (self.pages / name / page).write_bytes(b"")

    def ship(self, content: bytes = b"one") -> None:
        self.package.mkdir(exist_ok=True)
        (self.package / "libvcuda.so").write_bytes(content)
        (self.package / "libvcuda-ml.so").write_bytes(b"ml " + content)
        (self.package / "vcuda-ldcache").write_bytes(b"hook")

    def injector(self, strategy: Strategy, **options) -> DriverFiles:
        settled = {
            "cards": lambda: CARDS,
            "state": self.state,
            "pages": self.pages,
            "libraries": self.package,
            "host": HostFiles(self.node.root),
            "cdi_dir": self.cdi,
        }
        return DriverFiles(strategy, **{**settled, **options})

    def sees(self, path: str) -> bool:
        """True if a runtime on this made-up node finds the path."""
        own = Path(path)
        return (
            own.exists() or own.is_symlink()
            if own.is_relative_to(self.base)
            else HostFiles(self.node.root).exists(path)
        )


@pytest.fixture(scope="session")
def objects(tmp_path_factory):
    return Objects(tmp_path_factory.mktemp("objects"))


@pytest.fixture
def world(tmp_path, objects):
    made = World(tmp_path, DriverRoot(tmp_path / "node", objects))
    made.node.install()
    made.node.nodes()
    made.paged(NAME)
    made.ship()
    return made


def targets(mounts: tuple[Mount, ...]) -> dict[str, Mount]:
    return {mount.container_path: mount for mount in mounts}


def edits(world: World, name: str = NAME) -> dict:
    spec = json.loads((world.cdi / f"tencent.com-vcuda_{name}.json").read_text())
    (device,) = spec["devices"]
    return {**device["containerEdits"], "spec": spec, "name": device["name"]}


# --- golden values ---------------------------------------------------------------------------------


def test_direct_gives_a_fraction_its_card_the_driver_and_our_fronts(world):
    given_ = world.injector(Strategy.DIRECT).inject(NAME, FRACTION, None, '{"v":1}')
    (installed,) = (world.state / "lib").iterdir()
    assert given_.env == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "VCUDA_CARDS": UUIDS[3],
        "TRITON_LIBCUDA_PATH": ARCH,
    }
    assert given_.annotations == {
        "tencent.com/vcuda-core": "30",
        "tencent.com/vcuda-memory": str(5 * GIB),
        "tencent.com/vcuda-device": "/dev/nvidia4",
        "tencent.com/vcuda-allocation": '{"v":1}',
    }
    assert given_.devices == tuple(
        DeviceNode(f"/dev/{n}", f"/dev/{n}", "rw")
        for n in ("nvidia4", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
    )
    mounts = targets(given_.mounts)
    front, ml = str(installed / "libvcuda.so"), str(installed / "libvcuda-ml.so")
    for directory in (ARCH, "/usr/lib64"):
        assert mounts[f"{directory}/libcuda.so.1"] == Mount(f"{directory}/libcuda.so.1", front)
        assert mounts[f"{directory}/libcuda.so"].host_path == front
        assert mounts[f"{directory}/libnvidia-ml.so.1"].host_path == ml
        assert mounts[f"{directory}/libnvidia-encode.so.1"].host_path == f"{ARCH}/libnvidia-encode.so.1"
        assert mounts[f"{directory}/libnvidia-gpucomp.so.{VERSION}"].host_path == str(
            world.state / "driver" / "libnvidia-gpucomp.so"
        )
    assert mounts["/usr/bin/nvidia-smi"].host_path == "/usr/bin/nvidia-smi"
    assert mounts["/etc/vcuda/limits"] == Mount(
        "/etc/vcuda/limits", str(world.pages / NAME / "limits"), read_only=True
    )
    assert mounts["/etc/vcuda/usage"] == Mount(
        "/etc/vcuda/usage", str(world.pages / NAME / "usage"), read_only=False
    )
    assert mounts["/usr/local/vcuda/libvcuda.so"].host_path == front
    assert mounts["/usr/local/vcuda/libvcuda-ml.so"].host_path == ml
    assert mounts["/usr/local/vcuda/real/libcuda.so.1"].host_path == f"{ARCH}/libcuda.so.1"
    assert mounts["/usr/local/vcuda/real/libnvidia-ml.so.1"].host_path == f"{ARCH}/libnvidia-ml.so.1"
    assert {p for p in mounts if p.startswith("/usr/local/vcuda/real/")} == {
        f"/usr/local/vcuda/real/{n}"
        for n in (
            "libcuda.so.1",
            "libnvidia-ml.so.1",
            "libnvidia-ptxjitcompiler.so.1",
            "libnvidia-nvvm.so.4",
            f"libnvidia-gpucomp.so.{VERSION}",
        )
    }
    assert Path(mounts["/etc/ld.so.preload"].host_path).read_text() == (
        "/usr/local/vcuda/libvcuda.so\n/usr/local/vcuda/libvcuda-ml.so\n"
    )


def test_direct_gives_whole_cards_the_real_driver_and_nothing_of_ours(world):
    given_ = world.injector(Strategy.DIRECT).inject(NAME, WHOLE, None, "{}")
    assert given_.env["VCUDA_CARDS"] == f"{UUIDS[0]},{UUIDS[1]}"
    assert given_.env["TRITON_LIBCUDA_PATH"] == ARCH
    assert given_.annotations["tencent.com/vcuda-core"] == "200"
    assert given_.annotations["tencent.com/vcuda-device"] == "/dev/nvidia7,/dev/nvidia6"
    mounts = targets(given_.mounts)
    assert set(mounts) == {
        "/usr/bin/nvidia-smi",
        *(f"{d}/{n}" for d in (ARCH, "/usr/lib64") for n in {*COMPUTE, "libcuda.so"}),
    }
    assert mounts[f"{ARCH}/libcuda.so"].host_path == f"{ARCH}/libcuda.so.1"
    assert all(m.read_only for m in given_.mounts)


@pytest.mark.parametrize("shares", [FRACTION, WHOLE])
def test_cdi_says_the_same_as_direct_in_one_spec(world, shares):
    direct = world.injector(Strategy.DIRECT).inject(NAME, shares, None, "{}")
    given_ = world.injector(Strategy.CDI).inject(NAME, shares, None, "{}")
    device = f"tencent.com/vcuda=a-{NAME}"
    assert (given_.mounts, given_.devices, given_.cdi) == ((), (), (device,))
    assert given_.env == direct.env
    assert given_.annotations == {**direct.annotations, "cdi.k8s.io/vcuda": device}
    found = edits(world)
    assert (found["spec"]["cdiVersion"], found["spec"]["kind"]) == ("0.5.0", "tencent.com/vcuda")
    assert found["name"] == f"a-{NAME}"
    (installed,) = (world.state / "lib").iterdir()
    hook = ("/usr/local/vcuda/ldcache", str(installed / "vcuda-ldcache"), True)
    assert {(m["containerPath"], m["hostPath"], "ro" in m["options"]) for m in found["mounts"]} == {
        *((m.container_path, m.host_path, m.read_only) for m in direct.mounts),
        hook,
    }
    assert found["hooks"] == [
        {
            "hookName": "startContainer",
            "path": "/usr/local/vcuda/ldcache",
            "args": ["/usr/local/vcuda/ldcache"],
        }
    ]
    assert {(d["path"], d["hostPath"], d["permissions"]) for d in found["deviceNodes"]} == {
        (d.path, d.host_path, d.permissions) for d in direct.devices
    }


def test_graphics_libraries_are_for_who_asks_for_them(world):
    """Vulkan and OpenGL reach the card past libcuda; NVIDIA's own default is compute and utility as well."""

    def named(value):
        env = [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": value}]
        pod = parse_pod({"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "c", "env": env}]}})
        mounts = world.injector(Strategy.DIRECT).inject(NAME, FRACTION, pod, "{}").mounts
        return {Path(mount.container_path).name for mount in mounts if mount.container_path.startswith(ARCH)}

    for value in ("graphics", "compute,display", " compute , all "):
        assert named(value) == {*SONAMES, "libcuda.so"}, value
    for value in ("compute,utility", "", "graphic", None, 7, ["graphics"]):
        assert named(value) == {*COMPUTE, "libcuda.so"}, value


def test_whole_cards_under_cdi_start_also_where_the_hook_cannot_be_had(world):
    given_ = world.injector(Strategy.CDI, libraries=None).inject(NAME, WHOLE, None, "{}")
    assert given_.cdi
    assert "hooks" not in edits(world)
    assert not [m for m in edits(world)["mounts"] if m["containerPath"].startswith("/usr/local/vcuda")]


def test_the_hook_s_program_stays_while_whole_cards_have_it(world):
    files = world.injector(Strategy.CDI)
    files.inject(NAME, WHOLE, None, "{}")
    (installed,) = (world.state / "lib").iterdir()
    world.ship(b"two")
    files.inject(OTHER, WHOLE, None, "{}")
    for _ in range(2):
        files.prune([NAME, OTHER])
    assert installed.is_dir()
    for _ in range(2):
        files.prune([OTHER])
    assert not installed.exists()


def test_nvidia_names_the_cards_and_leaves_the_driver_to_the_runtime(world):
    given_ = world.injector(Strategy.NVIDIA).inject(NAME, FRACTION, None, "{}")
    assert given_.env == {"NVIDIA_VISIBLE_DEVICES": UUIDS[3], "VCUDA_CARDS": UUIDS[3]}
    mounts = targets(given_.mounts)
    assert not any(path.startswith("/usr/lib") for path in mounts)
    assert {"/etc/ld.so.preload", "/etc/vcuda/limits", "/usr/local/vcuda/real/libcuda.so.1"} <= set(mounts)
    assert "/dev/nvidia4" in {d.path for d in given_.devices}


def test_nvidia_needs_no_driver_of_its_own_for_whole_cards(world):
    for path in (world.node.root / ARCH.lstrip("/")).iterdir():
        path.unlink()
    given_ = world.injector(Strategy.NVIDIA).inject(NAME, WHOLE, None, "{}")
    assert given_.mounts == ()
    assert given_.env["NVIDIA_VISIBLE_DEVICES"] == f"{UUIDS[0]},{UUIDS[1]}"


def test_simulated_gives_stand_ins_and_no_device_node(world, objects, tmp_path):
    stand_in = DriverRoot(tmp_path / "made", objects)
    stand_in.place("/libcuda.so.1", "libcuda.so.1")
    stand_in.place("/libnvidia-ml.so.1", "libnvidia-ml.so.1")
    given_ = world.injector(Strategy.SIMULATED, stand_in=stand_in.root).inject(NAME, FRACTION, None, "{}")
    mounts = targets(given_.mounts)
    assert given_.devices == ()
    assert mounts["/usr/local/vcuda/real/libcuda.so.1"].host_path == str(stand_in.root / "libcuda.so.1")
    assert mounts[f"{ARCH}/libcuda.so.1"].host_path.endswith("/libvcuda.so")
    assert given_.annotations["tencent.com/vcuda-device"] == "/dev/nvidia4"


def test_simulated_on_a_laptop_without_a_compiler_still_has_its_pages(world):
    given_ = world.injector(Strategy.SIMULATED, libraries=None).inject(NAME, FRACTION, None, "{}")
    uuid = FRACTION[0].card
    told = {k: v for k, v in given_.env.items() if k.startswith("VCUDA_STANDIN_")}
    assert told["VCUDA_STANDIN_CARDS"] == "1"
    assert told["VCUDA_STANDIN_CARD_0_UUID"] == uuid == given_.env["VCUDA_CARDS"]
    assert int(told["VCUDA_STANDIN_CARD_0_MEMORY_MIB"]) > 0
    assert set(targets(given_.mounts)) == {"/etc/vcuda/limits", "/etc/vcuda/usage"}


# --- what holds always -----------------------------------------------------------------------------


def host_paths(given_: Injection, world: World, name: str) -> list[str]:
    if given_.cdi:
        found = edits(world, name)
        return [x["hostPath"] for x in (*found["mounts"], *found["deviceNodes"])]
    return [x.host_path for x in (*given_.mounts, *given_.devices)]


def container_paths(given_: Injection, world: World, name: str) -> list[str]:
    if given_.cdi:
        return [mount["containerPath"] for mount in edits(world, name)["mounts"]]
    return [mount.container_path for mount in given_.mounts]


share_sets = st.one_of(
    st.builds(
        lambda card, cores, units: (Share(card, Amount(cores, units << 28)),),
        st.sampled_from(UUIDS),
        st.integers(1, 99),
        st.integers(1, 300),
    ),
    st.lists(st.sampled_from(UUIDS), min_size=1, max_size=8, unique=True).map(
        lambda cards: tuple(Share(card, Amount(100, 80 * GIB)) for card in cards)
    ),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    strategy=st.sampled_from(STRATEGIES),
    given_to=st.lists(share_sets, min_size=2, max_size=4),
    smi=st.booleans(),
    modeset=st.booleans(),
)
def test_paths_are_distinct_exist_and_are_nobody_else_s(world, strategy, given_to, smi, modeset):
    node = world.node
    (node.root / "usr/bin/nvidia-smi").unlink(missing_ok=True)
    (node.root / "dev/nvidia-modeset").unlink(missing_ok=True)
    if smi:
        node.file("/usr/bin/nvidia-smi")
    if modeset:
        node.file("/dev/nvidia-modeset")
    names = [f"{i:032x}" for i in range(len(given_to))]
    world.paged(*names)
    injector = world.injector(strategy)
    for name, shares in zip(names, given_to, strict=True):
        given_ = injector.inject(name, shares, None, "{}")
        inside = container_paths(given_, world, name)
        assert len(set(inside)) == len(inside)
        assert not [(a, b) for a in inside for b in inside if b.startswith(a + "/")]
        outside = host_paths(given_, world, name)
        assert [path for path in outside if not world.sees(path)] == []
        assert not [path for path in outside for other in names if other != name and other in path]
        cards = {path for path in outside if re.fullmatch(r"/dev/nvidia\d+", path)}
        assert cards == {f"/dev/nvidia{7 - UUIDS.index(share.card)}" for share in shares}
        assert "LD_LIBRARY_PATH" not in given_.env
        assert "LD_PRELOAD" not in given_.env


def test_the_same_container_asking_again_gets_the_same(world):
    injector = world.injector(Strategy.DIRECT)
    assert injector.inject(NAME, FRACTION, None, "{}") == injector.inject(NAME, FRACTION, None, "{}")


# --- the opt-out -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [Strategy.DIRECT, Strategy.CDI])
def test_opting_out_of_the_preload_leaves_the_fronts(world, strategy):
    given_ = world.injector(strategy).inject(NAME, FRACTION, OPTED_OUT, "{}")
    inside = container_paths(given_, world, NAME)
    assert "/etc/ld.so.preload" not in inside
    assert f"{ARCH}/libcuda.so.1" in inside
    assert "/usr/local/vcuda/libvcuda.so" in inside


def test_opting_out_is_refused_where_the_preload_is_all_there_is(world):
    injector = world.injector(Strategy.NVIDIA)
    with pytest.raises(RequestInvalid, match="vcuda-preload"):
        injector.inject(NAME, FRACTION, OPTED_OUT, "{}")
    assert injector.inject(NAME, WHOLE, OPTED_OUT, "{}").env["VCUDA_CARDS"]


def test_env_from_is_refused_where_a_variable_shows_cards(world):
    resources = {"limits": {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}}
    entry = {"name": "c", "resources": resources, "envFrom": [{"configMapRef": {"name": "m"}}]}
    pod = parse_pod({"metadata": {"name": "p"}, "spec": {"containers": [entry]}})
    with pytest.raises(RequestInvalid, match="as on this node: name its variables one by one"):
        world.injector(Strategy.NVIDIA).inject(NAME, FRACTION, pod, "{}")
    assert world.injector(Strategy.NVIDIA, allow_env_from=True).inject(NAME, FRACTION, pod, "{}")
    for strategy in (Strategy.DIRECT, Strategy.CDI):
        assert world.injector(strategy).inject(NAME, FRACTION, pod, "{}")


@pytest.mark.parametrize("value", ["true", "False", "no", "", "0"])
def test_only_the_word_false_opts_out(world, value):
    pod = replace(OPTED_OUT, annotations={"tencent.com/vcuda-preload": value})
    given_ = world.injector(Strategy.DIRECT).inject(NAME, FRACTION, pod, "{}")
    assert "/etc/ld.so.preload" in targets(given_.mounts)


# --- what can be missing ---------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["absent", None])
def test_without_our_library_fractions_are_refused_with_the_cure_and_whole_cards_work(world, package):
    libraries = None if package is None else world.base / package
    injector = world.injector(Strategy.DIRECT, libraries=libraries)
    with pytest.raises(NodeUnready, match=r"libvcuda is not installed.*C compiler.*whole cards work"):
        injector.inject(NAME, FRACTION, None, "{}")
    assert injector.inject(NAME, WHOLE, None, "{}").mounts


@pytest.mark.parametrize("node", ["nvidia4", "nvidiactl", "nvidia-uvm"])
def test_a_missing_device_node_is_named_with_the_cure(world, node):
    (world.node.root / "dev" / node).unlink()
    with pytest.raises(NodeUnready, match=rf"/dev/{node}: load the driver with nvidia-modprobe"):
        world.injector(Strategy.DIRECT).inject(NAME, FRACTION, None, "{}")


def test_device_nodes_of_a_driver_container_are_used_when_the_node_has_none(world):
    for path in (world.node.root / "dev").iterdir():
        path.unlink()
    inside = DriverRoot(world.node.root / "run/nvidia/driver", world.node.objects)
    inside.install()
    inside.nodes()
    given_ = world.injector(Strategy.DIRECT, driver_root="/run/nvidia/driver").inject(NAME, WHOLE, None, "{}")
    assert given_.devices[0] == DeviceNode("/dev/nvidia7", "/run/nvidia/driver/dev/nvidia7", "rw")


def test_a_card_that_left_the_node_is_named(world):
    gone = CardUuid("GPU-gone")
    with pytest.raises(NodeUnready, match="GPU-gone"):
        world.injector(Strategy.DIRECT).inject(NAME, (Share(gone, Amount(100, GIB)),), None, "{}")


def test_missing_pages_are_named_before_a_runtime_makes_directories_of_them(world):
    with pytest.raises(NodeUnready, match=f"{OTHER}/limits is missing"):
        world.injector(Strategy.DIRECT).inject(OTHER, FRACTION, None, "{}")


@pytest.mark.parametrize("name", ["", "..", "../../etc", NAME.upper(), NAME + "\n"])
def test_a_name_that_is_none_never_becomes_a_path(world, name):
    with pytest.raises(Bug):
        world.injector(Strategy.CDI).inject(name, FRACTION, None, "{}")
    assert not world.cdi.exists()


def test_a_spec_that_cannot_be_written_is_an_operator_s_error(world):
    world.cdi.write_text("a file where the directory should be")
    with pytest.raises(NodeUnready, match=r"CDI spec .* cannot be written"):
        world.injector(Strategy.CDI).inject(NAME, FRACTION, None, "{}")


# --- the operator's own devices --------------------------------------------------------------------


def test_extra_devices_reach_every_container_and_missing_ones_are_left_out(world):
    world.node.file("/dev/infiniband/uverbs0")
    config = world.node.file(
        "/extra.json", '{"default": {"devices": ["/dev/infiniband/uverbs0", "/dev/gone"]}}'
    )
    nodes = DeviceNodes(HostFiles(world.node.root), "/", extra_devices(config))
    injector = world.injector(Strategy.DIRECT, nodes=nodes)
    for shares in (FRACTION, WHOLE):
        assert injector.inject(NAME, shares, None, "{}").devices[-1] == DeviceNode(
            "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0", "rwm"
        )


def test_extra_devices_cannot_give_away_another_card(world):
    nodes = DeviceNodes(HostFiles(world.node.root), "/", ("/dev/nvidia0", "/dev/nvidia4"))
    injector = world.injector(Strategy.DIRECT, nodes=nodes)
    paths = [device.path for device in injector.inject(NAME, FRACTION, None, "{}").devices]
    assert "/dev/nvidia0" not in paths
    assert paths.count("/dev/nvidia4") == 1


@pytest.mark.parametrize(
    "text", ["{}", '{"default": {}}', '{"other": {"devices": ["/dev/x"]}}', '{"default": {"devices": null}}']
)
def test_an_extra_config_without_defaults_adds_nothing(tmp_path, text):
    (tmp_path / "extra.json").write_text(text)
    assert extra_devices(tmp_path / "extra.json") == ()
    assert extra_devices(tmp_path / "absent.json") == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "3",
        '{"default": []}',
        '{"default": {"devices": "/dev/x"}}',
        '{"default": {"devices": ["/etc/x"]}}',
        '{"default": {"devices": ["/dev/../etc/x"]}}',
        '{"default": {"devices": [1]}}',
        "[" * 100_000,
    ],
)
def test_an_extra_config_of_another_form_is_an_error_that_names_the_file(tmp_path, text):
    (tmp_path / "extra.json").write_text(text)
    with pytest.raises(NodeUnready, match=r"extra\.json"):
        extra_devices(tmp_path / "extra.json")

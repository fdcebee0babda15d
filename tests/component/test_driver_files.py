"""What a container receives: golden values for each strategy, and what holds whatever the node looks like."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.domain.injection import DeviceNode, Injection, Mount
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import Amount
from tests.component.driver_roots import SONAMES, VERSION, DriverRoot, machine_is_supported
from tests.fakes import driver_files
from tests.fakes.driver_files import (
    ARCH,
    FRACTION,
    GIB,
    NAME,
    OTHER,
    UUIDS,
    WHOLE,
    World,
    container_paths,
    edits,
    targets,
)

pytestmark = pytest.mark.skipif(
    not machine_is_supported(), reason="the driver exists for x86-64 and aarch64 only"
)
world = driver_files.world
COMPUTE = SONAMES - {"libGLX_nvidia.so.0"}
REAL = STRATEGIES = (Strategy.DIRECT, Strategy.CDI, Strategy.NVIDIA)


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

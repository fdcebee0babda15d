"""What can be missing or unwanted: the preload, files of driver and agent, the operator's own devices."""

from dataclasses import replace

import pytest

from gpu_manager.adapters.driver_files.device_nodes import DeviceNodes, extra_devices
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import Bug, NodeUnready, RequestInvalid
from gpu_manager.domain.injection import DeviceNode
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import Amount
from tests.component.driver_roots import DriverRoot, machine_is_supported
from tests.fakes import driver_files
from tests.fakes.driver_files import ARCH, FRACTION, GIB, NAME, OTHER, WHOLE, container_paths, targets

pytestmark = pytest.mark.skipif(
    not machine_is_supported(), reason="the driver exists for x86-64 and aarch64 only"
)
world = driver_files.world
OPTED_OUT = Pod(PodUid("u"), "default", "train", (), annotations={"tencent.com/vcuda-preload": "false"})


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

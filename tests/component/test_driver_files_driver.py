"""Finding the driver: real shared objects in made-up installations."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.adapters.driver_files.driver import (
    DriverFinder,
    find_nvml,
    multiarch,
    native_machine,
    read_elf,
)
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.domain.errors import NodeUnready
from tests.component.driver_roots import SONAMES, VERSION, DriverRoot, machine_is_supported

pytestmark = pytest.mark.skipif(
    not machine_is_supported(), reason="the driver exists for x86-64 and aarch64 only"
)


@pytest.fixture
def node(tmp_path, objects):
    return DriverRoot(tmp_path / "node", objects)


@pytest.fixture
def links(tmp_path):
    return tmp_path / "node" / "state" / "driver"


def finder(node: DriverRoot, links: Path, driver_root: str = "/") -> DriverFinder:
    return DriverFinder(HostFiles(node.root), driver_root, links)


def real(node: DriverRoot, source: str) -> str:
    """The file name that the node finds behind a source; our links lie in the node's state directory."""
    path = Path(source)
    if path.is_relative_to(node.root):
        source = str(path.readlink())
    found = HostFiles(node.root).resolve(source)
    assert found is not None, source
    return Path(found).name


# --- ELF -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("soname", ["libcuda.so.1", "libnvidia-glcore.so.550.54.14", ""])
@pytest.mark.parametrize("options", [(), ("-Wl,-z,separate-code",), ("-Wl,--hash-style=gnu", "-s")])
def test_the_soname_is_read_as_the_linker_wrote_it(objects, soname, options):
    elf = read_elf(objects.make(soname, *options))
    assert elf is not None
    assert (elf.soname, elf.machine) == (soname, native_machine())


def test_what_is_no_shared_object_has_no_soname(tmp_path):
    for name, content in {
        "empty": b"",
        "text": b"#!/bin/sh\n",
        "torn": b"\x7fELF\x02\x01" + bytes(30),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert read_elf(tmp_path / name) is None
    assert read_elf(tmp_path) is None
    assert read_elf(tmp_path / "absent") is None


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_object_is_read_without_an_error(objects, tmp_path_factory, data):
    image = bytearray(objects.make("libcuda.so.1").read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        offset = data.draw(st.integers(0, min(len(image), 2048) - 8))
        image[offset : offset + 8] = struct.pack("<Q", data.draw(st.integers(0, 2**64 - 1)))
    path = tmp_path_factory.mktemp("damaged") / "object"
    path.write_bytes(image[: data.draw(st.integers(0, len(image)))])
    elf = read_elf(path)
    assert elf is None or isinstance(elf.soname, str)


# --- the driver's places ---------------------------------------------------------------------------


@pytest.mark.parametrize("directory", [f"/usr/lib/{multiarch()}", "/usr/lib64", "/usr/lib"])
def test_a_driver_is_found_where_distributions_put_it(node, links, directory):
    node.install(directory)
    driver = finder(node, links).find()
    assert (frozenset(driver.libraries), driver.version, driver.smi) == (
        SONAMES,
        VERSION,
        "/usr/bin/nvidia-smi",
    )


def test_every_source_leads_to_the_library_of_that_name(node, links):
    node.install()
    for soname, source in finder(node, links).find().libraries.items():
        assert real(node, source).startswith(soname.split(".so")[0] + ".so.")


def test_no_source_is_a_versioned_name(node, links):
    node.install()
    for source in finder(node, links).find().libraries.values():
        assert VERSION not in source


@pytest.mark.parametrize("links_there", [True, False])
def test_old_sources_lead_to_the_new_driver_after_an_upgrade(node, links, links_there):
    node.install(links=links_there)
    look = finder(node, links)
    old = look.find().libraries
    node.upgrade(VERSION, "560.35.03", links=links_there)
    new = look.find()
    assert new.version == "560.35.03"
    for source in old.values():
        assert real(node, source).endswith(".560.35.03")


def test_missing_soname_links_are_replaced_by_our_own(node, links):
    node.install(links=False)
    libraries = finder(node, links).find().libraries
    assert frozenset(libraries) == SONAMES
    assert libraries["libnvidia-encode.so.1"] == str(links / "libnvidia-encode.so.1")


def test_no_guess_is_made_which_of_several_files_is_the_driver(node, links):
    directory = node.install()
    (node.root / directory.lstrip("/") / "libcuda.so.1").unlink()
    with pytest.raises(NodeUnready, match=r"no libcuda.so.1"):
        finder(node, links).find()


def test_a_driver_in_a_container_s_root_is_found_with_sources_on_the_node(tmp_path, objects, links):
    node = DriverRoot(tmp_path / "node", objects)
    inside = DriverRoot(tmp_path / "node" / "run" / "nvidia" / "driver", objects)
    inside.install()
    driver = finder(node, links, "/run/nvidia/driver").find()
    assert driver.libraries["libcuda.so.1"] == f"/run/nvidia/driver/usr/lib/{multiarch()}/libcuda.so.1"
    assert driver.smi == "/run/nvidia/driver/usr/bin/nvidia-smi"


def test_absolute_links_of_a_driver_root_mean_that_root(tmp_path, objects, links):
    node = DriverRoot(tmp_path / "node", objects)
    inside = DriverRoot(tmp_path / "node" / "run" / "nvidia" / "driver", objects)
    directory = inside.install()
    inside.link(f"{directory}/libcuda.so.1", f"{directory}/libcuda.so.{VERSION}")
    source = finder(node, links, "/run/nvidia/driver").find().libraries["libcuda.so.1"]
    assert source == str(links / "libcuda.so.1")
    assert real(node, source) == f"libcuda.so.{VERSION}"


def test_links_through_alternatives_are_followed_within_the_node(node, links):
    directory = node.install()
    node.link(f"{directory}/libcuda.so.1", "/etc/alternatives/cuda")
    node.link("/etc/alternatives/cuda", f"{directory}/libcuda.so.{VERSION}")
    driver = finder(node, links).find()
    assert driver.libraries["libcuda.so.1"] == f"{directory}/libcuda.so.1"
    assert driver.version == VERSION


# --- what is left out ------------------------------------------------------------------------------


def test_leftovers_of_another_driver_are_left_out(node, links):
    directory = node.install()
    node.place(f"{directory}/libnvidia-fbc.so.470.82.01", "libnvidia-fbc.so.1")
    node.link(f"{directory}/libnvidia-fbc.so.1", "libnvidia-fbc.so.470.82.01")
    node.place(f"{directory}/libnvidia-gpucomp.so.535.1.1", "libnvidia-gpucomp.so.535.1.1")
    assert frozenset(finder(node, links).find().libraries) == SONAMES


def test_strangers_with_the_prefix_are_left_out(node, links):
    directory = node.install()
    for name in (
        "libnvidia-container.so.1",
        "libnvidia-container-go.so.1",
        "libnvidia-gtk3.so.1",
        "libcudart.so.12",
    ):
        node.place(f"{directory}/{name}", name)
    node.place("/usr/lib/stubs/libcuda.so", "libcuda.so.1")
    assert frozenset(finder(node, links).find().libraries) == SONAMES


def test_a_library_of_another_machine_is_no_library(node, links):
    directory = node.install()
    path = node.root / directory.lstrip("/") / f"libnvidia-encode.so.{VERSION}"
    for offset, byte in ((4, 1), (18, 3)):  # 32-bit class; i386
        image = bytearray(node.objects.make("libnvidia-encode.so.1").read_bytes())
        image[offset] = byte
        path.write_bytes(image)
        path.parent.touch()
        assert "libnvidia-encode.so.1" not in finder(node, links).find().libraries


def test_a_soname_that_is_a_path_is_refused(node, links):
    directory = node.install()
    node.place(f"{directory}/libnvidia-evil.so.1", "../../../etc/passwd")
    assert frozenset(finder(node, links).find().libraries) == SONAMES


# --- when there is none ----------------------------------------------------------------------------


def test_no_driver_is_said_with_the_places_and_the_cure(node, links):
    with pytest.raises(NodeUnready, match=r"/usr/lib64.*--driver-root"):
        finder(node, links).find()


def test_a_driver_without_nvml_is_incomplete(node, links):
    directory = node.install()
    (node.root / directory.lstrip("/") / "libnvidia-ml.so.1").unlink()
    (node.root / directory.lstrip("/") / f"libnvidia-ml.so.{VERSION}").unlink()
    with pytest.raises(NodeUnready, match=r"libnvidia-ml\.so\.1: the driver's installation is incomplete"):
        finder(node, links).find()


def test_a_driver_that_comes_later_is_found_without_a_restart(node, links):
    look = finder(node, links)
    with pytest.raises(NodeUnready):
        look.find()
    node.install()
    assert look.find().version == VERSION
    assert look.find() is look.find()


# --- links of the node -----------------------------------------------------------------------------


def test_a_loop_of_links_is_missing(node):
    node.link("/a", "/b")
    node.link("/b", "a")
    assert HostFiles(node.root).resolve("/a") is None


def test_links_never_lead_out_of_the_node(node, tmp_path):
    (tmp_path / "secret").write_text("x")
    node.file("/secret", "the node's own")
    node.link("/up", "../../../../secret")
    assert HostFiles(node.root).read("/up") == b"the node's own"


@settings(max_examples=100)
@given(
    target=st.lists(st.sampled_from(["..", ".", "a", "b", "", "link"]), min_size=1, max_size=6).map("/".join)
)
def test_whatever_a_link_says_it_stays_inside(tmp_path_factory, target):
    root = tmp_path_factory.mktemp("node")
    (root / "a" / "b").mkdir(parents=True)
    if not target:
        return
    (root / "a" / "link").symlink_to(target)
    found = HostFiles(root).resolve("/a/link")
    assert found is None or (found.startswith("/") and ".." not in found.split("/"))


# --- Where distributions have it -------------------------------------------------------------------

BOTTLEROCKET = "/usr/lib/nvidia/tesla"


@pytest.mark.parametrize(
    ("directory", "smi"),
    [
        ("/lib", "/usr/bin"),
        ("/home/kubernetes/bin/nvidia/lib64", "/home/kubernetes/bin/nvidia/bin"),
        ("/run/opengl-driver/lib", "/run/current-system/sw/bin"),
        ("/usr/local/glibc/usr/lib", "/usr/local/bin"),
        ("/usr/local/glibc/lib", "/usr/local/bin"),
        ("/usr/lib/glibc/lib64", "/usr/local/bin"),
        ("/usr/local/nvidia/lib64", "/usr/local/nvidia/bin"),
        (BOTTLEROCKET, "/usr/libexec/nvidia/tesla/bin"),
        ("/usr/lib/wsl/lib", "/usr/lib/wsl/lib"),
        ("/run/nvidia/driver/usr/lib64", "/run/nvidia/driver/usr/bin"),
        ("/run/nvidia/driver/lib", "/run/nvidia/driver/usr/bin"),
    ],
)
def test_the_roots_of_distributions_are_tried_without_being_told(node, links, directory, smi):
    node.install(directory)
    (node.root / "usr/bin/nvidia-smi").unlink()
    node.file(f"{smi}/nvidia-smi")
    found = finder(node, links).find()
    assert found.version == VERSION
    assert found.libraries["libcuda.so.1"] == f"{directory}/libcuda.so.1"
    assert found.smi == f"{smi}/nvidia-smi"
    assert find_nvml(HostFiles(node.root)) == node.root / f"{directory}/libnvidia-ml.so.{VERSION}".lstrip("/")


def test_the_node_s_own_driver_comes_before_every_known_root(node, links):
    node.install("/run/nvidia/driver/usr/lib64", version="470.1.1")
    node.install("/lib64")
    assert finder(node, links).find().version == VERSION


def test_a_root_that_was_named_is_the_only_one(node, links):
    node.install("/home/kubernetes/bin/nvidia/lib64")
    with pytest.raises(NodeUnready, match=r"in /opt/mine/usr/lib/.*, /opt/mine/lib: install"):
        finder(node, links, "/opt/mine").find()


def test_links_of_a_driver_container_mean_its_own_root(node, links):
    node.install("/run/nvidia/driver/usr/lib64")
    node.link("/run/nvidia/driver/usr/lib64/libcuda.so.1", f"/usr/lib64/libcuda.so.{VERSION}")
    assert finder(node, links).find().version == VERSION


def test_a_jetson_is_named(node, links):
    node.file("/etc/nv_tegra_release", "# R35 (release)\n")
    with pytest.raises(NodeUnready, match="this is a Jetson"):
        finder(node, links).find()

"""What outlives a call: installed libraries, CDI specs and records, through upgrades, reboots and pruning."""

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.domain.errors import Bug, NodeUnready
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.ports.containers import HeldInjection
from tests.component.driver_roots import DriverRoot, machine_is_supported
from tests.fakes.injected import FRACTION, WHOLE, A, B, Place
from tests.fakes.power_cut import CUTS, stranded_after

HELD = {A: HeldInjection(WHOLE, None)}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


# --- the library -----------------------------------------------------------------------------------


def test_the_library_s_path_is_the_hash_of_what_is_there(place):
    place.agent().inject(A, FRACTION, None, "{}")
    (name,) = place.installed()
    directory = place.state / "lib" / name
    whole = hashlib.sha256()
    for file in sorted(directory.iterdir()):
        content = file.read_bytes()
        whole.update(f"{file.name}\0{len(content)}\0".encode() + content)
    assert whole.hexdigest() == name
    assert {f.name: stat.S_IMODE(f.stat().st_mode) for f in directory.iterdir()} == {
        "libvcuda.so": 0o555,
        "libvcuda-ml.so": 0o555,
        "vcuda-ldcache": 0o555,
        "ld.so.preload": 0o444,
    }
    assert stat.S_IMODE((place.state / "lib").stat().st_mode) == 0o700


def test_an_upgrade_installs_beside_and_never_touches_what_is_mounted(place):
    agent = place.agent()
    old = place.library(agent.inject(A, FRACTION, None, "{}"))
    with Path(old).open("rb") as mounted:
        place.ship(b"two")
        new = place.library(agent.inject(B, FRACTION, None, "{}"))
        assert new != old
        assert mounted.read() == b"onelibvcuda.so"
    with Path(old).open("rb") as again:
        assert again.read() == b"onelibvcuda.so"


def test_the_same_library_is_installed_once(place):
    for name in (A, B):
        place.agent().inject(name, FRACTION, None, "{}")
    assert len(place.installed()) == 1


def test_an_old_library_stays_while_an_allocation_was_given_it(place):
    agent = place.agent()
    agent.inject(A, FRACTION, None, "{}")
    place.ship(b"two")
    upgraded = place.agent()
    upgraded.inject(B, FRACTION, None, "{}")
    for _ in range(3):
        upgraded.prune({A, B})
    assert len(place.installed()) == 2
    for _ in range(2):
        upgraded.prune({B})
    assert len(place.installed()) == 1


def test_the_current_library_stays_when_nobody_has_it(place):
    agent = place.agent()
    agent.inject(A, FRACTION, None, "{}")
    for _ in range(3):
        agent.prune(())
    assert len(place.installed()) == 1


def test_nothing_is_removed_while_it_cannot_be_told_who_has_what(place):
    agent = place.agent()
    agent.inject(A, FRACTION, None, "{}")
    place.ship(b"two")
    agent.inject(B, FRACTION, None, "{}")
    record = place.state / "tenants" / A / "injection.json"
    for torn in (None, b"", b"{", b'{"v":1,"library":"../../etc"}'):
        record.unlink() if torn is None else record.write_bytes(torn)
        for _ in range(3):
            agent.prune({A, B})
        assert len(place.installed()) == 2


def test_nothing_is_removed_while_a_container_s_directory_is_unknown(place):
    agent = place.agent(Strategy.SIMULATED)
    agent.inject(A, FRACTION, None, "{}")
    place.ship(b"two")
    agent.inject(B, FRACTION, None, "{}")
    for _ in range(3):
        agent.prune({"", B})
    assert len(place.installed()) == 2


def test_a_library_that_was_changed_in_place_is_replaced_under_its_name(place):
    old = place.library(place.agent().inject(A, FRACTION, None, "{}"))
    Path(old).chmod(0o755)
    with Path(old).open("r+b") as mounted:
        mounted.write(b"x")
        assert place.library(place.agent().inject(B, FRACTION, None, "{}")) == old
        with Path(old).open("rb") as fresh:
            assert fresh.read() == b"onelibvcuda.so"
        mounted.seek(0)
        assert mounted.read(1) == b"x"


def test_unfinished_installations_are_swept(place):
    agent = place.agent()
    agent.inject(A, FRACTION, None, "{}")
    (place.state / "lib" / ".draft-0000").mkdir()
    agent.prune({A})
    assert len(place.installed()) == 1


# --- specs and records -----------------------------------------------------------------------------


@pytest.fixture
def cdi_agent(place, objects):
    """Makes agents with CDI on a node with a driver; each call is a restart."""
    if not machine_is_supported():
        pytest.skip("the driver exists for x86-64 and aarch64 only")
    node = DriverRoot(place.base / "node", objects)
    node.install()
    node.nodes()
    return lambda: place.agent(Strategy.CDI)


def test_a_spec_goes_with_its_allocation_and_not_before(place, cdi_agent):
    agent = cdi_agent()
    for name in (A, B):
        agent.inject(name, FRACTION, None, "{}")
    stranger = place.cdi / "nvidia.com-gpu.yaml"
    stranger.write_text("cdiVersion: 0.5.0")
    agent.prune({A})
    assert f"tencent.com-vcuda_{B}.json" in place.specs()  # given perhaps after the caller looked
    agent.prune({A})
    assert place.specs() == ["nvidia.com-gpu.yaml", f"tencent.com-vcuda_{A}.json"]
    assert sorted(p.name for p in (place.state / "tenants").iterdir()) == [A]


def test_an_allocation_made_while_the_books_were_read_is_not_lost(place, cdi_agent):
    agent = cdi_agent()
    agent.prune(())
    agent.inject(A, FRACTION, None, "{}")
    agent.prune(())  # the caller's look was older than the allocation
    agent.prune({A})
    agent.prune({A})
    assert place.specs() == [f"tencent.com-vcuda_{A}.json"]


def test_specs_come_back_after_a_reboot(place, cdi_agent):
    cdi_agent().inject(A, WHOLE, None, "{}")
    before = (place.cdi / f"tencent.com-vcuda_{A}.json").read_text()
    for path in place.cdi.iterdir():
        path.unlink()
    place.cdi.rmdir()
    cdi_agent().restore(HELD)
    assert (place.cdi / f"tencent.com-vcuda_{A}.json").read_text() == before


def test_a_spec_that_someone_removed_comes_back_with_the_next_round(place, cdi_agent):
    agent = cdi_agent()
    agent.inject(A, WHOLE, None, "{}")
    (place.cdi / f"tencent.com-vcuda_{A}.json").unlink()
    agent.restore(HELD)
    assert place.specs() == [f"tencent.com-vcuda_{A}.json"]


def test_a_spec_is_private_and_whole(place, cdi_agent):
    cdi_agent().inject(A, FRACTION, None, "{}")
    (path,) = place.cdi.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["devices"][0]["containerEdits"]["mounts"]


def test_prune_wants_names_and_nothing_else(place):
    with pytest.raises(Bug):
        place.agent().prune(["default/train"])


def test_restoring_on_a_fresh_node_does_nothing(place, cdi_agent):
    cdi_agent().restore({})
    place.agent().restore({})
    place.agent().prune(())
    assert not place.cdi.exists()


# --- what is lost is made again from the grant -----------------------------------------------------


def spec(place, name=A):
    return (place.cdi / f"tencent.com-vcuda_{name}.json").read_text()


@pytest.mark.parametrize("shares", [FRACTION, WHOLE], ids=["a fraction", "whole cards"])
@pytest.mark.parametrize("record", [None, "", '{"v": 1, "libr', '{"v": 2, "library": null, "cdi": 3}'])
def test_a_spec_whose_record_is_lost_torn_or_newer_is_made_from_the_grant(place, cdi_agent, shares, record):
    cdi_agent().inject(A, shares, None, "{}")
    before = spec(place)
    path = place.state / "tenants" / A / "injection.json"
    path.unlink() if record is None else path.write_text(record)
    place.reboot()
    agent = cdi_agent()
    agent.restore({A: HeldInjection(shares, None)})
    assert spec(place) == before
    agent.prune({A})
    if record is not None:
        assert path.read_text() == record, "a newer agent's record is left to it"


def test_what_was_rebuilt_before_its_pod_was_known_is_made_again_with_it(place, cdi_agent):
    container = Container("c", ContainerKind.APP, graphics=True)
    pod = Pod(PodUid("u"), "team", "viz", (container,))
    agent = cdi_agent()
    agent.restore(HELD)
    assert "libGLX_nvidia" not in spec(place)
    agent.restore({A: HeldInjection(WHOLE, pod)})
    assert "libGLX_nvidia" in spec(place)
    (place.cdi / f"tencent.com-vcuda_{A}.json").write_text("{}")
    agent.restore({A: HeldInjection(WHOLE, pod)})
    assert spec(place) == "{}", "what is there is not made again"


def test_one_spec_that_cannot_be_made_keeps_no_other_from_its_container(place, cdi_agent):
    agent = cdi_agent()
    agent.inject(B, WHOLE, None, "{}")
    place.reboot()
    shutil.rmtree(place.base / "node/dev")
    with pytest.raises(NodeUnready, match="nvidia0"):
        agent.restore({A: HeldInjection(WHOLE, None), B: HeldInjection(WHOLE, None)})
    assert place.specs() == [f"tencent.com-vcuda_{B}.json"]


def test_a_container_that_was_injected_without_cdi_gets_no_spec(place, cdi_agent):
    place.agent(Strategy.DIRECT).inject(A, WHOLE, None, "{}")
    cdi_agent().restore(HELD)
    assert not place.cdi.exists()


def test_a_directory_of_specs_that_the_node_removed_is_noticed_while_it_is_mounted(place, cdi_agent):
    agent = cdi_agent()
    agent.inject(A, WHOLE, None, "{}")
    assert not agent.detached()
    here = os.open(place.cdi, os.O_PATH | os.O_DIRECTORY)
    try:
        shutil.rmtree(place.cdi)
        mounted = place.agent(Strategy.CDI, cdi_dir=Path(f"/proc/self/fd/{here}"))
        assert mounted.detached()
        with pytest.raises(NodeUnready, match="was removed on the node"):
            mounted.restore(HELD)
    finally:
        os.close(here)
    agent.restore(HELD)
    assert place.specs() == [f"tencent.com-vcuda_{A}.json"], "not mounted, it is simply made again"


def test_no_container_is_stranded_by_a_power_cut(tmp_path, objects):
    assert [cut for cut in CUTS if stranded_after(tmp_path / cut.name, objects, cut)] == []


def test_simulated_cards_come_by_cdi_too_without_driver_and_device_nodes(place):
    agent = place.agent(Strategy.CDI, simulated=True)
    given = agent.inject(A, FRACTION, None, "{}")
    assert given.cdi == (f"tencent.com/vcuda=a-{A}",)
    assert given.env["VCUDA_STANDIN_CARDS"] == "1"
    edits = json.loads(spec(place))["devices"][0]["containerEdits"]
    assert edits["deviceNodes"] == []
    assert {m["containerPath"] for m in edits["mounts"]} >= {"/etc/vcuda/limits", "/etc/vcuda/usage"}

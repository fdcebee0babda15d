"""Injection and its checks on cgroup v2: runc in a mount namespace whose only control groups are v2.

No kubelet runs there: it needs the controllers cpu and memory in v2, and a machine with v1 hierarchies has them in
those. What differs on v2 is runc's part, and what the agent reads of control groups; both are tried here. On v2 the
rules for devices are a BPF program that the runtime replaces as a whole, so that devices given behind its back are
lost when systemd reloads (docs/doctor, ``devices-lost-on-reload``); neither CDI nor ``direct`` gives any so.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_manager.adapters.driver_memory_limit import NVML, CgroupMemoryLimit
from gpu_manager.adapters.processes import CgroupProcesses
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import LIMITS_PATH, USAGE_PATH
from gpu_manager.domain.injection import DeviceNode, Injection, Mount, injection_faults
from gpu_manager.domain.kube.pod import PodUid
from tests.cluster import bundle

POD = PodUid("5fd4f087-86c1-4a7b-9d1e-3c2b1a0f9e8d")
GIVEN, OTHER = DeviceNode("/dev/card0", "/dev/zero", "rw"), DeviceNode("/dev/card1", "/dev/kmsg", "rw")
READ = "head -c 3 /dev/card0 | wc -c; head -c 3 /dev/card1 | wc -c"
ONLY_V2 = 'mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
HERE = Path("/sys/fs/cgroup")


class Driver:
    """Holds whatever it is asked to, and keeps where."""

    def __init__(self) -> None:
        self.held: list[Path] = []

    def hold(self, cgroup: Path, card: CardUuid, limit: int | None) -> bool:
        self.held.append(cgroup)
        return bool(card and limit)


@contextmanager
def running(place: Path, injection: Injection, program: str = "") -> Iterator[tuple[str, list[str]]]:
    """A container of :data:`POD` until the block ends: its id, and what its program says."""
    bundle.make(place)
    spec = bundle.config(place, ["/bin/sh", "-c", f"{program or ':'}; echo ready; cat"])
    spec["mounts"] = [one for one in spec["mounts"] if one["destination"] != "/sys/fs/cgroup"]
    edits = bundle.edits(injection)
    given = [bundle.device(node) for node in edits["deviceNodes"]]
    # The node of a card that it was not given, as a container with CAP_MKNOD can make one.
    other, _ = bundle.device({"path": OTHER.path, "hostPath": OTHER.host_path, "permissions": "rw"})
    spec["linux"]["devices"] = [*(node for node, _ in given), other]
    denied = {"allow": False, "access": "rwm"}
    spec["linux"]["resources"] = {"devices": [denied, *(allowed for _, allowed in given)]}
    spec["mounts"] += [
        bundle.bind(one["containerPath"], one["hostPath"], one["options"]) for one in edits["mounts"]
    ]
    name, top = secrets.token_hex(32), f"vcuda-{secrets.token_hex(4)}"
    spec["linux"]["cgroupsPath"] = f"/{top}/kubepods/burstable/pod{POD}/{name}"
    bundle.write(place, spec)
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ONLY_V2, "sh"]
    with subprocess.Popen(
        [*unshare, bundle.RUNC, "--root", place / "state", "run", name],
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        said = []
        for line in run.stdout:
            if line == "ready\n":
                break
            said.append(line.strip())
        try:
            yield name, said
        finally:
            run.stdin.close()
            ended = run.wait(30)
            _remove(_tree() / top)
    assert ended == 0, said


def _tree() -> Path:
    beside = HERE / "unified"
    return beside if beside.exists() else HERE


def _remove(cgroup: Path) -> None:
    for inner in sorted((one for one in cgroup.rglob("*") if one.is_dir()), reverse=True):
        inner.rmdir()
    cgroup.rmdir()


def pages(place: Path) -> tuple[Injection, str]:
    """What a fraction mounts, and its directory."""
    directory = secrets.token_hex(16)
    (place / directory).mkdir()
    for name in ("limits", "usage"):
        (place / directory / name).touch()
    mounts = (
        Mount(LIMITS_PATH, str(place / directory / "limits")),
        Mount(USAGE_PATH, str(place / directory / "usage"), read_only=False),
    )
    return Injection(mounts=mounts), directory


@pytest.mark.case(39)
def test_the_card_of_the_spec_opens_and_no_other(tmp_path: Path) -> None:
    with running(tmp_path, Injection(devices=(GIVEN,)), READ) as (_, said):
        assert said[0] == "3"
        assert "Operation not permitted" in said[1]
        assert said[2] == "0"


@pytest.mark.case(39)
@pytest.mark.parametrize("injected", [True, False])
def test_a_container_is_judged_by_its_mounts(tmp_path: Path, injected: bool) -> None:
    given, directory = pages(tmp_path)
    with running(tmp_path, given if injected else Injection()) as (name, _):
        key = (POD, name)
        [mounts] = CgroupProcesses().mounts([key])[key]
    assert bool(injection_faults(mounts, directory, fraction=True, driver=False)) is not injected


def test_the_drivers_memory_limit_is_set_on_the_containers_control_group(tmp_path: Path) -> None:
    driver = Driver()
    with running(tmp_path, Injection()) as (name, _):
        assert CgroupMemoryLimit(HERE, list, driver).hold(name, CardUuid("GPU-1"), 1 << 30) == NVML
        [cgroup] = driver.held
        assert (cgroup.name, cgroup.parent.name) == (name, f"pod{POD}")
        assert (cgroup / "cgroup.procs").read_text("ascii").split()

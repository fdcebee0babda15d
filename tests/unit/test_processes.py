"""From a host process to its pod and container, over recorded process trees of every runtime and driver."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.processes import CgroupProcesses, parse_cgroup
from gpu_manager.domain.kube.pod import PodUid
from tests.fakes.sandbox import short_directory

TREES = Path(__file__).parents[1] / "data/proc"
POD = PodUid("5fd4f087-86c1-4a7b-9d1e-3c2b1a0f9e8d")
OTHER = PodUid("0b6b2a3c-1111-4222-8333-444455556666")
GONE = PodUid("ffffffff-0000-4000-8000-000000000000")
CONTAINER = "3f2a9c4be1d07f6589ab4c3d2e1f00112233445566778899aabbccddeeff0011"
OTHER_CONTAINER = "a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90"
ALL = sorted(d.name for d in TREES.iterdir() if d.is_dir())
BLIND = [name for name in ALL if name.startswith("no-host-pid")]
SEEING = [name for name in ALL if name not in BLIND]


def test_every_combination_is_recorded():
    wanted = {
        f"v{v}-{r}-{d}"
        for v in (1, 2)
        for r in ("docker", "containerd", "crio")
        for d in ("systemd", "cgroupfs")
    }
    assert wanted <= set(SEEING)
    assert len(BLIND) == 3


@pytest.mark.parametrize("case", SEEING)
def test_a_process_is_traced_to_its_pod_and_container(case):
    processes = CgroupProcesses(TREES / case)
    assert processes.container_of(4242) == (POD, CONTAINER)
    assert processes.container_of(4243) == (OTHER, OTHER_CONTAINER)
    assert processes.container_of(777) is None
    assert processes.container_of(1) is None
    assert processes.container_of(4240) is None  # a monitor, where there is one: of the pod, in no container


@pytest.mark.parametrize("case", SEEING)
def test_a_pod_is_alive_while_a_process_of_it_is_there(case):
    processes = CgroupProcesses(TREES / case)
    assert processes.host_pid()
    assert processes.alive(POD) is True
    assert processes.alive(OTHER) is True
    assert processes.alive(GONE) is False


@pytest.mark.parametrize("case", BLIND)
def test_without_the_hosts_processes_nothing_is_concluded(case):
    processes = CgroupProcesses(TREES / case)
    assert not processes.host_pid()
    assert processes.alive(POD) is None


@pytest.fixture
def kubelet():
    """A socket at which a process of this PID namespace listens."""
    with short_directory() as directory, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(directory / "kubelet.sock"))
        listening.listen()
        yield directory / "kubelet.sock"


@pytest.mark.parametrize("case", BLIND)
def test_whoever_sees_the_kubelet_sees_its_pods(case, kubelet):
    """As in a container in which a whole node runs: pid 1 looks like a pod's own."""
    processes = CgroupProcesses(TREES / case, kubelet=kubelet)
    assert processes.host_pid()
    assert processes.alive(GONE) is False


@pytest.mark.parametrize("case", [BLIND[0], "v2-kind"])
def test_while_the_kubelet_is_away_pid_1_decides_and_it_is_asked_again(case, kubelet):
    away = kubelet.with_name("away.sock")
    processes = CgroupProcesses(TREES / case, kubelet=away)
    assert processes.host_pid() is (case in SEEING)
    away.symlink_to(kubelet)
    assert processes.host_pid()


def test_a_kubelet_of_another_pid_namespace_is_not_seen_whatever_pid_1_looks_like(kubelet):
    question = (
        "import sys; from pathlib import Path; from gpu_manager.adapters.processes import CgroupProcesses;"
        "print(CgroupProcesses(Path(sys.argv[1]), kubelet=Path(sys.argv[2])).host_pid())"
    )
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no PID namespace of one's own can be made here")
    done = subprocess.run(
        [*command, sys.executable, "-c", question, TREES / "v2-kind", kubelet],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "False\n"


def test_a_static_pod_has_a_uid_without_dashes():
    found = CgroupProcesses(TREES / "v1-docker-cgroupfs").container_of(5000)
    assert found == ("d3b07384d113edec49eaa6238ad5ff00", OTHER_CONTAINER)


@pytest.mark.parametrize("pid", [0, -1, 99999])
def test_a_process_that_is_not_there_is_in_no_pod(pid):
    assert CgroupProcesses(TREES / "v2-containerd-systemd").container_of(pid) is None


def test_a_proc_that_is_not_there_says_nothing(tmp_path):
    processes = CgroupProcesses(tmp_path / "none")
    assert processes.alive(POD) is None
    assert processes.container_of(1) is None


def host(tmp_path: Path, **cgroups: str) -> Path:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026531836]")
    for pid, text in {"p1": "0::/init.scope\n", **cgroups}.items():
        directory = tmp_path / pid.removeprefix("p")
        directory.mkdir()
        (directory / "cgroup").write_text(text)
    return tmp_path


def test_one_scan_serves_every_question_for_a_while(tmp_path):
    tree = host(tmp_path, p5=f"0::/kubepods/pod{POD}/{CONTAINER}\n")
    now = 0.0
    processes = CgroupProcesses(tree, keep_seconds=1.0, monotonic=lambda: now)
    assert processes.alive(POD) is True
    (tree / "5/cgroup").unlink()
    now = 0.9
    assert processes.alive(POD) is True
    now = 1.0
    assert processes.alive(POD) is False


def test_an_earlier_scan_that_showed_a_pod_alive_does_not_serve_once_it_is_to_be_looked_at_again(tmp_path):
    tree = host(tmp_path, p5=f"0::/kubepods/pod{POD}/{CONTAINER}\n")
    processes = CgroupProcesses(tree, monotonic=lambda: 0.0)
    assert processes.alive(POD) is True
    (tree / "5/cgroup").unlink()
    processes.look_again({OTHER})
    assert processes.alive(POD) is True, "of the other the scan showed nothing: it still serves"
    processes.look_again({POD}, answer=False)
    assert processes.alive(POD), "of one that lived nobody had said that it does not"
    processes.look_again({OTHER, POD})
    assert processes.alive(POD) is False
    (tree / "5/cgroup").write_text(f"0::/kubepods/pod{POD}/{CONTAINER}\n")
    processes.look_again({POD})
    assert processes.alive(POD) is False, "it serves for another second"
    processes.look_again({POD}, answer=False)
    assert processes.alive(POD) is True


def test_a_deleted_cgroup_still_names_its_pod():
    assert parse_cgroup(f"0::/kubepods/pod{POD}/{CONTAINER} (deleted)\n") == (POD, CONTAINER)


def test_the_hierarchy_that_guards_the_cards_is_believed():
    text = f"5:cpu:/kubepods/pod{OTHER}/{OTHER_CONTAINER}\n4:devices:/kubepods/pod{POD}/{CONTAINER}\n"
    assert parse_cgroup(text) == (POD, CONTAINER)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        f"/kubepods/pod{POD}",
        f"/kubepods/pod{POD}/",
        f"/kubepods/pod{POD}/short",
        f"/kubepods/pod{POD}/{CONTAINER}00",
        f"/kubepods/pod{POD}x/{CONTAINER}",
        f"/kubepods/xpod{POD}/{CONTAINER}",
        f"/docker/{CONTAINER}",
        f"/kubepods/podshort/{CONTAINER}",
        f"/kubepods.slice/kubepods-pod{POD}.slice:cri-containerd:short",
    ],
)
def test_what_looks_almost_like_a_container_is_none(path):
    assert parse_cgroup(f"0::{path}\n") is None


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text):
    parse_cgroup(text)
    parse_cgroup(f"0::/{text}/pod{POD}/{text}")


QOS = st.sampled_from(["", "burstable", "besteffort"])
PREFIX = st.sampled_from(["", "/..", "/../..", "/kubelet", f"/docker/{'7e' * 32}/kubelet"])


@given(
    st.uuids(),
    st.text("0123456789abcdef", min_size=64, max_size=64),
    QOS,
    PREFIX,
    st.sampled_from(["docker", "cri-containerd", "crio"]),
)
def test_the_kubelets_own_paths_are_read_back(uuid, container, qos, prefix, runtime):
    slice_name = f"kubepods{'-' * bool(qos)}{qos}-pod{str(uuid).replace('-', '_')}.slice"
    assert parse_cgroup(f"0::{prefix}/{slice_name}/{runtime}-{container}.scope\n") == (str(uuid), container)
    assert parse_cgroup(f"0::{prefix}/kubepods/{qos}/pod{uuid}/{container}\n") == (str(uuid), container)
    assert parse_cgroup(f"0::{prefix}/{slice_name}:{runtime}:{container}\n") == (str(uuid), container)


def waits(tree: Path, pid: int, target: str) -> None:
    """As runc's ``init`` of a container that was made and not started, seen on runc 1.1.5."""
    files = tree / f"{pid}/fd"
    files.mkdir()
    (files / "0").symlink_to("/dev/null")
    (files / "5").symlink_to(target)


def test_a_container_that_was_made_and_never_started_has_no_process_of_its_own(tmp_path):
    there = f"0::/kubepods/pod{POD}/{CONTAINER}\n"
    tree = host(tmp_path, p5=there)
    processes = CgroupProcesses(tree)
    assert not processes.unstarted(POD), "its files cannot be seen"
    waits(tree, 5, f"/run/containerd/runc/k8s.io/{CONTAINER}/exec.fifo")
    assert processes.unstarted(POD)
    (tree / "6").mkdir()
    (tree / "6/cgroup").write_text(there)
    waits(tree, 6, "/somewhere/exec.fifo")
    assert not processes.unstarted(POD), "another process of it works"


def test_a_pod_without_processes_waits_for_no_start(tmp_path):
    assert not CgroupProcesses(host(tmp_path)).unstarted(POD)
    tree = tmp_path / "2"
    tree.mkdir()
    tree = host(tree, p5=f"0::/kubepods/pod{POD}\n")
    waits(tree, 5, "/run//exec.fifo")
    assert not CgroupProcesses(tree).unstarted(POD), "it is in no container"


@pytest.mark.parametrize("refused", ["iterdir", "readlink"])
def test_without_privileges_runcs_own_command_line_tells(tmp_path, monkeypatch, refused):
    """The kernel lists the files of a process to root, and shows what they are to whoever may trace it."""
    tree = host(tmp_path, p5=f"0::/kubepods/pod{POD}/{CONTAINER}\n")
    waits(tree, 5, f"/run/containerd/runc/k8s.io/{CONTAINER}/exec.fifo")
    allowed = getattr(Path, refused)

    def hidden(path: Path) -> Any:
        if "fd" in path.parts:
            raise PermissionError(13, "ptrace")
        return allowed(path)

    monkeypatch.setattr(Path, refused, hidden)
    processes = CgroupProcesses(tree)
    assert not processes.unstarted(POD)
    for text, waiting in (("runc\0init\0", True), ("sleep\0runc\0init\0", False)):
        (tree / "5/cmdline").write_text(text)
        assert processes.unstarted(POD) is waiting

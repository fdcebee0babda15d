"""The doctor's gatherers over machines made of files, an agent that runs, and hostile pages."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.adapters.diagnosis.agent import gather_agent
from gpu_manager.adapters.diagnosis.machine import gather_driver, gather_kubelet, gather_runtime
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.node_config import runtime_socket
from gpu_manager.cli.main import run
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import NodeUnready
from tests.component.test_agent import World
from tests.fakes.node import container, pod
from tests.fakes.node_roots import detect

CONFIG = "etc/containerd/config.toml"
KUBELET = "/var/lib/kubelet"
NVIDIA = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""
STATIC = """apiVersion: v1
kind: Pod
metadata: {name: s, namespace: kube-system}
spec: {containers: [{name: c, resources: {limits: {tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 8}}}]}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def put(root: Path, files: dict[str, str]) -> HostFiles:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HostFiles(root)


def test_where_nothing_but_shared_memory_can_be_written_the_driver_is_looked_for_all_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError("No usable temporary directory found")  # as in the agent's pod

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    assert (
        "install the NVIDIA driver"
        in gather_driver(HostFiles(root), "/", None, sysfs=root, proc=root).library_problem
    )


def test_a_machine_without_anything_has_no_facts_and_no_errors(root: Path) -> None:
    host = HostFiles(root)
    driver = gather_driver(host, "/", None, sysfs=root, proc=root)
    assert (driver.pci_cards, driver.kernel, driver.library, driver.nvml_cards) == (None, None, None, None)
    assert "install the NVIDIA driver" in driver.library_problem
    assert gather_kubelet(host, KUBELET, sysfs=root, proc=root) is None
    found = gather_runtime(host, None, sysfs=root)
    assert (found.strategy, found.config, found.sockets, found.cdi) == ("direct", "", (), None)


def test_cards_are_counted_on_the_bus_without_their_audio_functions(root: Path) -> None:
    slots = {"0000:01:00.0": ("0x10de", "0x030000"), "0000:01:00.1": ("0x10de", "0x040300")}
    slots |= {"0000:02:00.0": ("0x10de", "0x030200"), "0000:00:02.0": ("0x8086", "0x030000")}
    for name, (vendor, kind) in slots.items():
        put(root, {f"bus/pci/devices/{name}/vendor": f"{vendor}\n", f"bus/pci/devices/{name}/class": kind})
    put(root, {"module/nvidia/version": "550.54.15\n"})
    driver = gather_driver(HostFiles(root), "/", None, sysfs=root, proc=root)
    assert (driver.pci_cards, driver.kernel) == (2, "550.54.15")


def test_processes_with_an_older_libcuda_open_are_counted_once_each(root: Path) -> None:
    line = "7f00-7f01 r-xp 0 08:01 9 /usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01 (deleted)\n"
    put(
        root,
        {"11/maps": line * 3, "12/maps": line, "13/maps": "7f00 /usr/lib/libcuda.so.1\n", "x/maps": line},
    )
    assert gather_driver(HostFiles(root), "/", None, sysfs=root, proc=root).in_use == {"535.183.01": 2}


def test_another_system_that_holds_programs_to_shares_is_named(root: Path) -> None:
    put(
        root,
        {
            "11/comm": "nvidia-cuda-mps\n",
            "12/comm": "nvidia-cuda-mps\n",
            "13/comm": "bash\n",
            "14/comm": "mpsd\n",
        },
    )
    found = gather_driver(HostFiles(root), "/", None, sysfs=root, proc=root).enforcers
    assert found == ("NVIDIA's MPS (nvidia-cuda-mps-control)", "gpu-fractioning (mpsd)")


def test_who_else_limits_memory_by_control_group_is_named(root: Path) -> None:
    pods = "sys/fs/cgroup/kubepods.slice"
    card = "drm/0000:3b:00.0/vram0"
    put(
        root,
        {
            f"{pods}/a/dmem.max": f"{card} 1073741824\n",  # ours
            f"{pods}/a/cgroup.procs": "21\n",
            "21/mountinfo": "30 2 0:9 / /etc/vcuda/limits ro - tmpfs tmpfs ro\n",
            f"{pods}/b/dmem.max": f"{card} max\n" * 8,
            f"{pods}/b/cgroup.procs": "22\n",
            "22/mountinfo": "",
            f"{pods}/c/dmem.max": f"{card} max\n" * 8 + "drm/0000:d8:00.0/vram0 1073741824\n",
            f"{pods}/c/cgroup.procs": "23\n24\n",
            "23/mountinfo": "30 2 0:9 / / rw - overlay overlay rw\n",
            f"{pods}/d/dmem.max": f"{card} 5\n",  # its process has just ended
            f"{pods}/d/cgroup.procs": "25\n",
            f"{pods}/e/dmem.max": f"{card} 5\n",  # nothing runs there
            f"{pods}/e/cgroup.procs": "",
        },
    )
    found = gather_driver(HostFiles(root), "/", None, sysfs=root, proc=root).enforcers
    assert found == ("a program that limits the cards' memory of a control group (dmem.max)",)


@pytest.mark.skipif(os.geteuid() == 0, reason="root sees every process")
def test_processes_that_are_hidden_are_not_taken_for_none(root: Path) -> None:
    assert gather_driver(HostFiles(root), "/", None, sysfs=root, proc=root).in_use is None


def test_the_runtime_is_read_as_detection_reads_it(root: Path) -> None:
    lib = "usr/lib/x86_64-linux-gnu/libnvidia-container.so"
    host = put(root, {CONFIG: NVIDIA, f"{lib}.1.3.1": "", f"{lib}.1": "", "fs/cgroup/cgroup.controllers": ""})
    found = gather_runtime(host, "/run/other.sock", sysfs=root)
    assert (found.strategy, found.config) == (
        "direct",
        "",
    )  # that socket is of no runtime whose file is there
    assert "/run/other.sock" in found.why
    assert (found.cri, found.sockets) == ("/run/other.sock", ())
    found = gather_runtime(host, "/var/run/containerd/containerd.sock", sysfs=root)
    strategy, why = detect(root, proc=root)
    assert (found.strategy, found.why) == (strategy.value, why)
    assert found.default_runtime == "nvidia"
    assert found.missing == {"nvidia"}
    assert (found.systemd_cgroup, found.toolkit, found.cgroups) == (True, (1, 3, 1), 2)
    put(root, {"usr/bin/nvidia-container-runtime": ""})
    assert gather_runtime(host, None, sysfs=root).missing == frozenset()


@pytest.mark.parametrize(
    ("text", "known"), [("version = 3\n", True), ("version = 2\n", None), ("enable_cdi = [", None)]
)
def test_cdi_is_known_only_where_a_file_says_it(root: Path, text: str, known: bool | None) -> None:
    assert gather_runtime(put(root, {CONFIG: text}), None, sysfs=root).cdi is known


def test_the_strategy_that_the_agent_is_told_stands_beside_what_auto_would_take(root: Path) -> None:
    found = gather_runtime(put(root, {CONFIG: "version = 3\n"}), None, injection="direct", sysfs=root)
    assert found.strategy == "direct"
    assert "auto would take cdi" in found.why


def test_the_kubelets_files_say_what_is_registered_and_which_socket_it_uses(root: Path) -> None:
    plugins = "var/lib/kubelet/device-plugins"
    checkpoint = {
        "Data": {"PodDeviceEntries": None, "RegisteredDevices": {CORE: [], "nvidia.com/gpu": ["x"]}}
    }
    host = put(
        root,
        {
            f"{plugins}/kubelet_internal_checkpoint": json.dumps(checkpoint),
            f"{plugins}/vcore.sock": "",
            "var/lib/kubelet/config.yaml": "cgroupDriver: systemd\nstaticPodPath: /etc/s\nfailCgroupV1: false\n"
            "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n",
            "etc/s/a.yaml": STATIC,
            "etc/s/b.yaml": "\x00 not a manifest: [",
        },
    )
    found = gather_kubelet(host, KUBELET, sysfs=root, proc=root)
    assert found is not None
    assert found.registered == {CORE, "nvidia.com/gpu"}
    assert (found.socket, found.own_sockets, found.cgroup_driver) == (False, {"vcore.sock"}, "systemd")
    assert found.fail_cgroup_v1 is False
    assert found.static_pods == ("kube-system/s (/etc/s/a.yaml)",)
    assert runtime_socket(host, KUBELET, root) == "/run/containerd/containerd.sock"
    put(
        root,
        {
            "7/comm": "kubelet\n",
            "7/cmdline": "kubelet\x00--container-runtime-endpoint=unix:///run/x.sock\x00",
        },
    )
    assert runtime_socket(host, KUBELET, root) == "/run/x.sock"


@pytest.mark.parametrize(
    ("offers", "found"),
    [
        ({"nvidia.com/gpu": []}, set()),  # a plugin that was removed: its name stays for five minutes
        ({"nvidia.com/gpu": ["x"]}, {"nvidia.com/gpu"}),
        (
            {"nvidia.com/gpu.shared": ["GPU-5fd4f087-86f3-7a43-b711-4771313afc50::0"]},
            {"nvidia.com/gpu.shared"},
        ),
        (
            {"volcano.sh/vgpu-number": ["GPU-5fd4f087-86f3-7a43-b711-4771313afc50-2"]},
            {"volcano.sh/vgpu-number"},
        ),
        ({"aliyun.com/gpu-mem": ["GPU-5fd4f087-86f3-7a43-b711-4771313afc50-_-17"]}, {"aliyun.com/gpu-mem"}),
        ({"nvidia.com/mine": ["nvidia0/vgpu1"]}, {"nvidia.com/mine"}),
        ({"nvidia.com/mine": ["0::1"]}, {"nvidia.com/mine"}),
        ({"nvidia.com/GA100": ["0000:3b:00.0"]}, {"nvidia.com/GA100"}),
        ({"rdma/hca": ["0000:3b:00.0"], "x.io/nic": ["0"], "nvidia.com/mig-1g.5gb": ["MIG-5fd4f087"]}, set()),
    ],
)
def test_another_plugin_is_known_by_what_it_offers_not_by_its_name(
    root: Path, offers: dict[str, list[str]], found: set[str]
) -> None:
    text = json.dumps({"Data": {"RegisteredDevices": {CORE: ["a"], **offers}}})
    host = put(root, {"var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": text})
    facts = gather_kubelet(host, KUBELET, sysfs=root, proc=root)
    assert facts is not None
    assert facts.others == found


@pytest.mark.parametrize("text", ["", "[]", '{"Data":[]}', '{"Data":{"RegisteredDevices":3}}', "[" * 10_000])
def test_a_torn_checkpoint_is_not_taken_for_an_empty_one(root: Path, text: str) -> None:
    host = put(root, {"var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": text})
    found = gather_kubelet(host, KUBELET, sysfs=root, proc=root)
    assert found is not None
    assert found.registered is None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, "t4x4") as running:
        yield running


def test_the_agents_own_pages_say_what_is_enforced(
    world: World, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.run(pod("seen", container("c", 30, 8)))
    world.agent.running.usage.sample()
    found = gather_agent("here", lambda path: world.get(path, "application/json"))
    assert found.enforced == {"default/seen c": "active"}
    assert all(found.ready.values())
    assert found.closed == ()
    assert found.evading == ()
    assert found.sample_age_seconds is not None
    url = f"http://127.0.0.1:{world.agent.http.port}"
    kubelet = str(world.kubelet.device_plugins.parent)
    capsys.readouterr()
    run(["doctor", "--url", url, "--kubelet-dir", kubelet, "-o", "json"])
    said = capsys.readouterr().out
    report = json.loads(said[said.index("{\n") :])
    assert {"agent-not-ready", "enforcement-off", "plugin-not-registered", "kubelet-socket-absent"} <= set(
        report["passed"]
    )
    assert MEMORY not in json.dumps(report["findings"])


@pytest.mark.parametrize("page", ["", "[]", "null", "<html>", "[" * 10_000])
def test_another_program_on_the_port_is_no_agent_and_no_traceback(page: str) -> None:
    with pytest.raises(NodeUnready, match="is that the agent"):
        gather_agent("there", lambda _: page)


def test_an_agent_whose_metrics_are_garbage_still_tells_the_rest() -> None:
    page = '{"cards": [1, {"index": 0, "uuid": "GPU-\\u001b[2J", "healthy": false}], "registered": true}'
    found = gather_agent("there", lambda _: page)
    assert found.enforced is None
    assert found.closed[0].isprintable()


def test_a_machine_without_gpu_and_cluster_is_told_what_was_not_looked_at(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["doctor", "--host-root", str(root), "--url", "http://127.0.0.1:9"])
    said = capsys.readouterr().out
    assert code in (0, 1)
    assert "there is no kubelet: no /var/lib/kubelet" in said
    assert "no agent answers at http://127.0.0.1:9" in said
    assert "runtime-not-found" in said
    assert "\x1b" not in said

"""What the agent takes over from its kubelet: the root directory, by which PodResources moves, and the NUMA policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_manager.adapters.diagnosis.machine import gather_kubelet
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.node_config import kubelet_root, topology_policy
from gpu_manager.agent.backends import KubeletView
from gpu_manager.domain.contract import KUBELET_DIR
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.topology import NumaPolicy
from tests.fakes.node_roots import KUBEADM, kubelet

K0S = "/var/lib/k0s/kubelet"
K3S_FILE = "etc/rancher/k3s/config.yaml"
K3S_DROP_IN = "var/lib/rancher/k3s/agent/etc/kubelet.conf.d/10.conf"
MICROK8S = "var/snap/microk8s/current/args/kubelet"
STRICT = "topologyManagerPolicy: restricted\n"


def node(root: Path, files: dict[str, str]) -> HostFiles:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return HostFiles(root)


@pytest.mark.parametrize(
    ("files", "root"),
    [
        ({}, KUBELET_DIR),
        (kubelet("--config=/etc/kubelet.yaml"), KUBELET_DIR),
        (kubelet(f"--root-dir={K0S}"), K0S),
        (kubelet("--root-dir", f"{K0S}/"), K0S),
        (kubelet("--root-dir=/first", f"--root-dir={K0S}"), K0S),
        ({"var/lib/kubelet/kubeadm-flags.env": f'KUBELET_KUBEADM_ARGS="--root-dir={K0S}"\n'}, K0S),
        (
            {MICROK8S: "--root-dir=${SNAP_COMMON}/var/lib/kubelet\n"},
            "/var/snap/microk8s/common/var/lib/kubelet",
        ),
        (kubelet("server", f"--kubelet-arg=root-dir={K0S}", name="k3s-server"), K0S),
        ({K3S_FILE: f"kubelet-arg: [root-dir={K0S}]\n", **kubelet("server", name="k3s-server")}, K0S),
        ({K3S_FILE: f"kubelet-arg: root-dir={K0S}\n", **kubelet("agent", name="k3s-agent")}, K0S),
        ({K3S_FILE: f"kubelet-arg: [root-dir={K0S}]\n"}, KUBELET_DIR),  # left behind: no k3s runs
        ({K3S_FILE: "= [", **kubelet("server", name="k3s-server")}, KUBELET_DIR),
    ],
)
def test_the_root_directory_is_read_where_the_kubelet_is_told_it(
    tmp_path: Path, files: dict[str, str], root: str
) -> None:
    assert kubelet_root(node(tmp_path, files), KUBELET_DIR, tmp_path / "proc") == root


@pytest.mark.parametrize(
    ("files", "policy"),
    [
        ({}, None),
        ({KUBEADM: "kind: KubeletConfiguration\n"}, "none"),
        ({KUBEADM: STRICT}, "restricted"),
        ({"etc/kubernetes/kubelet/config.json": '{"topologyManagerPolicy": "best-effort"}'}, "best-effort"),
        (kubelet("--v=2"), "none"),
        ({KUBEADM: STRICT, **kubelet("--topology-manager-policy=single-numa-node")}, "single-numa-node"),
        ({"opt/d/10.conf": STRICT, **kubelet("--config-dir=/opt/d")}, "restricted"),
        ({K3S_DROP_IN: STRICT, **kubelet("server", name="k3s-server")}, "restricted"),
        (
            {
                K3S_FILE: "kubelet-arg: [topology-manager-policy=restricted]\n",
                **kubelet("server", name="k3s-server"),
            },
            "restricted",
        ),
        ({MICROK8S: "--topology-manager-policy=best-effort\n"}, "best-effort"),
    ],
)
def test_the_numa_policy_is_the_kubelets_own(
    tmp_path: Path, files: dict[str, str], policy: str | None
) -> None:
    host = node(tmp_path, files)
    assert topology_policy(host, KUBELET_DIR, tmp_path / "proc") == policy
    view = KubeletView(host, Path(KUBELET_DIR), tmp_path / "proc")
    assert view.numa_policy("auto") is NumaPolicy(policy or "none")
    assert view.numa_policy("restricted") is NumaPolicy.RESTRICTED  # a value that is set wins


def test_a_policy_of_a_later_kubelet_binds_nobody_and_no_other_word_is_taken(tmp_path: Path) -> None:
    view = KubeletView(
        node(tmp_path, {KUBEADM: "topologyManagerPolicy: of-tomorrow\n"}),
        Path(KUBELET_DIR),
        tmp_path / "proc",
    )
    assert view.numa_policy("auto") is NumaPolicy.NONE
    with pytest.raises(RequestInvalid, match="one of auto, none, best-effort"):
        view.numa_policy("strict")


def test_the_socket_is_found_below_the_nodes_root_where_only_the_kubelet_names_it(tmp_path: Path) -> None:
    host = node(tmp_path, kubelet(f"--root-dir={K0S}"))
    (tmp_path / K0S.lstrip("/") / "pod-resources").mkdir(parents=True)
    view = KubeletView(host, Path(KUBELET_DIR), tmp_path / "proc")
    assert view.pod_resources(None) == tmp_path / K0S.lstrip("/") / "pod-resources"
    assert view.pod_resources(Path("/own/kubelet.sock")) == Path("/own")
    alone = KubeletView(HostFiles(tmp_path / "none"), Path(KUBELET_DIR), tmp_path / "none")
    assert alone.pod_resources(None) == Path(KUBELET_DIR) / "pod-resources"


def test_a_diagnosis_looks_for_each_directory_where_it_is(tmp_path: Path) -> None:
    host = node(
        tmp_path,
        {
            **kubelet(f"--root-dir={K0S}"),
            f"{K0S}/pod-resources/kubelet.sock".lstrip("/"): "",
            f"{KUBELET_DIR}/device-plugins/kubelet.sock".lstrip("/"): "",
        },
    )
    found = gather_kubelet(host, KUBELET_DIR, sysfs=tmp_path, proc=tmp_path / "proc")
    assert found is not None
    assert (found.socket, found.pod_resources, found.root) == (True, True, K0S)

"""Nodes made of files: container runtimes as distributions configure them, and what other runtimes leave behind.

The default configurations say what the projects' documentation says of them, in our own words and no more of it than
injection depends on.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.node_config import runtime_socket
from gpu_manager.adapters.driver_files.runtimes import Strategy, answers, choose, in_use
from gpu_manager.domain.contract import KUBELET_DIR


def detect(root: Path, *, proc: Path, answering=answers) -> tuple[Strategy, str]:
    """The strategy for the node whose file system is at ``root``, and the fact that decided it."""
    host = HostFiles(root)
    return choose(host, *in_use(host, runtime_socket(host, KUBELET_DIR, proc), answering, proc))


CDI, NVIDIA, DIRECT = Strategy.CDI, Strategy.NVIDIA, Strategy.DIRECT

ETC = "etc/containerd/config.toml"
K3S = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
RKE2 = "var/lib/rancher/rke2/agent/etc/containerd/config.toml"
K0S = "etc/k0s/containerd.toml"
MICROK8S = "var/snap/microk8s/current/args/containerd.toml"
CRIO = "etc/crio/crio.conf"
DOCKER = "etc/docker/daemon.json"

SOCK = "run/containerd/containerd.sock"
SOCK_K3S = "run/k3s/containerd/containerd.sock"
SOCK_K0S = "run/k0s/containerd.sock"
SOCK_MICROK8S = "var/snap/microk8s/common/run/containerd.sock"
SOCK_CRIO = "run/crio/crio.sock"
SOCK_SHIM = "run/cri-dockerd.sock"

V1_CRI = "[plugins.cri]\n"
V2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'
V2_DEFAULT = (
    V2
    + 'cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\nenable_cdi = false\n'
    + '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "runc"\n'
)
V2_ON = V2 + "enable_cdi = true\n"
V2_NVIDIA = V2 + '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"\n'
V3 = "version = 3\n"
V3_DEFAULT = (
    "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = true\n"
    "cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']\n"
)
V3_OFF = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n"
RANCHER_V2 = (
    'version = 2\n[grpc]\naddress = "/run/k3s/containerd/containerd.sock"\n'
    '[plugins."io.containerd.grpc.v1.cri"]\nenable_unprivileged_ports = true\n'
)
RANCHER_V3 = (
    "version = 3\n[grpc]\naddress = '/run/k3s/containerd/containerd.sock'\n"
    "[plugins.'io.containerd.cri.v1.runtime']\nenable_unprivileged_ports = true\n"
)
NO_CRI = 'disabled_plugins = ["cri"]\n'  # Docker's own package of containerd
DOCKER_NVIDIA = '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'
KUBEADM = "var/lib/kubelet/config.yaml"


def told(socket: str) -> str:
    """A kubelet's configuration that names the socket."""
    return f"kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///{socket}\n"


def kubelet(*words: str, name: str = "kubelet", pid: int = 812) -> dict[str, str]:
    """A running process of that name."""
    return {f"proc/{pid}/comm": f"{name}\n", f"proc/{pid}/cmdline": "\0".join((name, *words)) + "\0"}


@dataclass(frozen=True)
class NodeRoot:
    """``files`` by path, ``alive`` the sockets that answer, ``dead`` files of sockets that nobody listens at; of
    ``old`` files none was written for long.
    """

    name: str
    files: dict[str, str]
    wanted: Strategy
    alive: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    old: tuple[str, ...] = field(default=())

    def make(self, root):
        for path, text in {**self.files, **dict.fromkeys((*self.alive, *self.dead), "")}.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        for path in self.old:
            os.utime(root / path, (1, 1))
        return root

    def detected(self, root) -> tuple[Strategy, str]:
        """What detection says of the node, once made."""
        alive = {root / path for path in self.alive}
        return detect(root, proc=root / "proc", answering=alive.__contains__)


DEFAULTS = (
    NodeRoot("containerd 1.6", {ETC: V2}, DIRECT, (SOCK,)),
    NodeRoot("containerd 1.7", {ETC: V2_DEFAULT, KUBEADM: told(SOCK)}, DIRECT, (SOCK,)),
    NodeRoot("containerd 2.0", {ETC: V3_DEFAULT, KUBEADM: told(SOCK)}, CDI, (SOCK,)),
    NodeRoot(
        "containerd 2.1", {ETC: "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n"}, CDI, (SOCK,)
    ),
    NodeRoot("containerd of Docker's packages", {ETC: NO_CRI}, DIRECT, (SOCK,)),
    NodeRoot(
        "CRI-O",
        {"etc/crio/crio.conf.d/10-crio.conf": '[crio.runtime]\ndefault_runtime = "crun"\n'},
        CDI,
        (SOCK_CRIO,),
    ),
    NodeRoot(
        "k3s of containerd 1.7",
        {K3S: RANCHER_V2, **kubelet("server", name="k3s-server")},
        DIRECT,
        (SOCK_K3S,),
    ),
    NodeRoot(
        "k3s of containerd 2", {K3S: RANCHER_V3, **kubelet("agent", name="k3s-agent")}, CDI, (SOCK_K3S,)
    ),
    NodeRoot("RKE2 of containerd 1.7", {RKE2: RANCHER_V2}, DIRECT, (SOCK_K3S,)),
    NodeRoot(
        "RKE2 of containerd 2",
        {
            RKE2: RANCHER_V3,
            **kubelet("--container-runtime-endpoint=unix:///run/k3s/containerd/containerd.sock"),
        },
        CDI,
        (SOCK_K3S,),
    ),
    NodeRoot(
        "k0s",
        {
            K0S: '# k0s_managed=true\nversion = 2\nimports = ["/run/k0s/containerd-cri.toml"]\n',
            "run/k0s/containerd-cri.toml": V2_DEFAULT,
            **kubelet("--container-runtime-endpoint=unix:///run/k0s/containerd.sock"),
        },
        DIRECT,
        (SOCK_K0S,),
    ),
    NodeRoot(
        "k0s of containerd 2",
        {
            K0S: 'version = 3\nimports = ["/run/k0s/containerd-cri.toml"]\n',
            "run/k0s/containerd-cri.toml": V3_DEFAULT,
        },
        CDI,
        (SOCK_K0S,),
    ),
    NodeRoot(
        "MicroK8s",
        {
            MICROK8S: V2 + 'stream_server_address = "127.0.0.1"\n',
            "var/snap/microk8s/current/args/kubelet": "--root-dir=${SNAP_COMMON}/var/lib/kubelet\n"
            "--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock\n",
        },
        DIRECT,
        (SOCK_MICROK8S,),
    ),
    NodeRoot(
        "Docker with cri-dockerd",
        {ETC: NO_CRI, **kubelet("--container-runtime-endpoint=unix:///var/run/cri-dockerd.sock")},
        DIRECT,
        (SOCK, SOCK_SHIM),
    ),
    NodeRoot("Docker with NVIDIA's runtime", {ETC: NO_CRI, DOCKER: DOCKER_NVIDIA}, NVIDIA, (SOCK, SOCK_SHIM)),
    NodeRoot("kind", {ETC: V2_ON, KUBEADM: told(SOCK)}, CDI, (SOCK,)),
    NodeRoot("kind of containerd 2", {ETC: V3_DEFAULT, KUBEADM: told(SOCK)}, CDI, (SOCK,)),
)

LEFTOVERS = (
    NodeRoot(
        "a leftover CRI-O beside containerd",
        {CRIO: "[crio.runtime]\n", ETC: V2_DEFAULT, KUBEADM: told(SOCK)},
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "a leftover CRI-O, the kubelet silent",
        {CRIO: "[crio.runtime]\n", ETC: V2_DEFAULT},
        DIRECT,
        (SOCK,),
        (SOCK_CRIO,),
    ),
    NodeRoot(
        "a leftover containerd 2 beside CRI-O",
        {ETC: V3_DEFAULT, CRIO: '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n'},
        DIRECT,
        (SOCK_CRIO,),
        (SOCK,),
    ),
    NodeRoot(
        "a leftover k3s beside kubeadm",
        {K3S: RANCHER_V3, ETC: V2_DEFAULT, KUBEADM: told(SOCK)},
        DIRECT,
        (SOCK,),
        (SOCK_K3S,),
    ),
    NodeRoot(
        "a leftover kubeadm beside k3s",
        {KUBEADM: told(SOCK), ETC: V3_DEFAULT, K3S: RANCHER_V2, **kubelet("server", name="k3s-server")},
        DIRECT,
        (SOCK_K3S, SOCK),
    ),
    NodeRoot("RKE2 where k3s was", {K3S: RANCHER_V3, RKE2: RANCHER_V2}, DIRECT, (SOCK_K3S,), old=(K3S,)),
    NodeRoot("k3s where RKE2 was", {K3S: RANCHER_V3, RKE2: RANCHER_V2}, CDI, (SOCK_K3S,), old=(RKE2,)),
    NodeRoot(
        "RKE2 of which only the socket's directory is k3s's",
        {RKE2: RANCHER_V3, ETC: V2_DEFAULT},
        CDI,
        (SOCK_K3S,),
    ),
    NodeRoot(
        "Docker's containerd beside k0s",
        {
            ETC: V3_DEFAULT,
            K0S: V2_DEFAULT,
            **kubelet("--container-runtime-endpoint", "unix:///run/k0s/containerd.sock"),
        },
        DIRECT,
        (SOCK, SOCK_K0S),
    ),
    NodeRoot(
        "MicroK8s beside a system's containerd 2",
        {
            ETC: V3_DEFAULT,
            MICROK8S: V2,
            "var/snap/microk8s/current/args/kubelet": "--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock\n",
        },
        DIRECT,
        (SOCK, SOCK_MICROK8S),
    ),
    NodeRoot("two runtimes that answer, and nobody says which", {ETC: V2_DEFAULT}, DIRECT, (SOCK, SOCK_CRIO)),
    NodeRoot("two runtimes that answer and agree", {ETC: V3_DEFAULT}, CDI, (SOCK, SOCK_CRIO)),
    NodeRoot(
        "Docker's NVIDIA runtime beside the kubelet's containerd",
        {ETC: V2_DEFAULT, DOCKER: DOCKER_NVIDIA, KUBEADM: told(SOCK)},
        DIRECT,
        (SOCK, SOCK_SHIM),
    ),
    NodeRoot(
        "the flag wins over the file",
        {
            KUBEADM: told(SOCK_CRIO),
            ETC: V2_DEFAULT,
            CRIO: "[crio.runtime]\n",
            **kubelet(
                "--config=/var/lib/kubelet/config.yaml",
                "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
            ),
        },
        DIRECT,
        (SOCK, SOCK_CRIO),
    ),
    NodeRoot(
        "the running kubelet's own file",
        {
            "opt/kubelet.yaml": told(SOCK),
            KUBEADM: told(SOCK_CRIO),
            ETC: V2_DEFAULT,
            CRIO: "[crio.runtime]\n",
            **kubelet("--config", "/opt/kubelet.yaml"),
        },
        DIRECT,
        (SOCK, SOCK_CRIO),
    ),
    NodeRoot(
        "a drop-in of the kubelet's",
        {
            "opt/kubelet.yaml": told(SOCK_CRIO),
            "opt/d/10.conf": told(SOCK),
            ETC: V2_DEFAULT,
            CRIO: "[crio.runtime]\n",
            **kubelet("--config=/opt/kubelet.yaml", "--config-dir=/opt/d"),
        },
        DIRECT,
        (SOCK, SOCK_CRIO),
    ),
    NodeRoot(
        "a kubelet that names no socket uses its default",
        {
            "opt/kubelet.yaml": "kind: KubeletConfiguration\n",
            ETC: V2_DEFAULT,
            CRIO: "[crio.runtime]\n",
            **kubelet("--config=/opt/kubelet.yaml"),
        },
        DIRECT,
        (SOCK, SOCK_CRIO),
    ),
    NodeRoot(
        "kubeadm's flags, no process seen",
        {
            "var/lib/kubelet/kubeadm-flags.env": 'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///var/run/crio/crio.sock"\n',
            ETC: V2_DEFAULT,
            CRIO: "[crio.runtime]\n",
        },
        CDI,
        (SOCK, SOCK_CRIO),
    ),
    NodeRoot(
        "a socket that nobody's configuration names",
        {KUBEADM: told("run/other.sock"), ETC: V3_DEFAULT},
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "a socket of one's own, named by containerd's file",
        {KUBEADM: told("run/mine.sock"), ETC: V3_DEFAULT + "[grpc]\naddress = '/run/mine.sock'\n"},
        CDI,
        ("run/mine.sock",),
    ),
    NodeRoot(
        "Talos",
        {
            ETC: V2_DEFAULT + '[grpc]\naddress = "/system/run/containerd/containerd.sock"\n',
            "etc/cri/containerd.toml": V3_DEFAULT,
            KUBEADM: told(SOCK),
        },
        CDI,
        (SOCK,),
    ),
    NodeRoot(
        "k3s with Docker",
        {K3S: RANCHER_V3, **kubelet("server", "--docker", name="k3s-server")},
        DIRECT,
        (SOCK_K3S, "run/k3s/cri-dockerd/cri-dockerd.sock"),
        old=(K3S,),
    ),
)

FILES = (
    NodeRoot("version 1, on", {ETC: V1_CRI + "enable_cdi = true\n"}, CDI, (SOCK,)),
    NodeRoot(
        "version 1, NVIDIA's runtime",
        {ETC: '[plugins.cri.containerd]\ndefault_runtime_name = "nvidia"\n'},
        NVIDIA,
        (SOCK,),
    ),
    NodeRoot(
        "version 1 with the section of version 2",
        {ETC: '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n'},
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "version 2 with the section of version 3",
        {ETC: "version = 2\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = true\n"},
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "version 3 with a leftover section of version 2",
        {ETC: V3_OFF + '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n'},
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "version 3, off in a wildcard's import",
        {ETC: V3 + "imports = ['/etc/containerd/*/off.toml']\n", "etc/containerd/site/off.toml": V3_OFF},
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "version 3 with an import of version 2 that turns it off",
        {
            ETC: V3 + "imports = ['conf.d/*.toml']\n",
            "etc/containerd/conf.d/99.toml": V2 + "enable_cdi = false\n",
        },
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "version 3 with an import that leaves it",
        {
            ETC: V3_DEFAULT.replace("[plugins", "imports = ['conf.d/*.toml']\n[plugins", 1),
            "etc/containerd/conf.d/99.toml": "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_selinux = true\n",
        },
        CDI,
        (SOCK,),
    ),
    NodeRoot(
        "version 2, on, and a drop-in that replaces the section",
        {
            ETC: 'imports = ["conf.d/*.toml"]\n' + V2_ON,
            "etc/containerd/conf.d/99.toml": V2 + 'sandbox_image = "x"\n',
        },
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "version 2, on in a drop-in",
        {ETC: 'imports = ["conf.d/*.toml"]\n' + V2_DEFAULT, "etc/containerd/conf.d/99.toml": V2_ON},
        CDI,
        (SOCK,),
    ),
    NodeRoot(
        "an import of an import",
        {
            ETC: V3 + "imports = ['/opt/a.toml']\n",
            "opt/a.toml": V3 + "imports = ['/opt/b.toml']\n",
            "opt/b.toml": V3_OFF,
        },
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "files that import each other",
        {
            ETC: V3 + "imports = ['/opt/a.toml']\n",
            "opt/a.toml": V3_OFF.replace("[plugins", f"imports = ['/{ETC}']\n[plugins", 1),
        },
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "other directories for specs",
        {ETC: V3 + "[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/etc/cdi']\n"},
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "AKS with its own name for NVIDIA's runtime",
        {
            ETC: V2
            + '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia-container-runtime"\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-container-runtime.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
        },
        NVIDIA,
        (SOCK,),
    ),
    NodeRoot(
        "a runtime called nvidia that is runc",
        {
            ETC: V2_NVIDIA
            + '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\nBinaryName = "/usr/bin/runc"\n'
        },
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "CRI-O's drop-in with other directories",
        {
            CRIO: "[crio.runtime]\n",
            "etc/crio/crio.conf.d/99.conf": '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n',
        },
        DIRECT,
        (SOCK_CRIO,),
    ),
    NodeRoot(
        "CRI-O whose drop-in sets one runtime",
        {
            CRIO: '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n[crio.runtime.runtimes.runc]\n',
            "etc/crio/crio.conf.d/99.conf": '[crio.runtime.runtimes.nvidia]\nruntime_path = "x"\n',
        },
        DIRECT,
        (SOCK_CRIO,),
    ),
    NodeRoot("broken TOML", {ETC: "= broken ["}, DIRECT, (SOCK,)),
    NodeRoot("nothing at all", {}, DIRECT),
)

LEFT_BEHIND = (*LEFTOVERS, *FILES)
EVERY = (*DEFAULTS, *LEFT_BEHIND)

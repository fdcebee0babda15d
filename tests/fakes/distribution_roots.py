"""Nodes as distributions and clouds publish their defaults, in our own words and no more than injection depends on."""

from __future__ import annotations

from gpu_manager.adapters.driver_files.runtimes import Strategy
from tests.fakes.node_roots import (
    CDI,
    DIRECT,
    DOCKER,
    DOCKER_NVIDIA,
    ETC,
    K0S,
    K3S,
    KUBEADM,
    MICROK8S,
    NO_CRI,
    NVIDIA,
    RANCHER_V2,
    RANCHER_V3,
    RKE2,
    SOCK,
    SOCK_CRIO,
    SOCK_K0S,
    SOCK_K3S,
    SOCK_MICROK8S,
    SOCK_SHIM,
    NodeRoot,
    kubelet,
    told,
)

OLD, NEW = 'plugins."io.containerd.grpc.v1.cri"', "plugins.'io.containerd.cri.v1.runtime'"
TOOLKIT = "etc/nvidia-container-runtime/config.toml"
OPERATOR = "usr/local/nvidia/toolkit"
DOCKERSHIM = "run/dockershim.sock"
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
CTK = "etc/containerd/conf.d/99-nvidia.toml"
HARDENED = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
MODE_CDI = '[nvidia-container-runtime]\nmode = "cdi"\n'


def containerd(
    version: int, default: str = "runc", binary: str = "", cdi: bool | None = None, more: str = ""
) -> str:
    """A file of containerd: its version, the default runtime with its binary, and whether CDI is said."""
    part = OLD if version < 3 else NEW
    lines = [f"version = {version}", more, f"[{part}]"]
    lines += [] if cdi is None else [f"enable_cdi = {str(cdi).lower()}"]
    lines += [f"[{part}.containerd]", f'default_runtime_name = "{default}"']
    lines += [f"[{part}.containerd.runtimes.{default}.options]", f'BinaryName = "{binary}"'] if binary else []
    return "\n".join(lines) + "\n"


def node(
    name: str,
    wanted: Strategy,
    files: dict[str, str],
    socket: str = SOCK,
    *flags: str,
    more: tuple[str, ...] = (),
) -> NodeRoot:
    """A node whose kubelet runs with the socket of its runtime among its flags."""
    command = kubelet(f"--container-runtime-endpoint=unix:///{socket}", *flags)
    return NodeRoot(name, {**files, **command}, wanted, (socket, *more))


CTK_BINARY = "/usr/bin/nvidia-container-runtime"
PUBLISHED = (
    node("EKS, AL2", NVIDIA, {ETC: containerd(2, "nvidia", CTK_BINARY)}),
    node("EKS, AL2023 with CDI", CDI, {ETC: containerd(3, "nvidia", CTK_BINARY, cdi=True)}),
    node("EKS, AL2023 without CDI", NVIDIA, {ETC: containerd(3, "nvidia", CTK_BINARY, cdi=False)}),
    node(
        "Bottlerocket, whose toolkit heeds volume mounts alone",
        DIRECT,
        {
            ETC: containerd(2, "nvidia", "nvidia-oci", more=f'[grpc]\naddress = "/{DOCKERSHIM}"'),
            TOOLKIT: HARDENED,
        },
        DOCKERSHIM,
    ),
    node(
        "Bottlerocket with the runtime's own name",
        NVIDIA,
        {ETC: containerd(2, "nvidia", CTK_BINARY, more=f'[grpc]\naddress = "/{DOCKERSHIM}"')},
        DOCKERSHIM,
    ),
    node(
        "Bottlerocket with containerd 2", CDI, {ETC: containerd(3, "nvidia", CTK_BINARY), TOOLKIT: HARDENED}
    ),
    node("GKE, COS", DIRECT, {ETC: containerd(2, more="oom_score = -999")}),
    node("GKE, COS with containerd 2", CDI, {ETC: containerd(3)}),
    node("AKS, Ubuntu", NVIDIA, {ETC: containerd(2, "nvidia-container-runtime", CTK_BINARY)}),
    node("AKS without a GPU driver of its own", DIRECT, {ETC: containerd(2, "runc", "/usr/bin/runc")}),
    node("AKS, containerd 2", CDI, {ETC: containerd(3, "nvidia-container-runtime", CTK_BINARY)}),
    node(
        "OpenShift",
        CDI,
        {"etc/crio/crio.conf.d/00-default": '[crio.runtime]\ndefault_runtime = "crun"\n'},
        SOCK_CRIO,
    ),
    node(
        "OpenShift with the operator's runtime as default",
        CDI,
        {
            "etc/crio/crio.conf.d/00-default": '[crio.runtime]\ndefault_runtime = "crun"\n',
            "etc/crio/crio.conf.d/99-nvidia.conf": '[crio.runtime]\ndefault_runtime = "nvidia"\n'
            f'[crio.runtime.runtimes.nvidia]\nruntime_path = "/{OPERATOR}/nvidia-container-runtime"\n',
        },
        SOCK_CRIO,
    ),
    node("OKE", CDI, {"etc/crio/crio.conf": '[crio.runtime]\ncgroup_manager = "systemd"\n'}, SOCK_CRIO),
    node(
        "openSUSE's CRI-O",
        CDI,
        {"usr/share/containers/crio.conf.d/10-runc.conf": '[crio.runtime]\ndefault_runtime = "runc"\n'},
        SOCK_CRIO,
    ),
    node("Flatcar", CDI, {"usr/share/containerd/config.toml": containerd(3)}),
    node("Flatcar of containerd 1", DIRECT, {"usr/share/containerd/config.toml": containerd(2)}),
    NodeRoot(
        "Flatcar with a file of the administrator's",
        {
            "usr/share/containerd/config.toml": containerd(3),
            ETC: containerd(3, cdi=False),
            **kubelet(f"--container-runtime-endpoint=unix:///{SOCK}"),
        },
        DIRECT,
        (SOCK,),
        old=("usr/share/containerd/config.toml",),
    ),
    node(
        "kOps with NVIDIA's runtime",
        NVIDIA,
        {"etc/containerd/config-kops.toml": containerd(2, "nvidia", CTK_BINARY)},
    ),
    node("kOps of containerd 2", CDI, {"etc/containerd/config-kops.toml": containerd(3)}),
    node("kubespray", DIRECT, {ETC: containerd(2, more="oom_score = 0")}),
    node("kubespray of containerd 2", CDI, {ETC: containerd(3, cdi=True)}),
    node(
        "Talos with the toolkit's extension",
        CDI,
        {
            "etc/cri/containerd.toml": 'version = 3\nimports = ["/etc/cri/conf.d/cri.toml"]\n',
            "etc/cri/conf.d/cri.toml": containerd(3),
            ETC: containerd(3, cdi=False, more='grpc.address = "/system/run/containerd/containerd.sock"'),
        },
    ),
    NodeRoot(
        "k3s, default-runtime nvidia",
        {
            K3S: RANCHER_V2 + f'[{OLD}.containerd]\ndefault_runtime_name = "nvidia"\n'
            f'[{OLD}.containerd.runtimes.nvidia.options]\nBinaryName = "{CTK_BINARY}"\n',
            **kubelet("server", name="k3s-server"),
        },
        NVIDIA,
        (SOCK_K3S,),
    ),
    NodeRoot(
        "k3s with a runtime's endpoint in its file",
        {
            K3S: RANCHER_V3,
            ETC: containerd(2),
            "etc/rancher/k3s/config.yaml": f"container-runtime-endpoint: unix:///{SOCK}\n",
            **kubelet("server", name="k3s-server"),
        },
        DIRECT,
        (SOCK, SOCK_K3S),
    ),
    node(
        "RKE2 that has found NVIDIA's runtime",
        DIRECT,
        {RKE2: RANCHER_V2 + f'[{OLD}.containerd.runtimes.nvidia.options]\nBinaryName = "{CTK_BINARY}"\n'},
        SOCK_K3S,
    ),
    node("RKE2 of containerd 2", CDI, {RKE2: RANCHER_V3}, SOCK_K3S),
    node(
        "MicroK8s with its add-on for NVIDIA",
        NVIDIA,
        {MICROK8S: containerd(2, "nvidia-container-runtime", f"/{OPERATOR}/nvidia-container-runtime")},
        SOCK_MICROK8S,
    ),
    node(
        "Charmed Kubernetes",
        NVIDIA,
        {ETC: containerd(2, "nvidia-container-runtime", "nvidia-container-runtime")},
    ),
    node("minikube with Docker", NVIDIA, {ETC: NO_CRI, DOCKER: DOCKER_NVIDIA}, SOCK_SHIM, more=(SOCK,)),
    node("minikube with containerd", CDI, {ETC: containerd(2, cdi=True)}),
    node(
        "Gardener with a drop-in of NVIDIA's",
        NVIDIA,
        {ETC: containerd(2, more=IMPORTS), CTK: containerd(2, "nvidia", CTK_BINARY)},
    ),
    node("kubeadm after nvidia-ctk with CDI", CDI, {ETC: containerd(2, "nvidia", CTK_BINARY, cdi=True)}),
    node(
        "kubeadm of containerd 2 after nvidia-ctk",
        CDI,
        {ETC: containerd(3, more=IMPORTS), CTK: containerd(3, "nvidia", CTK_BINARY)},
    ),
    node(
        "the operator's toolkit in mode cdi",
        DIRECT,
        {
            ETC: containerd(2, "nvidia", f"/{OPERATOR}/nvidia-container-runtime"),
            f"{OPERATOR}/.config/nvidia-container-runtime/config.toml": MODE_CDI,
        },
    ),
    node(
        "the operator's toolkit with CDI as default",
        DIRECT,
        {ETC: containerd(2, "nvidia-cdi", f"/{OPERATOR}/nvidia-container-runtime.cdi")},
    ),
    node(
        "k0s with a drop-in of NVIDIA's",
        CDI,
        {
            K0S: 'version = 3\nimports = ["/run/k0s/containerd-cri.toml", "/etc/k0s/containerd.d/*.toml"]\n',
            "run/k0s/containerd-cri.toml": containerd(3),
            "etc/k0s/containerd.d/nvidia.toml": containerd(3, "nvidia", CTK_BINARY),
        },
        SOCK_K0S,
        "--root-dir=/var/lib/k0s/kubelet",
    ),
    NodeRoot(
        "a kubelet of the Mirantis engine",
        {ETC: NO_CRI, KUBEADM: told("var/run/cri-dockerd-mke.sock")},
        DIRECT,
        ("run/cri-dockerd-mke.sock", SOCK),
    ),
    NodeRoot(
        "a containerd that was started with a file of its own",
        {
            ETC: containerd(3),
            "opt/site/containerd.toml": containerd(3, cdi=False),
            **kubelet(f"--container-runtime-endpoint=unix:///{SOCK}"),
            **kubelet("-c", "/opt/site/containerd.toml", name="containerd", pid=700),
        },
        DIRECT,
        (SOCK,),
    ),
    NodeRoot(
        "a containerd of Docker's own beside the kubelet's",
        {
            ETC: containerd(2, cdi=True),
            "var/run/docker/containerd/containerd.toml": NO_CRI,
            **kubelet(f"--container-runtime-endpoint=unix:///{SOCK}"),
            **kubelet(
                "--config=/var/run/docker/containerd/containerd.toml",
                "--address=/var/run/docker/containerd/containerd.sock",
                name="containerd",
                pid=701,
            ),
        },
        CDI,
        (SOCK,),
    ),
    node("openEuler's iSulad", DIRECT, {}, "run/isulad.sock"),
    node("GKE, Ubuntu", DIRECT, {ETC: containerd(2, more="required_plugins = []")}),
    node("GKE, Ubuntu with containerd 2", CDI, {ETC: containerd(3, more="required_plugins = []")}),
    node(
        "AKS, Azure Linux",
        NVIDIA,
        {
            ETC: containerd(2, "nvidia-container-runtime", CTK_BINARY),
            TOOLKIT: '[nvidia-container-cli]\nroot = "/"\n',
        },
    ),
    NodeRoot(
        "NixOS, whose containerd has a file in the store",
        {
            "nix/store/0abc-containerd-config-checked.toml": containerd(2, cdi=True),
            **kubelet(f"--container-runtime-endpoint=unix:///{SOCK}"),
            **kubelet(
                "--config", "/nix/store/0abc-containerd-config-checked.toml", name="containerd", pid=703
            ),
        },
        CDI,
        (SOCK,),
    ),
    NodeRoot(
        "k3s in a container of Proxmox",
        {
            K3S: RANCHER_V3,
            **kubelet("agent", "--kubelet-arg=feature-gates=KubeletInUserNamespace=true", name="k3s-agent"),
        },
        CDI,
        (SOCK_K3S,),
    ),
    node("kind with NVIDIA's runtime as default", NVIDIA, {ETC: containerd(2, "nvidia", CTK_BINARY)}),
    node("kind of containerd 2", CDI, {ETC: containerd(3, more="oom_score = 0")}),
    NodeRoot("k3s in WSL", {K3S: RANCHER_V3, **kubelet("server", name="k3s-server")}, CDI, (SOCK_K3S,)),
    node(
        "DGX OS with Docker of its own beside the kubelet's containerd",
        NVIDIA,
        {ETC: containerd(2, more=IMPORTS), CTK: containerd(2, "nvidia", CTK_BINARY), DOCKER: DOCKER_NVIDIA},
        more=("run/docker.sock",),
    ),
    node(
        "Jetson, whose runtime gives every container all that its lists name",
        DIRECT,
        {
            ETC: containerd(2, "nvidia", CTK_BINARY),
            TOOLKIT: '[nvidia-container-runtime]\nmode = "csv"\n',
        },
    ),
    node(
        "a runtime that makes CDI specs as it needs them",
        NVIDIA,
        {
            ETC: containerd(2, "nvidia", CTK_BINARY),
            TOOLKIT: '[nvidia-container-runtime]\nmode = "jit-cdi"\n',
        },
    ),
    node("Harvester", CDI, {RKE2: RANCHER_V3}, SOCK_K3S, "--root-dir=/var/lib/kubelet"),
)

"""How each program of the cluster is run: command lines and configuration files. Nothing starts here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.images import PAUSE
from tests.cluster.parts import CNI, Parts, minor
from tests.cluster.periods import chosen
from tests.cluster.pki import Pki

NODE: Final = "n1"
ADDRESS: Final = "10.253.76.1"  # of the node, in a network of its own
SERVICE: Final = "10.96.0.1"  # of the API server; an address of the node: it works without kube-proxy
SERVICES: Final = "10.96.0.0/16"
NAMES: Final = "10.96.0.10"  # of the cluster's DNS; an address of the node
PODS: Final = "10.253.77.0/24"
SERVER: Final = f"https://{ADDRESS}:443"  # for the node: the Service has no endpoint while the server stops
REGISTRY_PORT: Final = 5000
CONTAINERD: Final = "/run/containerd/containerd.sock"
CGROUP: Final = "vcuda-cluster"
ORDER: Final = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "registry",
    "names",
    "containerd",
    "kubelet",
    "kube-proxy",  # only where the kernel translates addresses
)


def commands(parts: Parts, pki: Pki, scratch: Path, python: str) -> Mapping[str, list[str]]:
    """Part → argv."""
    here = Path(__file__).resolve().parent
    etcd = "http://127.0.0.1:2379"
    return {
        "etcd": [
            *(parts["etcd"], f"--data-dir={scratch}/etcd", f"--listen-client-urls={etcd}"),
            *(f"--advertise-client-urls={etcd}", "--listen-peer-urls=http://127.0.0.1:2380"),
        ],
        "kube-apiserver": _api_server(parts, pki, etcd),
        "kube-controller-manager": [
            parts["kube-controller-manager"],
            f"--kubeconfig={pki / 'controller-manager.kubeconfig'}",
            f"--service-account-private-key-file={pki / 'service-accounts.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--cluster-signing-cert-file={pki / 'ca.crt'}",
            f"--cluster-signing-key-file={pki / 'ca.key'}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--terminated-pod-gc-threshold=500",
            "--node-monitor-grace-period=1h",  # further nodes are objects alone: nobody renews their leases
            "--node-startup-grace-period=1h",
        ],
        "kube-scheduler": [
            parts["kube-scheduler"],
            f"--config={scratch}/kube-scheduler.yaml",
            "--bind-address=127.0.0.1",
            "--secure-port=10269",  # 10259 is left to a scheduler in a pod on the node's network
        ],
        "registry": [python, str(here / "registry.py"), f"{scratch}/images/layout", str(REGISTRY_PORT)],
        "names": [
            *(python, str(here / "resolver.py"), NAMES, SERVER, pki / "ca.crt", pki / "admin.token"),
        ],
        "containerd": [
            # Its shim is looked for on the PATH, where an older one may be.
            *("env", f"PATH={parts.paths['containerd'].parent}:{os.environ['PATH']}"),
            *(parts["containerd"], "--config", f"{scratch}/containerd.toml"),
        ],
        "kube-proxy": [parts["kube-proxy"], f"--config={scratch}/kube-proxy.yaml"],
        "kubelet": [
            parts["kubelet"],
            f"--config={scratch}/kubelet.yaml",
            f"--kubeconfig={pki / 'kubelet.kubeconfig'}",
            f"--hostname-override={NODE}",
            f"--node-ip={ADDRESS}",
            "--node-labels=nvidia-device-enable=enable",
            "--v=4",
        ],
    }


def _api_server(parts: Parts, pki: Pki, etcd: str) -> list[str]:
    flags = {
        "etcd-servers": etcd,
        "bind-address": "0.0.0.0",  # of the cluster's own network namespace
        "advertise-address": ADDRESS,
        "secure-port": "443",
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "token-auth-file": pki / "tokens.csv",
        "service-account-key-file": pki / "service-accounts.key",
        "service-account-signing-key-file": pki / "service-accounts.key",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-cluster-ip-range": SERVICES,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "kubelet-client-certificate": pki / "kubelet-client.crt",
        "kubelet-client-key": pki / "kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",
        "requestheader-client-ca-file": pki / "ca.crt",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-allowed-names": "front-proxy-client",
        "proxy-client-cert-file": pki / "front-proxy.crt",
        "proxy-client-key-file": pki / "front-proxy.key",
        # Without kube-proxy webhooks are called at their pods.
        "enable-aggregator-routing": str(not parts.services).lower(),
        "allow-privileged": "true",
        "event-ttl": "1h",
    }
    return [parts["kube-apiserver"], *(f"--{name}={value}" for name, value in flags.items())]


def write_files(pki: Pki, scratch: Path, *, resource_limits: bool) -> None:
    """Configuration files below ``scratch``. ``resource_limits``: this machine lets us lower oom_score_adj."""
    kubelet = {key: value for key, value in _KUBELET.items() if minor() >= _SINCE.get(key, 0)}
    kubelet |= chosen().kubelet
    kubelet["authentication"] = {
        "anonymous": {"enabled": False},
        "webhook": {"enabled": True, "cacheTTL": "10s"},
        "x509": {"clientCAFile": pki / "ca.crt"},
    }
    kubelet |= {"tlsCertFile": pki / "kubelet.crt", "tlsPrivateKeyFile": pki / "kubelet.key"}
    scheduler = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": pki / "scheduler.kubeconfig"},
        "leaderElection": {"leaderElect": False},
    }
    network = {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-ipam",
                    "ranges": [[{"subnet": PODS}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }
    proxy = {**_PROXY, "clientConnection": {"kubeconfig": pki / "proxy.kubeconfig"}}
    for name, text in {
        "kubelet.yaml": yaml.safe_dump(kubelet),
        "kube-proxy.yaml": yaml.safe_dump(proxy),
        "kube-scheduler.yaml": yaml.safe_dump(scheduler),
        "containerd.toml": _containerd(restrict=not resource_limits),
        "etc.upper/cni/net.d/10-pods.conflist": json.dumps(network),
        "etc.upper/containerd/certs.d/_default/hosts.toml": _MIRROR,
    }.items():
        path = scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


_SINCE: Final = {"imagePullCredentialsVerificationPolicy": 35}  # fields that an older kubelet refuses
_KUBELET: Final[dict[str, Any]] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "address": ADDRESS,
    "authorization": {"mode": "Webhook"},
    "cgroupDriver": "cgroupfs",
    "cgroupRoot": f"/{CGROUP}",
    "cgroupsPerQOS": True,
    "enforceNodeAllocatable": [],
    "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
    "failCgroupV1": False,
    "failSwapOn": False,
    "makeIPTablesUtilChains": False,
    "localStorageCapacityIsolation": False,
    "evictionHard": {"memory.available": "100Mi"},
    "healthzBindAddress": "127.0.0.1",
    "imagePullCredentialsVerificationPolicy": "NeverVerify",  # one image goes by many names here
    "maxPods": 250,
    "registryPullQPS": 0,
    "eventRecordQPS": 0,
    "featureGates": {"KubeletCrashLoopBackOffMax": True},
    "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},  # tests kill the same container again and again
    "clusterDNS": [NAMES],
    "clusterDomain": "cluster.local",
}

_PROXY: Final[dict[str, Any]] = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "nftables",
    "hostnameOverride": NODE,
    "bindAddress": ADDRESS,
    "clusterCIDR": PODS,
    "healthzBindAddress": "127.0.0.1:10256",
    "metricsBindAddress": "127.0.0.1:10249",
    "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
}


def _containerd(*, restrict: bool) -> str:
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"  # its own /opt/containerd would be the machine's
[plugins."io.containerd.cri.v1.images"]
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "docker.io/{PAUSE}"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {str(restrict).lower()}
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{CNI}"]
    conf_dir = "/etc/cni/net.d"
"""


_MIRROR: Final = f"""[host."http://127.0.0.1:{REGISTRY_PORT}"]
  capabilities = ["pull", "resolve"]
"""

"""The chart as Helm renders it, for each way of installing it that we know of."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "gpu-manager"
MANIFESTS = ROOT / "deploy" / "manifests"
HELM = ROOT / "build" / "tools" / "helm"
KUBECTL = ROOT / "build" / "tools" / "kubectl"
Obj = dict[str, Any]

GANGS = {  # of scheduler-plugins
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
    },
    "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
}
# name → arguments of `helm template`
SETS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "simulated": ("-f", str(CHART / "values-simulated.yaml")),
    "unprivileged": (
        "--set=agent.runtimeClassName=nvidia,agent.metricsTokenSecret=metrics,agent.seLinuxOptions.type=spc_t",
        "--set=image.digest=sha256:" + "0" * 64 + ",image.pullSecrets[0].name=pull",
        "--set=scheduler.sidecar.digest=sha256:" + "1" * 64,
        "--set=admission.runtimeClass=nvidia,admission.prometheus.url=http://prometheus.monitoring:9090,admission.prometheus.tokenSecret=reader,agent.nodeLabels.gaia\\.tencent\\.com/gpu-pool=training",
        '--set-json=agent.hostPaths=["/usr","/dev","/etc/containerd"]',
        "--set=cards.nvidiaResource=true,agent.topologyManagerPolicy=restricted,cards.oversubscribe=true,cards.programXids={31,43},cards.cardXids={13}",
    ),
    "nvidia": ("--set=cards.injection=nvidia,cards.allowEnvFrom=true",),
    "cluster": (
        "--set=scheduler.mode=cluster,scheduler.name=default-scheduler,scheduler.cluster.url=https://10.96.0.9:3456",
        "--set=certificates.issuer.kind=ClusterIssuer,certificates.issuer.name=ours",
    ),
    "own-certificate": (
        "--set=certificates.secret=ours,monitoring.serviceMonitor=true",
        "--set=certificates.caBundle=-----BEGIN CERTIFICATE-----\nours",
    ),
    "cluster-by-hand": ("--set=scheduler.mode=cluster,admission.replicas=1",),
    "monitored": (
        "--set=monitoring.podMonitor=true,monitoring.serviceMonitor=true,monitoring.labels.release=prometheus",
        "--set=monitoring.rules=true,monitoring.dashboards=true",
    ),
    "labelled": (
        "--set=admission.resizeWithinQuota=true,admission.gangs.seconds=120",
        '--set-json=commonLabels={"cost-centre":"ml","team":"a"}',
        '--set-json=podLabels={"sidecar.istio.io/inject":"false","team":"b"}',
        '--set-json=admission={"podLabels":{"admissions":"a"},"podAnnotations":{"a.example/x":"1"}}',
        '--set-json=admission.gangs.podGroups=["scheduling.k8s.io/v1beta1","scheduling.x-k8s.io/v1alpha1"]',
        '--set-json=agent={"podLabels":{"team":"c"},"podAnnotations":{"company.example/owner":"ml"}}',
        '--set-json=podAnnotations={"vault.hashicorp.com/agent-inject":"false"}',
        '--set-json=webhook.labels={"admissions.enforcer/disabled":"true"}',
        '--set-json=serviceAccount.annotations={"eks.amazonaws.com/role-arn":"arn:aws:iam::1:role/r"}',
        '--set-json=admission.topologySpreadConstraints=[{"maxSkew":1,"topologyKey":"topology.kubernetes.io/zone","whenUnsatisfiable":"ScheduleAnyway"}]',
        "--set=nameOverride=gpus,monitoring.rules=true,monitoring.podMonitor=true,monitoring.serviceMonitor=true",
        "--set=monitoring.dashboards=true,monitoring.runbookUrl=https://host/runbooks.md",
    ),
    "own-namespace": ("-n", "gpu", "--set=namespace.create=true"),
    "bare-network": (
        "--set=agent.hostNetwork=true,admission.hostNetwork=true,scheduler.sidecar.port=10260",
        "--set=apiServer.host=10.0.0.1,apiServer.port=6443",
        "--set=webhook.url=https://gpu-quota-admission.kube-system.svc:9443",
        f"--set-json=scheduler.sidecar.profile={json.dumps(GANGS)}",
        '--set-json=scheduler.sidecar.extraArgs=["--feature-gates=GenericWorkload=true,GangScheduling=true"]',
        "--set=networkPolicy.apiServers[0].ipBlock.cidr=10.0.0.0/29",
    ),
    "viewed": (
        '--set-json=view.subjects=[{"kind":"Group","name":"gpu-users","apiGroup":"rbac.authorization.k8s.io"}]',
    ),
    "least": (
        "--set=admission.enabled=false,policies.requests=false,policies.agent=false,networkPolicy.enabled=false",
        "--set=view.create=false,agent.evict=false,agent.kubeletPodsURL=,agent.hostPID=false,agent.legacyMetrics=false",
        "--set=monitoring.scrapeAnnotations=false,cards.injection=cdi",
    ),
    "autoscaled": ("--set=startupTaint.enabled=true,placeholders.enabled=true,agent.tolerations=null",),
    "claims": (
        "--set=agent.front=dra,terms.minimumCores=5,networkPolicy.webhookFrom[0].ipBlock.cidr=10.0.0.0/29",
    ),
    "split": ("--set=agent.front=split,agent.claimCards=2",),
    "leaving": ("--set=agent.leaveClaims=true",),
    "terms": (
        "--set=terms.memoryUnit=1Gi,terms.minimumCores=5,terms.defaultMemory=2,terms.denyNodeName=true",
        "--set=agent.evictEvaders=true,webhook.excludedNamespaces={ops},webhook.failurePolicy=Ignore",
        '--set-json=quota={"team-a":{"quota":{"Tesla-T4":4},"memory":{"Tesla-T4":8192},"pool":["x"],"protected":{"Tesla-T4":0.5}}}',
    ),
}
WITH_ADMISSION = [name for name in SETS if name != "least"]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; the caller judges."""
    assert HELM.exists(), "helm is not there: run make tools"
    return subprocess.run(
        [str(HELM), *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE
    )


@functools.cache
def text_of(name: str, version: str = "1.36.2") -> str:
    """What Helm prints for a set of values."""
    namespace = () if "-n" in SETS[name] else ("-n", "kube-system")
    done = helm("template", "gpu-manager", str(CHART), *namespace, "--kube-version", version, *SETS[name])
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _read(name: str) -> list[Obj]:
    return [o for o in yaml.load_all(text_of(name), yaml.CSafeLoader) if o]


def objects(name: str) -> list[Obj]:
    """The same, read; the caller's own."""
    return copy.deepcopy(_read(name))


def of_kind(name: str, kind: str) -> Iterator[Obj]:
    """Its objects of a kind."""
    return (o for o in objects(name) if o["kind"] == kind)


def the(name: str, kind: str, called: str) -> Obj:
    """One of them."""
    (found,) = (o for o in of_kind(name, kind) if o["metadata"]["name"] == called)
    return found


def agent_pod(name: str) -> Obj:
    """The agent's pod."""
    return the(name, "DaemonSet", "gpu-manager-daemonset")["spec"]["template"]["spec"]


def admission_pod(name: str) -> Obj:
    """The admission service's pod."""
    return the(name, "Deployment", "gpu-quota-admission")["spec"]["template"]["spec"]


def container(pod: Obj, called: str) -> Obj:
    """One container of a pod."""
    (found,) = (c for c in pod["containers"] if c["name"] == called)
    return found

"""Checks of webhooks, schedulers and waiting or running pods, as the API server shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from gpu_manager.domain.contract import ALLOCATION, CORE, EVICT, decode_eviction_mark
from gpu_manager.domain.doctor.facts import CheckGroup, ClusterFacts, counted, known, nodes_of, pods_of
from gpu_manager.domain.errors import printable
from gpu_manager.domain.resize.judgement import past_limits
from gpu_manager.domain.resources import DEFAULT_UNIT

_DAY: Final = 86_400.0
_SOON_SECONDS: Final = 7 * _DAY  # as the alert: spec of metrics, "webhook certificate expires in < 7 d"
_SHOWN: Final = 200  # characters of a message of the kubelet or an agent
_HOOKS: Final = "webhook configurations"
DEFAULT_SCHEDULER: Final = "default-scheduler"


CONTROL: Final = CheckGroup("cluster")


@CONTROL.trouble(
    "webhook-missing",
    "Illegal pods are refused by the node only, and defaults are not filled in.",
    "Install the chart with admission, or apply its webhook configurations again.",
)
def _webhook_missing(cluster: ClusterFacts, _: float) -> Iterator[str]:
    hooks = known(cluster, cluster.webhooks, _HOOKS)
    for mutating, kind in ((True, "mutating"), (False, "validating")):
        if not any(hook.mutating is mutating for hook in hooks):
            yield f"no {kind} webhook configuration names the service gpu-quota-admission"


@CONTROL.trouble(
    "webhook-certificate",
    "Once its certificate has expired, API servers stop calling the webhook, and pods that ask for cards "
    "cannot be created.",
    "The service renews its own certificate after two thirds of its life: its log says "
    "`certificate_renewal_failed` and why. With cert-manager look at the Certificate; a Secret named in "
    "certificates.secret is yours to renew.",
)
def _webhook_expiry(cluster: ClusterFacts, now: float) -> Iterator[str]:
    for hook in known(cluster, cluster.webhooks, _HOOKS):
        who = f"{printable(hook.configuration)}/{printable(hook.name)}"
        if hook.expires is None:
            yield f"{who}: its caBundle holds no certificate"
        elif text := _expiry(hook.expires, now):
            yield f"{who}: the authority that it trusts {text}"
    if cluster.serving_expires is not None and (text := _expiry(cluster.serving_expires, now)):
        yield f"the certificate of the admission service {text}"


def _expiry(until: float, now: float) -> str:
    if until <= now:
        return f"expired {(now - until) / _DAY:.1f} days ago"
    return f"expires in {(until - now) / _DAY:.1f} days" if until - now < _SOON_SECONDS else ""


@CONTROL.trouble(
    "webhook-down",
    "Pods that ask for cards are refused while no replica answers; other pods are not affected.",
    "`kubectl describe deployment gpu-quota-admission` in its namespace, and its log.",
)
def _webhook_down(cluster: ClusterFacts, _: float) -> Iterator[str]:
    hooks = known(cluster, cluster.webhooks, _HOOKS)
    ready = known(cluster, cluster.services_ready, "the pods of the admission service")
    for service in sorted({hook.service for hook in hooks}):
        if not ready.get(service, 0):
            yield f"service {printable(service)} has no ready pod"


@CONTROL.warning(
    "webhook-fails-open",
    "While the service does not answer, illegal pods are admitted.",
    "Set failurePolicy to Fail: matchConditions keep it to pods that ask for cards.",
)
def _fails_open(cluster: ClusterFacts, _: float) -> Iterator[str]:
    for hook in known(cluster, cluster.webhooks, _HOOKS):
        if hook.policy == "Ignore" and not hook.mutating and hook.pods:
            yield f"{printable(hook.configuration)}/{printable(hook.name)}: failurePolicy is Ignore"


@CONTROL.trouble(
    "scheduler-without-extender",
    "Without the extender a scheduler only counts the sum of a node's cores: pods are bound to nodes where "
    "no single card has room.",
    "Name the chart's scheduler in schedulerName (the webhook does it where it is told to), or add the "
    "extender to the cluster's own KubeSchedulerConfiguration.",
)
def _no_extender(cluster: ClusterFacts, _: float) -> Iterator[str]:
    schedulers = known(cluster, cluster.schedulers, "configmaps")
    with_us = {name for s in schedulers if s.extender for name in s.profiles}
    if not with_us:
        yield f"no KubeSchedulerConfiguration in a ConfigMap names an extender that manages {CORE}"
        return
    live = (f.pod for f in pods_of(cluster) if not f.pod.terminal and not f.static)
    counts = Counter(pod.scheduler or DEFAULT_SCHEDULER for pod in live)
    for name, count in sorted(counts.items()):
        if name not in with_us:
            yield (
                f"scheduler {printable(name)}, which {counted(count, 'pod')} with {CORE} came to, has no "
                f"extender; with one: {', '.join(sorted(map(printable, with_us)))}"
            )


@CONTROL.trouble(
    "pod-without-card",
    "The pod was admitted before the node offered the resource: it runs without a card, or on one without "
    "limits.",
    "Delete it, so that its controller recreates it. If that does not help, see the agent's log.",
)
def _without_card(cluster: ClusterFacts, _: float) -> Iterator[str]:
    nodes = nodes_of(cluster)
    publishing, there = {n.name for n in nodes if n.inventory}, {n.name for n in nodes}
    for pod in (f.pod for f in pods_of(cluster) if not f.static and f.pod.phase == "Running"):
        if pod.node not in there:
            continue  # the node's object is gone, which says nothing of the pod
        if pod.node not in publishing:
            yield f"pod {printable(pod.key)} runs on {printable(pod.node)}, which publishes no cards"
        elif ALLOCATION not in pod.annotations:
            yield f"pod {printable(pod.key)} runs on {printable(pod.node)}, on no card that is said"


@CONTROL.trouble(
    "pod-stranded",
    "The kubelet has no devices for the pod, since its checkpoint was lost or the pod was admitted before "
    "the node offered the resource: what runs goes on, and whatever ends stays down.",
    "Delete it, so that its controller recreates it; its Event `VcudaStranded` names the containers.",
)
def _stranded(cluster: ClusterFacts, _: float) -> Iterator[str]:
    said = {uid: node.name for node in nodes_of(cluster) if node.inventory for uid in node.inventory.stranded}
    pods = [f.pod for f in pods_of(cluster) if f.pod.uid in said]
    yield from (
        f"pod {printable(pod.key)} on node {printable(said[pod.uid])} cannot start a container again"
        for pod in pods
    )


@CONTROL.warning(
    "pod-marked",
    "The agent of a pod's node wants it evicted, and the evictor has not done so yet.",
    "Within a minute nothing. Else the log of the Deployment gpu-manager-evictor says why: a disruption "
    "budget, the rate, or a mark that it does not obey. Without an evictor delete the pod.",
)
def _marked(cluster: ClusterFacts, _: float) -> Iterator[str]:
    marks = [(f.pod, decode_eviction_mark(f.pod.annotations.get(EVICT))) for f in pods_of(cluster)]
    yield from (
        f"pod {printable(pod.key)} on node {printable(pod.node)} is to be evicted: {mark.reason[:_SHOWN]}"
        for pod, mark in marks
        if mark is not None and mark.uid == pod.uid and not pod.deleting
    )


@CONTROL.warning(
    "pod-refused",
    "The kubelet refused the pod for good when it admitted it: the node was rebooted, or its agent killed, "
    "and no agent served at that moment; or the node had no room.",
    "Delete it. A controller has made another one in its place; a bare pod, and a Job that used up its "
    "backoffLimit, are yours to make again.",
)
def _refused(cluster: ClusterFacts, _: float) -> Iterator[str]:
    failed = [f for f in pods_of(cluster) if f.refused and f.pod.phase == "Failed"]
    yield from (
        f"pod {printable(f.pod.key)} on node {printable(f.pod.node)}: {printable(f.refused[:_SHOWN])}"
        for f in failed
    )


@CONTROL.warning(
    "resized-past-limits",
    "Resized pods hold more than a ResourceQuota or a LimitRange of their namespace grants: Kubernetes "
    "counts what specs ask for, and a resize changes no spec.",
    "Resize them within it, or limit the namespace by our quota, which counts what pods hold.",
)
def _past_limits(cluster: ClusterFacts, _: float) -> Iterator[str]:
    for space, limits in sorted((cluster.limits or {}).items()):
        pods = [f.pod for f in pods_of(cluster) if f.pod.namespace == space]
        yield from [
            f"namespace {printable(space)}: {line}" for line in past_limits(limits, pods, DEFAULT_UNIT)
        ]


@CONTROL.warning(
    "static-pod-in-cluster",
    "Static pods are unsupported: they pass neither webhook nor scheduler.",
    "Run it as a Deployment or DaemonSet.",
)
def _static(cluster: ClusterFacts, _: float) -> Iterator[str]:
    pods = [f.pod for f in pods_of(cluster) if f.static]
    yield from (f"pod {printable(p.key)} on node {printable(p.node)} is static" for p in pods)


@CONTROL.trouble(
    "runtime-class-missing",
    "A pod names a runtimeClass that does not exist, and never starts.",
    "Create the RuntimeClass (`nvidia` comes with the GPU operator), or leave the name out: fractions need "
    "none.",
)
def _runtime_class(cluster: ClusterFacts, _: float) -> Iterator[str]:
    classes = known(cluster, cluster.runtime_classes, "runtimeclasses")
    named = [(f"pod {printable(f.pod.key)}", f.runtime_class) for f in pods_of(cluster) if not f.pod.terminal]
    if cluster.agents is not None:
        named.append(("the agent's DaemonSet", cluster.agents.runtime_class))
    yield from (
        f"{who} names runtimeClass {printable(name)}, which does not exist"
        for who, name in named
        if name and name not in classes
    )

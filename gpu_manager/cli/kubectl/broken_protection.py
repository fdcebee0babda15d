"""What a node's agent tells of best-effort tenants beside a protected pod: long kernels, missing gates."""

from __future__ import annotations

from gpu_manager.cli.kubectl import agents
from gpu_manager.cli.kubectl.login import Login
from gpu_manager.domain.cluster.usage_json import longest_beside, read_usage, ungated_beside
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.placement.protection import explain_wait
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.rules.pod_annotations import priority_of


def warning(login: Login, pod: Pod) -> str:
    """Sentences where best-effort tenants beside a bound protected pod break protection: by a long kernel,
    or since they were made before the agent knew priorities. Empty for none, and where the cluster or the
    node's agent cannot be asked.
    """
    by_annotation = priority_of(pod) is Priority.PROTECTED
    if not pod.node or not (by_annotation or any(c.claims for c in pod.containers)):
        return ""
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    try:
        cluster = read_cluster(login.connection, pod.node)
        told, _ = agents.ask(login, cluster.agents, [pod.node], "/usage", read_usage)
    except NodeUnready:
        return ""
    books = next((one for one in cluster.with_cards if one.name == pod.node), None)
    usage = told.get(pod.node)
    if books is None or usage is None:
        return ""
    holders = {pod.uid} if by_annotation else set()
    holders |= {a.pod for a in books.ledger.claims if a.priority is Priority.PROTECTED and _serves(a, pod)}
    longest = [longest_beside(usage, books.ledger, uid) for uid in holders]
    ungated = sum(ungated_beside(usage, books.ledger, uid) for uid in holders)
    return explain_wait(max((one for one in longest if one is not None), default=None), ungated)


def _serves(held: Allocation, pod: Pod) -> bool:
    return held.claim is not None and any(uid == pod.uid for uid, _ in held.claim.pods)

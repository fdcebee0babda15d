"""What a launch of a protected pod may wait for: the longest kernel of best-effort tenants beside it."""

from __future__ import annotations

from gpu_manager.cli.kubectl import agents
from gpu_manager.cli.kubectl.login import Login
from gpu_manager.domain.cluster.usage_json import longest_beside, read_usage
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.placement.protection import explain_wait
from gpu_manager.domain.pod import Pod
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.rules.pod_annotations import priority_of


def warning(login: Login, pod: Pod) -> str:
    """A sentence where a kernel beside a bound protected pod is longer than protection promises; else empty,
    also where the cluster or the node's agent cannot be asked.
    """
    if priority_of(pod) is not Priority.PROTECTED or not pod.node:
        return ""
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    try:
        cluster = read_cluster(login.connection)
        told, _ = agents.ask(login, cluster, [pod.node], "/usage", read_usage)
    except NodeUnready:
        return ""
    books = next((one for one in cluster.with_cards if one.name == pod.node), None)
    usage = told.get(pod.node)
    if books is None or usage is None:
        return ""
    return explain_wait(longest_beside(usage, books.ledger, pod.uid))

"""What keeps a pod from being placed, apart from the cards: judged before any arithmetic of cards. Pure.

A pod held by a gate, a volume or another scheduler does not wait for room, whatever is free. A pod whose own
workload's older pods hold the cards, or whose quota is used up, waits until somebody acts. A pod that is on a
node, or that asks for no part of a card, is explained without that arithmetic too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpu_manager.domain.cluster.kubelet_ids import explain_gpus, gpus_of
from gpu_manager.domain.cluster.node_books import NodeBooks
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import printable, quoted
from gpu_manager.domain.kube.constraints import shown_bars
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.placement.explain import explain_bound, explain_placement, with_priority
from gpu_manager.domain.rules.unknown_names import asks_strangely
from gpu_manager.domain.untrusted import mapping, mappings, text

_KUEUE: Final = "kueue.x-k8s.io/"
_SHOWN: Final = 3
_LONGEST: Final = 200  # characters of a scheduler's message
# kube-scheduler 1.36's messages about volumes: for the pod as a whole, and for some nodes.
_NO_VOLUME: Final = re.compile(
    r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim \"|ephemeral volume controller"
    r"|plugin \"Volume(Binding|Zone|Restrictions)\""
)
_NO_VOLUME_HERE: Final = re.compile(
    r"node\(s\) (had (no available )?volume|had no available disk"
    r"|didn't (find available persistent volumes|match PersistentV)"
    r"|did not have enough free storage|unavailable due to one or more pvc|exceed(ed)? max volume count)"
)


class HeldBy(Enum):
    """What holds the pod; the value is its label in metrics and JSON."""

    GATE = "gate"
    OWNER = "owner"
    VOLUME = "volume"
    SCHEDULER = "scheduler"
    QUOTA = "quota"
    GANG = "gang"

    @property
    def is_told(self) -> bool:
        """True if an Event from this service helps; the other holders report why the pod waits themselves."""
        return self in (HeldBy.OWNER, HeldBy.QUOTA, HeldBy.GANG)


@dataclass(frozen=True, slots=True)
class Hold:
    """What holds a pod, as one line, and what would end it."""

    by: HeldBy
    line: str
    cure: str


@dataclass(frozen=True, slots=True)
class HoldFacts:
    """Facts about a waiting pod. ``gates``: its scheduling gates; ``verdict``: its scheduler's last message
    on why it has no node; ``schedulers``: names of the schedulers that call this service, empty for any.

    ``fits``: a node has room for it. ``older``: pods of its own workload's older templates without which a
    node would have room. ``spent``: the sums of its namespace's quota, if that admits not even the smallest
    part of a card; else empty. ``gang``: why its gang has no places, if so; else empty.
    """

    gates: Sequence[str] = ()
    verdict: str = ""
    schedulers: Collection[str] = ()
    fits: bool = False
    older: Sequence[str] = ()
    spent: str = ""
    gang: str = ""


def gates_of(spec: object) -> tuple[str, ...]:
    """Return the names of a pod's scheduling gates."""
    found = mappings(mapping(spec).get("schedulingGates"))
    return tuple(name for gate in found if (name := text(gate.get("name"))))


_END: Final = "delete the older one: its controller ends it only once this one is ready"
# Labels that controllers write to the pods of a rollout: its name, the template, and the cure.
_ROLLOUTS: Final = (
    ("Knative Service", "serving.knative.dev/service", "serving.knative.dev/revision", _END),
    ("RayService", "ray.io/originated-from-cr-name", "ray.io/cluster", f"upgradeStrategy None, or {_END}"),
    ("DeploymentConfig", "deploymentconfig", "deployment", "set its strategy to Recreate"),
)
_ROLLING: Final = "set the strategy Recreate, or rollingUpdate with maxSurge 0 and maxUnavailable 1"


def _rollout(pod: Pod) -> tuple[str, str, str]:
    """Return what the pod is one of, which of its templates made it, and the cure if older ones are in its
    way; empty if no controller starts its newer pods beside older ones.
    """
    for kind, name, template, cure in _ROLLOUTS:
        if (of := pod.labels.get(name)) and (made := pod.labels.get(template)):
            return f"{kind} {of}", made, cure
    if pod.owner and pod.workload != pod.owner:
        return pod.workload, pod.owner, _ROLLING
    kind, _, name = pod.owner.partition("/")
    made = pod.labels.get("rollouts-pod-template-hash")
    if kind == "ReplicaSet" and made and name.endswith(f"-{made}"):  # Argo's
        return f"Rollout/{name.removesuffix(f'-{made}')}", made, "canary with maxSurge 0 and maxUnavailable 1"
    return "", "", ""


def is_older(other: Pod, pod: Pod) -> bool:
    """Return whether another pod is of an older template of the same rollout."""
    (of, template, _), (others, its, _) = _rollout(pod), _rollout(other)
    return other.namespace == pod.namespace and not other.deleting and of == others != "" and its != template


def find_holder(pod: Pod, facts: HoldFacts) -> Hold | None:
    """What holds the waiting pod; None if the cards decide."""
    if facts.gates:
        return _by_gates(facts.gates)
    if pod.phase and facts.schedulers and pod.scheduler not in facts.schedulers:
        name = quoted(pod.scheduler or "default-scheduler")
        ours = ", ".join(sorted(facts.schedulers))
        return Hold(
            HeldBy.SCHEDULER,
            f"held by scheduler {name}, which does not ask this service: its own events say why it waits",
            f"ask its scheduler, or set schedulerName to {ours}",
        )
    if _NO_VOLUME.search(facts.verdict) or (facts.fits and _NO_VOLUME_HERE.search(facts.verdict)):
        said = printable(facts.verdict[:_LONGEST])
        return Hold(
            HeldBy.VOLUME, f"held by a volume: its scheduler says: {said}", "see to its claims' volumes"
        )
    if facts.older and not facts.fits:
        return _by_owner(pod, facts.older)
    if facts.spent and not facts.fits:
        return Hold(HeldBy.QUOTA, f"held by the quota of its namespace: {facts.spent}", "let the quota grow")
    if facts.gang and facts.fits:
        cure = "wait until there is room for all of them at once, or let its gang want less at the least"
        return Hold(HeldBy.GANG, f"held by its gang: there is room for it alone, but {facts.gang}", cure)
    return None


def _by_gates(gates: Sequence[str]) -> Hold:
    names = ", ".join(quoted(gate) for gate in gates[:_SHOWN])
    more = f" and {len(gates) - _SHOWN} more" if len(gates) > _SHOWN else ""
    several = "s" if len(gates) > 1 else ""
    cure = "wait until who set it takes it off"
    if any(gate.startswith(_KUEUE) for gate in gates):
        cure = f"wait until Kueue admits it: its ClusterQueue must cover {CORE} and {MEMORY}"
    return Hold(
        HeldBy.GATE, f"held by the scheduling gate{several} {names}{more}: no scheduler looks at it", cure
    )


def _by_owner(pod: Pod, older: Sequence[str]) -> Hold:
    of, _, cure = _rollout(pod)
    names = ", ".join(map(printable, older[:_SHOWN]))
    more = f" and {len(older) - _SHOWN} more" if len(older) > _SHOWN else ""
    holds = "hold the cards until this one is" if len(older) > 1 else "holds the cards until this one is"
    return Hold(
        HeldBy.OWNER,
        f"held by its own {printable(of)}: {names}{more} of an older template {holds} ready",
        cure,
    )


def explain_without_cards(
    pod: Pod, nodes: Sequence[NodeBooks], barred: Mapping[str, str]
) -> tuple[str, Mapping[str, int]]:
    """The line for a pod that asks for no part of a card, and how many of the ``nodes`` would take it, by
    outcome; ``barred``: why kube-scheduler would not consider a node, by its name.
    """
    if not pod.node and (strange := asks_strangely(pod)):
        return strange, {"never": len(nodes)}
    if pod.node or not (gpus := gpus_of(pod)):
        return "asks for no part of a card: any node will do", {"fits": len(nodes)}
    free = [one for one in nodes if one.name not in barred]
    line, room = explain_gpus(gpus, ((one.node, one.ledger) for one in free))
    counts = {"fits": room, "room": len(free) - room, "barred": len(nodes) - len(free)}
    return f"{line}{not_counted(barred)}", {outcome: count for outcome, count in counts.items() if count}


def not_counted(barred: Mapping[str, str]) -> str:
    """The end of a line that names nodes which kube-scheduler would not consider; empty without any."""
    return f". Not counted: {shown_bars(barred)}" if barred else ""


def explain_on_node(pod: Pod, node: NodeBooks | None, illegal: str = "") -> str:
    """The line for a pod that is on a node; ``node`` is None if that publishes no cards. ``illegal``: the
    rule that its request breaks as it is now; else empty.
    """
    line = f"bound to node {printable(pod.node)}"
    if node is None:
        line += ", which publishes no cards: kubectl vcuda doctor says why"
    elif held := node.ledger.of_pod(pod.uid):
        placement = {name: allocation.shares for name, allocation in held.items()}
        where = explain_placement(placement, node.node.cards)
        line = explain_bound(pod.node, where, guessed=node.guessed(pod.uid))
        line += ", where no card has room for it" if pod in node.unplaceable else ""
        line += with_priority(node.explain_priority(pod))
    elif pod.terminal:
        line = f"ended on node {printable(pod.node)}, and holds nothing any more"
    elif illegal:
        line += ", which grants it no part of a card"
    return f"{line}. As it is now, no node would take it: {illegal}" if illegal else line

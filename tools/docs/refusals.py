"""What the extender and the quota say when they refuse, with the cure; ``docs/errors.md`` ends with this.

The sentences are made where the decision is; a test drives every one of them and finds it here, and nothing
here that is never said.
"""

# A table of sentences, whole lines each:
# ruff: noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RefusalText:
    """``text`` is the sentence, ``<…>`` stands for what differs from case to case."""

    id: str
    text: str
    why: str
    cure: str

    def matches(self, sentence: str) -> bool:
        """True if the sentence is one of these."""
        parts = re.split(r"<[^<>]+>", self.text)
        return re.fullmatch(".+?".join(map(re.escape, parts)), sentence, re.DOTALL) is not None


_QUOTA: Final = "ExceedsGPUQuota: namespace <namespace>:"
_WAIT: Final = "Nothing to do: the scheduler asks again by itself."
SAYINGS: Final = (
    (
        "A node does not take the pod",
        (
            RefusalText(
                "no-card-has-room",
                "<container>no card has room for <amount>: <each card: asked, free> <what would fit>",
                "Each card is listed with what it has free; a part of a card must lie on one card, however much "
                "the node has free in all.",
                "Ask for what the text says would fit now, wait for a pod to end, or move pods "
                "(`kubectl vcuda defrag` says which).",
            ),
            RefusalText(
                "too-few-whole-cards",
                "<container><number> whole <cards> asked, <number> of <number> idle and open: <each card: idle or not> <what would fit>",
                "A whole card is given to one pod alone: nobody may hold any part of it.",
                "Ask for fewer, wait, or move fractions off a card (`kubectl vcuda defrag` says which).",
            ),
            RefusalText(
                "no-room",
                "no room on its cards for <amount>",
                "The same for further nodes, in words that a scheduler can count.",
                "`kubectl vcuda explain POD` has the arithmetic of every card.",
            ),
            RefusalText(
                "no-room-ever",
                "no room on its cards even on the empty node for <amount>",
                "No card of that node is large enough, or the annotations of the pod allow none of them.",
                "Ask for less, or relax `tencent.com/gpu-model` or `tencent.com/gpu-uuid`; evicting others would "
                "not help.",
            ),
            RefusalText(
                "room-is-kept",
                "room is kept for <pods>. <no-card-has-room>",
                "Those pods have no lower priority, and others were evicted for them.",
                "Wait until they are bound.",
            ),
            RefusalText(
                "no-inventory",
                "no GPU device: the node publishes no inventory of cards",
                "No agent runs there, or it has not written `tencent.com/vcuda-inventory` yet.",
                "If the node has cards, look for the agent's pod on it: `gpu-manager doctor` there says what it "
                "lacks.",
            ),
            RefusalText(
                "no-cards",
                "no GPU device",
                "The agent runs there and finds no card that it may give.",
                "`nvidia-smi -L` on the node; cards in MIG mode are left alone, or their instances given (`agent.migInstances`).",
            ),
            RefusalText(
                "agent-away",
                "its agent is starting or has left: pods wait until it serves again",
                "The node's agent is being replaced, or was removed. The kubelet would refuse a pod that came now.",
                "Nothing to do while the DaemonSet is rolled out; if it stays, look for the agent's pod on the "
                "node.",
            ),
            RefusalText(
                "node-not-known",
                "no GPU device: this node is not known here yet",
                "The scheduler has seen a node that this service's watch has not shown yet.",
                _WAIT,
            ),
            RefusalText(
                "unit-differs",
                "its memory unit is <size>, that of this cluster is <size>",
                "A node that counts memory in other units would give another amount than was asked.",
                "Start its agent with the cluster's `--memory-unit`.",
            ),
            RefusalText(
                "agent-refused",
                "its agent refused this amount less than a minute ago: its books are ahead of what is seen",
                "The node knows of something that the cluster does not see yet.",
                "Nothing to do for half a minute; if it comes back, the agent's log names the card.",
            ),
            RefusalText(
                "node-kept",
                "kept for <pod>, which asks for <n> cards and has waited since <time>: closed to pods that ask"
                " for fewer and have no higher priority until it has its place, or <so many more pods"
                " with cards have left their nodes | its cards have been free for so many minutes>",
                "The larger pod has waited for longer than pods run, and smaller ones took each card that got free.",
                "Wait: the node opens once that pod has come or is gone, and once so many pods have left at the"
                " latest. A pod of higher priority may come at once.",
            ),
            RefusalText(
                "left-out",
                "left out (<reason>)",
                "An answer has room for 64 different reasons; this node has a further one.",
                "`kubectl vcuda explain POD` has them all.",
            ),
        ),
    ),
    (
        "The namespace's quota is used up",
        (
            RefusalText(
                "quota-sums",
                f"{_QUOTA} <limit> of <model>, <used> used or being bound, <asked> asked: <rest> would still fit",
                "Pods that run or are being bound, and this one, would together pass the namespace's quota.",
                "Ask for no more than would still fit, end a pod, or have the quota raised "
                "(ConfigMap `kube-system/gpuquota`): pods that wait are tried again at once.",
            ),
            RefusalText(
                "quota-model",
                f"{_QUOTA} model <model> is not among its models (<models>)",
                "Where a namespace has a quota by model, models that are not named are not granted.",
                "Let the pod use a model that is named, or have the model added to the quota.",
            ),
            RefusalText(
                "quota-pool",
                f"{_QUOTA} it may use pool <pools>; the node is <pool>",
                "The namespace's quota names the pools that its pods may use, by the label "
                "`gaia.tencent.com/gpu-pool` of nodes.",
                "Wait for a node of those pools, label the node, or have the pool added to the quota.",
            ),
            RefusalText(
                "quota-not-synced",
                "GPU quota has not been synced, please retry later",
                "The service has just started and has not read the ConfigMap yet.",
                _WAIT,
            ),
            RefusalText(
                "quota-unusable",
                "GPU quota has not been synced, please retry later: the quota in ConfigMap <name>, key <key>, cannot be used: <why>",
                "The ConfigMap holds something that is no quota. A last good one would "
                "stay in force; there was none.",
                "Mend the value that the text names.",
            ),
        ),
    ),
    (
        "The scheduler is sent away",
        (
            RefusalText(
                "not-listed",
                "nodes and pods have not been listed yet, please retry later",
                "The service has just started.",
                _WAIT,
            ),
            RefusalText(
                "not-leader",
                "this replica does not lead, or not for long enough to bind: ask again",
                "One replica binds at a time, so that two never give one card twice.",
                "Nothing to do while a leader changes. If it lasts, `kubectl get lease` says who holds it.",
            ),
            RefusalText(
                "not-offered",
                "node <node> was never offered for <pod>: a pod is bound only where filter said that it fits",
                "A bind without a filter before it. How long ago filter answered does not matter: bind judges the "
                "node anew.",
                "Configure `filterVerb` and `bindVerb` for the same extender.",
            ),
            RefusalText(
                "pod-gone",
                "pod <pod> is gone, or another of that name came",
                "It was deleted between filter and bind.",
                _WAIT,
            ),
            RefusalText(
                "pod-mixed-up",
                "pod <uid> is <pod>, not <pod>",
                "The names and the UID of the question belong to different pods.",
                "A fault of the scheduler that asked: report it there.",
            ),
            RefusalText(
                "scheduler-not-ours",
                "<pod> has schedulerName <name>: this extender binds for <names> alone",
                "A pod of another scheduler would be bound by two.",
                "Leave `schedulerName` out of the pod, or add the name to `--bind-scheduler`.",
            ),
            RefusalText("pod-bound", "<pod> is <state> already", "Someone was quicker.", _WAIT),
            RefusalText(
                "being-bound",
                "<pod> is being bound to <node>: the outcome is not known yet",
                "The API server has not said how the last Binding went; its cards are kept until it does.",
                _WAIT,
            ),
            RefusalText(
                "asks-no-card",
                "<pod> asks for no card",
                "The scheduler asks about a pod that does not concern this extender.",
                "Set `managedResources` in the scheduler's configuration.",
            ),
            RefusalText(
                "node-unknown",
                "node <node> is not known here",
                "It left the cluster between filter and bind.",
                _WAIT,
            ),
            RefusalText(
                "binding-refused",
                "the API server refused the binding: <words>",
                "The API server's own words follow: the pod changed, or a policy forbids it.",
                "Read those words; the cards are free again.",
            ),
            RefusalText(
                "binding-unknown",
                "the API server did not say whether <pod> is bound to <node>: <words>. Its place is kept until "
                "it does",
                "No answer in time.",
                "Look after the API server; nothing is lost meanwhile.",
            ),
            RefusalText(
                "question-unreadable",
                "<part> is not JSON: <why>",
                "Whoever asks is no kube-scheduler, or something cut the question off.",
                "Point the scheduler's `urlPrefix` here, and nothing else.",
            ),
            RefusalText(
                "question-malformed",
                "<part> is <value>, not a <kind>",
                "A field has another type than kube-scheduler sends.",
                "As above.",
            ),
            RefusalText(
                "names-unreadable",
                "NodeNames holds something that is no name",
                "A list of node names is expected.",
                "As above.",
            ),
            RefusalText(
                "question-incomplete",
                "ExtenderBindingArgs has no <fields>",
                "A bind must name pod, namespace, UID and node.",
                "As above.",
            ),
        ),
    ),
)


def refusal_texts() -> Iterator[RefusalText]:
    """All of them."""
    for _, group in SAYINGS:
        yield from group

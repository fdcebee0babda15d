"""A plan of moves as commands to type, in an order in which nothing goes back to where it came from.

A pod that is deleted is made anew by its controller, and its best place is often the one that it just left.
So the cards that the waiting pod is to have are closed first, and opened once the replacements have their
places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import join
from typing import Final

from gpu_manager.domain.pod import Pod
from gpu_manager.domain.whatif.defragmentation import DefragPlan

_PATIENCE: Final = "--timeout=5m"
_OF_STATEFUL_SET: Final = "statefulset.kubernetes.io/pod-name"
# Labels that one pod has and its replacement need not have.
_OF_ONE_POD: Final = (_OF_STATEFUL_SET, "apps.kubernetes.io/pod-index", "controller-uid")
_OF_A_TEMPLATE: Final = ("pod-template-hash", "batch.kubernetes.io/job-name", "job-name")


def commands(
    plan: DefragPlan, pods: Mapping[str, Pod], waiting: str, manifest: str = "", login: Sequence[str] = ()
) -> list[str]:
    """The command lines. ``pods`` are the running pods by ``namespace/name``, ``waiting`` is the pod to
    place, so named too, and ``manifest`` its file if it is not created. ``login`` are options for all.
    """
    return [join([*words, *login]) for words in _commands(plan, pods, waiting, manifest)]


def _commands(plan: DefragPlan, pods: Mapping[str, Pod], waiting: str, manifest: str) -> Iterator[list[str]]:
    where = plan.placement
    if where is None or not plan.moves:
        return
    cards = [
        str(state.card.uuid)
        for node in plan.before
        if node.name == where.node
        for state in node.cards
        if state.card.index in where.cards
    ]
    yield ["kubectl", "vcuda", "cordon", *cards]
    moved: dict[str, list[str]] = {}
    for move in plan.moves:
        namespace, _, name = move.pod.partition("/")
        moved.setdefault(namespace, []).append(name)
    for namespace, names in moved.items():
        yield ["kubectl", "-n", namespace, "delete", "pod", *names]
    waits = [wait for move in plan.moves for wait in _until_placed(pods[move.pod])]
    yield from (list(wait) for wait in dict.fromkeys(waits))
    yield ["kubectl", "vcuda", "uncordon", *cards]
    namespace, _, name = waiting.partition("/")
    if manifest:
        yield ["kubectl", "-n", namespace, "apply", "-f", manifest]
    else:
        yield ["kubectl", "-n", namespace, "wait", "--for=condition=PodScheduled", f"pod/{name}", _PATIENCE]


def _until_placed(pod: Pod) -> Iterator[tuple[str, ...]]:
    """Wait for the pod's replacement to have a node: by its name where it keeps that, else by its labels."""
    kubectl = ("kubectl", "-n", pod.namespace, "wait")
    if pod.labels.get(_OF_STATEFUL_SET) == pod.name:
        yield (*kubectl, "--for=create", f"pod/{pod.name}", _PATIENCE)
        yield (*kubectl, "--for=condition=PodScheduled", f"pod/{pod.name}", _PATIENCE)
        return
    named = {key: pod.labels[key] for key in _OF_A_TEMPLATE if key in pod.labels}
    labels = named or {key: value for key, value in pod.labels.items() if key not in _OF_ONE_POD}
    if labels:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        yield (*kubectl, "--for=condition=PodScheduled", "pod", "-l", selector, _PATIENCE)

"""Reads the agent's ``/usage``: what each container uses of each of its cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.names import container_digest, container_name
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import MIB
from gpu_manager.domain.untrusted import mapping, mappings, text


class UsedShare(NamedTuple):
    """``cores`` in hundredths of the card, ``memory`` in bytes; None if the agent does not know it.

    ``waited``: seconds that its processes have waited because of their limit; ``namespace`` and ``pod`` are
    empty if the agent does not name them; ``refusals``: memory requests refused by its limit; ``longest``:
    seconds of its longest kernel or graph so far; ``priority``: the booked one, which is normal for
    containers created before the agent supported priorities; ``difference``: the driver's figure minus the
    account, in hundredths of the card, if the agent reports a difference.
    """

    cores: float | None
    memory: int | None
    waited: float | None = None
    namespace: str = ""
    pod: str = ""
    refusals: int | None = None
    longest: float | None = None
    priority: Priority | None = None
    difference: float | None = None


_NUMBERS: Final = (int, float)
_LARGEST: Final = 1 << 60

NodeUsage = Mapping[tuple[str, str, str], UsedShare]
"""(pod UID, container, UUID of the card) → what is used of it."""


def read_usage(answer: Any) -> NodeUsage:
    """Read the JSON of ``/usage``; malformed figures count as unknown.

    Raises:
        NodeUnready: the answer has another form.
    """
    try:
        pods = answer["usage"]
        return {
            (uid, container, str(device["uuid"])): _used_share(device, namespace, name)
            for uid, said in pods.items()
            for pod in (mapping(said),)
            for namespace, name in ((text(pod.get("project")), text(pod.get("pod"))),)
            for container, stat in mapping(pod.get("stat")).items()
            for device in mappings(mapping(stat).get("dev"))
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise NodeUnready("its agent answered with something else") from error


_PRIORITIES: Final = {one.value: one for one in Priority}


def _used_share(device: Mapping[str, object], namespace: str, pod: str) -> UsedShare:
    mib, refused = _figure(device, "mem"), _figure(device, "refused")
    return UsedShare(
        _figure(device, "gpu"),
        None if mib is None else int(mib * MIB),
        _figure(device, "throttled"),
        namespace,
        pod,
        None if refused is None else int(refused),
        _figure(device, "longest"),
        _PRIORITIES.get(text(device.get("priority"))),
        _difference(device.get("account_difference")),
    )


NOT_USED: Final = UsedShare(None, None)


def used_share(usage: NodeUsage, uid: str, container: str, card: str) -> UsedShare:
    """What a container uses of a card; the answer may have digests in place of names."""
    found = usage.get((uid, container, card))
    if found is None and usage:
        found = usage.get((uid, container_digest(uid, container), card))
    return found or NOT_USED


def longest_beside(usage: NodeUsage, ledger: Ledger, pod: PodUid) -> float | None:
    """Seconds of the longest kernel or graph that a best-effort tenant of the pod's cards has run; None if
    none is known.
    """
    told = (used.longest for _, used in _best_effort_beside(usage, ledger, pod))
    return max((seconds for seconds in told if seconds is not None), default=None)


def ungated_beside(usage: NodeUsage, ledger: Ledger, pod: PodUid) -> int:
    """Number of best-effort pods on the pod's cards whose containers were created before their agent
    supported priorities, so that they never wait at a gate.
    """
    return len(
        {uid for uid, used in _best_effort_beside(usage, ledger, pod) if used.priority is Priority.NORMAL}
    )


def _best_effort_beside(usage: NodeUsage, ledger: Ledger, pod: PodUid) -> Iterator[tuple[PodUid, UsedShare]]:
    """What each best-effort container on the pod's cards uses there, and its pod."""
    cards = {share.card for a in ledger.of_pod(pod).values() for share in a.shares}
    for allocation in ledger:
        if allocation.pod != pod and allocation.priority is Priority.BEST_EFFORT:
            for share in allocation.shares:
                if share.card in cards:
                    used = used_share(usage, allocation.pod, allocation.container, share.card)
                    yield allocation.pod, used


def named_usage(usage: NodeUsage, pods: Mapping[str, Pod]) -> NodeUsage:
    """An agent's answer with the names of the pods that are known by their UIDs."""
    found = {}
    for (uid, container, card), used in usage.items():
        pod = pods.get(uid)
        if pod is None:
            found[uid, container, card] = used
        else:
            key = (uid, container_name(uid, container, pod), card)
            found[key] = used._replace(namespace=pod.namespace, pod=pod.name)
    return found


def _figure(device: Mapping[str, object], key: str) -> float | None:
    value = device.get(key)
    return float(value) if isinstance(value, _NUMBERS) and 0 <= value < _LARGEST else None


def _difference(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and -100 <= value <= 100 else None

"""The containers of a workload with the size advised for them, and their form in the agent's ``/advice``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from gpu_manager.domain.advice.demand import Need, pooled
from gpu_manager.domain.advice.size import Advice, AdvicePolicy, advise
from gpu_manager.domain.names import NameScope, container_digest, container_name
from gpu_manager.domain.pod import Pod
from gpu_manager.domain.resources import Amount

Workload = tuple[str, str, str]  # namespace, kind/name, container
_LARGEST_MARGIN: Final = 100.0


@dataclass(frozen=True, slots=True)
class Sized:
    """The pods of a workload, what their container was given and seen to need, and the advice.

    ``unit`` is bytes of a unit of memory; ``uids`` are of the same pods as ``pods``; ``margin`` is what its
    agent advises beside the greatest amount of memory, as a part of it.
    """

    workload: Workload
    pods: tuple[str, ...]
    given: Amount
    unit: int
    need: Need
    advice: Advice
    uids: tuple[str, ...] = ()
    margin: float = 0.0


def largest(given: Iterable[Amount]) -> Amount:
    """What counts as given where replicas differ, as while a template is rolled out."""
    return max(given, key=lambda amount: (amount.memory, amount.cores))


def pool(found: Iterable[Sized], policy: AdvicePolicy | None = None) -> Sequence[Sized]:
    """Return one for each workload, from those of all nodes: one template has one size. Without a ``policy``
    it has the largest margin of its agents.
    """
    members: dict[Workload, list[Sized]] = {}
    for one in found:
        members.setdefault(one.workload, []).append(one)
    return [_together(workload, ones, policy) for workload, ones in sorted(members.items())]


def _together(workload: Workload, ones: Sequence[Sized], policy: AdvicePolicy | None) -> Sized:
    need, given = pooled([one.need for one in ones]), largest(one.given for one in ones)
    names, unit = sorted(pod for one in ones for pod in one.pods), max(one.unit for one in ones)
    uids = tuple(uid for one in ones for uid in one.uids)
    margin = max(one.margin for one in ones) if policy is None else policy.margin
    advice = advise(need, given, unit, policy or AdvicePolicy(margin=margin))
    return Sized(workload, tuple(names), given, unit, need, advice, uids, margin)


def sized_json(one: Sized) -> dict[str, Any]:
    """Return the form for programs."""
    namespace, workload, container = one.workload
    return {
        "namespace": namespace,
        "workload": workload,
        "container": container,
        "pods": list(one.pods),
        "uids": list(one.uids),
        "unit": one.unit,
        "margin": one.margin,
        "given": asdict(one.given),
        "need": asdict(one.need),
        "advised": asdict(one.advice),
    }


def pod_advice_json(found: Iterable[Sized]) -> dict[str, Any]:
    """The advice for one pod's containers, as the console shows it: hundredths of a card, bytes."""
    return {
        "containers": [
            {"container": one.workload[2], "given": asdict(one.given), **asdict(one.advice)} for one in found
        ]
    }


def read_sized(row: Mapping[str, Any]) -> Sized:
    """Read what :func:`sized_json` gave; the advice is made anew.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: it is something else.
    """
    need = Need(
        seconds=float(row["need"]["seconds"]),
        starts=int(row["need"]["starts"]),
        worked=float(row["need"]["worked"]),
        cores=None if row["need"]["cores"] is None else int(row["need"]["cores"]),
        hours=tuple(int(size) for size in row["need"]["hours"]),
        days=tuple(int(size) for size in row["need"]["days"]),
        refused=int(row["need"]["refused"]),
    )
    given, unit = Amount(int(row["given"]["cores"]), int(row["given"]["memory"])), max(1, int(row["unit"]))
    workload = str(row["namespace"]), str(row["workload"]), str(row["container"])
    pods = tuple(str(pod) for pod in row["pods"])
    uids = tuple(str(uid) for uid in row.get("uids", ()))
    margin = max(-1.0, min(float(row.get("margin", 0.0)), _LARGEST_MARGIN))  # an older agent tells none
    return Sized(
        workload,
        pods,
        given,
        unit,
        need,
        advise(need, given, unit, AdvicePolicy(margin=margin)),
        uids,
        margin,
    )


def within_scope(one: Sized, scope: NameScope) -> Sized:
    """The advice as it may be told: with its workload's names, or with the UIDs of its pods alone."""
    namespace, _, container = one.workload
    if scope.covers(namespace):
        return one
    digest = container_digest(one.uids[0], container) if one.uids else ""
    return replace(one, workload=("", "", digest), pods=())


def named_advice(one: Sized, pods: Mapping[str, Pod]) -> Sized | None:
    """The advice with its workload's names, by its pods' UIDs; None if the first of them is not known."""
    if one.workload[0]:
        return one
    first = pods.get(one.uids[0]) if one.uids else None
    if first is None:
        return None
    container = container_name(one.uids[0], one.workload[2], first)
    names = tuple(sorted(pods[uid].name for uid in one.uids if uid in pods))
    return replace(one, workload=(first.namespace, first.workload, container), pods=names)

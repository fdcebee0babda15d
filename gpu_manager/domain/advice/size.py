"""The advised size of a container from its observed need; the reason in one sentence; the form of
``/advice``.

A larger size is advised at once, a smaller one only after long enough observation. If the memory cannot be
judged, no figure is given, and the reason explains why. :class:`Sized` is a workload's container with its
advised size, as in the agent's ``/advice``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from math import log
from typing import Any, Final

from gpu_manager.domain.advice.demand import DAY, HOUR, Need, pooled
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.names import NameScope, container_digest, container_name
from gpu_manager.domain.resources import Amount, format_bytes

WATCHED_SECONDS: Final = DAY  # before a smaller size is advised: programs differ by the hour of the day
STARTS: Final = 3  # of the container or its replicas: one run's data do not represent all
LONG_SECONDS: Final = 7 * DAY  # after so long a run no further starts are needed
GROWTH_SECONDS: Final = 3 * DAY  # before less memory is advised: growth shows over days
WORKED_SECONDS: Final = 600.0  # of work before cores are judged
SELDOM_SECONDS: Final = 60.0  # as WORKED_SECONDS, after long observation: a short job works for minutes a day
FULL: Final = 0.85  # of the limit: programs that size themselves by the visible memory take nine tenths of it
_CALM_HOURS: Final = 6  # without a new greatest amount: what still grows within the day has grown since then
_SOME_DAYS: Final = 3  # from this number on, days are judged instead of hours
_FALL: Final = 0.999  # of a day's maximum: an amount above this has not fallen
_ALIKE: Final = 0.99  # of the maximum: three amounts this close indicate a bound
_TAIL: Final = 5  # of the greatest hours, from which a tail is estimated
_AHEAD: Final = 3 * DAY  # for which a size is advised
_BEYOND: Final = 0.01  # for which a size is advised
_MANY: Final = 20  # probability of a greater amount within that time


@dataclass(frozen=True, slots=True)
class AdvicePolicy:
    """Parameters of advice; the agent's flags set them.

    Attributes:
        percentile: the advised cores exceed the demand for this part of the working time.
        margin: memory above the greatest amount, as a part of it; below 0 for less than that amount.
        largest: bytes of the largest card; None if unknown.
    """

    percentile: float = 95.0
    margin: float = 0.0
    largest: int | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """An advised amount, or None if none can be given, and the reason."""

    value: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for one container: hundredths of a card, bytes."""

    cores: Figure
    memory: Figure


def advise(need: Need, given: Amount, unit: int, policy: AdvicePolicy | None = None) -> Advice:
    """Advise on a container that was ``given`` a part of one card; ``unit``: bytes of a unit of memory."""
    return Advice(_cores(need, given.cores), _memory(need, given.memory, unit, policy or AdvicePolicy()))


def _cores(need: Need, given: int) -> Figure:
    is_long = need.seconds >= LONG_SECONDS
    if is_long and need.worked < 1:
        return Figure(1, f"it did not work in {_time(need.seconds)}: 1 core is enough, or end it")
    if need.cores is None or need.worked < (SELDOM_SECONDS if is_long else WORKED_SECONDS):
        return Figure(None, f"it worked for {_time(need.worked)}: too little to tell")
    if need.cores > given:
        return Figure(
            need.cores, f"its limit holds it back: without it, it would use up to {need.cores} cores"
        )
    if unseen := _unseen(need):
        return Figure(None, f"it needs {need.cores} cores so far, {unseen}")
    return Figure(max(1, need.cores), f"while it works it would use up to {need.cores} cores without a limit")


def _memory(need: Need, given: int, unit: int, policy: AdvicePolicy) -> Figure:
    peak = max((*need.days, *need.hours), default=0)
    held = format_bytes(peak)
    if need.refused > given:  # else its size was raised since
        wanted = _rounded(max(need.refused, peak), unit)
        if policy.largest is not None and wanted > policy.largest:
            most = format_bytes(policy.largest)
            return Figure(
                None,
                f"an allocation that needed {format_bytes(need.refused)} in all was refused, and the largest "
                f"card has {most}: a fault of the program, or work for several cards",
            )
        return Figure(wanted, f"an allocation that needed {format_bytes(need.refused)} in all was refused")
    if peak == 0:
        return Figure(None, "it held no memory of the card")
    if peak >= FULL * given:
        return Figure(
            None,
            f"it took {held} of its {format_bytes(given)} and nothing was refused: "
            "a program that keeps what it once took cannot be told from one that needs it",
        )
    if grows(need, unit):
        return Figure(
            None, f"it still grows, to {held} by now: a leak, or work that has not its full size yet"
        )
    if unseen := _unseen(need, GROWTH_SECONDS):
        return Figure(None, f"it took at most {held} so far, {unseen}")
    wanted = max(unit, _rounded(round(peak * (1 + policy.margin)) + _gap(need), unit))
    if wanted >= given:
        return Figure(
            None, f"it took {held}, and may take more: its greatest amounts differ too much to tell"
        )
    return Figure(wanted, f"it took at most {held} in {_time(need.seconds)}{_beside(policy.margin)}")


def grows(need: Need, unit: int) -> bool:
    """True if memory has grown lately: by more than a unit in the last hours, or from day to day with a new
    maximum in the later half of the days, and no day below the previous one.
    """
    if len(need.hours) > _CALM_HOURS:
        records = list(accumulate(need.hours, max))
        rises = sum(late > early for early, late in pairwise(records))
        if records[-1] > records[-1 - _CALM_HOURS] + unit and rises * 2 >= len(records) - 1:
            return True
    days = need.days[:-1]  # the last day is not over
    if len(days) < _SOME_DAYS or any(late < early * _FALL for early, late in pairwise(days)):
        return False
    return max(days[len(days) // 2 :]) > max(days[: len(days) // 2]) + unit // 8


def _gap(need: Need) -> int:
    """How far the next maximum may exceed the last one, in bytes.

    If the three greatest amounts are alike, hours follow one another smoothly, or many starts were observed:
    the distance of the two greatest, which suffices with a probability of one half whatever the distribution
    (Robson and Whitlock, 1964). Otherwise the amounts have a tail: the excess that three days exceed with a
    probability of one in a hundred if the tail continues exponentially (Pickands, 1975).
    """
    days, hours = _closed(need.days), _closed(need.hours)
    found = [0]
    for seen, seconds, most in ((days, DAY, 2), (hours, HOUR, _TAIL)):
        top = sorted(seen, reverse=True)[: most + 1]
        is_smooth = need.starts >= _MANY or (seen is hours and len(hours) > 1 and _is_smooth(hours))
        if len(top) <= most or top[2] >= top[0] * _ALIKE or is_smooth:
            found.append(
                top[0] - top[1] if len(top) > 1 and seen is (days if len(days) > _SOME_DAYS else hours) else 0
            )
            continue
        excess = sum(one - top[-1] for one in top[:-1]) / most
        beyond = log(_AHEAD / seconds * most / len(seen) / _BEYOND)
        found.append(round(top[-1] + excess * beyond - max(*days, *need.hours)))
    return max(found)


def _closed(windows: Sequence[int]) -> Sequence[int]:
    """The closed windows, and the open one if it already has the maximum."""
    return windows if windows[-1] >= max(windows) else windows[:-1]


def _is_smooth(seen: Sequence[int]) -> bool:
    """True if each amount is near the previous one, as over a day, and not independent of it."""
    mean = sum(seen) / len(seen)
    steps = sum((late - early) ** 2 for early, late in pairwise(seen))
    return steps < sum((one - mean) ** 2 for one in seen)


def _beside(margin: float) -> str:
    """A phrase about the margin above the greatest amount, if one was requested."""
    return f"; {100 * abs(margin):.3g} % {'more' if margin > 0 else 'less'} is advised" if margin else ""


def _unseen(need: Need, watched: float = WATCHED_SECONDS) -> str:
    """What is missing before a smaller size is advised; empty if nothing is."""
    if need.seconds < watched:
        growth = " to tell growth" if watched == GROWTH_SECONDS else ""
        short = (
            f"watched for {_time(need.seconds)}, too short{growth}"
            if growth
            else f"watched for {_time(need.seconds)}"
        )
        return f"{short}: a smaller size is advised after {_time(watched)}"
    if need.starts < STARTS and need.seconds < LONG_SECONDS:
        many = f"{need.starts} start{'s' if need.starts != 1 else ''}"
        return f"seen for {many}: a smaller size is advised after {STARTS}, or {_time(LONG_SECONDS)}"
    return ""


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _time(seconds: float) -> str:
    for length, word in ((DAY, "day"), (HOUR, "hour"), (60.0, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {word}{'s' if count != 1 else ''}"
    return f"{seconds:.0f} seconds"


Workload = tuple[str, str, str]  # namespace, kind/name, container
_LARGEST_MARGIN: Final = 100.0


@dataclass(frozen=True, slots=True)
class Sized:
    """The pods of a workload, their container's size and observed need, and the advice.

    ``unit`` is bytes of a unit of memory; ``uids`` are of the same pods as ``pods``; ``margin`` is the
    agent's margin above the greatest amount of memory, as a part of it.
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
    """The size that counts as given if replicas differ, as during a rollout."""
    return max(given, key=lambda amount: (amount.memory, amount.cores))


def pool(
    found: Iterable[Sized], policy: AdvicePolicy | None = None, largest_card: int | None = None
) -> Sequence[Sized]:
    """One result per workload, from the results of all nodes: a template has one size. Without a ``policy``
    the largest margin of the agents applies. ``largest_card``: bytes of the largest card, if known.
    """
    members: dict[Workload, list[Sized]] = {}
    for one in found:
        members.setdefault(one.workload, []).append(one)
    return [_together(workload, ones, policy, largest_card) for workload, ones in sorted(members.items())]


def _together(
    workload: Workload, ones: Sequence[Sized], policy: AdvicePolicy | None, largest_card: int | None
) -> Sized:
    need, given = pooled([one.need for one in ones]), largest(one.given for one in ones)
    names, unit = sorted(pod for one in ones for pod in one.pods), max(one.unit for one in ones)
    uids = tuple(uid for one in ones for uid in one.uids)
    margin = max(one.margin for one in ones) if policy is None else policy.margin
    advice = advise(need, given, unit, replace(policy or AdvicePolicy(margin=margin), largest=largest_card))
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
    """The advice for one pod's containers, in the console's form: hundredths of a card, bytes."""
    return {
        "containers": [
            {"container": one.workload[2], "given": asdict(one.given), **asdict(one.advice)} for one in found
        ]
    }


def read_sized(row: Mapping[str, Any]) -> Sized:
    """Read what :func:`sized_json` returned; the advice is computed again.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: malformed.
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
    margin = max(-1.0, min(float(row.get("margin", 0.0)), _LARGEST_MARGIN))  # an older agent sends none
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
    """The advice as the caller may see it: with its workload's names, or with the UIDs of its pods only."""
    namespace, _, container = one.workload
    if scope.covers(namespace):
        return one
    digest = container_digest(one.uids[0], container) if one.uids else ""
    return replace(one, workload=("", "", digest), pods=())


def named_advice(one: Sized, pods: Mapping[str, Pod]) -> Sized | None:
    """The advice with its workload's names, found by its pods' UIDs; None if the first is unknown."""
    if one.workload[0]:
        return one
    first = pods.get(one.uids[0]) if one.uids else None
    if first is None:
        return None
    container = container_name(one.uids[0], one.workload[2], first)
    names = tuple(sorted(pods[uid].name for uid in one.uids if uid in pods))
    return replace(one, workload=(first.namespace, first.workload, container), pods=names)

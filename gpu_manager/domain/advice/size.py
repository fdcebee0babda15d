"""What size a container should have, from what it was seen to need, and the reason in one sentence.

A larger size is advised at once, a smaller one only after the program was seen for long enough. Where its
memory cannot be judged, no figure is given, and the reason says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from gpu_manager.domain.advice.demand import DAY, HOUR, Need
from gpu_manager.domain.resources import Amount, format_bytes

WATCHED_SECONDS: Final = DAY  # before a smaller size is advised: programs differ by the hour of the day
STARTS: Final = 3  # of the container or its replicas: the data of one run are not those of all
LONG_SECONDS: Final = 7 * DAY  # whoever runs for so long need not start again to be known
WORKED_SECONDS: Final = 600.0  # of work before cores are judged
FULL: Final = 0.85  # of the limit: programs that size themselves by what they see take nine tenths of it
_CALM_HOURS: Final = 6  # without a new greatest amount: what still grows within the day has grown since then
_RISING_DAYS: Final = 3


@dataclass(frozen=True, slots=True)
class AdvicePolicy:
    """How advice is made; the agent's flags set it.

    Attributes:
        percentile: of the time in which it works, its demand stays below the advised cores for so much.
        margin: memory beside the greatest amount, as a part of it; below 0 for less than that amount.
    """

    percentile: float = 95.0
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Figure:
    """An advised amount, or None where none can be given, and the reason."""

    value: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for one container: hundredths of a card, bytes."""

    cores: Figure
    memory: Figure


def advise(need: Need, given: Amount, unit: int, policy: AdvicePolicy | None = None) -> Advice:
    """The size for a container that was ``given`` a part of one card; ``unit``: bytes of a unit of memory."""
    return Advice(_cores(need, given.cores), _memory(need, given.memory, unit, policy or AdvicePolicy()))


def _cores(need: Need, given: int) -> Figure:
    if need.cores is None or need.worked < WORKED_SECONDS:
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
    if need.refused > given:  # else it has been given more since
        wanted = _rounded(max(need.refused, peak), unit)
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
    if unseen := _unseen(need):
        return Figure(None, f"it took at most {held} so far, {unseen}")
    wanted = max(unit, _rounded(round(peak * (1 + policy.margin)) + _gap(need), unit))
    if wanted >= given:
        return Figure(
            None, f"it took {held}, and may take more: its greatest amounts differ too much to tell"
        )
    return Figure(wanted, f"it took at most {held} in {_time(need.seconds)}{_beside(policy.margin)}")


def grows(need: Need, unit: int) -> bool:
    """True if memory has grown lately by more than a unit: in the last hours, or on each of several days."""
    if len(need.hours) > _CALM_HOURS:
        records = list(accumulate(need.hours, max))
        rises = sum(late > early for early, late in pairwise(records))
        if records[-1] > records[-1 - _CALM_HOURS] + unit and rises * 2 >= len(records) - 1:
            return True
    days = need.days[:-1]  # the last is not over
    rising = all(late > early for early, late in pairwise(days))
    return len(days) >= _RISING_DAYS and rising and days[-1] > days[0] + unit


def _gap(need: Need) -> int:
    """How far the next greatest amount may lie above the last, in bytes.

    The distance of the two greatest so far, which half of the time is enough whatever the distribution
    (Robson and Whitlock, 1964): by days once there are three, by hours before.
    """
    seen = sorted(need.days if len(need.days) > _RISING_DAYS else need.hours)
    return seen[-1] - seen[-2] if len(seen) > 1 else 0


def _beside(margin: float) -> str:
    """What is given beside the greatest amount because somebody asked for it."""
    return f"; {100 * abs(margin):.3g} % {'more' if margin > 0 else 'less'} is advised" if margin else ""


def _unseen(need: Need) -> str:
    """What is missing before a smaller size is advised; empty if nothing is."""
    if need.seconds < WATCHED_SECONDS:
        return f"watched for {_time(need.seconds)}: a smaller size is advised after {_time(WATCHED_SECONDS)}"
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

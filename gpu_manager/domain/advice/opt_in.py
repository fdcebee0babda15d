"""Whether advice may be applied automatically, and within which bounds.

Users write ``tencent.com/vcuda-advice`` on a workload's own metadata, else on its template's, or on a pod
without a workload:
``{"v":1,"apply":"in-place","containers":{"train":{"cores":[10,60],"memory":["1Gi","8Gi"]}}}``. Without it, or
with ``"apply":"off"``, no advice is applied. The program that applies advice writes
``tencent.com/vcuda-advised`` beside it, with the time of each container's last change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gpu_manager.domain import contract
from gpu_manager.domain.advice.demand import Need
from gpu_manager.domain.advice.size import Advice
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.resources import CORES_PER_CARD, LARGEST_COUNT, Amount, format_bytes, parse_quantity
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation
from gpu_manager.domain.untrusted import mapping, text

EXAMPLE: Final = '{"v":1,"apply":"in-place","containers":{"train":{"cores":[10,60],"memory":["1Gi","8Gi"]}}}'
PAUSE: Final = timedelta(days=1)  # between two changes of one container, unless it was refused memory
_WAYS: Final = ("in-place", "off")
_LONGEST: Final = 16 << 10  # characters of either annotation
_MOST_CORES: Final = CORES_PER_CARD - 1
_MOST_GROWTH: Final = 2

Range = tuple[int, int]
"""The least and the most."""


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """Bounds for a container's size: cores, bytes; None for no bound."""

    cores: Range | None = None
    memory: Range | None = None


@dataclass(frozen=True, slots=True)
class AdviceTerms:
    """What the owner of a workload allows. ``applies``: advice may be applied in place."""

    applies: bool = False
    bounds: Mapping[str, SizeBounds] = field(default_factory=dict)


def read_advice_terms(written: str | None) -> AdviceTerms:
    """Read the annotation; without one nothing is allowed.

    Raises:
        RequestInvalid: it cannot be read.
    """
    if written is None:
        return AdviceTerms()
    data = contract.versioned_json(written, _LONGEST)
    if data is None:
        raise RequestInvalid(f"it is not JSON of version {contract.VERSION}")
    way = data.get("apply", "off")
    if way not in _WAYS:
        raise RequestInvalid(f"apply is {quoted(way)}, not {' or '.join(map(quoted, _WAYS))}")
    containers = data.get("containers", {})
    if not isinstance(containers, dict):
        raise RequestInvalid("containers is no map of containers")
    return AdviceTerms(way == "in-place", {name: _bounds(name, one) for name, one in containers.items()})


def check_advice_terms(
    annotations: Mapping[str, Any], unit: int, minimum_cores: int = 1
) -> Iterator[Violation]:
    """Yield the violations in the annotation. ``unit``: bytes of a unit of memory."""
    written = annotations.get(contract.ADVICE)
    if not isinstance(written, str):
        return
    try:
        terms = read_advice_terms(written)
    except RequestInvalid as error:
        yield violation(
            Rule.ADVICE_UNREADABLE, "", contract.ADVICE, quoted(written), reason=str(error), example=EXAMPLE
        )
        return
    most = LARGEST_COUNT // unit * unit
    for name, bounds in terms.bounds.items():
        if bounds.cores is not None:
            yield from _check(name, "cores", bounds.cores, (minimum_cores, _MOST_CORES), 1)
        if bounds.memory is not None:
            yield from _check(name, "memory", bounds.memory, (unit, most), unit)


def advised_size(advice: Advice, given: Amount, bounds: SizeBounds) -> Amount:
    """The size to apply: the advice within the bounds, or the present size where there is no advice. Memory
    grows to at most twice the present size unless the owner's bounds require more.
    """
    cores, memory = advice.cores.value, advice.memory.value
    return Amount(
        given.cores if cores is None else _within(min(cores, _MOST_CORES), bounds.cores),
        given.memory if memory is None else _within(min(memory, _MOST_GROWTH * given.memory), bounds.memory),
    )


def next_change(written: str | None, container: str, need: Need, given: Amount, now: datetime) -> datetime:
    """When the container may be changed next: a day after the last change, and at once (``now`` or earlier)
    if its memory is too small.
    """
    if need.refused > given.memory:
        return now
    data = contract.versioned_json(written, _LONGEST)
    said = text(mapping(data.get("containers")).get(container)) if data else ""
    try:
        last = datetime.fromisoformat(said)
    except ValueError:
        return now
    return (last if last.tzinfo else last.replace(tzinfo=UTC)) + PAUSE


def note_change(written: str | None, container: str, now: datetime) -> str:
    """The annotation with the times of changes, with this container's set to ``now``."""
    data = contract.versioned_json(written, _LONGEST) or {}
    before = {str(name): text(at) for name, at in mapping(data.get("containers")).items()}
    times = {**before, container: now.astimezone(UTC).isoformat(timespec="seconds")}
    return json.dumps({"v": contract.VERSION, "containers": times}, separators=(",", ":"))


def _bounds(name: object, one: object) -> SizeBounds:
    if not isinstance(one, dict) or not {"cores", "memory"}.issuperset(one):
        raise RequestInvalid(f"container {quoted(name)} has other bounds than cores and memory")
    return SizeBounds(
        *(None if what not in one else _range(name, what, one[what]) for what in ("cores", "memory"))
    )


def _range(name: object, what: str, value: object) -> Range:
    if not isinstance(value, list) or len(value) != 2:
        raise RequestInvalid(f"{what} of container {quoted(name)} is not [least, most]")
    try:
        least, most = (parse_quantity(one) for one in value)
    except RequestInvalid as error:
        raise RequestInvalid(f"{what} of container {quoted(name)}: {error}") from error
    if least.denominator != 1 or most.denominator != 1:
        raise RequestInvalid(f"{what} of container {quoted(name)} is not whole")
    return int(least), int(most)


def _check(name: str, what: str, asked: Range, legal: Range, step: int) -> Iterator[Violation]:
    least, most = (_within((one + step // 2) // step * step, legal) for one in asked)
    nearest = min(least, most), max(least, most)
    if nearest != asked:
        shown = [(_shown(what, low), _shown(what, high)) for low, high in (asked, nearest)]
        (wanted, works) = (f"{low} to {high}" for low, high in shown)
        yield violation(
            Rule.ADVICE_BOUND, "", contract.ADVICE, quoted(name), (works,), what=what, wanted=wanted
        )


def _shown(what: str, amount: int) -> str:
    if abs(amount) > LARGEST_COUNT:
        return quoted(amount)
    return format_bytes(amount) if what == "memory" else str(amount)


def _within(value: int, bounds: Range | None) -> int:
    return value if bounds is None else max(bounds[0], min(value, bounds[1]))

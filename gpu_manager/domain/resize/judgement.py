"""Whether a resize is legal and fits the container's cards, its progress, and its cost in device ids.

A container with equal parts of several cards has one size, the total: all of its parts change, or none.

The kubelet counts device ids, and a container keeps the number with which it was admitted. Amounts booked
beyond those ids would be handed out again. So as many free ids are reported unhealthy as exceed the room in
the ledger and the plans: ``free - (room + planned)``. With ``total`` ids, ``free`` is ``total - held``, and
room and plans together are ``total - booked``; so that number is ``booked - held``.

Kubernetes' own limits may be exceeded too: ResourceQuotas and LimitRanges count what specs request, and a
resize changes no spec.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from itertools import islice, product
from typing import Any, Final

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import ALLOCATION, ASSIGNED, CORE, MEMORY, RESIZE, decode_assignment
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid, quoted
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.resize.sizes import (
    EXAMPLE,
    Sizes,
    WantedSize,
    answer_of,
    digest,
    read_wanted,
    spec_sizes,
)
from gpu_manager.domain.resources import (
    CORES_PER_CARD,
    LARGEST_COUNT,
    ZERO,
    Amount,
    format_bytes,
    lenient_count,
)
from gpu_manager.domain.rules.pod_annotations import ceiling_of, nearest_totals
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation
from gpu_manager.domain.untrusted import mapping, mappings, text

_MOST_CORES = CORES_PER_CARD - 1
_MOST_NAMED = 8  # containers of one pod in one refusal


def check_resize(pod: Pod, unit: int, minimum_cores: int = 1) -> tuple[Violation, ...]:
    """The violations in the size that the pod's annotation requests; empty if it is legal or absent."""
    written = pod.annotations.get(RESIZE)
    if written is None:
        return ()
    try:
        wanted = read_wanted(written)
    except RequestInvalid as error:
        return (
            violation(
                Rule.RESIZE_UNREADABLE, "", RESIZE, quoted(written), reason=str(error), example=EXAMPLE
            ),
        )
    spec = spec_sizes(pod, unit)
    parts = {c.name: c.parts for c in pod.containers}
    hint = _fractions(spec) if wanted.keys() - spec.keys() else ""
    return tuple(
        v
        for name, size in wanted.items()
        for v in (
            _check(pod, name, size, spec[name], parts[name], unit, minimum_cores)
            if name in spec
            else _not_a_fraction(pod, name, hint)
        )
    )


def legal_sizes(pod: Pod, unit: int, minimum_cores: int = 1) -> Sizes | None:
    """The size of each resizable container by the annotation, else by the spec; None if the annotation is
    illegal.
    """
    if check_resize(pod, unit, minimum_cores):
        return None
    wanted = read_wanted(pod.annotations[RESIZE]) if RESIZE in pod.annotations else {}
    return {name: wanted.get(name, WantedSize()).over(size) for name, size in spec_sizes(pod, unit).items()}


def _fractions(spec: Sizes) -> str:
    """A phrase naming the resizable containers, bounded, since an annotation can name hundreds of others."""
    if not spec:
        return "; the pod has no fraction of a card"
    more = f" and {len(spec) - _MOST_NAMED} more" if len(spec) > _MOST_NAMED else ""
    return f"; fractions of this pod: {', '.join(map(quoted, islice(spec, _MOST_NAMED)))}{more}"


def _not_a_fraction(pod: Pod, name: str, hint: str) -> Iterator[Violation]:
    reason = _why_not(next((c for c in pod.containers if c.name == name), None))
    yield violation(Rule.RESIZE_NOT_A_FRACTION, "", RESIZE, quoted(name), reason=reason, hint=hint)


def _check(
    pod: Pod, name: str, size: WantedSize, spec: Amount, parts: int, unit: int, minimum: int
) -> Iterator[Violation]:
    cores, memory, shown = size.cores, size.memory, quoted(name)
    total = f", the total of {parts} equal parts" if parts > 1 else ""
    near: tuple[int | str, ...] = ()
    if cores is not None:
        near = nearest_totals(Fraction(cores), parts, minimum, _MOST_CORES)
    if cores is not None and cores not in near:
        wanted = f"{quoted(cores)}{total}"
        yield violation(Rule.RESIZE_VALUE, "", RESIZE, shown, near, what="cores", wanted=wanted)
    elif (ceiling := ceiling_of(pod)) is not None and size.over(spec).cores > ceiling * parts:
        wanted = str(size.over(spec).cores // parts)
        where = f" on each of {parts} cards" if parts > 1 else ""
        yield violation(
            Rule.RESIZE_ABOVE_CEILING, "", RESIZE, f"{shown}{where}", wanted=wanted, ceiling=str(ceiling)
        )
    step = parts * unit
    if memory is not None and (memory % step or not step <= memory <= LARGEST_COUNT):
        fits = abs(memory) < LARGEST_COUNT  # a larger quantity was read as the largest
        sides = sorted({max(1, n) for n in (memory // step, -(-memory // step))}) if fits else []
        near = tuple(format_bytes(n * step) for n in sides) or (f"units of {format_bytes(step)}",)
        wanted = f"{format_bytes(memory) if fits else quoted(memory)}{total}"
        yield violation(Rule.RESIZE_VALUE, "", RESIZE, shown, near, what="memory", wanted=wanted)


def _why_not(container: Container | None) -> str:
    if container is None:
        return "and the pod has no such container"
    if container.kind is ContainerKind.INIT and container.asks:
        return "an ordinary init container, which hands its share on"
    if (container.core is not None and container.core >= CORES_PER_CARD) or container.gpus:
        return "which has whole cards"
    if container.claims:
        return "which has its devices by a ResourceClaim, and that cannot be changed"
    return "which asks for no card"


def resized(allocation: Allocation, size: Amount) -> Allocation:
    """The allocation of a fraction with another size, on the same cards, in equal parts."""
    part = size.part(len(allocation.shares))
    return replace(allocation, shares=tuple(Share(card, part) for card in allocation.cards))


def grown(allocation: Allocation, size: Amount) -> Allocation:
    """The allocation with at least its part of ``size`` on each of its cards."""
    part = size.part(len(allocation.shares))
    return replace(
        allocation, shares=tuple(Share(each.card, each.amount.peak(part)) for each in allocation.shares)
    )


def size_of(allocation: Allocation) -> Amount:
    """What the allocation holds of all its cards together."""
    return sum((each.amount for each in allocation.shares), ZERO)


@dataclass(frozen=True, slots=True)
class ResizeRefusal:
    """Why a size does not fit the container's cards, and the largest that does.

    ``cards`` are indices; ``card`` is the one with no room, which has ``free``, or is ``closed``.
    """

    container: str
    wanted: Amount
    held: Amount
    free: Amount
    largest: Amount
    card: int
    cards: tuple[int, ...]
    closed: str = ""

    def __str__(self) -> str:
        """One sentence with the arithmetic."""
        several = len(self.cards) > 1
        named = f"cards {', '.join(map(str, self.cards))}" if several else f"card {self.card}"
        where = f"container {quoted(self.container)}: {self.wanted} on {named}"
        card = f"card {self.card}" if several else "the card"
        if self.closed:
            return f"{where}: {card} takes nothing new ({self.closed}); it keeps {self.held}"
        return (
            f"{where} does not fit: it holds {self.held} and {card} has {self.free} free, "
            f"so at most {self.largest}"
        )


def judge_room(
    ledger: Ledger, allocation: Allocation, wanted: Amount, states: Mapping[CardUuid, CardState]
) -> ResizeRefusal | None:
    """Why the container cannot have this size on its cards; None if it can. ``allocation`` is booked in the
    ledger, as a fraction of each of its cards; ``states`` has all of them. A size that increases nothing
    always fits.
    """
    part = wanted.part(len(allocation.shares))
    if all(part.fits_in(each.amount) for each in allocation.shares):
        return None
    held, on = size_of(allocation), [states[card] for card in allocation.cards]
    tight = min(on, key=lambda state: _left(ledger, state, part))
    free = ledger.free(tight.card.uuid).peak(ZERO)
    indices = tuple(sorted(state.card.index for state in on))
    refusal = ResizeRefusal(allocation.container, wanted, held, free, held, tight.card.index, indices)
    for state in on:
        if not state.open:
            why = state.reason or ("cordoned" if state.cordoned else "not healthy")
            return replace(refusal, card=state.card.index, closed=why)
    if _fits(ledger, grown(allocation, wanted)):
        return None
    return replace(refusal, largest=_largest(ledger, allocation, on))


def _left(ledger: Ledger, state: CardState, part: Amount) -> tuple[float, float]:
    """What the card has free of each amount, in parts: the smaller figure first."""
    free = ledger.free(state.card.uuid)
    cores, memory = free.cores / max(1, part.cores), free.memory / max(1, part.memory)
    return min(cores, memory), max(cores, memory)


def _fits(ledger: Ledger, allocation: Allocation) -> bool:
    try:
        ledger.copy().commit((allocation,))
    except DoesNotFit:
        return False
    return True


def _largest(ledger: Ledger, allocation: Allocation, states: Sequence[CardState]) -> Amount:
    """The most cores, and the most memory, that the container may have. That is more than its own amount plus
    what is free if another phase of its pod takes more: a pod is booked at its peak.
    """
    held, parts, unit = size_of(allocation), len(allocation.shares), ledger.unit
    step = parts * unit
    most_units = min(state.card.capacity(unit).memory for state in states) // unit

    def fits(size: Amount) -> bool:
        return _fits(ledger, grown(allocation, size))

    cores = _most(lambda n: fits(Amount(n * parts, 0)), held.cores // parts, _MOST_CORES)
    units = _most(lambda n: fits(Amount(0, n * step)), held.memory // step, most_units)
    return Amount(cores * parts, max(held.memory, units * step))


def _most(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number between ``low`` and ``high`` that fits; ``low`` must fit."""
    return low + bisect_left(range(low + 1, high + 1), True, key=lambda n: not fits(n))  # noqa: FBT003  # a value


def ids_to_withdraw(excess: int, free: int) -> int:
    """How many free ids of a resource to withdraw.

    ``excess``: units booked for admitted containers beyond their ids, less the ids that they hold beyond what
    is booked. ``free``: ids that no container holds.
    """
    return max(0, min(excess, free))


def choose_ids(
    number: int,
    free: Mapping[CardUuid, Sequence[str]],
    first: Sequence[CardUuid],
    before: Collection[str] = frozenset(),
) -> frozenset[str]:
    """The ids to withdraw, fewer only if fewer are free: those of ``before`` that are still free, then of the
    cards ``first``, then of any; on each card the last ones, since the first are handed out first.
    """
    order = (*(card for card in first if card in free), *(card for card in free if card not in first))
    candidates = [device for card in order for device in reversed(free[card])]
    kept = [device for device in candidates if device in before][:number]
    held = frozenset(kept)
    fresh = (device for device in candidates if device not in held)
    return held.union(device for device, _ in zip(fresh, range(number - len(kept)), strict=False))


class ResizeStage(Enum):
    """The state of a resize request."""

    ASKED = "asked"  # the scheduler has not answered
    REFUSED = "refused"
    RESERVED = "reserved"  # the scheduler has reserved it, and the agent has not given it yet
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ResizeProgress:
    """The progress of one container. ``held`` is None before the agent has published it; ``why`` is a
    refusal.
    """

    spec: Amount
    wanted: Amount
    held: Amount | None
    stage: ResizeStage
    why: str = ""


def held_size(pod: Pod, container: str) -> Amount | None:
    """The booked amount of a container, of all its cards; None before the agent has published it."""
    said = decode_assignment(pod.annotations.get(ALLOCATION))
    shares = said.containers.get(container, ()) if said and pod.annotations.get(ASSIGNED) == "true" else ()
    return sum((amount for _, amount in shares), ZERO) if shares else None


def resize_progress(pod: Pod, container: str, unit: int) -> ResizeProgress | None:
    """The progress of the container's resize; None if it has the size of its spec and no resize is requested.

    ``unit``: bytes of one unit of memory on its node.
    """
    spec = spec_sizes(pod, unit).get(container)
    if spec is None:
        return None
    answer, held, own = answer_of(pod), held_size(pod, container), digest(pod)
    wanted = _asked_of(pod, container, spec)
    if not own and answer is not None:  # the request of its owner, which the answer names
        wanted = answer.sizes.get(container, spec)
    if own and (answer is None or answer.asked != own):
        stage, why = ResizeStage.ASKED, ""
    elif answer is not None and answer.refused:
        stage, why = ResizeStage.REFUSED, answer.refused
    else:
        stage, why = (ResizeStage.DONE if held == wanted else ResizeStage.RESERVED), ""
    if stage is not ResizeStage.REFUSED and wanted == spec and held in (spec, None):
        return None
    return ResizeProgress(spec, wanted, held, stage, why)


def _asked_of(pod: Pod, container: str, spec: Amount) -> Amount:
    """The size that the pod itself requests; its spec's if the request cannot be read."""
    written = pod.annotations.get(RESIZE)
    try:
        return read_wanted(written).get(container, WantedSize()).over(spec) if written is not None else spec
    except RequestInvalid:
        return spec


_COUNTED: Final = {f"requests.{CORE}": CORE, f"requests.{MEMORY}": MEMORY}


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """The ResourceQuotas and LimitRanges of one namespace, as stored by the API server."""

    quotas: Sequence[Mapping[str, Any]] = ()
    ranges: Sequence[Mapping[str, Any]] = ()


def resized_to(pod: Pod, unit: int) -> Sizes:
    """The size of each resizable container of the pod: as requested, else as reserved, else as held, else as
    in its spec.
    """
    spec, answer = spec_sizes(pod, unit), answer_of(pod)
    is_open = RESIZE in pod.annotations and (answer is None or answer.asked != digest(pod))
    if is_open and (asked := legal_sizes(pod, unit)):
        return asked
    given = answer.sizes if answer is not None else {}
    return {name: given.get(name) or held_size(pod, name) or size for name, size in spec.items()}


def past_limits(limits: NamespaceLimits, pods: Iterable[Pod], unit: int) -> Iterator[str]:
    """Yield each limit that resized pods of the namespace exceed, as a sentence.

    ``unit``: bytes of one unit of memory.
    """
    sizes = [
        (pod, name, size, spec_sizes(pod, unit)[name])
        for pod in pods
        if not pod.terminal and not pod.deleting
        for name, size in resized_to(pod, unit).items()
    ]
    grown = [one for one in sizes if not one[2].fits_in(one[3])]
    more = {
        resource: sum(_of(resource, size, unit) - _of(resource, spec, unit) for *_, size, spec in sizes)
        for resource in (CORE, MEMORY)
    }
    for quota in limits.quotas if grown else ():
        hard, used = mapping(mapping(quota.get("spec")).get("hard")), mapping(quota.get("status")).get("used")
        for key, resource in _COUNTED.items():
            most, booked = (lenient_count(mapping(part).get(key)) for part in (hard, used))
            total = (booked or 0) + more[resource]
            if most is not None and total > most:
                yield (
                    f"ResourceQuota {quoted(_name(quota))} grants {most} of {key}, and pods come to {total} "
                    "by resizes: Kubernetes counts what specs ask for"
                )
    for limit in limits.ranges if grown else ():
        bounds = [
            b for b in mappings(mapping(limit.get("spec")).get("limits")) if b.get("type") == "Container"
        ]
        for bound, resource in product(bounds, (CORE, MEMORY)):
            most = lenient_count(mapping(bound.get("max")).get(resource))
            for pod, name, size, _ in grown if most is not None else ():
                if (has := _of(resource, size, unit)) > (most or 0):
                    yield (
                        f"LimitRange {quoted(_name(limit))} lets a container have {most} of {resource}, and "
                        f"{quoted(name)} of {pod.key} comes to {has} by its resize"
                    )


def _of(resource: str, size: Amount, unit: int) -> int:
    return size.cores if resource == CORE else size.memory // unit


def _name(obj: Mapping[str, Any]) -> str:
    return text(mapping(obj.get("metadata")).get("name"))

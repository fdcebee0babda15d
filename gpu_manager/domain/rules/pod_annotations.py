"""Read and check the annotations of a pod, and equal parts of several cards, which one of them requests.

A pod may be annotated after admission, so the readers treat an unreadable annotation as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from math import ceil, floor
from typing import Final

from gpu_manager.domain import contract
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CARDS, CORE, MEMORY, NVIDIA
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod
from gpu_manager.domain.kube.several_cards import read_parts
from gpu_manager.domain.mig import UUIDS, is_instance, names_instances
from gpu_manager.domain.priority import Priority, meant_priorities
from gpu_manager.domain.resources import CORES_PER_CARD, LARGEST_COUNT, format_bytes, format_number
from gpu_manager.domain.rules.request import PlacementPolicy
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation

# Legal requests for equal parts of several cards, which `tencent.com/vcuda-cards` makes of a container's
# totals.


def check_parts(container: Container, unit: int, minimum_cores: int) -> Iterator[Violation]:
    """Yield what is illegal in the totals of a container with parts of several cards.

    ``unit`` is bytes of one unit of memory, ``minimum_cores`` the smallest legal part of a card.
    """
    core, memory = container.core or Fraction(0), container.memory_units or Fraction(0)
    cards = str(container.parts)
    near = nearest_totals(core, container.parts, minimum_cores, CORES_PER_CARD - 1)
    whole = core >= CORES_PER_CARD * container.parts
    if core not in near:
        hint = ", or no annotation for whole cards" if whole else ""
        figures = {"cards": cards, "minimum": str(minimum_cores), "hint": hint}
        yield violation(Rule.CARDS_CORES, container.name, CORE, format_number(core), near, **figures)
    near = nearest_totals(memory, container.parts, 1, LARGEST_COUNT // unit // container.parts)
    if memory not in near and not (whole and not memory):
        figures = {"cards": cards, "unit": format_bytes(unit)}
        yield violation(Rule.CARDS_MEMORY, container.name, MEMORY, format_number(memory), near, **figures)
    if container.privileged:
        yield violation(
            Rule.PRIVILEGED_FRACTION, container.name, CORE, format_number(core), (CORES_PER_CARD,)
        )
    if claims := (*(name for name, _ in container.claims), *container.claim_entries):
        yield violation(Rule.CARDS_BESIDE_CLAIM, container.name, CARDS, cards, claim=quoted(claims[0]))


def nearest_totals(total: Fraction, parts: int, least: int, most: int) -> tuple[int, ...]:
    """Return the totals on either side of ``total`` of which each of the parts is ``least`` to ``most``, the
    nearer first; the total itself if it is one.
    """
    sides = (floor(total / parts), ceil(total / parts))
    legal = {min(max(side, least), most) * parts for side in sides}
    return tuple(sorted(legal, key=lambda side: (abs(side - total), side)))


def check_init_containers(pod: Pod) -> Iterator[Violation]:
    """Yield a violation if an ordinary init container would hand its ids to parts of several cards."""
    # An app container first: by "2" alone, the init container has parts too.
    spread = min(
        (c for c in pod.containers if c.parts > 1), key=lambda c: c.kind is ContainerKind.INIT, default=None
    )
    first = next((c for c in pod.containers if c.kind is ContainerKind.INIT and c.core), None)
    if spread is not None and first is not None:
        yield violation(
            Rule.CARDS_INIT_CONTAINER,
            first.name,
            CORE,
            format_number(first.core or Fraction(0)),
            other=quoted(spread.name),
            cards=str(spread.parts),
        )


def check_cards(pod: Pod, text: str) -> Iterator[Violation]:
    """Yield the violation in the annotation's text."""
    try:
        read_parts(text, asking(pod))
    except RequestInvalid as error:
        yield violation(Rule.CARDS_MALFORMED, "", CARDS, quoted(text), reason=str(error))


def warn_cards(pod: Pod) -> Iterator[Violation]:
    """Yield a warning for the annotation on a pod without a request by extended resources."""
    text = pod.annotations.get(CARDS)
    if text is not None and not asking(pod):
        yield violation(Rule.CARDS_WITHOUT_SHARE, "", CARDS, quoted(text))


def asking(pod: Pod) -> list[str]:
    """Return the names of the containers that request cores."""
    return [c.name for c in pod.containers if c.core and not c.lent]


LONGEST_LIST = 64
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_LEADING_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,18})")
_MODEL = ("[ -+.-~-]{1,96}", ".*[A-Za-z0-9].*")  # printable ASCII without the comma
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_DELAY = "[0-9]{1,5}[hms]"

# The checks that agent, webhook and policies apply to annotations, in order.
ONE_OF: Final = {
    contract.PLACEMENT: (Rule.PLACEMENT_UNKNOWN, tuple(policy.value for policy in PlacementPolicy)),
    contract.PRELOAD: (Rule.PRELOAD_NOT_BOOLEAN, ("true", "false")),
    contract.PRIORITY: (Rule.PRIORITY_UNKNOWN, tuple(sorted(priority.value for priority in Priority))),
}
"""Annotation → the rule that it is one of these texts."""
LISTS: Final = {
    contract.GPU_MODEL: (Rule.MODELS_MALFORMED, _MODEL),
    contract.GPU_UUID: (Rule.UUIDS_MALFORMED, (UUIDS,)),
    contract.PREEMPTION_DELAY: (Rule.DELAY_MALFORMED, (_DELAY,)),
}
"""Annotation → the rule that each entry, of :data:`LONGEST_LIST` at most, matches all of these patterns as a
whole (RE2, without a backslash).
"""

FIXED: Final = {
    contract.PRIORITY: (Rule.PRIORITY_CHANGED, Priority.NORMAL.value),
    contract.CARDS: (Rule.CARDS_CHANGED, "1"),
}
"""Annotation that is fixed when the pod is created → the rule, and the value that none written stands for."""


def ceiling_of(pod: Pod) -> int | None:
    """Return the elastic ceiling in percent; None if absent. Above 100 it is 100, as in the predecessor."""
    text = pod.annotations.get(contract.CORE_LIMIT, "")
    value = int(text) if _INTEGER.fullmatch(text) else 0
    return min(value, CORES_PER_CARD) if value >= 1 else None


def legal_ceiling_of(pod: Pod) -> int | None:
    """Return the elastic ceiling as written, 0 if there is none; None if it is not legal."""
    text = pod.annotations.get(contract.CORE_LIMIT)
    if text is None:
        return 0
    return None if any(_check_ceiling(pod, text)) else int(text)


def placement_of(pod: Pod) -> PlacementPolicy:
    """Return the pod's placement policy, by default ``binpack``."""
    text = pod.annotations.get(contract.PLACEMENT)
    return next((policy for policy in PlacementPolicy if policy.value == text), PlacementPolicy.BINPACK)


def models_of(pod: Pod) -> tuple[str, ...]:
    """Return the card models that the pod may use; empty for any."""
    return tuple(_entries(pod.annotations.get(contract.GPU_MODEL, "")))


def uuids_of(pod: Pod) -> frozenset[CardUuid]:
    """Return the cards that the pod may use; empty for any."""
    return frozenset(map(CardUuid, _entries(pod.annotations.get(contract.GPU_UUID, ""))))


def preemption_delay_of(pod: Pod) -> int:
    """Return the seconds for which the pod evicts nobody: the longest of those written, 0 if none is."""
    written = _entries(pod.annotations.get(contract.PREEMPTION_DELAY, ""))
    legal = (one for one in written if re.fullmatch(_DELAY, one))
    return max((int(one[:-1]) * _SECONDS[one[-1]] for one in legal), default=0)


def preload_of(pod: Pod) -> bool:
    """Return False if the pod opts out of ``/etc/ld.so.preload``."""
    return pod.annotations.get(contract.PRELOAD) != "false"


def priority_of(pod: Pod) -> Priority:
    """Return the priority of the pod's shares inside their cards: ``normal`` unless a legal one is set."""
    text = pod.annotations.get(contract.PRIORITY)
    if text is None or any(_check_priority(pod, text)):
        return Priority.NORMAL
    return Priority(text)


def guarded_keys(annotations: Iterable[str]) -> tuple[str, ...]:
    """Return the annotation keys that only the scheduler and the agent may set or change."""
    return tuple(
        key for key in annotations if key in contract.GUARDED or key.startswith(contract.PREDICATE_INDEX)
    )


def _entries(text: str) -> list[str]:
    return [entry for entry in map(str.strip, text.split(",")) if entry]


def check_annotations(pod: Pod) -> Iterator[Violation]:
    """Yield the violations in the annotations that a user may set."""
    for key in (contract.CORE_LIMIT, contract.CARDS, *ONE_OF, *LISTS):
        text = pod.annotations.get(key)
        if text is None:
            continue
        if key == contract.CORE_LIMIT:
            yield from _check_ceiling(pod, text)
        elif key == contract.CARDS:
            yield from check_cards(pod, text)
        elif key == contract.PRIORITY:
            yield from _check_priority(pod, text)
        else:
            yield from _check_one_of(key, text) if key in ONE_OF else _check_list(key, text)


def _check_ceiling(pod: Pod, text: str) -> Iterator[Violation]:
    parts = [ceil(c.core / c.parts) for c in pod.containers if c.core is not None and c.is_part]
    lowest = max(parts, default=1)
    read = _LEADING_INTEGER.match(text)
    nearest = (max(lowest, min(int(read[1]), CORES_PER_CARD)) if read else lowest,)
    if not _INTEGER.fullmatch(text):
        yield violation(Rule.CEILING_NOT_INTEGER, "", contract.CORE_LIMIT, quoted(text), nearest)
    elif not lowest <= int(text) <= CORES_PER_CARD:
        yield violation(Rule.CEILING_OUT_OF_RANGE, "", contract.CORE_LIMIT, text, nearest, lowest=str(lowest))


def _check_one_of(key: str, text: str) -> Iterator[Violation]:
    rule, names = ONE_OF[key]
    if text not in names:
        plain = text.strip().lower()  # names that differ only in case and blanks
        nearest = (
            meant_priorities(text) if key == contract.PRIORITY else (plain,) if plain in names else names
        )
        yield violation(rule, "", key, quoted(text), nearest)


def _check_priority(pod: Pod, text: str) -> Iterator[Violation]:
    if unknown := tuple(_check_one_of(contract.PRIORITY, text)):
        yield from unknown
        return
    whole = next((c for c in pod.containers if c.core and c.core > 0 and not c.is_part), None)
    if whole is not None and text != Priority.NORMAL.value:
        name = quoted(whole.name)
        yield violation(Rule.PRIORITY_OF_WHOLE_CARDS, "", contract.PRIORITY, text, name=name)


def has_fractions_alone(pod: Pod) -> bool:
    """True for a pod with shares of cards and no whole one: such a pod has a priority inside its cards."""
    asking = [c for c in pod.containers if c.core]
    return bool(asking) and all(c.is_part for c in asking) and not any(c.gpus for c in pod.containers)


def warn_priority(pod: Pod) -> Iterator[Violation]:
    """Yield a warning for a priority of a pod that has no share by extended resources."""
    text = pod.annotations.get(contract.PRIORITY, Priority.NORMAL.value)
    if text != Priority.NORMAL.value and not any(c.core for c in pod.containers):
        yield violation(Rule.PRIORITY_WITHOUT_SHARE, "", contract.PRIORITY, quoted(text))


def _check_list(key: str, text: str) -> Iterator[Violation]:
    rule, patterns = LISTS[key]
    entries = [entry.strip() for entry in text.split(",")]
    wrong = next((one for one in entries if not all(re.fullmatch(p, one) for p in patterns)), None)
    if wrong is None and len(entries) <= LONGEST_LIST:
        return
    plain = "GPU-" + (wrong or "").lower().removeprefix("gpu-")
    nearest = (plain,) if key == contract.GPU_UUID and re.fullmatch(UUIDS, plain) else ()
    hint = f"; {quoted(wrong)} is none" if wrong is not None else f"; {len(entries)} are too many"
    yield violation(rule, "", key, quoted(text), nearest, hint=hint)


def check_guarded(annotations: Mapping[str, str]) -> tuple[Violation, ...]:
    """Yield one violation for each guarded key that is present, for the webhook."""
    return tuple(
        violation(Rule.ANNOTATION_GUARDED, "", key, quoted(annotations[key]))
        for key in guarded_keys(annotations)
    )


# Legal requests for MIG instances, which a pod makes by naming nothing else in its allow lists.


def check_several(pod: Pod) -> Iterator[Violation]:
    """Yield a violation for each container with several cards in a pod that allows instances alone."""
    for container in pod.containers if _allows_instances_alone(pod) else ():
        core = container.core or Fraction(0)
        if container.parts > 1:
            yield violation(Rule.MIG_PARTS, container.name, CARDS, str(container.parts))
        elif core > CORES_PER_CARD and not container.lent:
            nearest = (CORES_PER_CARD,)
            yield violation(Rule.MIG_SEVERAL, container.name, CORE, format_number(core), nearest)


def check_lent(pod: Pod) -> Iterator[Violation]:
    """Yield a violation for each container with ``nvidia.com/gpu`` in a pod that allows instances alone, as
    the node's agent judges it: nobody else counts that name.
    """
    for container in pod.containers if _allows_instances_alone(pod) else ():
        if container.lent:
            count = format_number(container.gpus or Fraction(0))
            yield violation(Rule.MIG_LENT, container.name, NVIDIA, count)


def _allows_instances_alone(pod: Pod) -> bool:
    models, uuids = models_of(pod), uuids_of(pod)
    return bool((models and all(map(names_instances, models))) or (uuids and all(map(is_instance, uuids))))

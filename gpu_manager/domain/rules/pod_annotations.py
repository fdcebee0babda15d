"""Read and check the annotations of a pod.

A pod may be annotated after admission, so the readers treat an unreadable annotation as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Final

from gpu_manager.domain import contract
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import quoted
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.mig import UUIDS
from gpu_manager.domain.priority import Priority, meant_priorities
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.rules.request import PlacementPolicy
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation
from gpu_manager.domain.rules.several_cards import check_cards

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

"""Read and check the annotations of a pod.

A pod may be annotated after admission, so the readers treat an unreadable annotation as absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import ceil

from gpu_manager.domain import contract
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import quoted
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.priority import Priority, meant_priorities
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.rules.request import PlacementPolicy
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation

_LONGEST_LIST = 64
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_LEADING_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,18})")
_MODEL = re.compile(r"(?=.*[A-Za-z0-9])[ -+\--~]{1,96}")  # printable ASCII without the comma
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


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


def preload_of(pod: Pod) -> bool:
    """Return False if the pod opts out of ``/etc/ld.so.preload``."""
    return pod.annotations.get(contract.PRELOAD) != "false"


def priority_of(pod: Pod) -> Priority:
    """Return the priority of the pod's shares inside their cards: ``normal`` unless it is legally another."""
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
    checks: tuple[tuple[str, Callable[[Pod, str], Iterator[Violation]]], ...] = (
        (contract.CORE_LIMIT, _check_ceiling),
        (contract.PLACEMENT, _check_placement),
        (contract.PRELOAD, _check_preload),
        (contract.PRIORITY, _check_priority),
        (contract.GPU_MODEL, _check_models),
        (contract.GPU_UUID, _check_uuids),
    )
    for key, check in checks:
        text = pod.annotations.get(key)
        if text is not None:
            yield from check(pod, text)


def _check_ceiling(pod: Pod, text: str) -> Iterator[Violation]:
    parts = [ceil(c.core) for c in pod.containers if c.core is not None and 0 < c.core < CORES_PER_CARD]
    lowest = max(parts, default=1)
    read = _LEADING_INTEGER.match(text)
    nearest = (max(lowest, min(int(read[1]), CORES_PER_CARD)) if read else lowest,)
    if not _INTEGER.fullmatch(text):
        yield violation(Rule.CEILING_NOT_INTEGER, "", contract.CORE_LIMIT, quoted(text), nearest)
    elif not lowest <= int(text) <= CORES_PER_CARD:
        yield violation(Rule.CEILING_OUT_OF_RANGE, "", contract.CORE_LIMIT, text, nearest, lowest=str(lowest))


def _check_placement(_pod: Pod, text: str) -> Iterator[Violation]:
    names = tuple(policy.value for policy in PlacementPolicy)
    if text not in names:
        yield violation(Rule.PLACEMENT_UNKNOWN, "", contract.PLACEMENT, quoted(text), _meant(text, names))


def _check_preload(_pod: Pod, text: str) -> Iterator[Violation]:
    if text not in ("true", "false"):
        nearest = _meant(text, ("true", "false"))
        yield violation(Rule.PRELOAD_NOT_BOOLEAN, "", contract.PRELOAD, quoted(text), nearest)


def _check_priority(pod: Pod, text: str) -> Iterator[Violation]:
    if text not in {priority.value for priority in Priority}:
        nearest = meant_priorities(text)
        yield violation(Rule.PRIORITY_UNKNOWN, "", contract.PRIORITY, quoted(text), nearest)
        return
    whole = next((c for c in pod.containers if c.core is not None and c.core >= CORES_PER_CARD), None)
    if whole is not None and text != Priority.NORMAL.value:
        name = quoted(whole.name)
        yield violation(Rule.PRIORITY_OF_WHOLE_CARDS, "", contract.PRIORITY, text, name=name)


def warn_priority(pod: Pod) -> Iterator[Violation]:
    """Yield a warning for a priority of a pod that has no share by extended resources."""
    text = pod.annotations.get(contract.PRIORITY, Priority.NORMAL.value)
    if text != Priority.NORMAL.value and not any(c.core for c in pod.containers):
        yield violation(Rule.PRIORITY_WITHOUT_SHARE, "", contract.PRIORITY, quoted(text))


def _meant(text: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the one name that differs only in case and blanks, else all."""
    plain = text.strip().lower()
    return (plain,) if plain in names else names


def _check_models(_pod: Pod, text: str) -> Iterator[Violation]:
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) > _LONGEST_LIST or not all(map(_MODEL.fullmatch, entries)):
        yield violation(Rule.MODELS_MALFORMED, "", contract.GPU_MODEL, quoted(text))


def _check_uuids(_pod: Pod, text: str) -> Iterator[Violation]:
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) > _LONGEST_LIST or not all(map(_UUID.fullmatch, entries)):
        wrong = next((entry for entry in entries if not _UUID.fullmatch(entry)), None)
        plain = "GPU-" + (wrong or "").lower().removeprefix("gpu-")
        nearest: tuple[str, ...] = (plain,) if _UUID.fullmatch(plain) else ()
        hint = f"; {quoted(wrong)} is none" if wrong is not None else f"; {len(entries)} are too many"
        yield violation(Rule.UUIDS_MALFORMED, "", contract.GPU_UUID, quoted(text), nearest, hint=hint)


def check_guarded(annotations: Mapping[str, str]) -> tuple[Violation, ...]:
    """Yield one violation for each guarded key that is present, for the webhook."""
    return tuple(
        violation(Rule.ANNOTATION_GUARDED, "", key, quoted(annotations[key]))
        for key in guarded_keys(annotations)
    )

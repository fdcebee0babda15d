"""Legal requests for equal parts of several cards, which ``tencent.com/vcuda-cards`` makes of a container's
totals.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor

from gpu_manager.domain.contract import CARDS, CORE, MEMORY
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod
from gpu_manager.domain.kube.several_cards import read_parts
from gpu_manager.domain.resources import CORES_PER_CARD, LARGEST_COUNT, format_bytes, format_number
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation


def check_parts(container: Container, unit: int, minimum_cores: int) -> Iterator[Violation]:
    """Yield what is illegal in the totals of a container with parts of several cards.

    ``unit`` is bytes of one unit of memory, ``minimum_cores`` the smallest legal part of a card.
    """
    core, memory = container.core or Fraction(0), container.memory_units or Fraction(0)
    cards = str(container.parts)
    near = nearest_totals(core, container.parts, minimum_cores, CORES_PER_CARD - 1)
    if core not in near:
        figures = {"cards": cards, "minimum": str(minimum_cores)}
        yield violation(Rule.CARDS_CORES, container.name, CORE, format_number(core), near, **figures)
    near = nearest_totals(memory, container.parts, 1, LARGEST_COUNT // unit // container.parts)
    if memory not in near:
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

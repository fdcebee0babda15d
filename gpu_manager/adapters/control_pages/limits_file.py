"""The limits page of a container on disk: what the agent writes, and the library reads.

The container sees it read-only, so what it says is the agent's own word; a page that is damaged all the same
is written anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from gpu_manager.adapters.control_pages import tenant_files as files
from gpu_manager.adapters.control_pages.values import limits_in
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Limit
from vcuda.page import limits as limits_page
from vcuda.page.layout import uuid_bytes, uuid_text

log = structlog.get_logger(__name__)

LIMITS: Final = "limits"
# The owner may write, or an agent without CAP_DAC_OVERRIDE could not; the container's mount is read-only.
LIMITS_MODE: Final = 0o644

Change = Callable[["limits_page.Limits | None"], limits_page.Limits]
"""From what a limits page says now (None: nothing readable) to what it shall say."""


@dataclass(frozen=True, slots=True)
class PagePolicy:
    """Settings of the control pages of all containers on a node.

    ``context_reserve`` (bytes) is charged for each CUDA context when it is created; what a context takes
    beyond that is charged once the driver shows it. With ``oversubscribe``, cuMemAlloc returns managed
    memory if the card is full but the share is not. With ``fail_open``, programs run unlimited if the usage
    page is broken.
    """

    context_reserve: int = 0
    oversubscribe: bool = False
    fail_open: bool = False


DEFAULT_POLICY: Final = PagePolicy()


def limits_as_set(
    now: limits_page.Limits | None, name: str, limits: Sequence[Limit], policy: PagePolicy
) -> limits_page.Limits:
    """What the page of the directory ``name`` shall say with these limits; the host's corrections stay."""
    known = {card.uuid: card for card in now.cards} if now else {}
    cards = []
    for limit in limits:
        uuid = uuid_bytes(limit.card)
        before = known.get(uuid) or limits_page.CardLimits(uuid, None, None)
        cards.append(
            replace(
                before,
                memory_limit=limit.memory,
                # Of nothing even the smallest charge is refused: no context comes into being.
                context_reserve=max(policy.context_reserve, not limit.memory),
                core_limit=float(limit.cores),
                core_ceiling=float(limit.ceiling),
                protected=limit.priority is Priority.PROTECTED,
                best_effort=limit.priority is Priority.BEST_EFFORT,
            )
        )
    return replace(
        now or limits_page.Limits(()),
        cards=tuple(cards),
        fail_open=policy.fail_open and any(limit.memory for limit in limits),
        oversubscribe=policy.oversubscribe,
        elastic=any(limit.ceiling > limit.cores for limit in limits),
        identity=hashlib.sha256(name.encode()).digest()[:16],
    )


def create_limits(here: int, change: Change, label: bytes | None) -> int:
    """Create the page in the directory ``here``; returns its descriptor. ``label`` is SELinux's.

    Raises OSError and PageError.
    """
    image = limits_page.build_limits(change(None))
    return files.create_page(here, LIMITS, image, limits_page.LIMITS_SIZE, LIMITS_MODE, label)


def write_limits(page: int, where: str, change: Change) -> None:
    """Change the page. What says the same already is not written. ``where`` is its directory, for people.

    Raises OSError and PageError.
    """
    changed = files.put_back(page, os.fstat(page), limits_page.LIMITS_SIZE, LIMITS_MODE)
    if changed:
        log.warning("limits_page_restored", directory=where, change=changed)
    image = files.read(page, limits_page.LIMITS_SIZE)
    now = limits_in(image)
    wanted = change(now)
    if now is None or replace(wanted, generation=now.generation) != now:
        write = limits_page.rewrite_limits(image, wanted)
        files.write(page, write.offset, write.data)


def limited_cards(page: int) -> tuple[CardUuid, ...]:
    """Return the cards of the limits page, in its order; the usage page does not name them.

    Raises OSError and PageError.
    """
    found = limits_page.read_limits(files.read(page, limits_page.LIMITS_SIZE))
    return tuple(CardUuid(uuid_text(card.uuid)) for card in found.cards)

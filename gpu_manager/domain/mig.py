"""MIG instances: parts into which a card in MIG mode divides itself, each a card of its own here.

Their models end in the profile, as the driver names them (``NVIDIA-H200-MIG-1g.18gb``). An instance is only
given to who names it, by profile or UUID: whoever asks for a card, or for a model, means a card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_PROFILE: Final = re.compile(r"(?:[0-9]{1,2}c\.)?[0-9]{1,2}g\.[0-9]{1,4}gb(?:\+[a-z0-9.,+]+)?")
_SEPARATOR: Final = re.compile(r"[\s_/-]+")
_HEX: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
UUIDS: Final = f"((GPU|MIG)-{_HEX}|MIG-GPU-{_HEX}/[0-9]{{1,3}}/[0-9]{{1,3}})"
"""Every form of a card's UUID, as a pattern that RE2 knows too: a card's, an instance's, an instance's as
drivers before R470 have it.
"""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """The place of an instance: the UUID of its parent card, and the ids of GPU and compute instance."""

    parent: str
    gi: int
    ci: int

    @property
    def name(self) -> str:
        """The instance's UUID as drivers before R470 have it; CUDA still takes it."""
        return f"MIG-{self.parent}/{self.gi}/{self.ci}"


def parse_place(name: str) -> MigInstance | None:
    """Return the place in a UUID of the older form (:attr:`MigInstance.name`); None if it is none."""
    parent, *ids = name.removeprefix("MIG-").split("/")
    if len(ids) != 2 or not all(one.isascii() and one.isdecimal() for one in ids):
        return None
    return MigInstance(parent, int(ids[0]), int(ids[1]))


def is_instance(uuid: str) -> bool:
    """True for the UUID of an instance, in either form."""
    return uuid.startswith("MIG-")


def file_name(uuid: str) -> str:
    """Return a card's name among files: the digits of its UUID, and a place that is part of it."""
    digits, *place = uuid.removeprefix("MIG-").removeprefix("GPU-").split("/")
    return "-".join((digits.replace("-", ""), *place))


def number_of(parent: int, place: int) -> int:
    """Return the number of the instance at a place of its parent, away from the numbers of whole cards."""
    return 100 * (parent + 1) + place


def card_asked(number: int) -> int:
    """Return the number of the card that the driver is asked about: of an instance its parent's."""
    return number // 100 - 1 if number >= 100 else number


def words(text: str) -> list[str]:
    """Return the lower-case words of a model's name."""
    return [word for word in _SEPARATOR.split(text.casefold()) if word]


@lru_cache(maxsize=1024)
def profile_of(model: str) -> str:
    """Return the profile in an instance's model, in lower case; empty for a card."""
    named = words(model)
    after = named[named.index("mig") + 1 :] if "mig" in named else []
    return after[0] if after and _PROFILE.fullmatch(after[0]) else ""


def names_instances(wanted: str) -> bool:
    """True if an entry of an allow list of models names a profile, so that it means instances."""
    return any(map(_PROFILE.fullmatch, words(wanted)))


def divides_memory(profile: str) -> bool:
    """True for a compute instance that is only a part of its GPU instance, whose memory others use too."""
    return re.match(r"[0-9]+c\.", profile) is not None


def draws(model: str) -> bool:
    """True for an instance with graphics: ``gfx`` is an attribute of its profile, as in ``1g.24gb+gfx``."""
    return "gfx" in re.split(r"[+,.]", profile_of(model))


def profile_name(slices: tuple[int, int], memory: int, card_memory: int) -> str:
    """Return the profile of an instance whose driver does not name it, as NVIDIA's go-nvlib computes it.

    ``slices`` of the compute and of the GPU instance; memory of the instance and of its card in bytes.
    """
    eighths = -(-memory * 8 // card_memory) if card_memory else 0
    gigabytes = round(eighths * -(-card_memory // (1 << 30)) / 8)
    compute, gpu = slices
    return f"{f'{compute}c.' * (compute != gpu)}{gpu}g.{gigabytes}gb"


def still_held(uuid: str, instance: MigInstance | None, vanished: Iterable[tuple[str, MigInstance]]) -> str:
    """Why a card is closed by pods that hold a vanished instance; empty if it is not.

    ``vanished``: UUID and place of each. Device nodes of such a pod open whatever has its place now: the next
    instance there, or the whole parent card once it has left MIG mode.
    """
    for gone, place in vanished:
        if gone != uuid and (place == instance or (instance is None and place.parent == uuid)):
            return f"pods still hold {gone}, which was here before the MIG layout changed: end them"
    return ""

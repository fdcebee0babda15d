"""Device ids that name their card: ``<8 hex of its UUID>-c<00..99>`` for cores, ``-m<0000>`` for memory, and
the UUID itself for a whole card as ``nvidia.com/gpu``, as in NVIDIA's own plugin.

The kubelet counts ids; the ids that it passes name the card. They are unique across both
resources (pod status looks devices up by id alone), at most 63 characters, and depend on nothing but the
card's UUID and size, so they are the same after every restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.contract import CORE, MEMORY, NVIDIA
from gpu_manager.domain.errors import NodeUnready

# The kubelet's gRPC client refuses a ListAndWatch message above 4 MiB (grpc-go's default), and the
# resource then counts 0.
MAX_MESSAGE_BYTES = 4 << 20
_OVERHEAD_BYTES = 19  # of one Device message with one NUMA node, beside the id

_NUMBERED = re.compile(r"(?P<stem>.*-[cm])(?P<number>\d{2,})")


def prefixes(cards: Iterable[CardUuid]) -> dict[CardUuid, str]:
    """Return for each card the shortest of 8 hex, 12 hex or the whole UUID that is unique on the node."""
    digits = {uuid: re.sub(r"[^0-9a-f]", "", uuid.removeprefix("GPU-").lower()) for uuid in cards}
    # An instance named by its place has its parent's digits: the place makes them its own.
    places = {uuid: uuid.split("/")[1:] for uuid in digits}

    def alone(uuid: CardUuid, length: int) -> bool:
        head = digits[uuid][:length]
        same = [other for other, d in digits.items() if d[:length] == head and places[other] == places[uuid]]
        return len(head) == length and len(same) == 1

    return {
        uuid: next(
            ("-".join((digits[uuid][:length], *places[uuid])) for length in (8, 12) if alone(uuid, length)),
            uuid,
        )
        for uuid in digits
    }


@dataclass(frozen=True)
class DeviceIds:
    """The ids of a node's cards. ``unit`` is the bytes one memory id stands for."""

    cards: tuple[Card, ...]
    unit: int

    @cached_property
    def of_card(self) -> Mapping[str, Mapping[CardUuid, tuple[str, ...]]]:
        """Resource → card → its ids in order."""
        names = prefixes(c.uuid for c in self.cards)
        cores: dict[CardUuid, tuple[str, ...]] = {}
        memory: dict[CardUuid, tuple[str, ...]] = {}
        for card in self.cards:
            room, stem = card.size(self.unit), names[card.uuid]
            cores[card.uuid] = tuple(f"{stem}-c{n:02d}" for n in range(room.cores))
            memory[card.uuid] = tuple(f"{stem}-m{n:04d}" for n in range(room.memory // self.unit))
        whole: dict[CardUuid, tuple[str, ...]] = {
            c.uuid: (c.uuid,) if c.undivided else () for c in self.cards
        }
        return {CORE: cores, MEMORY: memory, NVIDIA: whole}

    @cached_property
    def card_of(self) -> Mapping[str, Mapping[str, CardUuid]]:
        """Resource → id → card."""
        return {
            resource: {device: uuid for uuid, ids in cards.items() for device in ids}
            for resource, cards in self.of_card.items()
        }

    def cards_of(self, resource: str, ids: Iterable[str]) -> frozenset[CardUuid]:
        """Return the cards that these ids name, without ids of unknown cards."""
        known = self.card_of[resource]
        return frozenset(known[device] for device in ids if device in known)

    def check_size(self) -> None:
        """Refuse a unit so small that the kubelet could not receive the list.

        Raises:
            NodeUnready: naming the message's size and a unit that fits.
        """
        for resource, cards in self.of_card.items():
            size = sum(len(device) + _OVERHEAD_BYTES for ids in cards.values() for device in ids)
            if size > MAX_MESSAGE_BYTES:
                factor = -(-size // MAX_MESSAGE_BYTES)
                raise NodeUnready(
                    f"{resource}: the list of {sum(map(len, cards.values()))} devices is {size} bytes, "
                    f"more than the {MAX_MESSAGE_BYTES} that the kubelet accepts: use a memory unit of "
                    f"{self.unit * factor} bytes or more (now {self.unit})"
                )


def compact(ids: Iterable[str]) -> list[str]:
    """Write an id set shortly for the store: runs of numbers become ``stem0..9``."""
    runs: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for device in ids:
        match = _NUMBERED.fullmatch(device)
        if match is None:
            plain.append(device)
        else:
            runs.setdefault((match["stem"], len(match["number"])), []).append(int(match["number"]))
    written = sorted(plain)
    for (stem, width), numbers in sorted(runs.items()):
        numbers.sort()
        start = 0
        for at in range(1, len(numbers) + 1):
            if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
                first, last = numbers[start], numbers[at - 1]
                written.append(f"{stem}{first:0{width}d}" + (f"..{last:0{width}d}" if last > first else ""))
                start = at
    return written


def expand(written: Sequence[str]) -> frozenset[str]:
    """The inverse of :func:`compact`; a malformed run stands for itself."""
    ids: set[str] = set()
    for text in written:
        head, dots, tail = text.rpartition("..")
        match = _NUMBERED.fullmatch(head) if dots else None
        if match is None or not tail.isdecimal() or len(tail) > 5 or len(tail) != len(match["number"]):
            ids.add(text)
        else:
            ids.update(
                f"{match['stem']}{n:0{len(tail)}d}" for n in range(int(match["number"]), int(tail) + 1)
            )
    return frozenset(ids)

"""The description of a system to migrate from: its names, and the equivalent of each. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from fractions import Fraction
from math import ceil, floor
from typing import Final

from gpu_manager.domain.contract import CARDS, GPU_MODEL, GPU_UUID, PRIORITY
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.other_plugins import SlicedCard
from gpu_manager.domain.resources import (
    CORES_PER_CARD,
    DEFAULT_UNIT,
    GIB,
    MIB,
    format_bytes,
    format_number,
    parse_quantity,
)


@dataclass(frozen=True, slots=True)
class MigrationTerms:
    """Settings of a migration that manifests do not contain.

    ``cores`` is the share for a container whose system does not limit time, with an elastic limit of 100;
    ``card`` is the card that parts are parts of, ``replicas`` the number of users of a card under
    time-slicing, ``gpushare_unit`` the bytes of one ``aliyun.com/gpu-mem``, and ``hami_count`` the name under
    which HAMi counts cards where ``nvidia.com/gpu`` was renamed. ``shared`` says by resource what
    configurations of NVIDIA's plugin among the manifests share; None where they differ.
    """

    cores: int = 10
    card: CardSize | None = None
    hami_count: str = ""
    replicas: int | None = None
    gpushare_unit: int = 1 << 30
    unit: int = DEFAULT_UNIT
    shared: Mapping[str, SlicedCard | None] = field(default_factory=dict)

    def sharing(self, name: str) -> SlicedCard | None:
        """Return how cards are shared under a name, by option or configuration; None if they are given whole.

        Raises RequestInvalid if that is not known, because configurations differ.
        """
        if self.replicas:
            return SlicedCard(name, self.replicas)
        if self.shared.get(name, self) is None:
            raise RequestInvalid(
                f"{name} has several numbers of users in several configurations: give --replicas"
            )
        return self.shared.get(name)


@dataclass(frozen=True, slots=True)
class MigratedShare:
    """The request of a container after the migration.

    ``units`` of memory is None for whole cards; ``ceiling`` is the elastic limit in percent, None for none;
    ``notes`` say what was assumed. With ``parts`` above 1 it is so much of each of as many cards.
    """

    cores: Fraction | int
    units: Fraction | int | None = None
    ceiling: int | None = None
    notes: tuple[str, ...] = ()
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Becomes:
    """An annotation, or a node selector, with an equivalent annotation ``key``.

    ``values`` maps each value that has an equivalent, None accepts any; ``change`` converts the value.
    """

    key: str
    values: Mapping[str, str] | None = None
    change: Callable[[str], str] = str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """A setting that has no equivalent here."""

    why: str


@dataclass(frozen=True, slots=True)
class Needless:
    """A setting that is not needed here; with ``value`` only where it has that value."""

    why: str
    value: str = ""


Fate = Becomes | Lost | Needless


@dataclass(frozen=True, slots=True)
class System:
    """A system to migrate from.

    ``resources`` are its extended resources; ``state`` are prefixes of annotations and labels that its
    components write; ``marks`` are prefixes of annotations that identify its pods; ``paths`` are paths in
    commands and variables that do not exist here. A name in ``variables`` may end in ``*``.

    Amounts outside of resources: ``variable_amounts`` are environment variables of a container,
    ``annotation_amounts`` annotations of the pod, for the container that ``container_annotation`` names, else
    the first. Both map a name to the function that reads its value. ``container_amounts`` are annotations
    too, by what follows ``container_prefix`` and the name of the container. A name in ``annotations`` may
    hold ``*`` as well.
    """

    name: str
    title: str
    resources: tuple[str, ...]
    share: Callable[[Mapping[str, Fraction], MigrationTerms], MigratedShare | None]
    annotations: Mapping[str, Fate] = field(default_factory=dict)
    selectors: Mapping[str, Fate] = field(default_factory=dict)
    variables: Mapping[str, Fate] = field(default_factory=dict)
    labels: Mapping[str, Fate] = field(default_factory=dict)
    variable_amounts: Mapping[str, Callable[[str], Fraction]] = field(default_factory=dict)
    annotation_amounts: Mapping[str, Callable[[str], Fraction]] = field(default_factory=dict)
    container_annotation: str = ""
    container_prefix: str = ""
    container_amounts: Mapping[str, Callable[[str], Fraction]] = field(default_factory=dict)
    state: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    drops_runtime_class: bool = True

    def amount(self, annotation: str) -> tuple[str, str, Callable[[str], Fraction]] | None:
        """Return (container, name, reader) of an annotation that names its container; None for another."""
        rest = annotation.removeprefix(self.container_prefix)
        if not self.container_prefix or rest == annotation:
            return None
        amounts = ((rest[: -len(end) - 1], end, read) for end, read in self.container_amounts.items())
        return next((found for found in amounts if rest == f"{found[0]}.{found[1]}"), None)


def fate_of(fates: Mapping[str, Fate], name: str, value: object = None) -> Fate | None:
    """Return what becomes of a name; None if the table does not know it, or means another value of it."""
    found = fates.get(name) or next(
        (fate for key, fate in fates.items() if "*" in key and fnmatchcase(name, key)), None
    )
    return None if isinstance(found, Needless) and found.value not in ("", value) else found


class FindingKind(Enum):
    """The kind of a finding; the values are shown to people."""

    CHANGED = "changed"
    KEPT = "kept"
    LOST = "no equivalent"
    LEFT = "left"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class MigrationFinding:
    """A message about one object."""

    kind: FindingKind
    where: str
    text: str


LARGEST_CARD: Final = 288 * GIB  # no card has more

# Arithmetic that the tables share.


def whole(value: Fraction, name: str) -> int:
    """Return a whole number. Raises RequestInvalid if it is negative or a fraction."""
    if value.denominator != 1 or value < 0:
        raise RequestInvalid(f"{name} is {format_number(value)}: it counts in whole numbers")
    return int(value)


def percent(value: Fraction, name: str) -> int:
    """Return a whole number up to 100. Raises RequestInvalid for another."""
    if value > CORES_PER_CARD:
        raise RequestInvalid(f"{name} is {format_number(value)}: it counts percent of a card, 100 at most")
    return whole(value, name)


@dataclass(frozen=True, slots=True)
class CardSize:
    """What a card offers in bytes, and who says so; ``nominal`` is the size in its name."""

    offered: int
    nominal: int
    title: str


def units_of(
    count: Fraction | int, per: int, terms: MigrationTerms, name: str
) -> tuple[int, tuple[str, ...]]:
    """Return ``count`` times ``per`` bytes as memory units, rounded up, and a note if that added some.

    An amount up to the nominal size of the card is cut to what the card offers. Raises RequestInvalid if no
    card has as much.
    """
    exact, size = Fraction(count * per) / terms.unit, terms.unit // MIB
    units, card = ceil(exact), terms.card
    largest = card.nominal if card else LARGEST_CARD
    if count * per > largest:
        meant = (int(count) * step for step in (1, 1 << 10, 1 << 20))
        hint = next((f"; if {format_bytes(b)} was meant, write {ceil(Fraction(b, per))}" for b in meant
                     if terms.unit <= b <= largest), "")  # fmt: skip
        most = f"a card of {format_bytes(largest)}" if card else "any card"
        counts = f" at {format_bytes(per)} each" if per > 1 else ""
        value = format_number(Fraction(count))
        raise RequestInvalid(f"{name} is {value}{counts}, more than {most} has{hint}")
    if card and units > card.offered // terms.unit:
        units = card.offered // terms.unit
        return units, (f"{name} cut to the {units} units that a card offers ({card.title})",)
    note = () if units == exact else (f"{name} rounded up to {units} units of {size} MiB",)
    return units, note


def portion(part: Fraction, name: str) -> Fraction:
    """Return a part of a card. Raises RequestInvalid if it is none."""
    if not 0 < part <= 1:
        raise RequestInvalid(f"{name} is {format_number(part)}: it goes from 0 to 1")
    return part


def part_of(part: Fraction, terms: MigrationTerms, name: str) -> int:
    """Return a part of a card's memory as units, rounded down: parts that make a card together fit on one.

    Raises RequestInvalid if the card's size is not known, or the part is none.
    """
    if not 0 < part <= 1:
        raise RequestInvalid(f"{name} comes to {format_number(part * 100)} % of a card: use 1 to 100")
    if terms.card is None:
        raise RequestInvalid(
            f"{name} is a part of a card whose size the manifest does not say: give --card-memory, "
            "--card-model or --like"
        )
    return max(1, floor(part * (terms.card.offered // terms.unit)))


def fitting(share: MigratedShare, terms: MigrationTerms) -> str:
    """Return how many such shares fit on the card, in words; empty where the card is not known."""
    if terms.card is None or not share.units or not 0 < share.cores < CORES_PER_CARD:
        return ""
    units = terms.card.offered // terms.unit
    count = min(units // ceil(share.units), CORES_PER_CARD // ceil(share.cores))
    these = "these parts" if share.parts > 1 else "these"
    return f"{count} of {these} fit on a card of {units} units ({terms.card.title})"


def fraction(cores: int, units: int, terms: MigrationTerms, notes: tuple[str, ...]) -> MigratedShare:
    """Return a part of a card. ``cores`` is 0 if the other system does not limit time."""
    if cores:
        return MigratedShare(cores, units, None, notes)
    said = (
        f"no share of time was asked for: {terms.cores} cores assumed (--cores), up to 100 while the card is "
        "idle"
    )
    return MigratedShare(terms.cores, units, CORES_PER_CARD, (*notes, said))


def several(count: int, name: str) -> RequestInvalid:
    """Return the error for a fraction of several cards."""
    return RequestInvalid(
        f"{name} is {count}, parts of {count} cards: write the totals of all cards by hand, and annotation "
        f"{CARDS} with their number"
    )


Asked = Mapping[str, Fraction]

NO_DENY_LIST: Final = (
    "there are lists of what may be used, none of what may not: name the models in " + GPU_MODEL
)
NO_DENY_UUID: Final = (
    "there are lists of what may be used, none of what may not: name the cards in " + GPU_UUID
)
NODES: Final = "which node is taken is decided for the whole cluster, not by the pod"
MODEL_NOTE: Final = (
    "models match whole words of a name here (V100 of Tesla-V100-SXM2-32GB), not any piece of it"
)
PROTECTED: Final = f"annotate the pod with {PRIORITY}: protected, which its namespace's quota must grant"
BEST_EFFORT: Final = f"annotate the pod with {PRIORITY}: best-effort"
OTHER_LIBRARY: Final = (
    "the limits stand in a file that the container cannot write; the variable has no effect here"
)


def models(text: str) -> str:
    """Return a comma-separated list without blanks and empty entries."""
    return ",".join(part.strip() for part in text.split(",") if part.strip())


def number(text: str) -> Fraction:
    """Return a number written as text. Raises RequestInvalid if it is none, or negative."""
    value = parse_quantity(text.strip())
    if value < 0:
        raise RequestInvalid(f"{quoted(text)} is negative")
    return value

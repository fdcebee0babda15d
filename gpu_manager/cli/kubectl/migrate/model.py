"""What a system to migrate from is: its names, and what becomes of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from math import ceil

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import CORES_PER_CARD, DEFAULT_UNIT, MIB, format_number


@dataclass(frozen=True, slots=True)
class MigrationTerms:
    """What manifests do not say and the migration must know.

    ``cores`` are given where the other system shares a card's time with whoever is there, with a ceiling of
    100; ``card_memory`` is bytes of a card, ``replicas`` the users of a card under time-slicing, and
    ``gpushare_unit`` bytes that one ``aliyun.com/gpu-mem`` counts.
    """

    cores: int = 10
    card_memory: int | None = None
    replicas: int | None = None
    gpushare_unit: int = 1 << 30
    unit: int = DEFAULT_UNIT


@dataclass(frozen=True, slots=True)
class MigratedShare:
    """What a container asks for here. ``ceiling`` is percent it may reach on an idle card, None for none;
    ``units`` is None for whole cards. ``notes`` say what was assumed.
    """

    cores: Fraction | int
    units: Fraction | int | None = None
    ceiling: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Becomes:
    """An annotation (or node selector) that turns into one of ours; ``values`` lists those that have an
    equal, None for any; ``change`` turns the text.
    """

    key: str
    values: Mapping[str, str] | None = None
    change: Callable[[str], str] = str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that a user asked for and that has no equal here."""

    why: str


@dataclass(frozen=True, slots=True)
class Needless:
    """Something that is not needed here."""

    why: str


Fate = Becomes | Lost | Needless


@dataclass(frozen=True, slots=True)
class System:
    """One system. ``resources`` are its own by exact name; ``state`` are prefixes of annotations and labels
    that its parts wrote; ``marks`` are prefixes of annotations by which a pod is known to be its; ``paths``
    are pieces of commands and variables that lead nowhere here. A name in ``variables`` may end in ``*``.

    Some ask elsewhere too: ``variable_amounts`` are variables of a container, ``annotation_amounts`` are
    annotations of the pod, for the container that ``container_annotation`` names (the first without it);
    each with what reads its text.
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
    state: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    drops_runtime_class: bool = True

    def variable(self, name: str) -> Fate | None:
        """What becomes of a variable; None if it is none of the system's."""
        found = self.variables.get(name)
        if found is None:
            starts = ((key[:-1], fate) for key, fate in self.variables.items() if key.endswith("*"))
            found = next((fate for start, fate in starts if name.startswith(start)), None)
        return found


class FindingKind(Enum):
    """How grave a finding is; the words are shown."""

    CHANGED = "changed"
    KEPT = "kept"
    LOST = "no equivalent"
    LEFT = "left"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class MigrationFinding:
    """One thing to tell about one object."""

    kind: FindingKind
    where: str
    text: str


# Arithmetic that the tables share.


def whole(value: Fraction, name: str) -> int:
    """A count. Raises RequestInvalid where it is none."""
    if value.denominator != 1 or value < 0:
        raise RequestInvalid(f"{name} is {format_number(value)}: it counts in whole numbers")
    return int(value)


def units_of(count_bytes: Fraction | int, terms: MigrationTerms, name: str) -> tuple[int, tuple[str, ...]]:
    """Bytes in memory units, rounded up; with a note where that added some."""
    exact = Fraction(count_bytes) / terms.unit
    units = ceil(exact)
    size = terms.unit // MIB
    note = () if units == exact else (f"{name} rounded up to {units} units of {size} MiB",)
    return units, note


def fraction(cores: int, units: int, terms: MigrationTerms, notes: tuple[str, ...]) -> MigratedShare:
    """A part of a card; where ``cores`` is 0 the other system sets no bound to time."""
    if cores:
        return MigratedShare(cores, units, None, notes)
    said = (
        f"no share of time was asked for: {terms.cores} cores assumed (--cores), up to 100 while the card is "
        "idle"
    )
    return MigratedShare(terms.cores, units, CORES_PER_CARD, (*notes, said))


def several(count: int, name: str) -> RequestInvalid:
    """The refusal of a fraction over several cards."""
    return RequestInvalid(
        f"{name} is {count}, a part of each of {count} cards: a fraction lies on one card here; ask for "
        f"whole cards (tencent.com/vcuda-core: {count * CORES_PER_CARD}), or for one larger part"
    )


def card_memory(terms: MigrationTerms, name: str) -> int:
    """Bytes of a card. Raises RequestInvalid where nobody said it."""
    if terms.card_memory is None:
        raise RequestInvalid(
            f"{name} is a part of a card whose size the manifest does not say: give --card-memory"
        )
    return terms.card_memory

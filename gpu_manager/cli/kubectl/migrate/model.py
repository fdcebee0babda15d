"""The description of a system to migrate from: its names, and the equivalent of each. No I/O."""

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
    """Settings of a migration that manifests do not contain.

    ``cores`` is the share for a container whose system does not limit time, with an elastic limit of 100;
    ``card_memory`` is the memory of a card in bytes, ``replicas`` the number of users of a card under
    time-slicing, and ``gpushare_unit`` the bytes of one ``aliyun.com/gpu-mem``.
    """

    cores: int = 10
    card_memory: int | None = None
    replicas: int | None = None
    gpushare_unit: int = 1 << 30
    unit: int = DEFAULT_UNIT


@dataclass(frozen=True, slots=True)
class MigratedShare:
    """The request of a container after the migration.

    ``units`` of memory is None for whole cards; ``ceiling`` is the elastic limit in percent, None for none;
    ``notes`` say what was assumed.
    """

    cores: Fraction | int
    units: Fraction | int | None = None
    ceiling: int | None = None
    notes: tuple[str, ...] = ()


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
    """A setting that is not needed here."""

    why: str


Fate = Becomes | Lost | Needless


@dataclass(frozen=True, slots=True)
class System:
    """A system to migrate from.

    ``resources`` are its extended resources; ``state`` are prefixes of annotations and labels that its
    components write; ``marks`` are prefixes of annotations that identify its pods; ``paths`` are paths in
    commands and variables that do not exist here. A name in ``variables`` may end in ``*``.

    Amounts outside of resources: ``variable_amounts`` are environment variables of a container,
    ``annotation_amounts`` annotations of the pod, for the container that ``container_annotation`` names, else
    the first. Both map a name to the function that reads its value.
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
        """Return the equivalent of an environment variable; None if the system does not know it."""
        found = self.variables.get(name)
        if found is None:
            starts = ((key[:-1], fate) for key, fate in self.variables.items() if key.endswith("*"))
            found = next((fate for start, fate in starts if name.startswith(start)), None)
        return found


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


# Arithmetic that the tables share.


def whole(value: Fraction, name: str) -> int:
    """Return a whole number. Raises RequestInvalid if it is negative or a fraction."""
    if value.denominator != 1 or value < 0:
        raise RequestInvalid(f"{name} is {format_number(value)}: it counts in whole numbers")
    return int(value)


def units_of(count_bytes: Fraction | int, terms: MigrationTerms, name: str) -> tuple[int, tuple[str, ...]]:
    """Return bytes as memory units, rounded up, and a note if that added some."""
    exact = Fraction(count_bytes) / terms.unit
    units = ceil(exact)
    size = terms.unit // MIB
    note = () if units == exact else (f"{name} rounded up to {units} units of {size} MiB",)
    return units, note


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
        f"{name} is {count}, a part of each of {count} cards: a fraction lies on one card here; ask for "
        f"whole cards (tencent.com/vcuda-core: {count * CORES_PER_CARD}), or for one larger part"
    )


def card_memory(terms: MigrationTerms, name: str) -> int:
    """Return the memory of a card in bytes. Raises RequestInvalid if --card-memory is missing."""
    if terms.card_memory is None:
        raise RequestInvalid(
            f"{name} is a part of a card whose size the manifest does not say: give --card-memory"
        )
    return terms.card_memory

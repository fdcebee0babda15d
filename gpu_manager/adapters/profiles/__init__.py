"""Profiles of simulated nodes, read from YAML files; those beside this module ship with the product.

::

    about: one sentence
    cards:                         # in the order of their indices
    - count: 4                     # 1 unless given
      model: Tesla-T4
      memory: 15360Mi              # a Kubernetes quantity
      reserved: 449Mi              # what the driver keeps; 0 unless given
      numa: 0                      # else the matrix's NUMA Affinity
      mig: false                   # true, or the instances of a card in MIG mode as [profile, memory, GI]
      watts: [10, 70]              # idle and at full load; without them the card has no sensors
    topology: |2                   # a matrix of `nvidia-smi topo -m`, one GPU a card, indented by 2
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.mig import names_instances
from gpu_manager.domain.resources import parse_quantity
from gpu_manager.domain.topology import MAX_CARDS, Affinity, Topology, parse_topology

_LARGEST = 1 << 20  # bytes of a profile: far above any real one
_MOST_WATTS = 10_000
DEFAULT_MODEL = "NVIDIA-A100-SXM4-80GB"
DEFAULT_MEMORY = 80 << 30


class InstanceKind(NamedTuple):
    """One MIG instance of a card: its profile such as ``1g.18gb``, bytes, and the id of its GPU instance."""

    profile: str
    memory: int
    gi: int


@dataclass(frozen=True, slots=True)
class CardKind:
    """One card of a profile. Bytes; watts when idle and at full load."""

    model: str
    memory: int
    reserved: int = 0
    numa: int | None = None
    mig: bool = False
    watts: tuple[float, float] | None = None
    instances: tuple[InstanceKind, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """A node's cards and their links, in the same order."""

    name: str
    cards: tuple[CardKind, ...]
    topology: Topology
    about: str = ""


def names() -> tuple[str, ...]:
    """The profiles that ship."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")))


def load(name: str) -> Profile:
    """A shipped profile by name, or any by the path of its file (YAML, or the text of a matrix).

    Raises:
        RequestInvalid: there is none such, or it is malformed; the text names file, key and value.
    """
    if name in names():
        text = (resources.files(__package__) / f"{name}.yaml").read_text("utf-8")
        return parse(text, name, f"{name}.yaml")
    path = Path(name)
    if "/" not in name and not path.is_file():
        raise RequestInvalid(
            f"there is no profile {name!r}: take one of {', '.join(names())}, or the path of a file"
        )
    text = _read(path)
    return (
        parse(text, path.stem, name) if path.suffix in (".yaml", ".yml") else of_matrix(text, path.stem, name)
    )


def of_matrix(
    text: str, name: str, source: str, model: str = DEFAULT_MODEL, memory: int = DEFAULT_MEMORY
) -> Profile:
    """As many cards of one model as a `nvidia-smi topo -m` text shows. ``source`` names it in errors."""
    try:
        parsed = parse_topology(text)
    except RequestInvalid as error:
        raise RequestInvalid(f"{source}: {error}") from None
    cards = tuple(CardKind(model, memory, numa=node) for node in parsed.nodes)
    return Profile(name, cards, parsed.topology)


def read_matrix(path: Path, model: str = DEFAULT_MODEL, memory: int = DEFAULT_MEMORY) -> Profile:
    """:func:`of_matrix` of a file."""
    return of_matrix(_read(path), path.stem, str(path), model, memory)


def parse(text: str, name: str, source: str) -> Profile:
    """Read a profile's YAML. Raises RequestInvalid with ``source``, key and value."""
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: the date 2026-99-99
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where is not None else ""
        hint = (
            ": write `topology: |2`, the matrix's first line is indented" if "topology: |\n" in text else ""
        )
        raise RequestInvalid(
            f"{source}:{line} is no YAML: {getattr(error, 'problem', error)}{hint}"
        ) from None
    fields = _mapping(data, source, "the profile", {"about", "cards", "topology"})
    about = _string(fields.get("about", ""), source, "about")
    matrix = _string(fields.get("topology"), source, "topology")
    try:
        parsed = parse_topology(matrix)
    except RequestInvalid as error:
        raise RequestInvalid(f"{source}: topology: {error}") from None
    cards = _cards(fields.get("cards"), source, parsed.affinities)
    if len(cards) != parsed.topology.size:
        raise RequestInvalid(
            f"{source}: cards: {len(cards)} of them, but the topology has {parsed.topology.size} GPUs: "
            "give one row of the matrix for each card"
        )
    return Profile(name, cards, parsed.topology, about)


def _cards(value: object, source: str, places: tuple[Affinity, ...]) -> tuple[CardKind, ...]:
    if not isinstance(value, list) or not value:
        raise RequestInvalid(f"{source}: cards: {value!r} is no list: give at least one group of cards")
    cards: list[CardKind] = []
    for number, group in enumerate(value):
        key = f"cards[{number}]"
        known = {"count", "model", "memory", "reserved", "numa", "mig", "watts"}
        fields = _mapping(group, source, key, known)
        count = _whole(fields.get("count", 1), source, f"{key}.count", 1, MAX_CARDS)
        memory = _bytes(fields.get("memory"), source, f"{key}.memory")
        reserved = _bytes(fields.get("reserved", 0), source, f"{key}.reserved")
        if not 0 <= reserved < memory:
            raise RequestInvalid(
                f"{source}: {key}.reserved: {fields.get('reserved')!r} is not below the memory"
            )
        mig = fields.get("mig", False)
        instances = parse_layout(mig, source, f"{key}.mig") if isinstance(mig, list) else ()
        mig = bool(instances) or mig
        if not isinstance(mig, bool):
            raise RequestInvalid(f"{source}: {key}.mig: {mig!r} is neither true nor false, nor a layout")
        model = "-".join(_string(fields.get("model"), source, f"{key}.model").split())
        numa = fields.get("numa")
        for _ in range(count):
            place = places[len(cards)].node if len(cards) < len(places) else None
            node = place if numa is None else _whole(numa, source, f"{key}.numa", 0, 1023)
            watts = _watts(fields.get("watts"), source, key)
            cards.append(CardKind(model, memory, reserved, node, mig, watts, instances))
    return tuple(cards)


def parse_layout(value: list[Any], source: str, key: str) -> tuple[InstanceKind, ...]:
    """Read the instances of a card, by place. Raises RequestInvalid."""
    found = []
    for entry in value:
        match entry:
            case [str() as profile, memory, int() as gi] if names_instances(profile):
                found.append(InstanceKind(profile, _bytes(memory, source, key), gi))
            case _:
                raise RequestInvalid(f"{source}: {key}: {entry!r} is not of the form [1g.18gb, 18432Mi, 7]")
    return tuple(found)


def _watts(value: object, source: str, key: str) -> tuple[float, float] | None:
    if value is None:
        return None
    match value:
        case [int() | float() as idle, int() | float() as full] if 0 <= idle <= full <= _MOST_WATTS:
            return float(idle), float(full)
    raise RequestInvalid(f"{source}: {key}.watts: {value!r} is not the power when idle and at full load")


def _mapping(value: object, source: str, key: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestInvalid(f"{source}: {key}: {value!r} is no mapping: it takes {', '.join(sorted(known))}")
    for name in value:
        if name not in known:
            raise RequestInvalid(
                f"{source}: {key}: unknown key {name!r}: it takes {', '.join(sorted(known))}"
            )
    return value


def _string(value: object, source: str, key: str) -> str:
    if not isinstance(value, str):
        raise RequestInvalid(f"{source}: {key}: {value!r} is no text")
    return value


def _whole(value: object, source: str, key: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise RequestInvalid(f"{source}: {key}: {value!r} is no whole number from {least} to {most}")
    return value


def _bytes(value: object, source: str, key: str) -> int:
    try:
        amount = parse_quantity(value)
    except RequestInvalid as error:
        raise RequestInvalid(f"{source}: {key}: {error}") from None
    if amount.denominator != 1:
        raise RequestInvalid(f"{source}: {key}: {value!r} is no whole number of bytes: write 40Gi")
    return int(amount)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        shipped = ", ".join(names())
        raise RequestInvalid(
            f"cannot read {path}: {error.strerror}: give a file, or one of {shipped}"
        ) from None
    if len(content) > _LARGEST:
        raise RequestInvalid(f"{path} is larger than a profile can be (1 MiB)")
    return content.decode("utf-8", "replace")

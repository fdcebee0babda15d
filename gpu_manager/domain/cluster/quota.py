"""Quota: how much of which card model a namespace may hold; the predecessor's ConfigMap and extensions.

::

    {"team-a": {"quota":  {"V100": 4, "*": 6},      cards, by model; "*": all models together
                "memory": {"V100": 65536},          MiB, by model
                "pool":   ["blue"]},                nodes labelled with one of these pools only
     "*":      {"quota":  {"*": 1}}}                every namespace that is not named, each for itself

A key is a model's whole name or a word of it (``V100`` is any V100). A namespace with an entry may use only
the models that its ``quota`` names, or its ``memory`` if it has no ``quota``. A namespace without an entry is
held to ``"*"``, and is not limited where there is none. Every key that matches a card's model counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from gpu_manager.domain.cluster.accounting import Used
from gpu_manager.domain.contract import NAMESPACE, QUOTA_KEY, QUOTA_MAP
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable, quoted
from gpu_manager.domain.resources import CORES_PER_CARD, MIB, ZERO, Amount, format_bytes, format_number
from gpu_manager.domain.rules.request import matches_model
from gpu_manager.domain.untrusted import mapping

QUOTA_PLACE: Final = (NAMESPACE, QUOTA_MAP)
EXCEEDED: Final = "ExceedsGPUQuota"  # the predecessor's word
ANY: Final = "*"
_LONGEST = 1 << 20  # characters; a ConfigMap holds 1 MiB
_LARGEST = 1 << 40


@dataclass(frozen=True, slots=True)
class NamespaceQuota:
    """What one namespace may hold: ``cores`` (hundredths of a card) and ``memory`` (bytes) by model key.

    None where the part is not written. ``pools`` is empty for any.
    """

    cores: Mapping[str, int] | None = None
    memory: Mapping[str, int] | None = None
    pools: tuple[str, ...] = ()

    def admits(self, model: str) -> bool:
        """True if the namespace may use the model at all."""
        keys = self.cores if self.cores is not None else self.memory
        return any(_matches(key, model) for key in keys or ())

    def allows_pool(self, pool: str) -> bool:
        """True if it may use nodes of that pool (empty: of none)."""
        return not self.pools or pool in self.pools

    def passed(self, used: Mapping[str, Amount], asked: Mapping[str, Amount]) -> dict[str, str]:
        """Models of ``asked`` that it cannot have beside what it uses, and why. Empty if it can."""
        found: dict[str, str] = {}
        for model in asked:
            if self.cores is None and self.memory is None:
                pools = ", ".join(map(printable, self.pools)) or "none"
                found[model] = (
                    f"its entry names pools ({pools}) and no models, which closes every card to it: "
                    'list models under "quota", "*" for all'
                )
                continue
            if not self.admits(model):
                named = ", ".join(sorted(self.cores if self.cores is not None else self.memory or {}))
                found[model] = f"model {quoted(model)} is not among its models ({printable(named) or 'none'})"
                continue
            for line in self.lines(used, only=model):
                more = _sum(asked, line.key)
                if not more.fits_in(line.room):
                    found[model] = line.words(more)
                    break
        return found

    def lines(self, used: Mapping[str, Amount], only: str | None = None) -> Iterator[QuotaLine]:
        """One line for each key, or for each that matches the model ``only``."""
        keys = dict.fromkeys((*(self.cores or ()), *(self.memory or ())))
        for key in keys:
            if only is None or _matches(key, only):
                yield QuotaLine(
                    key,
                    None if self.cores is None else self.cores.get(key),
                    None if self.memory is None else self.memory.get(key),
                    _sum(used, key),
                )


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """One key of a namespace: its limits (None: not limited) and what the namespace holds of it."""

    key: str
    cores: int | None
    memory: int | None
    used: Amount

    @property
    def room(self) -> Amount:
        """What it may still have; negative where it holds more than it may."""
        return Amount(
            _LARGEST if self.cores is None else self.cores - self.used.cores,
            _LARGEST * MIB if self.memory is None else self.memory - self.used.memory,
        )

    def words(self, asked: Amount) -> str:
        """The line as a sentence: limit, use, the request, and what would still fit."""
        room = self.room.peak(ZERO)
        parts = []
        if self.cores is not None:
            parts.append(f"{self._of_cards}, {cards(asked.cores)} asked: {cards(room.cores)} would still fit")
        if self.memory is not None:
            more = f"{format_bytes(asked.memory)} asked: {format_bytes(room.memory)} would still fit"
            parts.append(f"{self._of_memory}, {more}")
        return "; ".join(parts)

    def __str__(self) -> str:
        limited = ((self.cores, self._of_cards), (self.memory, self._of_memory))
        return "; ".join(words for limit, words in limited if limit is not None)

    @property
    def _of_cards(self) -> str:
        limit = cards(self.cores or 0)
        noun = "card" if limit == "1" else "cards"
        return f"{limit} {noun} {self._what}, {cards(self.used.cores)} used or being bound"

    @property
    def _of_memory(self) -> str:
        used = format_bytes(self.used.memory)
        return f"{format_bytes(self.memory or 0)} {self._what}, {used} used or being bound"

    @property
    def _what(self) -> str:
        return "of all models" if self.key == ANY else f"of {printable(self.key)}"


def _matches(key: str, model: str) -> bool:
    return key == ANY or matches_model(key, model)


def _sum(amounts: Mapping[str, Amount], key: str) -> Amount:
    """The amounts under the key. Cards of unknown model, whose node is gone, count under every key."""
    return sum((amount for model, amount in amounts.items() if not model or _matches(key, model)), ZERO)


def cards(cores: int) -> str:
    """Hundredths of a card as a number of cards (``0.3``, ``4``)."""
    return format_number(Fraction(cores, CORES_PER_CARD))


@dataclass(frozen=True, slots=True)
class Quota:
    """The quotas of all namespaces; :meth:`of` finds the one that applies."""

    namespaces: Mapping[str, NamespaceQuota]

    def of(self, namespace: str) -> NamespaceQuota | None:
        """The quota that applies to the namespace; None if it is not limited."""
        return self.namespaces.get(namespace) or self.namespaces.get(ANY)

    def usage(self, used: Used) -> Iterator[tuple[str, QuotaLine]]:
        """The lines of every limited namespace that has an entry or holds something, sorted by name."""
        for namespace in sorted({*self.namespaces, *used} - {ANY}):
            quota = self.of(namespace)
            for line in quota.lines(used.get(namespace, {})) if quota else ():
                yield namespace, line

    def only(self, namespace: str) -> Quota:
        """The quotas with one namespace alone, whose entry may be that of ``"*"``."""
        mine = self.of(namespace)
        return Quota({namespace: mine} if mine else {})

    def rows(self, used: Used) -> list[dict[str, Any]]:
        """The lines of :meth:`usage` as JSON, for ``/quota`` and ``kubectl vcuda quota``.

        Cores are hundredths of a card, memory is bytes; None where a part is not limited.
        """
        return [
            {
                "namespace": namespace,
                "model": line.key,
                "cores": line.cores,
                "cores_used": line.used.cores,
                "memory": line.memory,
                "memory_used": line.used.memory,
            }
            for namespace, line in self.usage(used)
        ]


NO_QUOTA: Final = Quota({})


def refusal(namespace: str, reasons: Iterable[str]) -> str:
    """The message for a pod that exceeds its namespace's quota."""
    return f"{EXCEEDED}: namespace {quoted(namespace)}: {'; '.join(dict.fromkeys(reasons))}"


# The ConfigMap.


def read_quota(obj: Mapping[str, Any] | None, place: tuple[str, str] = QUOTA_PLACE) -> Quota:
    """Read the ConfigMap; without one, or with an empty one, no namespace is limited.

    ``place``: its namespace and name, for messages.

    Raises:
        NodeUnready: it has another shape than this module's docstring shows; the text says where.
    """
    written = mapping((obj or {}).get("data")).get(QUOTA_KEY)
    try:
        return parse_quota(written) if isinstance(written, str) and written.strip() else NO_QUOTA
    except RequestInvalid as error:
        where = f"ConfigMap {'/'.join(place)}, key {QUOTA_KEY}"
        raise NodeUnready(f"the quota in {where}, cannot be used: {error}") from error


def parse_quota(text: str) -> Quota:
    """Read the value of the key. Raises RequestInvalid: it has another shape."""
    try:
        data = json.loads(text, parse_float=_fraction) if len(text) <= _LONGEST else None
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise RequestInvalid("not a map of namespaces")
    return Quota({namespace: _namespace(namespace, entry) for namespace, entry in data.items()})


def _fraction(text: str) -> Fraction:
    """The number exactly; -1, which is refused later, for one that would fill memory (``1e999999999``)."""
    return Fraction(text) if len(text.lower().partition("e")[2]) <= 4 else Fraction(-1)


def _namespace(namespace: str, entry: object) -> NamespaceQuota:
    where = f"namespace {quoted(namespace)}"
    if not isinstance(entry, dict):
        raise RequestInvalid(f"{where} is {quoted(entry)}, not a map of quota, memory and pool")
    pools = entry.get("pool")
    if pools is not None and not (isinstance(pools, list) and all(isinstance(p, str) for p in pools)):
        raise RequestInvalid(f"{where}: pool is {quoted(pools)}, not a list of names")
    return NamespaceQuota(
        cores=_amounts(entry.get("quota"), f"{where}: quota", CORES_PER_CARD, "cards"),
        memory=_amounts(entry.get("memory"), f"{where}: memory", MIB, "MiB"),
        pools=tuple(pools or ()),
    )


def _amounts(value: object, where: str, scale: int, unit: str) -> Mapping[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RequestInvalid(f"{where} is {quoted(value)}, not a map of models to {unit}")
    return {
        model: _amount(amount, f"{where} of {quoted(model)}", scale, unit) for model, amount in value.items()
    }


def _amount(value: object, where: str, scale: int, unit: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise RequestInvalid(f"{where} is {quoted(value)}, not a number of {unit}")
    number = Fraction(value)
    scaled = number * scale
    if not Fraction(0) <= number <= Fraction(_LARGEST) or scaled.denominator != 1:
        raise RequestInvalid(f"{where} is no count: use a number of {unit}, 0 or more, two decimals at most")
    return int(scaled)

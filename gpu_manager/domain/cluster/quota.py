"""Quota: how much of which card model a namespace may hold; the predecessor's ConfigMap and extensions.

::

    {"team-a": {"quota":  {"V100": 4, "*": 6},      cards, by model; "*": all models together
                "memory": {"V100": 65536},          MiB, by model
                "pool":   ["blue"],                 nodes labelled with one of these pools only
                "protected": {"V100": 0.5},         cards of protected shares, by model
                "containerMax": {"cores": 50,       hundredths of a card, and MiB, of one container
                                 "memory": 8192},
                "priority": "best-effort"},         of every share of its pods, whatever they are annotated
     "*":      {"quota":  {"*": 1}}}                every namespace that is not named, each for itself

A key is a model's whole name or a word of it (``V100`` is any V100). A namespace with an entry may use only
the models that its ``quota`` names, or its ``memory`` if it has no ``quota``. A namespace without an entry is
held to ``"*"``, and is not limited where there is none. Every key that matches a card's model counts.

``protected`` is a right: who has none may have no protected shares, also where nothing else limits it.
``containerMax`` bounds each container. With ``priority`` the namespace's fractions are best-effort. An entry
with nothing but these three leaves all else as ``"*"`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from gpu_manager.domain.cluster.node_books import Used, models_of
from gpu_manager.domain.contract import NAMESPACE, QUOTA_MAP
from gpu_manager.domain.errors import printable, quoted
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, MIB, ZERO, Amount, format_bytes, format_number
from gpu_manager.domain.rules.request import matches_model

QUOTA_PLACE: Final = (NAMESPACE, QUOTA_MAP)
EXCEEDED: Final = "ExceedsGPUQuota"  # the predecessor's word
ANY: Final = "*"
LARGEST: Final = 1 << 40  # of cores or MiB: stands for no limit
NOTHING: Final[Mapping[str, Amount]] = MappingProxyType({})
NOBODY: Final[Used] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NamespaceQuota:
    """What one namespace may hold: ``cores`` (hundredths of a card) and ``memory`` (bytes) by model key.

    None for a part that is not written. ``pools`` is empty for any. ``protected``: the right to protected
    shares, in cores by model key, for a protected request; else None. ``limited`` is False if that right is
    the only thing to judge.
    """

    cores: Mapping[str, int] | None = None
    memory: Mapping[str, int] | None = None
    pools: tuple[str, ...] = ()
    protected: Mapping[str, int] | None = None
    limited: bool = True

    def admits(self, model: str) -> bool:
        """True if the namespace may use the model at all."""
        if not self.limited:
            return True
        keys = self.cores if self.cores is not None else self.memory
        return any(_matches(key, model) for key in keys or ())

    def allows_pool(self, pool: str) -> bool:
        """True if the namespace may use nodes of this pool (empty: nodes without a pool)."""
        return not self.pools or pool in self.pools

    def passed(
        self,
        used: Mapping[str, Amount],
        asked: Mapping[str, Amount],
        protected: Mapping[str, Amount] = NOTHING,
    ) -> dict[str, str]:
        """The models of ``asked`` that the namespace cannot have beside what it uses, each with the reason.

        ``protected`` is what it uses in protected shares; ``asked`` is then a request for more of them.
        """
        found: dict[str, str] = {}
        for model in asked:
            if reason := self._without_right(model, asked, protected):
                found[model] = reason
                continue
            if not self.limited:
                continue
            if self.cores is None and self.memory is None:
                pools = ", ".join(map(printable, self.pools)) or "none"
                found[model] = (
                    f"its entry names pools ({pools}) and no models, which closes every card to it: "
                    'list models under "quota", "*" for all'
                )
                continue
            if unlisted := [one for one in models_of(model) if not self.admits(one)]:
                named = ", ".join(sorted(self.cores if self.cores is not None else self.memory or {}))
                found[model] = (
                    f"model {quoted(unlisted[0])} is not among its models ({printable(named) or 'none'})"
                )
                continue
            for line in self.lines(used, only=model):
                more = _sum(asked, line.key)
                if not more.fits_in(line.room):
                    found[model] = line.words(more)
                    break
        return found

    def _without_right(self, model: str, asked: Mapping[str, Amount], protected: Mapping[str, Amount]) -> str:
        """Why the namespace may not have this much more of the model in protected shares; empty if it may."""
        if self.protected is None:
            return ""
        named = models_of(model)
        unlisted = [one for one in named if not any(_matches(key, one) for key in self.protected)]
        if unlisted or not self.protected:
            those = ", ".join(map(printable, sorted(self.protected)))
            shares = f"protected shares of model {quoted(unlisted[0])}" if unlisted else "protected shares"
            return (
                f"{shares} are not granted to it ({those or 'none are'}): "
                f'an operator grants them in its quota (ConfigMap {"/".join(QUOTA_PLACE)}), under "protected"'
            )
        for line in self.protected_lines(protected, model):
            if (more := _sum(asked, line.key).cores) > line.protected_room:
                room = cards(max(0, line.protected_room))
                return f"{line.of_protected}, {cards(more)} asked: {room} would still fit"
        return ""

    def protected_lines(self, protected: Mapping[str, Amount], model: str) -> Iterator[QuotaLine]:
        """One line for each key of the namespace's right to protected shares that matches the model."""
        for key, granted in (self.protected or {}).items():
            if _counts(key, model):
                yield QuotaLine(key, None, None, ZERO, granted, _sum(protected, key).cores)

    def lines(self, used: Mapping[str, Amount], only: str | None = None) -> Iterator[QuotaLine]:
        """One line for each key, or only for keys that count cards of ``only``, a key of ``used``."""
        keys = dict.fromkeys((*(self.cores or ()), *(self.memory or ())))
        for key in keys:
            if only is None or _counts(key, only):
                yield QuotaLine(
                    key,
                    None if self.cores is None else self.cores.get(key),
                    None if self.memory is None else self.memory.get(key),
                    _sum(used, key),
                )


@dataclass(frozen=True, slots=True)
class ContainerMax:
    """Bounds for one container: ``cores`` (hundredths of a card) and ``memory`` (bytes); None for any."""

    cores: int | None = None
    memory: int | None = None

    def passed(self, who: str, asked: Amount) -> Iterator[str]:
        """Yield how the request exceeds the bounds; the memory of whole cards is unknown before the cards
        are.
        """
        if self.cores is not None and asked.cores > self.cores:
            yield f"{who} asks for {asked.cores} cores, and one container may have {self.cores}"
        if self.memory is not None and asked.memory > self.memory:
            mebibytes = (format_number(Fraction(size, MIB)) for size in (asked.memory, self.memory))
            yield "{} asks for {} MiB of a card, and one container may have {} MiB".format(who, *mebibytes)


ANY_SIZE: Final = ContainerMax()


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """One key of a namespace: its limits (None: not limited) and what the namespace holds of it.

    ``protected`` is the right to protected shares in cores (None: none), ``protected_used`` what those hold.
    """

    key: str
    cores: int | None
    memory: int | None
    used: Amount
    protected: int | None = None
    protected_used: int = 0

    @property
    def protected_room(self) -> int:
        """Cores that remain for protected shares; negative if they hold more than the right."""
        return (self.protected or 0) - self.protected_used

    @property
    def room(self) -> Amount:
        """What remains of the limits; negative if the namespace holds more."""
        return Amount(
            LARGEST if self.cores is None else self.cores - self.used.cores,
            LARGEST * MIB if self.memory is None else self.memory - self.used.memory,
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
        limited = (
            (self.cores, self._of_cards),
            (self.memory, self._of_memory),
            (self.protected, self.of_protected),
        )
        return "; ".join(words for limit, words in limited if limit is not None)

    @property
    def _of_cards(self) -> str:
        limit = cards(self.cores or 0)
        noun = "card" if limit == "1" else "cards"
        return f"{limit} {noun} {self._what}, {cards(self.used.cores)} used or being bound"

    @property
    def of_protected(self) -> str:
        """The right to protected shares and its use, as a sentence."""
        limit = cards(self.protected or 0)
        noun = "card" if limit == "1" else "cards"
        used = cards(self.protected_used)
        return f"{limit} {noun} {self._what} protected, {used} used or being bound"

    @property
    def _of_memory(self) -> str:
        used = format_bytes(self.used.memory)
        return f"{format_bytes(self.memory or 0)} {self._what}, {used} used or being bound"

    @property
    def _what(self) -> str:
        return "of all models" if self.key == ANY else f"of {printable(self.key)}"


def _matches(key: str, model: str) -> bool:
    return key == ANY or matches_model(key, model)


def _counts(key: str, of: str) -> bool:
    """True if the key of a quota counts cards of ``of``, a key of :data:`Used`."""
    models = models_of(of)
    return not models or any(_matches(key, model) for model in models)


def _sum(amounts: Mapping[str, Amount], key: str) -> Amount:
    """The amounts under the key. Cards of unknown model, whose node is gone, count under every key."""
    return sum((amount for of, amount in amounts.items() if _counts(key, of)), ZERO)


def cards(cores: int) -> str:
    """Hundredths of a card as a number of cards (``0.3``, ``4``)."""
    return format_number(Fraction(cores, CORES_PER_CARD))


@dataclass(frozen=True, slots=True)
class Quota:
    """The quotas of all namespaces; :meth:`of` finds the one that applies.

    ``protected``: namespace → its right to protected shares, in cores by model key; ``largest``: → what one
    container may have. ``alone``: the namespace of which :meth:`usage` tells; empty for all.
    ``best_effort``: the namespaces whose fractions are best-effort.
    """

    namespaces: Mapping[str, NamespaceQuota]
    protected: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    alone: str = ""
    largest: Mapping[str, ContainerMax] = field(default_factory=dict)
    best_effort: frozenset[str] = frozenset()

    @property
    def named(self) -> frozenset[str]:
        """The namespaces that have an entry."""
        return frozenset((*self.namespaces, *self.protected, *self.largest, *self.best_effort))

    def entry(self, namespace: str) -> object:
        """The entry of the namespace itself, for comparing two states of the ConfigMap."""
        mine = (each.get(namespace) for each in (self.namespaces, self.protected, self.largest))
        return (*mine, namespace in self.best_effort)

    def of(self, namespace: str, priority: Priority = Priority.NORMAL) -> NamespaceQuota | None:
        """The quota that applies to a pod of this priority in the namespace; None if it is not limited."""
        mine = self.namespaces.get(namespace) or self.namespaces.get(ANY)
        if priority is not Priority.PROTECTED:
            return mine
        return replace(mine or NamespaceQuota(limited=False), protected=self.right(namespace))

    def right(self, namespace: str) -> Mapping[str, int]:
        """The namespace's right to protected shares, in cores by model key; empty for none."""
        own = namespace in self.namespaces or namespace in self.protected
        return self.protected.get(namespace if own else ANY, {})

    def is_best_effort(self, namespace: str) -> bool:
        """True if every fraction of the namespace is best-effort."""
        return (namespace if namespace in self.named else ANY) in self.best_effort

    def too_large(self, namespace: str, asked: Iterable[tuple[str, Amount]]) -> list[str]:
        """The containers, or requests of a claim, that exceed the bounds for one container, with the reasons.

        ``asked``: a phrase for each, and its request.
        """
        most = self.largest_of(namespace)
        return [reason for who, amount in asked for reason in most.passed(who, amount)]

    def largest_of(self, namespace: str) -> ContainerMax:
        """The bounds for one container of the namespace."""
        own = namespace in self.namespaces or namespace in self.largest
        return self.largest.get(namespace if own else ANY, ANY_SIZE)

    def usage(self, used: Used, protected: Used = NOBODY) -> Iterator[tuple[str, QuotaLine]]:
        """The lines of every limited namespace that has an entry or holds something, sorted by name.

        ``protected`` is the part of ``used`` that protected shares hold.
        """
        for namespace in sorted({self.alone} if self.alone else {*self.named, *used} - {ANY}):
            for line in self.lines(namespace, used, protected):
                yield namespace, line

    def lines(self, namespace: str, used: Used, protected: Used = NOBODY) -> Iterator[QuotaLine]:
        """One line for each key of the namespace, including those of its right to protected shares.

        If it has such shares but no right, as after the right was withdrawn, one line with 0 for all models.
        """
        mine, right = self.of(namespace), dict(self.right(namespace))
        held, within = used.get(namespace, {}), protected.get(namespace, {})
        if not right and _sum(within, ANY).cores:
            right = {ANY: 0}
        for line in mine.lines(held) if mine else ():
            granted = right.pop(line.key, None)
            yield replace(line, protected=granted, protected_used=_sum(within, line.key).cores)
        for key, granted in right.items():
            yield QuotaLine(key, None, None, _sum(held, key), granted, _sum(within, key).cores)

    def only(self, namespace: str) -> Quota:
        """The quotas with one namespace only, whose entry may be that of ``"*"``."""
        mine, right = self.of(namespace), self.right(namespace)
        return Quota(
            {namespace: mine} if mine else {}, {namespace: right} if right else {}, namespace, self.largest
        )

    def rows(self, used: Used, protected: Used = NOBODY) -> list[dict[str, Any]]:
        """The lines of :meth:`usage` as JSON, for ``/quota`` and ``kubectl vcuda quota``.

        Cores are hundredths of a card, memory is bytes; None if a part is not limited, or if there is no
        right to protected shares.
        """
        return [
            {
                "namespace": namespace,
                "model": line.key,
                "cores": line.cores,
                "cores_used": line.used.cores,
                "memory": line.memory,
                "memory_used": line.used.memory,
                "protected": line.protected,
                "protected_used": line.protected_used,
            }
            for namespace, line in self.usage(used, protected)
        ]


NO_QUOTA: Final = Quota({})
_TITLES: Final = ("NAMESPACE", "MODEL", "CARDS", "USED", "MEMORY", "USED", "PROTECTED", "USED")


def quota_table(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The rows of :meth:`Quota.rows` as cells for people, below their titles; protected shares only where a
    row has a right to some. A value of another type counts as absent: the service may be of another version.
    """
    shown = 8 if any(isinstance(row.get("protected"), int) for row in rows) else 6
    return [_TITLES[:shown], *(_cells(row)[:shown] for row in rows)]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    names = [printable(str(row.get(key))) for key in ("namespace", "model")]
    amounts = [
        show(value) if isinstance(value := row.get(key), int) else "-"
        for what, show in (("cores", cards), ("memory", format_bytes), ("protected", cards))
        for key in (what, f"{what}_used")
    ]
    return *names, *amounts


def refusal(namespace: str, reasons: Iterable[str]) -> str:
    """The message for a pod that exceeds its namespace's quota."""
    return f"{EXCEEDED}: namespace {quoted(namespace)}: {'; '.join(dict.fromkeys(reasons))}"

"""A claim's further settings for this driver: opaque parameters of the claim, or of its class.

::

    {"apiVersion": "vcuda.tencent.com/v1", "kind": "ShareParameters",
     "coreLimit": 80, "priority": "best-effort", "preload": false}

Each has the meaning of the pod annotation for extended resources: ``coreLimit`` is the elastic ceiling in
percent (``tencent.com/vcuda-core-limit``), ``priority`` decides whose work waits on the card
(``tencent.com/vcuda-priority``), ``preload`` whether the library is preloaded
(``tencent.com/vcuda-preload``).

An allocation carries the class's parameters before the claim's; for each field the last value counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.priority import Priority, meant_priorities
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.untrusted import mapping, mappings, text

API_VERSION: Final = f"{DRA_DRIVER}/v1"
KIND: Final = "ShareParameters"
FIELDS: Final = ("coreLimit", "priority", "preload")
_KNOWN: Final = frozenset({"apiVersion", "kind", *FIELDS})
_OF_CLASS: Final = "FromClass"
_WHERE: Final = f"parameters of driver {DRA_DRIVER}"


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """The settings for the shares of a request: the elastic ``ceiling`` in percent (0: none), the
    ``priority`` inside their cards, and whether the library is preloaded.
    """

    ceiling: int = 0
    priority: Priority = Priority.NORMAL
    preload: bool = True


PLAIN: Final = ShareTerms()


@dataclass(frozen=True, slots=True)
class ShareParameters:
    """Parameters as they are written; None for omitted ones."""

    ceiling: int | None = None
    priority: Priority | None = None
    preload: bool | None = None

    def over(self, terms: ShareTerms) -> ShareTerms:
        """The terms, overridden by the parameters written here."""
        return ShareTerms(
            terms.ceiling if self.ceiling is None else self.ceiling,
            terms.priority if self.priority is None else self.priority,
            terms.preload if self.preload is None else self.preload,
        )


@dataclass(frozen=True, slots=True)
class Configured:
    """Parameters for this driver and the requests that they apply to: ``request/alternative`` for one of
    ``firstAvailable``; empty for all.
    """

    requests: frozenset[str]
    parameters: ShareParameters
    of_class: bool = False

    def concerns(self, request: str) -> bool:
        """True if the parameters apply to the request or alternative of that name."""
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


def written_parameters(terms: ShareTerms) -> Mapping[str, Any]:
    """The parameters that give a share these terms; empty if they are the default."""
    said: dict[str, Any] = {}
    if terms.ceiling:
        said["coreLimit"] = terms.ceiling
    if terms.priority is not Priority.NORMAL:
        said["priority"] = terms.priority.value
    if not terms.preload:
        said["preload"] = False
    return {"apiVersion": API_VERSION, "kind": KIND, **said} if said else {}


def read_config(config: object) -> tuple[Configured, ...]:
    """Read ``config`` of a claim's devices, of its allocation or of a class: the entries for this driver.

    Raises:
        RequestInvalid: parameters for this driver cannot be read.
    """
    return tuple(_configured(config))


def _configured(config: object) -> Iterator[Configured]:
    for entry in mappings(config):
        opaque = mapping(entry.get("opaque"))
        if opaque.get("driver") == DRA_DRIVER:
            names = entry.get("requests")
            requests = frozenset(map(text, names)) if isinstance(names, list) else frozenset()
            yield Configured(requests, _read(opaque.get("parameters")), entry.get("source") == _OF_CLASS)


def terms_of(config: Sequence[Configured], request: str, cores: int) -> ShareTerms:
    """The terms for a request, or its alternative, that is given parts of ``cores`` cores.

    A class's parameter that is illegal for the request does not count: its author did not know the request.
    ``config`` is in the order of an allocation: those of classes first.

    Raises:
        RequestInvalid: a parameter of the claim is illegal for the request.
    """
    terms = PLAIN
    for one in config:
        if one.concerns(request):
            terms = (_sayable if one.of_class else _judged)(one.parameters, request, cores).over(terms)
    return terms


def _sayable(told: ShareParameters, _request: str, cores: int) -> ShareParameters:
    whole = cores >= CORES_PER_CARD
    return ShareParameters(
        None if told.ceiling is None or told.ceiling < cores else told.ceiling,
        None if whole else told.priority,
        told.preload,
    )


def _judged(told: ShareParameters, request: str, cores: int) -> ShareParameters:
    if told.ceiling is not None and told.ceiling < cores:
        raise RequestInvalid(
            f"{_WHERE}: coreLimit is {told.ceiling}, below the {cores} cores of request {quoted(request)}: "
            f"use {cores} to {CORES_PER_CARD}"
        )
    if told.priority not in (None, Priority.NORMAL) and cores >= CORES_PER_CARD:
        raise RequestInvalid(
            f"{_WHERE}: priority is {told.priority.value}, but request {quoted(request)} is given whole "
            "cards, which have no other tenant: leave priority out, or name the other requests in `requests`"
        )
    return told


def _read(parameters: object) -> ShareParameters:
    told: Mapping[str, Any] = mapping(parameters)
    form = told.get("apiVersion"), told.get("kind")
    if form != (API_VERSION, KIND) or not _KNOWN.issuperset(told):
        raise RequestInvalid(f"{_WHERE} are no {KIND} of {API_VERSION}, which has {_listed(FIELDS, 'and')}")
    return ShareParameters(
        _ceiling(told.get("coreLimit")), _priority(told.get("priority")), _preload(told.get("preload"))
    )


def _ceiling(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= CORES_PER_CARD:
        raise RequestInvalid(f"{_WHERE}: coreLimit is {quoted(value)}: use 1 to {CORES_PER_CARD}")
    return value


def _priority(value: object) -> Priority | None:
    if value is None:
        return None
    found = next((one for one in Priority if one.value == value), None)
    if found is None:
        nearest = _listed(meant_priorities(value) if isinstance(value, str) else meant_priorities(""), "or")
        raise RequestInvalid(f"{_WHERE}: priority is {quoted(value)}: use {nearest}")
    return found


def _preload(value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise RequestInvalid(f"{_WHERE}: preload is {quoted(value)}: use true or false, without quotes")
    return value


def _listed(words: Sequence[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"

"""What a claim says to this driver beside its capacity: opaque parameters of the claim, or of its class.

``{"apiVersion": "vcuda.tencent.com/v1", "kind": "ShareParameters", "coreLimit": 80}``. ``coreLimit`` is the
elastic ceiling in percent, as annotation ``tencent.com/vcuda-core-limit`` of a pod: what a part may use of a
card that is idle. An allocation carries the class's parameters before the claim's, and the last ones count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.untrusted import mapping, mappings, text

API_VERSION: Final = f"{DRA_DRIVER}/v1"
KIND: Final = "ShareParameters"
_FIELDS: Final = frozenset({"apiVersion", "kind", "coreLimit"})
_OF_CLASS: Final = "FromClass"


def share_parameters(core_limit: int) -> Mapping[str, Any]:
    """Return the parameters that give a share this elastic ceiling."""
    return {"apiVersion": API_VERSION, "kind": KIND, "coreLimit": core_limit}


def claimed_ceilings(config: object, cores: Mapping[str, Sequence[int]]) -> Mapping[str, int]:
    """Return the elastic ceiling of each request that has one, in percent.

    A class's ceiling below a request's cores does not count: whoever wrote it did not know the request.

    Args:
        config: ``devices.config`` of an allocation, as the API server stores it.
        cores: request → the cores of its shares.

    Raises:
        RequestInvalid: parameters for this driver cannot be read, or a claim's ceiling is below its cores.
    """
    found: dict[str, int] = {}
    for entry in mappings(config):
        opaque = mapping(entry.get("opaque"))
        if opaque.get("driver") != DRA_DRIVER:
            continue
        ceiling = _read(opaque.get("parameters"))
        is_of_class = entry.get("source") == _OF_CLASS
        for request in _named(entry.get("requests"), cores):
            least = max(cores[request], default=0)
            if ceiling is not None and ceiling >= least:
                found[request] = ceiling
            elif ceiling is not None and not is_of_class:
                raise RequestInvalid(
                    f"parameters of driver {DRA_DRIVER}: coreLimit is {ceiling}, below the {least} cores of "
                    f"request {quoted(request)}: use {least} to {CORES_PER_CARD}"
                )
    return found


def _named(requests: object, known: Iterable[str]) -> list[str]:
    """The requests that an entry is about: all, if it names none; an alternative stands for its request."""
    names = {text(name).partition("/")[0] for name in requests} if isinstance(requests, list) else set()
    return [request for request in known if not names or request in names]


def _read(parameters: object) -> int | None:
    told: Mapping[str, Any] = mapping(parameters)
    form = told.get("apiVersion"), told.get("kind")
    if form != (API_VERSION, KIND) or not _FIELDS.issuperset(told):
        raise RequestInvalid(
            f"parameters of driver {DRA_DRIVER} are no {KIND} of {API_VERSION}, which has coreLimit alone"
        )
    value = told.get("coreLimit")
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= CORES_PER_CARD:
        raise RequestInvalid(
            f"parameters of driver {DRA_DRIVER}: coreLimit is {quoted(value)}: use 1 to {CORES_PER_CARD}"
        )
    return value

"""An allocated ResourceClaim (``status.allocation`` of resource.k8s.io/v1), parsed and judged once.

The scheduler decides what a claim gets, but its decision is checked: claims may be allocated from an older
slice, and kube-scheduler 1.36 overflows: a claim of 8Ei of memory consumes -8Ei of its card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.allocation import MOST_RESULTS
from gpu_manager.domain.dra.device import CORES, MEMORY
from gpu_manager.domain.dra.parameters import PLAIN, ShareTerms, read_config, terms_of
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount, format_number, parse_quantity
from gpu_manager.domain.untrusted import mapping, mappings, text


@dataclass(frozen=True, slots=True)
class ClaimedShare:
    """The amount of one device that was allocated to a claim for one request.

    ``request`` is the name that containers refer to, without the chosen alternative. ``amount`` is zero for
    admin access, which grants a view of the card and books nothing.
    """

    request: str
    pool: str
    device: str
    share_id: str
    amount: Amount
    is_admin: bool


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """A claim with its shares of this driver's devices, in the order of the allocation, and the pods for
    which it is reserved, by UID and name. ``terms``: request → its parameters, if it has any.
    """

    uid: str
    namespace: str
    name: str
    shares: tuple[ClaimedShare, ...]
    pods: tuple[tuple[PodUid, str], ...]
    terms: Mapping[str, ShareTerms] = field(default_factory=dict)

    def terms_of(self, request: str) -> ShareTerms:
        """The terms for the shares of a request."""
        return self.terms.get(request, PLAIN)


def parse_allocated_claim(claim: object, unit: int) -> AllocatedClaim:
    """Read a ResourceClaim as the API server stores it. Results of other drivers are left out.

    Raises:
        RequestInvalid: it is not allocated, has no device of this driver, or an amount cannot be given.
    """
    stored, metadata = mapping(claim), mapping(mapping(claim).get("metadata"))
    name = f"{text(metadata.get('namespace'))}/{text(metadata.get('name'))}"
    status = mapping(stored.get("status"))
    devices = mapping(mapping(status.get("allocation")).get("devices"))
    results = [one for one in mappings(devices.get("results")) if one.get("driver") == DRA_DRIVER]
    if not results or len(results) > MOST_RESULTS:
        raise RequestInvalid(
            f"claim {quoted(name)} has {len(results)} devices of {DRA_DRIVER}: expected 1 to {MOST_RESULTS}"
        )
    shares = tuple(_share(name, result, unit) for result in results)
    pods = tuple(
        (PodUid(text(one.get("uid"))), text(one.get("name")))
        for one in mappings(status.get("reservedFor"))
        if one.get("resource") == "pods"
    )
    cores: dict[str, int] = {}  # by the name of the chosen alternative
    for result, share in zip(results, shares, strict=True):
        chosen = text(result.get("request"))
        cores[chosen] = max(cores.get(chosen, 0), share.amount.cores)
    try:
        config = read_config(devices.get("config"))
        said = {chosen.partition("/")[0]: terms_of(config, chosen, most) for chosen, most in cores.items()}
        # Admin access computes nothing on the cards, so neither ceiling nor priority has a meaning.
        said |= {one.request: ShareTerms(preload=said[one.request].preload) for one in shares if one.is_admin}
    except RequestInvalid as error:
        raise RequestInvalid(f"claim {quoted(name)}: {error}") from error
    uid, namespace = text(metadata.get("uid")), text(metadata.get("namespace"))
    terms = {request: told for request, told in said.items() if told != PLAIN}
    return AllocatedClaim(uid, namespace, text(metadata.get("name")), shares, pods, terms)


def _share(claim: str, result: Mapping[str, Any], unit: int) -> ClaimedShare:
    is_admin = result.get("adminAccess") is True
    return ClaimedShare(
        request=text(result.get("request")).partition("/")[0],
        pool=text(result.get("pool")),
        device=text(result.get("device")),
        share_id=text(result.get("shareID")),
        amount=ZERO if is_admin else _amount(claim, result, unit),
        is_admin=is_admin,
    )


def _amount(claim: str, result: Mapping[str, Any], unit: int) -> Amount:
    consumed = mapping(result.get("consumedCapacity"))
    cores, memory = (parse_quantity(consumed.get(name, 0)) for name in (CORES, MEMORY))
    has_memory = MEMORY in consumed  # a card without memory of its own publishes none
    if cores.denominator != 1 or not 1 <= cores <= CORES_PER_CARD:
        raise _impossible(claim, result, f"{format_number(cores)} cores", f"1 to {CORES_PER_CARD}")
    if has_memory and (memory <= 0 or memory % unit):
        raise _impossible(claim, result, f"{format_number(memory)} bytes", f"a multiple of {unit}")
    if not has_memory and cores != CORES_PER_CARD:
        raise _impossible(claim, result, f"{format_number(cores)} cores without memory", "a whole card")
    return Amount(int(cores), int(memory))


def _impossible(claim: str, result: Mapping[str, Any], given: str, wanted: str) -> RequestInvalid:
    return RequestInvalid(
        f"claim {quoted(claim)} was allocated {given} of {quoted(text(result.get('device')))}, "
        f"and only {wanted} can be given: delete the claim and ask for such an amount"
    )

"""What Kubernetes' scheduler allocates to claims: a model of it on one node, and allocated claims as parsed.

The scheduler has no score for devices. It tries claims, requests and devices in order, each request from the
first device on, and backtracks when a later request finds nothing. Source: the allocator of kube-scheduler
1.36.3 and 1.37.2, with which ``bench/dra.py`` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.claim import ClaimSpec, Constraint, DeviceRequest
from gpu_manager.domain.dra.device import CORES, FIRST_FRACTIONAL_MINOR, MEMORY, Attribute, SharedDevice
from gpu_manager.domain.dra.parameters import PLAIN, ShareTerms, read_config, terms_of
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid, quoted
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount, format_number, parse_quantity
from gpu_manager.domain.untrusted import mapping, mappings, text

# An allocated ResourceClaim (`status.allocation` of resource.k8s.io/v1), parsed and judged once.
# The scheduler decides what a claim gets, but its decision is checked: claims may be allocated from an
# older slice, and kube-scheduler 1.36 overflows: a claim of 8Ei of memory consumes -8Ei of its card.


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


MOST_RESULTS = 32  # per claim
MOST_STEPS = 20_000  # about half a second; the search is exponential where unlike requests do not fit

Consumed = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AllocatedShare:
    """A part of a device that is allocated to a request. ``consumed`` is by name of the capacity."""

    request: str
    device: str
    consumed: Consumed
    is_admin: bool


def allocate(
    devices: Sequence[SharedDevice],
    used: Mapping[str, Consumed],
    claims: Sequence[ClaimSpec],
    minor: int,
    is_eligible: Callable[[DeviceRequest, SharedDevice], bool] = lambda _request, _device: True,
    most_steps: int = MOST_STEPS,
) -> tuple[tuple[AllocatedShare, ...], ...] | None:
    """What each claim of a pod is allocated on a node; None if they cannot be allocated together.

    Args:
        devices: the node's devices, in published order.
        used: consumption of allocated claims: device → capacity → amount. Admin access counts nothing.
        claims: the claims of the pod that are not allocated yet.
        minor: 36 for Kubernetes 1.36; answers differ between versions.
        is_eligible: whether the selectors of the request and its class accept the device.
        most_steps: where to end the search, which is exponential if requests are unlike and do not fit.

    Raises:
        RequestInvalid: the scheduler gives up on the pod, whatever the node.
        DoesNotFit: the search would take the scheduler too long.
    """
    return _Search(devices, used, claims, minor, is_eligible, most_steps).run()


class _Search:
    def __init__(
        self,
        devices: Sequence[SharedDevice],
        used: Mapping[str, Consumed],
        claims: Sequence[ClaimSpec],
        minor: int,
        is_eligible: Callable[[DeviceRequest, SharedDevice], bool],
        most_steps: int,
    ) -> None:
        self._devices, self._claims, self._minor = devices, claims, minor
        self._used = {device.name: dict(used.get(device.name, {})) for device in devices}
        self._is_eligible = is_eligible
        self._steps, self._most_steps = 0, most_steps
        self._asked: dict[tuple[int, int], Mapping[str, int | None] | None] = {}
        self._dead_ends: set[Hashable] = set()  # the scheduler retries them with the same result
        self._shares: list[list[AllocatedShare]] = [[] for _ in claims]
        self._constraints = [[_tracked(one, minor) for one in claim.constraints] for claim in claims]
        # Chosen before anything is allocated, as the scheduler does: the devices of a request for all.
        self._all = {
            id(request): self._eligible_for_all(request)
            for claim in claims
            for alternatives in claim.requests
            for request in alternatives
            if request.count is None
        }

    def run(self) -> tuple[tuple[AllocatedShare, ...], ...] | None:
        for claim in self._claims:
            least = sum(min(self._count(one) for one in alternatives) for alternatives in claim.requests)
            if least > MOST_RESULTS:
                raise RequestInvalid(f"the claim asks for {least} devices: Kubernetes gives {MOST_RESULTS}")
        found = self._from_request(0, 0)
        return tuple(tuple(shares) for shares in self._shares) if found else None

    def _count(self, request: DeviceRequest) -> int:
        return len(self._all[id(request)]) if request.count is None else request.count

    def _eligible_for_all(self, request: DeviceRequest) -> list[SharedDevice]:
        """Devices for a request for all: 1.36 omits devices without room now, 1.37 those that could never
        have it.
        """
        is_static = self._minor >= FIRST_FRACTIONAL_MINOR
        return [
            device
            for device in self._devices
            if self._is_eligible(request, device)
            and self._consumption(request, device, {} if is_static else self._used[device.name]) is not None
        ]

    def _from_request(self, claim: int, request: int) -> bool:
        self._count_step()
        if claim == len(self._claims):
            return True
        if request == len(self._claims[claim].requests):
            return self._from_request(claim + 1, 0)
        state = (claim, request, self._state(claim))
        if state in self._dead_ends:
            return False
        if any(self._from_device(claim, request, one, 0, 0) for one in self._claims[claim].requests[request]):
            return True
        self._dead_ends.add(state)
        return False

    def _state(self, claim: int) -> Hashable:
        """Everything that decides whether the remaining requests can be allocated."""
        used = tuple(tuple(sorted(one.items())) for one in self._used.values())
        return used, len(self._shares[claim]), tuple(one.state for one in self._constraints[claim])

    def _from_device(self, claim: int, index: int, request: DeviceRequest, taken: int, start: int) -> bool:
        """Allocate what the request lacks from the device ``start`` on, and everything after the request."""
        self._count_step()
        if request.count is None and not self._all[id(request)]:
            return False  # "all" of nothing
        count = self._count(request)
        if taken >= count:
            return self._from_request(claim, index + 1)
        if len(self._shares[claim]) + count - taken > MOST_RESULTS:
            return False
        rest = partial(self._from_device, claim, index, request, taken + 1)
        if request.count is None:
            return self._with(claim, request, self._all[id(request)][taken], partial(rest, 0))
        for place in range(start, len(self._devices)):
            device = self._devices[place]
            if (
                self._is_eligible(request, device)
                and self._consumption(request, device, self._used[device.name]) is not None
                and self._with(claim, request, device, partial(rest, place + 1))
            ):
                return True
        return False

    def _with(
        self, claim: int, request: DeviceRequest, device: SharedDevice, rest: Callable[[], bool]
    ) -> bool:
        """Allocate the device and then the rest; undo it if the rest finds nothing."""
        if _is_kept_away(request, device):
            return False
        added: list[_Matching | _Distinct] = []
        used = self._used[device.name]
        for constraint in self._constraints[claim]:
            if not constraint.add(request.name, device):
                if request.count is None:
                    raise RequestInvalid(
                        f"request {quoted(request.name)} asks for all devices, and a constraint forbids "
                        f"{device.name}: Kubernetes gives up on the pod on every node"
                    )
                break
            added.append(constraint)
        else:
            consumed = self._consumption(request, device, used)
            if consumed is not None:
                self._used[device.name] = {
                    name: used.get(name, 0) + amount for name, amount in consumed.items()
                }
                self._shares[claim].append(
                    AllocatedShare(request.name, device.name, consumed, request.is_admin)
                )
                if rest():
                    return True
                self._shares[claim].pop()
                self._used[device.name] = used
        for constraint in reversed(added):
            constraint.remove(request.name)
        return False

    def _consumption(self, request: DeviceRequest, device: SharedDevice, used: Consumed) -> Consumed | None:
        """What the request takes of the device; None if there is no room. Admin access needs room, too."""
        key = id(request), id(device.capacities)  # cards of a kind share them
        if key not in self._asked:
            self._asked[key] = self._asked_of(request, device)
        consumed = self._asked[key]
        if consumed is None:
            return None
        fitting = {
            name: amount
            for name, amount in consumed.items()
            if amount is not None and used.get(name, 0) + amount <= device.capacities[name].value
        }
        return fitting if len(fitting) == len(consumed) else None

    def _asked_of(self, request: DeviceRequest, device: SharedDevice) -> Mapping[str, int | None] | None:
        """What the request takes of each capacity, None for more than exists; None if it names a capacity
        that the device lacks.
        """
        if not request.capacities.keys() <= device.capacities.keys():
            return None
        return {
            name: one.consumed(request.capacities.get(name), self._minor)
            for name, one in device.capacities.items()
        }

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > self._most_steps:
            raise DoesNotFit(
                f"{self._most_steps} steps of the scheduler's search found no devices for the claims"
            )


def _is_kept_away(request: DeviceRequest, device: SharedDevice) -> bool:
    return any(
        taint.prevents and not any(one.tolerates(taint) for one in request.tolerations)
        for taint in device.taints
    )


class _Matching:
    """A constraint: all devices have the same value of the attribute."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._value: Attribute | None = None
        self._count = 0

    @property
    def state(self) -> Hashable:
        return (self._value, self._count) if self._count else None

    def add(self, request: str, device: SharedDevice) -> bool:
        if not self._constraint.concerns(request):
            return True
        value = device.attribute(self._constraint.attribute)
        if value is None or (self._count and not _same(value, self._value)):
            return False
        self._value = value
        self._count += 1
        return True

    def remove(self, request: str) -> None:
        if self._constraint.concerns(request):
            self._count -= 1


class _Distinct:
    """A constraint: no two devices have the same value of the attribute."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._values: list[tuple[str, Attribute]] = []

    @property
    def state(self) -> Hashable:
        return tuple(self._values)

    def add(self, request: str, device: SharedDevice) -> bool:
        if not self._constraint.concerns(request):
            return True
        value = device.attribute(self._constraint.attribute)
        if value is None or any(_same(value, other) for _, other in self._values):
            return False
        self._keep(request.partition("/")[0], value)
        return True

    def remove(self, request: str) -> None:
        if self._constraint.concerns(request):
            self._drop(request.partition("/")[0])

    def _keep(self, request: str, value: Attribute) -> None:
        self._values.append((request, value))

    def _drop(self, request: str) -> None:
        del request
        self._values.pop()


class _DistinctByRequest(_Distinct):
    """Distinct attributes as 1.36 checks them: it remembers only the last device of each request, so the
    first and third devices of a request may be alike.
    """

    def _keep(self, request: str, value: Attribute) -> None:
        self._drop(request)
        self._values.append((request, value))

    def _drop(self, request: str) -> None:
        self._values = [one for one in self._values if one[0] != request]


def _same(one: Attribute, other: Attribute | None) -> bool:
    return type(one) is type(other) and one == other


def _tracked(constraint: Constraint, minor: int) -> _Matching | _Distinct:
    if not constraint.is_distinct:
        return _Matching(constraint)
    return _DistinctByRequest(constraint) if minor < FIRST_FRACTIONAL_MINOR else _Distinct(constraint)

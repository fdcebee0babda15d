"""A model of what Kubernetes' scheduler allocates to claims on one node: first fit, in published order.

The scheduler has no score for devices. It tries claims, requests and devices in order, each request from the
first device on, and backtracks when a later request finds nothing. Source: the allocator of kube-scheduler
1.36.3 and 1.37.2, with which ``bench/dra.py`` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpu_manager.domain.dra.claim import ClaimSpec, Constraint, DeviceRequest
from gpu_manager.domain.dra.device import FIRST_FRACTIONAL_MINOR, Attribute, SharedDevice
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid, quoted

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

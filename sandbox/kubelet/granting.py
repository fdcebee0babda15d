"""How containers get their ids: the kubelet's choice, with the plugin asked where the kubelet asks it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from random import Random
from typing import Final, TypeVar

from gpu_manager.domain.errors import DoesNotFit, NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import AllocateResponse, ContainerAllocateResponse
from sandbox.kubelet.books import DeviceBooks
from sandbox.kubelet.checkpoint import CheckpointGrant
from sandbox.kubelet.topology import Hint, Nodes, hints
from sandbox.kubelet.values import Endpoint, Hooks, Step

_Answer = TypeVar("_Answer")

# Of 2,835 pairs on a real kubelet 78 % came in the order of their names: a shuffle, often sorted again.
SORTED_AGAIN: Final = 0.56


@dataclass(frozen=True, slots=True)
class _Ask:
    """One resource of one container to be granted. ``affinity`` are NUMA nodes to lie on, None for any."""

    pod: str
    container: str
    resource: str
    size: int
    reusable: frozenset[str]
    affinity: Nodes | None

    def step(self, name: str, ids: Collection[str] = (), must: Collection[str] = ()) -> Step:
        return Step(name, self.pod, self.container, self.resource, frozenset(ids), frozenset(must), self.size)


class Granter:
    """Grants ids to containers at admission, and has their start prepared.

    ``running`` tells whether the runtime reports a container running. No lock is held during a call to a
    plugin, and all of the kubelet's chance comes from ``rng``.
    """

    def __init__(
        self,
        books: DeviceBooks,
        rng: Random,
        hooks: Hooks,
        record: deque[Step],
        running: Callable[[str, str], bool],
    ) -> None:
        self._books, self._rng, self._hooks, self._record = books, rng, hooks, record
        self._running = running

    def proposals(
        self, pod: str, container: str, limits: Mapping[str, int], reusable: Mapping[str, frozenset[str]]
    ) -> tuple[list[list[Hint]], set[int]]:
        """NUMA hints of every resource of the container, and all the nodes that carry devices."""
        self._books.collect()
        found: list[list[Hint]] = []
        with self._books.lock:
            everywhere = {n for ds in self._books.devices.values() for d in ds.values() for n in d.nodes}
            for resource, size in limits.items():
                places = {d.id: Nodes(d.nodes) for d in self._books.devices.get(resource, {}).values()}
                if not self._books.known(resource) or not any(places.values()):
                    continue  # a resource without topology has no opinion
                again = reusable.get(resource, frozenset())
                free = self._books.healthy.get(resource, set()) - self._books.allocated.get(resource, set())
                if (grant := self._books.grants.get((pod, container), {}).get(resource)) is not None:
                    free, again = set(grant.ids), frozenset()
                found.append(hints(places, free, again, size) if len(free | again) >= size else [])
        return found, everywhere

    def allocate(
        self,
        pod: str,
        container: str,
        limits: Mapping[str, int],
        reusable: Mapping[str, frozenset[str]],
        affinity: Nodes | None,
    ) -> None:
        """Grant a container all its resources, in random order; the checkpoint is written at the end.

        Raises:
            VcudaError: in the kubelet's words. Resources granted before stay in the books.
        """
        collected = granted = False
        for resource in self._order(limits):
            ask = _Ask(
                pod, container, resource, limits[resource], reusable.get(resource, frozenset()), affinity
            )
            self._hooks.before(ask.step("resource"))
            if self._is_known(resource):
                if not collected:
                    self._books.collect()
                    collected = True
                if picked := self._pick(ask):
                    self._grant(ask, picked)
                    granted = True
            self._hooks.after(ask.step("resource"))
        if granted:
            self._books.write()

    def pre_start(self, pod: str, container: str, limits: Mapping[str, int], *, active: bool) -> None:
        """What precedes every start of a container: PreStartContainer where the plugin wants it.

        Raises:
            NodeUnready: in the kubelet's words; the container is not started.
        """
        missing = False
        for resource in self._order(limits):
            if not self._is_known(resource) or not limits[resource]:
                continue
            with self._books.lock:
                known = self._books.endpoints.get(resource)
                grant = self._books.grants.get((pod, container), {}).get(resource)
                endpoint = known.endpoint if known else None
            if known is None:
                raise NodeUnready(f"endpoint not found in cache for a registered resource: {resource}")
            if endpoint is not None and endpoint.options.pre_start_required:
                if grant is None:
                    raise NodeUnready(
                        f"no devices found allocated in local cache for pod {pod}, container {container}, "
                        f"resource {resource}"
                    )
                step = Step("PreStartContainer", pod, container, resource, frozenset(grant.ids))
                self._call(step, endpoint, partial(endpoint.pre_start, self._mix(grant.ids)))
            missing = missing or grant is None
        if missing and active:  # a container that was admitted without: the one Allocate outside admission
            self.allocate(pod, container, limits, {}, None)

    def merged(self, pod: str, container: str) -> ContainerAllocateResponse:
        """What the container receives of all its resources."""
        held = self._books.held(pod, container)
        return merge([held[resource].response for resource in self._mix(held)])

    # The choice of ids (spec 1.7).

    def _pick(self, ask: _Ask) -> frozenset[str]:
        """The ids to ask for, taken off the free ones; empty if there is nothing to do."""
        picked: set[str] = set()
        with self._books.lock:
            if not self._judge(ask):
                return frozenset()
            if self._take(ask, picked, ask.reusable):
                return frozenset(picked)  # the init container's ids suffice: the plugin is not asked
            available = self._books.healthy[ask.resource] - self._books.allocated.get(ask.resource, set())
            needed = ask.size - len(picked)
            if len(available) < needed:
                raise DoesNotFit(
                    f"requested number of devices unavailable for {ask.resource}. "
                    f"Requested: {needed}, Available: {len(available)}"
                )
            aligned, unaligned, nowhere = self._by_affinity(ask, available)
            rest: tuple[set[str], ...]
            if needed < len(aligned):
                allowed, rest = aligned, (aligned,)
            else:
                if self._take(ask, picked, aligned):
                    return frozenset(picked)
                allowed, rest = available, (unaligned, nowhere)
            must = frozenset(picked)
        preferred = self._preferred(ask, allowed | must, must)
        with self._books.lock:
            for group in (preferred & allowed, *rest):
                if self._take(ask, picked, group):
                    return frozenset(picked)
        raise DoesNotFit(
            f"unexpectedly allocated less resources than required. Requested: {ask.size}, Got: {len(picked)}"
        )

    def _judge(self, ask: _Ask) -> bool:
        """False if the container has what it needs already."""
        resource = ask.resource
        grant = self._books.grants.get((ask.pod, ask.container), {}).get(resource)
        have = len(grant.ids) if grant else 0
        if grant and have != ask.size:
            raise DoesNotFit(
                f'pod "{ask.pod}" container "{ask.container}" changed request for resource "{resource}" '
                f"from {have} to {ask.size}"
            )
        if not self._books.sources_ready and self._running(ask.pod, ask.container):
            return False  # only the kubelet restarted: a running container has its devices
        if resource not in self._books.healthy:
            raise DoesNotFit(f"cannot allocate unregistered device {resource}")
        if not self._books.healthy[resource]:
            raise DoesNotFit(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if grant and not self._books.healthy[resource] >= set(grant.ids):
            raise DoesNotFit(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {resource}"
            )
        return have < ask.size

    def _take(self, ask: _Ask, picked: set[str], group: Collection[str]) -> bool:
        """Move random ids of ``group`` to ``picked`` as far as needed; True when there are enough."""
        room = sorted(set(group) - picked)
        chosen = self._rng.sample(room, min(len(room), ask.size - len(picked)))
        picked.update(chosen)
        self._books.allocated.setdefault(ask.resource, set()).update(chosen)
        return len(picked) == ask.size

    def _by_affinity(self, ask: _Ask, available: set[str]) -> tuple[set[str], set[str], set[str]]:
        devices = self._books.devices[ask.resource]
        if ask.affinity is None or not any(d.nodes for d in devices.values()):
            return set(), set(), available
        nowhere = {one for one in available if not devices[one].nodes}
        aligned = {one for one in available if ask.affinity & set(devices[one].nodes)}
        return aligned, available - aligned - nowhere, nowhere

    def _preferred(self, ask: _Ask, offered: Collection[str], must: Collection[str]) -> frozenset[str]:
        with self._books.lock:
            known = self._books.endpoints.get(ask.resource)
        if known is None:
            raise NodeUnready(f"endpoint not found in cache for a registered resource: {ask.resource}")
        endpoint = known.endpoint
        if endpoint is None or not endpoint.options.get_preferred_allocation_available:
            return frozenset()
        return self._call(
            ask.step("GetPreferredAllocation", offered, must),
            endpoint,
            partial(endpoint.preferred, self._mix(offered), self._mix(must), ask.size),
        )

    def _grant(self, ask: _Ask, picked: frozenset[str]) -> None:
        try:
            answer = self._ask_plugin(ask, picked)
        except NodeUnready:
            with self._books.lock:
                self._books.recount()
            raise
        if not answer.container_responses:
            raise NodeUnready(f"no containers return in allocation response {answer}")
        with self._books.lock:
            devices = self._books.devices.get(ask.resource, {})
            places = {one: devices[one].nodes if one in devices else () for one in picked}
            held = self._books.grants.setdefault((ask.pod, ask.container), {})
            response = answer.container_responses[0]
            held[ask.resource] = CheckpointGrant(ask.pod, ask.container, ask.resource, places, response)

    def _ask_plugin(self, ask: _Ask, picked: frozenset[str]) -> AllocateResponse:
        with self._books.lock:
            known = self._books.endpoints.get(ask.resource)
        if known is None or known.endpoint is None:
            raise NodeUnready(f"unknown Device Plugin {ask.resource}")
        rpc = partial(known.endpoint.allocate, self._mix(picked))
        return self._call(ask.step("Allocate", picked), known.endpoint, rpc)

    def _call(self, step: Step, endpoint: Endpoint, rpc: Callable[[], _Answer]) -> _Answer:
        self._hooks.before(step)
        with self._books.lock:
            known = self._books.endpoints.get(step.resource)
        if known is not None and known.endpoint is endpoint and known.stopped_at is not None:
            raise NodeUnready(f"endpoint {step.resource} has been stopped")
        self._record.append(step)
        answer = rpc()
        self._hooks.after(step)
        return answer

    # Small help.

    def _order(self, limits: Mapping[str, int]) -> list[str]:
        names = sorted(limits)
        if self._hooks.order is not None:
            return list(self._hooks.order(names))
        with self._books.lock:
            mixed = self._rng.sample(names, len(names))
            again = self._rng.random() < SORTED_AGAIN
        if not again:
            return mixed
        vendors = {vendor: iter(list(group)) for vendor, group in groupby(names, _vendor)}
        return [next(vendors[_vendor(name)]) for name in mixed]

    def _mix(self, names: Collection[str]) -> list[str]:
        """A Go map's order: none."""
        mixed = sorted(names)
        with self._books.lock:
            self._rng.shuffle(mixed)
        return mixed

    def _is_known(self, resource: str) -> bool:
        with self._books.lock:
            return self._books.known(resource)


def merge(responses: Sequence[ContainerAllocateResponse]) -> ContainerAllocateResponse:
    """All answers in one; of two with the same key or path in the container, the first wins (spec 1.9)."""
    whole = ContainerAllocateResponse()
    for response in reversed(responses):
        whole.envs.update(response.envs)
        whole.annotations.update(response.annotations)
    mounts = {m.container_path: m for response in reversed(responses) for m in response.mounts}
    devices = {d.container_path: d for response in reversed(responses) for d in response.devices}
    names = {c.name: c for response in reversed(responses) for c in response.cdi_devices}
    whole.mounts.extend(mounts.values())
    whole.devices.extend(devices.values())
    whole.cdi_devices.extend(names.values())
    return whole


def _vendor(resource: str) -> str:
    return resource.partition("/")[0]

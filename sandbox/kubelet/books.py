"""The device manager's books: which ids there are, who holds which, and when they come back.

They have the kubelet's faults. Ids that are being granted count as given away but belong to nobody yet;
whoever lists meanwhile, when some pod has ended, makes the kubelet forget them and offer them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.clock import Clock
from sandbox.kubelet import checkpoint
from sandbox.kubelet.checkpoint import CheckpointGrant, Saved
from sandbox.kubelet.values import Device, Endpoint

GRACE_SECONDS: Final = 300.0  # how long a stopped plugin's capacity is still shown


@dataclass(slots=True)
class Registered:
    """A resource's plugin. ``endpoint`` is None for one known from the checkpoint alone."""

    endpoint: Endpoint | None
    stopped_at: float | None = None


class DeviceBooks:
    """One kubelet process's books. Thread-safe by themselves; who needs several of them holds ``lock``.

    ``active`` tells the UIDs of active pods; it is called with ``lock`` held. No call to a plugin is made
    with ``lock`` held. The file at ``path`` is written after each change that the kubelet writes down.
    """

    def __init__(self, path: Path, clock: Clock, active: Callable[[], Collection[str]]) -> None:
        self._path, self._clock, self._active = path, clock, active
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._file = threading.Lock()  # one writer of the checkpoint at a time
        self._dead = False
        self._told: dict[str, int] = {}
        self.sources_ready = True
        saved = checkpoint.read(path)
        self.grants: dict[tuple[str, str], dict[str, CheckpointGrant]] = {}
        for grant in saved.grants:
            self.grants.setdefault((grant.pod, grant.container), {})[grant.resource] = grant
        self.allocated: dict[str, set[str]] = {}
        self.recount()
        names = saved.registered or {}
        self.devices: dict[str, dict[str, Device]] = {name: {} for name in names}
        self.healthy: dict[str, set[str]] = {name: set() for name in names}
        self.endpoints = {name: Registered(None, clock.monotonic()) for name in names}

    # What plugins tell.

    def connected(self, resource: str, endpoint: Endpoint) -> None:
        """A plugin has registered; its devices follow."""
        with self.lock:
            self.endpoints[resource] = Registered(endpoint)

    def update(self, resource: str, devices: Sequence[Device]) -> None:
        """A ListAndWatch message: the complete list, replacing the former one."""
        with self.lock:
            self.devices[resource] = {device.id: device for device in devices}
            self.healthy[resource] = {device.id for device in devices if device.healthy}
        self.write()
        self._tell(resource)

    def disconnected(self, resource: str) -> None:
        """The plugin's stream has ended: all its devices are unhealthy until it registers again."""
        with self.lock:
            if resource in self.endpoints:
                if resource in self.healthy:
                    self.healthy[resource] = set()
                self.endpoints[resource].stopped_at = self._clock.monotonic()
        self._tell(resource)

    def end(self) -> None:
        """This kubelet process is gone: what its threads still do leaves no trace on disk."""
        with self._file:
            self._dead = True

    # What they hold.

    def wait(self, allocatable: Mapping[str, int], seconds: float) -> None:
        """Wait until these resources have exactly so many healthy devices, written down.

        Raises:
            NodeUnready: they have not, within ``seconds`` of real time.
        """
        with self.lock:
            if not self._changed.wait_for(lambda: allocatable.items() <= self._told.items(), seconds):
                now = {name: self._told.get(name) for name in allocatable}
                raise NodeUnready(f"after {seconds:g} s the node has {now}, not {dict(allocatable)}")

    def counts(self) -> tuple[dict[str, int], dict[str, int], set[str]]:
        """Capacity, allocatable, and the resources dropped just now (5 min after their plugin stopped)."""
        with self.lock:
            now = self._clock.monotonic()
            dropped = {
                name
                for name in self.healthy
                if (known := self.endpoints.get(name)) is None
                or (known.stopped_at is not None and now - known.stopped_at > GRACE_SECONDS)
            }
            for name in dropped:
                self.endpoints.pop(name, None)
                del self.healthy[name], self.devices[name]
            capacity = {name: len(devices) for name, devices in self.devices.items()}
            allocatable = {name: len(ids) for name, ids in self.healthy.items()}
        if dropped:
            self.write()
        return capacity, allocatable, dropped

    def held(self, pod: str, container: str) -> dict[str, CheckpointGrant]:
        """What a container holds, by resource."""
        with self.lock:
            return dict(self.grants.get((pod, container), ()))

    def holders(self) -> tuple[CheckpointGrant, ...]:
        """Every grant in the books, ended pods' too as long as nothing collected them."""
        with self.lock:
            return tuple(grant for held in self.grants.values() for grant in held.values())

    def healthy_devices(self) -> dict[str, tuple[Device, ...]]:
        """The healthy devices of every resource."""
        with self.lock:
            return {n: tuple(self.devices[n][i] for i in sorted(ids)) for n, ids in self.healthy.items()}

    def given(self, resource: str) -> int:
        """How many ids of a resource count as given away, those in flight too."""
        with self.lock:
            return len(self.allocated.get(resource, ()))

    def collect(self) -> None:
        """Free what pods hold that are no longer active; nothing before all pods are known after a start."""
        if not self.sources_ready:
            return
        with self.lock:
            gone = {pod for pod, _ in self.grants} - set(self._active())
            if gone:
                self.grants = {key: held for key, held in self.grants.items() if key[0] not in gone}
                self.recount()

    # For who holds the lock.

    def known(self, resource: str) -> bool:
        """True if a plugin has this resource, or had and some of it is given away."""
        return resource in self.healthy or resource in self.allocated

    def recount(self) -> None:
        """Only what somebody holds is given away; ids in flight are forgotten."""
        self.allocated = {}
        for held in self.grants.values():
            for resource, grant in held.items():
                self.allocated.setdefault(resource, set()).update(grant.ids)

    def _tell(self, resource: str) -> None:
        with self.lock:
            self._told[resource] = len(self.healthy.get(resource, ()))
            self._changed.notify_all()

    # The file.

    def write(self) -> None:
        """Write the checkpoint."""
        with self._file:
            if self._dead:
                return
            with self.lock:
                grants = tuple(grant for held in self.grants.values() for grant in held.values())
                saved = Saved(grants, {name: list(ids) for name, ids in self.healthy.items()})
            checkpoint.write(self._path, saved)

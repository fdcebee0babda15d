"""Two pods of different classes on one card: a real agent process, its watcher, and what the kubelet was handed."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.world import World
from gpu_manager.domain.contract import CORE, GATES_DIR, INVENTORY, MEMORY, PRIORITY, decode_inventory
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import GIB, Amount
from tests.fakes.pages import register
from tests.fakes.waiting import until
from vcuda.page.layout import read_gate
from vcuda.page.limits import CardLimits, read_limits
from vcuda.page.usage import USAGE_HEAD_SIZE


class Tenant:
    """A pod of this priority on the first card, admitted."""

    def __init__(self, world: World, name: str, priority: str, cores: int) -> None:
        amounts = {CORE: str(cores), MEMORY: "4"}
        container = {"name": "c", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
        made = world.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default", "annotations": {PRIORITY: priority}},
                "spec": {"containers": [container]},
            }
        )
        card = world.cards[0].card.uuid
        bound = world.bind(made, {"c": (Share(card, Amount(cores, GIB)),)})
        self.result = world.kubelet.admit(bound)
        assert self.result.admitted, self.result
        self.mounts = {m.container_path: m for m in self.result.containers["c"].mounts}
        self.usage = Path(self.mounts["/etc/vcuda/usage"].host_path)

    @property
    def limits(self) -> CardLimits:
        return read_limits(Path(self.mounts["/etc/vcuda/limits"].host_path).read_bytes()).cards[0]

    def say(self, in_flight: int) -> None:
        with self.usage.open("r+b", buffering=0) as page:
            os.pwrite(page.fileno(), struct.pack("<I", in_flight), USAGE_HEAD_SIZE + 64)
            os.utime(page.fileno())


@pytest.fixture
def world() -> Iterator[World]:
    with World(profile="a100x8") as made:
        yield made


def closed(gate: Path) -> bool:
    return read_gate(gate.read_bytes()).closed_until_ns > time.monotonic_ns()


def test_a_gate_is_mounted_watched_and_opened_whatever_becomes_of_the_agent(world: World) -> None:
    node: dict[str, Any] = world.api.get("nodes", "bench") or {}
    inventory = decode_inventory(node["metadata"]["annotations"][INVENTORY])
    assert inventory is not None
    assert inventory.gates, "schedulers are told that protection is to be had here"
    job = Tenant(world, "job", "best-effort", 60)
    service = Tenant(world, "service", "protected", 40)
    name = world.cards[0].card.uuid.partition("-")[2].replace("-", "")
    mount = job.mounts[f"{GATES_DIR}/{name}"]
    assert mount.read_only
    assert not [path for path in service.mounts if path.startswith(GATES_DIR)]
    assert job.limits.best_effort
    assert service.limits.protected
    assert until(lambda: job.limits.granted is not None and service.limits.granted == 40)
    gate = Path(mount.host_path)
    lock = register(service.usage, 0)
    service.say(1)
    assert until(lambda: closed(gate))
    assert "vcuda_protected_wait_seconds{" in world.get("/metric")
    world.kill()
    left = read_gate(gate.read_bytes()).closed_until_ns - time.monotonic_ns()
    assert left < 1e9, "what is written opens it by itself, whenever the machine comes to it"
    assert until(lambda: not closed(gate))
    world.start_agent()
    assert until(lambda: closed(gate)), "the work is still there"
    os.close(lock)
    assert until(lambda: not closed(gate))

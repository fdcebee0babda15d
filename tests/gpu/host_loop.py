"""The agent's own loop that tells containers by how much the card's time is divided."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from gpu_manager.adapters.machine import SystemClock
from gpu_manager.services.enforcement.time_sharing import CardTenant, TimeSharing
from tests.fakes.metrics import service_metrics
from tests.gpu.container import Container, meanwhile
from tests.gpu.machine import Machine


@contextlib.contextmanager
def host_loop(machine: Machine, containers: Sequence[Container]) -> Iterator[None]:
    """Run it over these containers."""

    def seats() -> list[CardTenant]:
        busy = machine.busy()
        return [
            CardTenant(
                c.name,
                machine.card.uuid,
                at_work=bool(c.pids),
                priority=c.priority,
                driver_share=sum(busy[p] for p in c.pids if p in busy) / 100 if busy else None,
            )
            for c in containers
        ]

    loop = TimeSharing(machine.tenants, seats, SystemClock(), service_metrics())
    with meanwhile("co-activity", loop.run):
        yield

"""A node whose fractions change their size: the resizer beside the rig, and programs that hold memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_manager.domain.contract import CORE, MEMORY, RESIZED
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resize.judgement import size_of
from gpu_manager.domain.resize.sizes import ResizeAnswer, encode_answer
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.ports.control_pages import TenantUse
from gpu_manager.services.allocation.prestart import AnnotationWriteback
from gpu_manager.services.enforcement.resizer import ElasticLimit, Resizer
from gpu_manager.services.enforcement.usage_sample import Sample, ShareUse
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock


class ResizingRig(DirectRig):
    """``held``: bytes that each container's program holds by its page of each of its cards, ``beyond`` what the
    driver counts on top. The clock moves by :meth:`second` alone.
    """

    clock: FakeClock

    def __init__(self, directory: Path, **given: Any) -> None:
        self.alone = bool(given.pop("alone", False))  # there is no extender
        self.minimum_cores = int(given.pop("minimum_cores", 1))
        super().__init__(directory, clock=FakeClock(), **given)
        self.held: dict[tuple[PodUid, str, int], int] = {}
        self.beyond: dict[tuple[PodUid, str, int], int] = {}
        self.sample = Sample(0.0)
        self.objects: dict[str, dict[str, Any]] = {}

    def start_agent(self, *, wait: bool = True) -> None:
        super().start_agent(wait=wait)
        self.sample = Sample(self.clock.monotonic())
        self.writeback = AnnotationWriteback(self.state, self.pods, self.clock)
        self.elastic_limit = ElasticLimit(self.state, self.limit_pages)
        self.resizer = Resizer(
            self.state,
            self.pods,
            self.limit_pages,
            self.tenants,
            lambda: self.sample,
            self.clock,
            self.writeback.tell,
            alone=self.alone,
            minimum_cores=self.minimum_cores,
        )
        for obj in self.objects.values():
            self.resizer.follow(self.parsed(obj))

    def run(self, name: str, cores: int, units: int, **given: Any) -> dict[str, Any]:
        """Admit and start a pod with one container ``c``. Cores and units are totals, here as below."""
        obj = pod(name, container("c", cores, units), **given)
        result = self.admit(obj)
        assert result.admitted, result.message
        self.start(obj)
        self.objects[name] = obj
        return obj

    def answer(self, obj: dict[str, Any], cores: int, units: int, name: str = "c") -> None:
        """The scheduler's yes arrives."""
        sizes = {name: Amount(cores, units * DEFAULT_UNIT)}
        text = encode_answer(ResizeAnswer(obj["metadata"]["uid"], "", sizes))
        obj["metadata"]["annotations"] = {**obj["metadata"].get("annotations", {}), RESIZED: text}
        there = self.parsed(obj)
        self.pods.bind(there)
        self.resizer.follow(there)

    def program(
        self, obj: dict[str, Any], units: float, beyond: int = 0, name: str = "c", part: int = 0
    ) -> None:
        """The container's program holds so much memory of one of its cards from now on."""
        uid = PodUid(obj["metadata"]["uid"])
        key = uid, name, part
        self.held[key], self.beyond[key] = int(units * DEFAULT_UNIT), beyond * DEFAULT_UNIT
        grant = self.state.view.grants[uid, name]
        self.tenants.uses[grant.directory] = tuple(
            TenantUse(share.card, self.held.get((uid, name, at), 0), 0.0, 0.0, 0, 1)
            for at, share in enumerate(grant.allocation.shares)
        )

    def second(self) -> None:
        """A second passes, and the agent samples and looks."""
        self.clock.pass_(1.0)
        self.sample = Sample(
            self.clock.monotonic(),
            shares=tuple(
                ShareUse(
                    key,
                    share,
                    "active",
                    self.held.get((*key, at), 0),
                    beyond=self.beyond.get((*key, at), 0),
                )
                for key, grant in self.state.view.grants.items()
                for at, share in enumerate(grant.allocation.shares)
            ),
        )
        self.resizer.look()

    def booked(self, obj: dict[str, Any], name: str = "c") -> tuple[int, int]:
        """Cores and units in the ledger, in equal parts."""
        held = self.state.view.ledger.get(PodUid(obj["metadata"]["uid"]), name)
        assert held is not None
        assert len({share.amount for share in held.shares}) == 1, held.shares
        size = size_of(held)
        return size.cores, size.memory // DEFAULT_UNIT

    def in_force(self, obj: dict[str, Any], name: str = "c") -> tuple[int, int]:
        """Cores and units on the page, of all its cards."""
        limits = self.tenants.limits[self.state.view.grants[PodUid(obj["metadata"]["uid"]), name].directory]
        assert len({(limit.cores, limit.memory) for limit in limits}) == 1, limits
        return sum(limit.cores for limit in limits), sum(limit.memory for limit in limits) // DEFAULT_UNIT

    def allocatable(self) -> tuple[int, int]:
        """Ids of cores and of memory that the kubelet counts as healthy."""
        self.plugin.announce()
        counted: Mapping[str, int] = self.kubelet.allocatable()
        return counted[CORE], counted[MEMORY]

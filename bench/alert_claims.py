"""A split node whose slice and claims go wrong on request, for :mod:`bench.alerts`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.alert_node import Fault, ProcWorld
from bench.world import NODE
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.errors import NodeUnready
from sandbox.claims import ClaimScheduler
from sandbox.kubelet.dra import DraManager
from tests.fakes.waiting import until

_PROCESS: Final = "4343"


class SplitNode:
    """An agent that gives one card by claims, and a kubelet's manager of claims beside it."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        directory.mkdir()
        self.world = ProcWorld(control=directory / "cards.yaml", pages=directory / "pages")
        self.world.front, self.world.claim_cards = "split", 1
        stack.enter_context(self.world)
        stack.callback(self.world.kill)
        read = self.world.api.get
        self._manager = DraManager(
            self.world.root / "kubelet", lambda namespace, name: read("resourceclaims", name, namespace)
        )
        stack.callback(self._manager.close)
        self._scheduler = ClaimScheduler(self.world.api)
        self._register()

    def faults(self) -> list[Fault]:
        """Make the three faults in turn: of the slice, a claim that is refused, a claim that lingers."""
        return [
            Fault(("VcudaSliceNotPublished",), self._refuse_slices, self.world.api.faults.clear),
            Fault(("VcudaClaimsRefused", "VcudaClaimLingering"), self._claim, self._end_process, self._ask),
        ]

    def _register(self) -> None:
        until(lambda: DRA_DRIVER in self._manager.find_drivers())

    def _restart(self) -> None:
        self.world.kill()
        self.world.start_agent()
        self._register()

    def _refuse_slices(self) -> None:
        """The API server takes no slice of an agent that starts."""
        self.world.api.faults.fail(1 << 30, 500, match="resourceslices")
        self._restart()

    def _claim(self) -> None:
        """One claim is prepared, and the process of its pod stays; the other goes before it is prepared."""
        until(lambda: self._scheduler.devices(NODE))
        self._stays, self._gone = (self._pod(name) for name in ("stays", "gone"))
        self._manager.prepare(self._stays)
        process = self.world.proc / _PROCESS
        process.mkdir()
        self._process = process / "cgroup"
        self._process.write_text(f"0::/kubepods/pod{self._stays['metadata']['uid']}/{'a' * 64}\n")
        card = self.world.api.get("resourceclaims", "gone")
        if card is None:
            raise RuntimeError("a claim has vanished")
        results = card["status"]["allocation"]["devices"]["results"]
        wrong = {"allocation": {"devices": {"results": [{**results[0], "device": "gpu-ffffffff"}]}}}
        self.world.api.patch("resourceclaims", "gone", {"status": wrong}, "default", subresource="status")

    def _pod(self, name: str) -> dict[str, Any]:
        """A pod that a scheduler has allocated a claim of the same name for."""
        capacity = {"requests": {"cores": "20", "memory": "2Gi"}}
        request = {"name": "gpu", "exactly": {"deviceClassName": DRA_DRIVER, "capacity": capacity}}
        self.world.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name},
                "spec": {"devices": {"requests": [request]}},
            }
        )
        pod = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"00000000-0000-4000-8000-{len(name):012}",
            },
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]},
        }
        if not self._scheduler.allocate(pod, NODE):
            raise RuntimeError(f"claim {name} was not allocated")
        return pod

    def _ask(self) -> None:
        """As the kubelet does again and again."""
        for ask, what in ((self._manager.prepare, self._gone), (self._unprepare, self._stays)):
            try:
                ask(what)
            except NodeUnready:
                continue
            raise RuntimeError(f"the claim of {what['metadata']['name']} was not refused")

    def _unprepare(self, pod: dict[str, Any]) -> None:
        self._manager.unprepare(pod["metadata"]["uid"])

    def _end_process(self) -> None:
        self._process.unlink()
        self._process.parent.rmdir()
        self._unprepare(self._stays)

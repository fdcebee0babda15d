"""A node whose cards are given by ResourceClaims: the whole agent, API server, DRA manager and runtime as
stand-ins.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from gpu_manager.agent.composition import Agent
from gpu_manager.agent.config import Config
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.sides import Front
from sandbox import cdi
from sandbox.api import StandInApi
from sandbox.claims import ClaimScheduler
from sandbox.kubelet import StandInKubelet
from sandbox.kubelet.dra import DraManager, claim_name
from tests.fakes.waiting import until
from vcuda.page.layout import uuid_text
from vcuda.page.limits import read_limits

NODE, NAMESPACE = "n1", "default"


class DraWorld:
    """Everything, started. A *pod* is the object as the API server has it."""

    def __init__(self, directory: Path, profile: str = "t4x4", front: Front = Front.DRA) -> None:
        self.directory, self.profile, self.wanted = directory, profile, front
        self.api = StandInApi()
        self.kubelet = StandInKubelet(directory / "kubelet")
        self.scheduler = ClaimScheduler(self.api)
        self.cdi, self.pages = directory / "cdi", directory / "pages"
        self.proc = directory / "proc"
        self._names = itertools.count()

    def __enter__(self) -> Self:
        self.api.start()
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.kubelet.start()
        self.manager = self.new_manager()
        self.start_agent()
        return self

    def __exit__(self, *_: object) -> None:
        self.manager.close()
        self.stop_agent()
        self.kubelet.stop()
        self.api.stop()

    def new_manager(self) -> DraManager:
        """A kubelet that has just started."""
        return DraManager(
            self.directory / "kubelet",
            lambda namespace, name: self.api.get("resourceclaims", name, namespace),
        )

    def start_agent(self) -> None:
        self.start_agent_with()

    def start_agent_with(self, **changed: Any) -> None:
        self.agent = Agent(self.config(**changed))
        self.agent.start()
        self.register()

    def stop_agent(self) -> None:
        self.agent.stop()

    def register(self) -> None:
        """As the kubelet does when a socket appears; then the slice is awaited."""
        until(lambda: DRA_DRIVER in self.manager.find_drivers())
        until(lambda: self.scheduler.devices(NODE))

    def config(self, **changed: Any) -> Config:
        settings: dict[str, Any] = {
            "node": NODE,
            "api_url": self.api.url,
            "device_plugins": self.kubelet.device_plugins,
            "pod_resources": self.kubelet.pod_resources,
            "state": self.directory / "state",
            "pages": self.pages,
            "cdi": self.cdi,
            "http_address": "127.0.0.1",
            "http_port": 0,
            "cards": f"simulated:{self.profile}",
            "control": self.directory / "control.yaml",
            "front": self.wanted,
        }
        return Config(**settings | changed)

    def break_card(self, index: int) -> None:
        text = f"cards:\n  {index}:\n    healthy: false\n    reason: broken\n"
        (self.directory / "control.yaml").write_text(text)

    # What users and the scheduler do.

    def claim(
        self,
        *requests: Mapping[str, Any],
        name: str = "",
        says: Mapping[str, Any] | None = None,
        **exactly: Any,
    ) -> str:
        """Create a ResourceClaim; returns its name. ``exactly`` is of a single request ``gpu``; ``says`` are
        its parameters.
        """
        name = name or f"claim-{next(self._names)}"
        asked = requests or ({"name": "gpu", "exactly": {"deviceClassName": DRA_DRIVER, **exactly}},)
        self.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"devices": {"requests": list(asked), "config": _config(says)}},
            }
        )
        return name

    def pod(
        self, *claims: str, containers: Sequence[tuple[str, str, str]] = (), name: str = ""
    ) -> dict[str, Any]:
        """Create a pod that uses the claims. ``containers``: name, claim, request (empty: all of it)."""
        used = containers or [(f"c{n}", claim, "") for n, claim in enumerate(claims)]
        asked: dict[str, list[dict[str, str]]] = {}
        for container, claim, request in used:
            asked.setdefault(container, []).append(
                {"name": claim} | ({"request": request} if request else {})
            )
        made = self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name or f"pod-{next(self._names)}", "namespace": NAMESPACE},
                "spec": {
                    "containers": [
                        {"name": container, "image": "x", "resources": {"claims": refs}}
                        for container, refs in asked.items()
                    ],
                    "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
                },
            }
        )
        return dict(made)

    def schedule(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Allocate its claims and bind it here."""
        assert self.scheduler.allocate(pod, NODE), "the claims do not fit"
        self.api.bind(pod["metadata"]["name"], NODE)
        bound = self.api.get("pods", pod["metadata"]["name"])
        assert bound is not None
        return bound

    def run(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Schedule and prepare it: its containers could start."""
        bound = self.schedule(pod)
        self.manager.prepare(bound)
        return bound

    def end(self, pod: Mapping[str, Any]) -> None:
        """Its containers have ended: the kubelet unprepares, then the object goes, then the reservations."""
        self.manager.unprepare(pod["metadata"]["uid"])
        self.api.delete("pods", pod["metadata"]["name"], grace=0)
        for one in pod["spec"]["resourceClaims"]:
            self.scheduler.release(NAMESPACE, claim_name(pod, one["name"]), pod["metadata"]["uid"])

    # What a container has.

    def edits(self, pod: Mapping[str, Any], container: str) -> cdi.ContainerEdits:
        return cdi.resolve(cdi.read_specs(self.cdi), self.manager.cdi_devices(pod, container))

    def limits(self, pod: Mapping[str, Any], container: str) -> dict[CardUuid, tuple[int, int]]:
        """Card → (cores, memory bytes) in force for a container; whole cards have no limits: (100, -1)."""
        edits = self.edits(pod, container)
        if "/etc/vcuda/limits" not in edits.mounts:
            return {CardUuid(uuid): (100, -1) for uuid in edits.env["VCUDA_CARDS"].split(",")}
        page = read_limits(Path(edits.mounts["/etc/vcuda/limits"]).read_bytes())
        return {
            CardUuid(uuid_text(card.uuid)): (int(card.core_limit or 0), int(card.memory_limit or 0))
            for card in page.cards
        }


def _config(says: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    told = {"apiVersion": f"{DRA_DRIVER}/v1", "kind": "ShareParameters", **(says or {})}
    return [{"opaque": {"driver": DRA_DRIVER, "parameters": told}}] if says else []

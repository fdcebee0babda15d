"""The sandbox as the demo's scenes use it: apply, wait, look who holds what."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu_manager.adapters.manifests import read_objects
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.resources import format_bytes
from sandbox import commands
from sandbox.simulated_cluster import Sandbox
from sandbox.statuses import shown_reason

PODS: Final = Path(__file__).parent / "pods"
SECONDS: Final = 15.0
Obj = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DemoHeld:
    """A container's share of one card. Memory in bytes."""

    pod: str
    container: str
    card: int
    cores: int
    memory: int

    def __str__(self) -> str:
        return f"{self.cores} cores, {format_bytes(self.memory)} of card {self.card}"


def manifest(name: str) -> tuple[str, list[dict[str, Any]]]:
    """A manifest's first comment, and its objects."""
    data = (PODS / f"{name}.yaml").read_bytes()
    title = data.decode().splitlines()[0].removeprefix("#").strip()
    return title, [copy.deepcopy(dict(obj)) for _, obj in read_objects(data)]


class Stage:
    """One sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def apply(self, objects: Sequence[Obj]) -> list[str]:
        """Apply; the pods' names."""
        commands.apply(self.sandbox.api, objects)
        return [str(obj["metadata"]["name"]) for obj in objects if obj["kind"] == "Pod"]

    def settle(self, names: Sequence[str], *phases: str, seconds: float = SECONDS) -> list[Obj]:
        """The pods, once each is in one of these phases. Raises NodeUnready if one is not in time."""
        self.until(
            lambda: all(self.phase(name) in phases for name in names),
            lambda: next(
                f"pod {name} is {self.phase(name)}, not {' or '.join(phases)}{self._why(name)}"
                for name in names
                if self.phase(name) not in phases
            ),
            seconds,
        )
        return [self.pod(name) for name in names]

    def until(self, holds: Callable[[], bool], otherwise: Callable[[], str], seconds: float) -> None:
        """Wait. Raises NodeUnready with ``otherwise``."""
        try:
            self.sandbox.wait(holds, seconds, "")
        except NodeUnready:
            if not holds():
                raise NodeUnready(f"{otherwise()} after {seconds:g} s") from None

    def pod(self, name: str) -> Obj:
        """The pod's object, empty if it is gone."""
        return self.sandbox.api.get("pods", name) or {}

    def phase(self, name: str) -> str:
        """Its phase, empty if it is gone."""
        return str((self.pod(name).get("status") or {}).get("phase") or "")

    def reason(self, name: str) -> tuple[str, str]:
        """Why a pod is as it is: a word and a sentence."""
        return shown_reason(self.pod(name))

    def _why(self, name: str) -> str:
        if not self.pod(name):
            return ""
        reason = ": ".join(filter(None, self.reason(name)))
        return f" ({reason})" if reason else ""

    def remove(self, names: Sequence[str]) -> None:
        """Delete pods and wait until they are gone."""
        for name in names:
            self.sandbox.api.delete("pods", name, grace=0)
        self.until(
            lambda: not any(self.pod(name) for name in names), lambda: f"{names[0]} is not gone", SECONDS
        )

    def log(self, name: str, container: str) -> str:
        """What a container has written."""
        path = self.sandbox.directory / "logs" / f"default_{name}_{container}.log"
        try:
            return path.read_text("utf-8", "replace").strip()
        except OSError:
            return ""

    def held(self, *pods: str) -> list[DemoHeld]:
        """Who holds what, by the agent's own books; of these pods, or of all."""
        return [
            DemoHeld(
                str(holder["pod"]),
                str(holder["container"]),
                int(card["index"]),
                int(holder["cores"]),
                int(holder["memory"]),
            )
            for card in self.sandbox.graph()["cards"]
            for holder in card["holders"]
            if not pods or holder["pod"] in pods
        ]

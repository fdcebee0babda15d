"""Pods that come and go by themselves beside a test, as controllers make them."""

from __future__ import annotations

import contextlib
import random
from typing import Any, Final

from tests.cluster.api import ApiError
from tests.cluster.beside import Beside
from tests.cluster.cluster import Cluster
from tests.cluster.pods import PATH, Pods, container, pod, why_failed

PAUSE_SECONDS: Final = 0.4
KEPT: Final = 12  # pods at a time


class Churn(Beside):
    """Creates a pod, then deletes the oldest, again and again; what is left may be waited for."""

    def __init__(self, cluster: Cluster, pods: Pods, seed: int = 1) -> None:
        super().__init__("churn")
        self.made: list[str] = []
        self.alive: list[str] = []
        self.failed: list[str] = []  # why, of those that are deleted by now
        self._cluster, self._pods = cluster, pods
        self.dice = random.Random(seed)

    def more(self, count: int, seconds: float = 60) -> None:
        """Wait until so many more have been created."""
        wanted = len(self.made) + count
        self._cluster.wait(lambda: len(self.made) >= wanted, seconds, f"{count} more pods are not created")

    def manifest(self, name: str) -> dict[str, Any]:
        """Make the next pod, of a random size."""
        return pod(name, container("c", self.dice.randint(5, 40), self.dice.randint(2, 40)))

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(PAUSE_SECONDS):
            with contextlib.suppress(ApiError):  # a server is away: as a controller does, again
                name = f"churn-{number}"
                self._pods.try_create(self.manifest(name))
                number += 1
                self.made.append(name)
                self.alive.append(name)
                while len(self.alive) > KEPT:
                    status = self._pods.get(self.alive[0])["status"]
                    if status.get("phase") == "Failed":
                        self.failed.append(why_failed(status))
                    self._cluster.api.delete(f"{PATH}/{self.alive[0]}")
                    self.alive.pop(0)

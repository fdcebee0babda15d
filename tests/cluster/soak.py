"""Pods come and go for minutes on the real cluster, half by force, and every book is audited each second.

Prints a line a round and writes ``build/cluster/soak.json``: starts, wrong, refused though they fitted, leaks. Runs
of the same image on the same programs are added up, so that a long soak can be had in slices.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from gpu_manager.domain.contract import CORE, MEMORY
from tests.cluster import auditor, layout, product, record, views
from tests.cluster.cluster import Cluster
from tests.cluster.footprint import Footprint
from tests.cluster.listing import ask
from tests.cluster.periods import chosen
from tests.cluster.pods import NAMESPACE, STUBBORN, Pods, container, pod, sidecar
from tests.cluster.watcher import Watcher

SHAPES: Final = ("one", "pair", "staged", "flanked", "whole", "stubborn")
BATCH: Final = 16
MOST_CORES: Final = 520  # of 800: so that most find room; one that the scheduler lets through must fit
GRACES: Final = (0, 0, 1, None)  # by force, hurried, as the pod says
LISTED_EACH: Final = 4  # rounds


@dataclass(slots=True)
class Result:
    """What the soak counts; ``wrong``, ``unexpected_admission_errors`` and ``leaks`` must be 0."""

    image: str = ""  # digest of the image that ran
    runs: int = 1
    seconds: float = 0.0
    starts: int = 0
    forced: int = 0  # pods deleted by force
    kept_waiting: int = 0  # pods that the scheduler placed nowhere for a minute
    looks: int = 0  # of the auditor, while all goes on
    compared: int = 0  # containers in all looks
    longest_gap: float = 0.0  # seconds from one look to the next
    wrong: int = 0
    unexpected_admission_errors: int = 0
    granted: int = 0  # containers
    elsewhere: int = 0  # of them on other cards than the extender chose
    leaks: int = 0
    footprint: dict[str, dict[str, float]] = field(default_factory=dict)

    def line(self) -> str:
        """For people."""
        return " ".join(f"{name} {value:g}" for name, value in self._counts().items())

    def added(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """This run and the earlier ones of the same image, for the record."""
        if before.get("image") != self.image:
            return asdict(self)
        sums = {name: round(value + before[name], 1) for name, value in self._counts().items()}
        most = {
            name: {
                key: max(value, before["footprint"].get(name, {}).get(key, 0)) for key, value in one.items()
            }
            for name, one in self.footprint.items()
        }
        gap = max(self.longest_gap, before["longest_gap"])
        return {**sums, "image": self.image, "longest_gap": gap, "footprint": most}

    def _counts(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if isinstance(value, int | float)}


class Soak:
    """One run; the seed is printed, so that a failure can be had again."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.result = Result()
        self._cluster = cluster
        self._dice = random.Random(seed)
        self._pods = Pods(cluster)
        self._alive: dict[str, int] = {}
        self._number = 0
        self._footprint = Footprint()

    def run(self, minutes: float) -> Result:
        """Rounds for so long, then everything must be given back."""
        result, began, rounds = self.result, time.monotonic(), 0
        elsewhere = self._overridden()
        try:
            with Watcher(self._cluster) as watcher:
                while time.monotonic() - began < 60 * minutes:
                    self._round(listed=rounds % LISTED_EACH == 0)
                    rounds += 1
                    self._footprint.look(self._cluster)
                    result.seconds = round(time.monotonic() - began, 1)
                    looks = watcher.looks
                    result.looks, result.compared = looks.count, looks.containers
                    result.longest_gap = round(looks.longest_gap, 2)
                    self._wrong(looks.found)
                    looks.found = []
                    _say(result.line())
        finally:
            self._pods.clear()
        result.elsewhere = self._overridden() - elsewhere
        self._leaks()
        result.footprint = self._footprint.as_json()
        return result

    def _overridden(self) -> int:
        return round(views.total(self._cluster, "vcuda_annotation_overridden_total"))

    def _round(self, *, listed: bool) -> None:
        made: dict[str, int] = {}
        while len(made) < BATCH and sum(self._alive.values()) + sum(made.values()) < MOST_CORES:
            manifest, cores = draw(self._dice, f"soak-{self._number}")
            made |= dict.fromkeys(self._pods.create(manifest), cores)
            self._number += 1
        for name in made:
            self._await(name)
        self._alive |= made
        self._wrong(_settled(self._cluster))
        if listed:  # nothing is being admitted
            self._wrong(listed_otherwise(self._cluster))
            self._wrong(_seen_otherwise(self._cluster))
        gone = self._dice.sample(sorted(self._alive), k=(3 * len(self._alive) + 3) // 4)
        for name in gone:
            self._alive.pop(name)
            grace = self._dice.choice(GRACES)
            self.result.forced += grace == 0
            self._cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", grace)
        for name in gone:
            self._pods.wait_gone(name)

    def _await(self, name: str) -> None:
        """Until it runs, or the scheduler has kept it for long: no card has room for it at present."""
        try:
            self._pods.wait_running(name, 60)
        except AssertionError as error:
            self.result.unexpected_admission_errors += 1
            _say(f"  {error}")
        except TimeoutError:
            if "nodeName" in self._pods.get(name)["spec"]:
                raise
            self.result.kept_waiting += 1
        else:
            self.result.starts += 1
            spec = self._pods.get(name)["spec"]
            self.result.granted += len(spec["containers"]) + len(spec.get("initContainers", ()))

    def _wrong(self, found: list[str]) -> None:
        self.result.wrong += len(found)
        for text in found:
            _say(f"  {text}")

    def _leaks(self) -> None:
        """Nothing in the books, no directory; and every single id of the node can be had again."""
        try:
            auditor.settled(self._cluster, chosen().given_back_seconds, leaks=True)
        except AssertionError as error:
            self.result.leaks += len(str(error).splitlines())
            _say(str(error))
        for cores, units in ((100, 0), (99, 157)):  # of a card each
            try:
                self._pods.run(
                    *(pod(f"last-{i}", container("c", cores, units)) for i in range(8)), seconds=120
                )
                self._wrong(_settled(self._cluster))
            except (AssertionError, TimeoutError) as error:
                self.result.leaks += 1
                _say(f"not all ids can be had again: {error}")
            self._pods.clear()


def draw(dice: random.Random, name: str) -> tuple[dict[str, Any], int]:
    """A pod of a shape, and the cores that it takes."""
    a, b = dice.randint(1, 40), dice.randint(1, 40)
    first, second = container("a", a, dice.randint(1, 60)), container("b", b, dice.randint(1, 60))
    shape = dice.choice(SHAPES)
    if shape == "pair":
        return pod(name, first, second), a + b
    if shape == "staged":
        return pod(name, first, init=[container("init", b, dice.randint(1, 60), args=("true",))]), max(a, b)
    if shape == "flanked":
        return pod(name, first, init=[sidecar("side", b, dice.randint(1, 60))]), a + b
    if shape == "whole":
        return pod(name, container("a", 100)), 100
    if shape == "stubborn":  # its process outlives the pod, if that is deleted by force
        return pod(name, {**first, "args": list(STUBBORN)}, terminationGracePeriodSeconds=3), a
    return pod(name, first), a


def listed_otherwise(cluster: Cluster) -> list[str]:
    """Pods of which the kubelet's listing says something else than its checkpoint."""
    pods = {(p["metadata"]["name"], p["metadata"]["uid"]) for p in _of_node(cluster)}
    checkpoint = auditor.checkpoint_of(cluster)
    listed = {
        (one["name"], name, resource): frozenset(ids)
        for one in ask(cluster, "list")
        if one["namespace"] == NAMESPACE
        for name, devices in one["containers"].items()
        for resource, ids in devices.items()
        if resource in (CORE, MEMORY)
    }
    names = {uid: name for name, uid in pods}
    kept = {
        (names[uid], container_, resource): ids
        for (uid, container_, resource), (ids, _) in checkpoint.items()
        if uid in names
    }
    # An init container that has ended is in the checkpoint, and not in the listing.
    differing = sorted(
        key for key, ids in listed.items() if key[0] in names.values() and kept.get(key) != ids
    )
    return [f"{name}/{held}: the kubelet lists other ids of {resource}" for name, held, resource in differing]


def _of_node(cluster: Cluster) -> list[dict[str, Any]]:
    found = cluster.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={layout.NODE}")["items"]
    return [
        p for p in found if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]
    ]


def _settled(cluster: Cluster) -> list[str]:
    """What still disagrees after the write-back has had its time."""
    try:
        auditor.settled(cluster, 10)
    except AssertionError as error:
        return str(error).splitlines()
    return []


def _seen_otherwise(cluster: Cluster) -> list[str]:
    """What the agent's pages, the metrics and kubectl show otherwise than the books."""
    try:
        views.agreed(cluster)
    except AssertionError as error:
        return str(error).splitlines()
    return []


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(minutes: float) -> int:
    """Exit code 1 if a bar does not hold."""
    cluster, seed = Cluster(), int(time.time())
    cluster.up()
    product.install(cluster, admission=True)
    _say(f"seed {seed}")
    soak = Soak(cluster, seed)
    soak.result.image = record.image()
    result = soak.run(minutes)
    _say(f"{result.line()}\n{json.dumps(result.footprint)}")
    record.keep("soak", result.added(record.last("soak", cluster.parts)), cluster.parts)
    return 1 if result.wrong or result.unexpected_admission_errors or result.leaks else 0

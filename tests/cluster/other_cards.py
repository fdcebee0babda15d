"""Pods come and go at random moments, half of them by force and most of those between their binding and the
kubelet's admission, beside kills: how many containers start on another card than the scheduler chose?

``python -m tests.cluster other-cards [STARTS]``. Runs of one image are added up.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from gpu_manager.domain.contract import ALLOCATION
from tests.cluster import auditor, decoding, product, record
from tests.cluster.api import ApiError
from tests.cluster.beside import Beside
from tests.cluster.cluster import Cluster
from tests.cluster.pods import AWAY, PATH, Pods, container, pod, why_failed

STARTS: Final = 1500
MAKERS: Final = 6
KILL_SECONDS: Final = 45.0
KILLED: Final = (
    "agent",
    "kubelet",
    "admission",
    "container",
)  # with admission the scheduler, with the last the agent
_SHAPES: Final = (10, 20, 35)
_BOUND_SECONDS: Final = 60.0

Cards = frozenset[str]


@dataclass(slots=True)
class OtherCards:
    """``elsewhere`` counts containers that started on another card than the Binding named."""

    image: str = ""
    seconds: float = 0.0
    created: int = 0
    forced: int = 0  # pods deleted by force, most before the kubelet admitted them
    starts: int = 0  # containers that were seen to run
    elsewhere: int = 0
    elsewhere_living: int = 0  # of them those of pods that nobody had deleted
    refused: int = 0  # by the kubelet while a killed agent was away
    failed: int = 0  # otherwise
    kills: int = 0

    def added(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """This run and the earlier ones of the same image, for the record."""
        return record.added(asdict(self), before)


class Books:
    """What was chosen for each pod, what its container got, and who was deleted; written by several threads, each
    under keys of its own.
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.chosen: dict[str, Cards] = {}
        self.got: dict[str, Cards] = {}
        self.forced: dict[str, float] = {}  # when
        self.began: dict[str, float] = {}  # first seen to run
        self.failed: dict[str, str] = {}

    def elsewhere(self) -> list[str]:
        """UIDs of those that got other cards."""
        return [uid for uid in self.started() if self.got[uid] != self.chosen[uid]]

    def started(self) -> list[str]:
        """UIDs of those that were chosen cards, and were seen to run."""
        return [uid for uid in self.got.copy() if uid in self.chosen]

    def living(self, uid: str) -> bool:
        """True if it was deleted after it had been seen to run, or not at all."""
        return self.forced.get(uid, float("inf")) > self.began[uid]


class Running(Beside):
    """Looks at every container of the node, whether the API knows its pod or not."""

    def __init__(self, cluster: Cluster, books: Books) -> None:
        super().__init__("sight of containers")
        self._cluster, self._books = cluster, books

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            with contextlib.suppress(
                OSError
            ):  # a control group went while all were listed: what follows is next
                for one in auditor.running(self._cluster):
                    self._books.got.setdefault(one.pod, frozenset(card for card, _, _ in one.shares))
                    self._books.began.setdefault(one.pod, time.monotonic())


class Maker(Beside):
    """One pod after the other: made, bound, and deleted at a random moment, half of them by force."""

    def __init__(self, cluster: Cluster, books: Books, number: int, seed: int) -> None:
        super().__init__(f"maker {number}")
        self.created = self._tried = 0
        self._cluster, self._books, self._number = cluster, books, number
        self._pods = Pods(cluster)
        self._dice = random.Random(f"{seed} {number}")

    def _run(self) -> None:
        while not self._stop.is_set():
            name = f"other-{self._number}-{self._tried}"
            self._tried += 1
            try:
                self._one(name)
            except ApiError as error:
                if error.code not in (0, 404, 500, 503):
                    raise
                self._stop.wait(0.5)
        self._pods.clear()

    def _one(self, name: str) -> None:
        self._pods.try_create(pod(name, container("c", self._dice.choice(_SHAPES), 4)))
        self.created += 1  # while admission is away none is
        found = self._until(name, lambda one: "nodeName" in one["spec"])
        uid = found["metadata"]["uid"]
        self._books.names[uid] = name
        said = decoding.annotation(found["metadata"].get("annotations", {}).get(ALLOCATION))
        if said is not None:
            self._books.chosen[uid] = frozenset(card for card, _, _ in said.containers["c"])
        force = self._dice.random() < 0.5
        if not force:
            found = self._until(name, _decided)
            if found["status"].get("phase") == "Failed":
                self._books.failed[uid] = why_failed(found["status"])
        self._stop.wait(self._dice.uniform(0, 3))
        if force:
            self._books.forced[uid] = time.monotonic()
        self._cluster.api.delete(f"{PATH}/{name}", 0 if force else None)

    def _until(self, name: str, holds: Any) -> dict[str, Any]:
        """The pod once it ``holds``, or as it is after a while."""
        ends = time.monotonic() + _BOUND_SECONDS
        while True:
            found = self._pods.get(name)
            if holds(found) or time.monotonic() > ends or self._stop.wait(0.1):
                return found


def _decided(found: Mapping[str, Any]) -> bool:
    statuses = found["status"].get("containerStatuses", [])
    return found["status"].get("phase") == "Failed" or any(one["ready"] for one in statuses)


def measure(cluster: Cluster, starts: int = STARTS, seed: int = 0, *, kills: bool = True) -> OtherCards:
    """Until so many containers were seen to run. Every book agrees in the end."""
    books, result, began = Books(), OtherCards(record.image()), time.monotonic()
    told: set[str] = set()
    makers = [Maker(cluster, books, number, seed) for number in range(MAKERS)]
    parts, due = itertools.cycle(KILLED), began + KILL_SECONDS
    with ExitStack() as stack:
        for beside in (Running(cluster, books), *makers):
            stack.enter_context(beside)
        while len(books.started()) < starts:
            if kills and time.monotonic() >= due:
                _kill(cluster, next(parts))
                result.kills += 1
                due = time.monotonic() + KILL_SECONDS
            time.sleep(5)
            cluster.mend()
            _count(result, books, makers, time.monotonic() - began)
            sys.stdout.write(f"{asdict(result)}\n")
            for uid in set(books.elsewhere()) - told:
                told.add(uid)
                _tell(cluster, books, uid)
            sys.stdout.flush()
    _count(result, books, makers, time.monotonic() - began)
    sys.stdout.write(f"{Counter(books.failed.values())}\n")
    auditor.settled(cluster)
    return result


def _kill(cluster: Cluster, part: str) -> None:
    if part == "kubelet":
        cluster.restart(part)
    elif part == "agent":
        product.kill_held_agent(cluster)
    else:
        product.kill(cluster, product.AGENT if part == "container" else product.ADMISSION)


def _tell(cluster: Cluster, books: Books, uid: str) -> None:
    """What the agent wrote of this container, while its log has it."""
    who = "living" if books.living(uid) else "deleted before"
    chosen, got = sorted(books.chosen[uid]), sorted(books.got[uid])
    sys.stdout.write(f"  {books.names[uid]} {uid}, {who}: chosen {chosen}, got {got}\n")
    for line in product.told(cluster):
        if books.names[uid] in str(line) or uid in str(line):
            sys.stdout.write(f"    {line}\n")


def _count(result: OtherCards, books: Books, makers: list[Maker], seconds: float) -> None:
    # What others still write is counted the next time.
    elsewhere = books.elsewhere()
    result.seconds = round(seconds, 1)
    result.created = sum(maker.created for maker in makers)
    result.forced = len(books.forced)
    result.starts = len(books.started())
    result.elsewhere = len(elsewhere)
    result.elsewhere_living = sum(map(books.living, elsewhere))
    failed = [*books.failed.copy().values()]
    result.refused = sum(why.startswith(AWAY) for why in failed)
    result.failed = len(failed) - result.refused

"""A second device plugin for the same cards comes, goes and restarts, in random order with restarts of the kubelet
and of the agent: how long is a card on offer by both?

``python -m tests.cluster double-offers [COUNT]``.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.cluster import foreign_plugin, listing, product
from tests.cluster.api import ApiError
from tests.cluster.cluster import Cluster
from tests.cluster.parts import ROOT

ORDERS: Final = 100
_EVENTS: Final = 3  # in each order, after the second plugin has come or before
_FOREIGN, _WATCH = "gpu-plugin", "offers-watch"
_SETTLE_SECONDS: Final = 90.0
_ALLOWED_SECONDS: Final = 2.0


@dataclass(slots=True)
class DoubleOffers:
    """``double`` counts orders in which a card was on offer twice for longer than 2 s; it must be 0."""

    orders: int = 0
    double: int = 0
    longest_seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """For the record."""
        return asdict(self)


def measure(cluster: Cluster, count: int = ORDERS, seed: int = 0) -> DoubleOffers:
    """So many random orders of events; afterwards every card is ours again."""
    chance, result = random.Random(seed), DoubleOffers()
    cards = sorted(closed_cards(cluster))
    for _ in range(count):
        some = chance.sample(cards, chance.randint(1, len(cards)))
        with _watched(cluster) as log:
            _one_order(cluster, chance, some)
            longest = _last(log)["longest"]
        result.orders += 1
        result.double += longest > _ALLOWED_SECONDS
        result.longest_seconds = max(result.longest_seconds, longest)
        sys.stdout.write(f"{result.as_json()}\n")
        sys.stdout.flush()
    cluster.wait(lambda: product.agent_ready(cluster), _SETTLE_SECONDS, "the agent is not ready")
    cluster.wait(lambda: not any(closed_cards(cluster).values()), _SETTLE_SECONDS, "cards do not come back")
    return result


def closed_cards(cluster: Cluster) -> dict[str, bool]:
    """Whether each card is closed, by its UUID, as the agent shows it; empty while it does not answer."""
    try:
        return {card["uuid"]: not card["open"] for card in product.ask_json(cluster, "/graph")["cards"]}
    except ApiError:
        return {}


def start(cluster: Cluster, uuids: list[str]) -> None:
    """Start the second plugin."""
    cluster.run(_FOREIGN, foreign_plugin.command("gpus", *uuids))


def stop(cluster: Cluster) -> None:
    """End it, as a crash does."""
    cluster.kill(_FOREIGN)


def _one_order(cluster: Cluster, chance: random.Random, uuids: list[str]) -> None:
    events = chance.sample(["kubelet", "agent", "plugin"], _EVENTS)
    at = chance.randrange(_EVENTS + 1)
    for event in [*events[:at], "plugin", *events[at:]]:
        if event == "kubelet":
            cluster.restart("kubelet")
            cluster.wait(cluster.node_ready, 60, "the node is not ready")
        elif event == "agent":
            agent = product.agent_pod(cluster)
            if agent is not None:
                cluster.api.delete(f"/api/v1/namespaces/{product.NAMESPACE}/pods/{agent['metadata']['name']}")
        else:
            stop(cluster)
            start(cluster, uuids)
    cluster.wait(
        lambda: {uuid for uuid, closed in closed_cards(cluster).items() if closed} == set(uuids),
        _SETTLE_SECONDS,
        f"the cards of the second plugin, and no others, are not closed: {uuids}",
    )


@contextmanager
def _watched(cluster: Cluster) -> Iterator[Path]:
    log = cluster.scratch / f"{_WATCH}.log"
    log.unlink(missing_ok=True)
    watcher = Path(__file__).resolve().parent / "offers_watch.py"
    cluster.run(_WATCH, ["env", f"PYTHONPATH={ROOT}", sys.executable, str(watcher), listing.SOCKET])
    try:
        yield log
    finally:
        cluster.kill(_WATCH)
        stop(cluster)


def _last(log: Path) -> dict[str, float]:
    """The watcher's last whole line."""
    found: dict[str, float] = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    return found

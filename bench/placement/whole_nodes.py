"""Nodes kept whole: how many nodes a mix of pods occupies, and how many pods of a whole node still fit.

Sixty mixes on 60 nodes of 8 cards, by twelve kinds of demand and five settings: host CPU stated or not,
nodes rich and poor in it, pods that come one by one, as Deployments of like pods, or all before the first is
placed. Nobody leaves. Best fit stands beside: the same pods in the same order, each on the node where it
breaks the fewest idle cards, then leaves the least room on its card, the fewest idle cards, the least room.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bench.placement import compiled
from bench.placement.bars import Rows
from bench.placement.ours import Ours
from bench.placement.policies import Offer, Plain, Policy, ways
from bench.placement.replay import World, stock_of
from bench.placement.trace import Node, Pod, permuted
from bench.placement.wire import Wire
from bench.rows import Row
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.request_mix import FreeShape, RequestShape
from gpu_manager.domain.score.scorer import PACK, Scorer

NODES: Final = 60
CARDS: Final = 8
LOADS: Final = (20, 40, 60, 80)  # percent of the cluster's cards asked for
_UNSTATED: Final = 1 << 30  # host CPU, as the score counts a node that says none
_MEMORY: Final = 1 << 30  # of the host, MiB: never short

Sizes = Sequence[tuple[int, float]]  # cores, and how often


def _with(fractions: Sequence[int], others: Mapping[int, float]) -> Sizes:
    """Fractions evenly, and of other sizes these parts of the pods."""
    left = 1 - sum(others.values())
    return [*((cores, left / len(fractions)) for cores in fractions), *others.items()]


_SOME: Final = range(20, 51, 10)
_ANY: Final = range(5, 71, 5)
_REPORTED: Final = (10, 20, 30, 50, 70)
DEMANDS: Final[Mapping[str, Sizes]] = {
    "20 to 50": _with(_SOME, {}),
    "5 to 70": _with(_ANY, {}),
    "10 to 70": _with(_REPORTED, {}),
    "10 to 70, 2 % a card": _with(_REPORTED, {100: 0.02}),
    "10 to 70, 5 % a card": _with(_REPORTED, {100: 0.05}),
    "20 to 50, 5 % a card": _with(_SOME, {100: 0.05}),
    "10 to 70, 10 % a card": _with(_REPORTED, {100: 0.1}),
    "5 to 70, 20 % a card": _with(_ANY, {100: 0.2}),
    "10 to 70, 50 % a card": _with(_REPORTED, {100: 0.5}),
    "a card": [(100, 1.0)],
    "10 to 70, 5 % a card, 1 % two": _with(_REPORTED, {100: 0.05, 200: 0.01}),
    "5 to 70, 10 % a card, 2 % four, 1 % eight": _with(_ANY, {100: 0.1, 400: 0.02, 800: 0.01}),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """``hosts``: CPUs of the nodes, in turns; ``asked``: CPUs of a pod, drawn evenly; empty: not stated.
    ``together``: how many pods come at once, and are then alike; 0 for all, which are not.
    """

    hosts: Sequence[int] = ()
    asked: Sequence[int] = ()
    together: int = 1


SETTINGS: Final[Mapping[str, Setting]] = {
    "no CPU stated": Setting(),
    "no CPU stated, all at once": Setting(together=0),
    "128 CPUs, a pod takes 2": Setting((128,), (2,)),
    "32 CPUs, a pod takes 1": Setting((32,), (1,)),
    "32 and 128 CPUs, a pod takes 1 to 4, Deployments": Setting((32, 128), (1, 2, 3, 4), together=12),
}


@dataclass(frozen=True, slots=True)
class Stream:
    """Nodes, pods in their order, and how many have come when each is placed."""

    nodes: Sequence[Node]
    pods: Sequence[Pod]
    arrived: Sequence[int]
    stated: bool

    def until(self, load: int) -> int:
        """The number of pods that ask for so many percent of the cards."""
        limit, asked = load * CARDS * NODES, 0
        for number, pod in enumerate(self.pods):
            asked += pod.cores
            if asked > limit:
                return number
        return len(self.pods)


def stream(demand: str, setting: Setting, name: str = "") -> Stream:
    """The pods of a mix, up to the highest load."""
    chance = random.Random(f"whole nodes {demand} {name}")
    hosts = setting.hosts or (_UNSTATED // 1000,)
    cpus = [min(_UNSTATED, 1000 * hosts[at % len(hosts)]) for at in range(NODES)]
    nodes = [Node(f"n{at:02}", cpu, _MEMORY, CARDS, "M") for at, cpu in enumerate(cpus)]
    sizes, weights = zip(*DEMANDS[demand], strict=True)
    pods: list[Pod] = []
    arrived: list[int] = []
    asked = 0
    while asked < LOADS[-1] * CARDS * NODES:
        size = chance.choices(sizes, weights)[0]
        cpu = chance.choice(setting.asked) if setting.asked else 0
        like = chance.randint(1, 2 * setting.together - 1) if setting.together else 1
        arrived += [len(pods) + like] * like
        pods += [Pod("", RequestShape(size, 0, 1000 * cpu), 0)] * like
        asked += size * like
    if not setting.together:
        arrived = [len(pods)] * len(pods)
    return Stream(permuted(nodes, 0), pods, arrived, bool(setting.hosts))


class LeastBroken(Plain):
    """Best fit over cards, by the rule that the extender uses under no other policy."""

    def offers(
        self, shape: RequestShape, rooms: Sequence[FreeShape], tags: Sequence[Hashable]
    ) -> list[Offer]:
        after = [ways(shape, room)[:1] for room in rooms]
        return [
            (_broken(shape, room, each[0]), each[0], ()) if each else None
            for room, each in zip(rooms, after, strict=True)
        ]


def _broken(shape: RequestShape, room: FreeShape, after: FreeShape) -> tuple[int, int, int, int]:
    was, idle = (each.free.count((CORES_PER_CARD, each.memory)) for each in (room, after))
    if shape.cards:
        return 0, 0, idle, after.cores
    ((left, _),) = Counter(after.free) - Counter(room.free)
    return was - idle, left, idle, after.cores


def by_ours(given: Stream) -> list[int]:
    """The node of each pod under ours, -1 for none: by the compiled replay where there is a compiler."""
    stock, options = stock_of(given.nodes), _options(given)
    if compiled.available():
        scorer = partial(Scorer, **options)
        return compiled.stay(given.nodes, given.pods, "ours", (), stock, scorer, given.arrived).nodes
    return by(Ours(stock, **options), given)


def _options(given: Stream) -> dict[str, Any]:
    """A node that states no host CPU has no price for it."""
    return {} if given.stated else {"leaving": (PACK, 0.0)}


def by(policy: Policy, given: Stream) -> list[int]:
    """The node of each pod under a policy, -1 for none."""
    world, came, nodes = World(given.nodes, policy), 0, list[int]()
    for pod, arrived in zip(given.pods, given.arrived, strict=True):
        for each in given.pods[came:arrived]:
            world.arrived(each.shape)
        came = arrived
        choice = world.choose(pod)
        nodes.append(-1 if choice is None else choice[0])
        if choice is not None:
            world.put(pod, *choice)
    return nodes


@dataclass(frozen=True, slots=True)
class Cell:
    """One mix at one load: nodes in use, and pods of a whole node and half of the largest host that fit."""

    name: str
    bound: int  # the fewest nodes that have the cores
    ours: int
    best: int
    ours_whole: int
    best_whole: int

    @property
    def over(self) -> float:
        """Nodes in use over the most that the bar allows."""
        return self.ours / max(self.best + 1, 1.1 * self.best)

    @property
    def below(self) -> float:
        """Pods of a whole node fewer than the bar allows; below 0 where there are more."""
        return self.best_whole - max(1, self.best_whole / 50) - self.ours_whole

    @property
    def held(self) -> bool:
        """True within the bar."""
        return self.over <= 1 and self.below <= 0

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.ours} nodes, best fit {self.best}, by volume {self.bound};"
            f" {self.ours_whole} pods of a whole node fit, best fit {self.best_whole}"
        )


def cells() -> Iterator[Cell]:
    """All mixes at all loads."""
    for name, setting in SETTINGS.items():
        for demand in DEMANDS:
            given = stream(demand, setting, name)
            ours, best = by_ours(given), by(LeastBroken(), given)
            for load in LOADS:
                count = given.until(load)
                cores = sum(pod.cores for pod in given.pods[:count])
                used = [set(each[:count]) - {-1} for each in (ours, best)]
                yield Cell(
                    f"{demand}, {name}, {load} %",
                    -(-cores // (CORES_PER_CARD * CARDS)),
                    *map(len, used),
                    *(_whole(given.nodes, each) for each in used),
                )


def _whole(nodes: Sequence[Node], used: set[int]) -> int:
    half = max(node.cpu for node in nodes) / 2
    return sum(node.cpu >= half for at, node in enumerate(nodes) if at not in used)


_WIRED: Final = ("10 to 70, 5 % a card", "128 CPUs, a pod takes 2", LOADS[0])


def over_the_wire(repeat: int) -> int:
    """The nodes in use after a mix has gone through filter and prioritize; each repeat has other names and
    other lots among equal scores, and the mix is refreshed in a thread, as deployed.
    """
    demand, name, load = _WIRED
    given = stream(demand, SETTINGS[name], name)
    wire = Wire(permuted(given.nodes, repeat), repeat, beside=True)
    return len({wire.place(pod, number) for number, pod in enumerate(given.pods[: given.until(load)])})


def rows(row: Rows) -> Iterator[Row]:
    """The table's. All cells are measured, quick or not."""
    found = list(cells())
    mixes, loads = len(SETTINGS) * len(DEMANDS), ", ".join(map(str, LOADS))
    held = sum(cell.held for cell in found)
    how = f"{NODES} nodes of {CARDS} cards, {mixes} mixes, loads {loads} %; {held} of {len(found)} cells hold"
    full, row.full = row.full, True
    worst = max(found, key=lambda cell: cell.over)
    note = f"nodes in use over the most allowed, max(best fit + 1, 1.1 times best fit); {worst}; {how}"
    yield row("nodes_used_over_best_fit", worst.over, note)
    mean = statistics.mean(cell.ours / cell.best for cell in found)
    yield row("nodes_used_mean_ratio", mean, f"nodes in use over best fit's, mean of the cells; {how}")
    worst = max(found, key=lambda cell: cell.below)
    note = f"pods of a whole node that fit fewer than best fit's less max(1, 2 %); {worst}; {how}"
    yield row("nodes_whole_below_best_fit", worst.below, note)
    row.full = full
    used = [over_the_wire(repeat) for repeat in range(10 if full else 2)]
    note = (
        f"most minus least nodes in use through filter and prioritize, {len(used)} repeats with other names"
        f" and lots; {', '.join(map(str, _WIRED))} %: {max(used)} nodes"
    )
    yield row("nodes_used_spread", max(used) - min(used), note)

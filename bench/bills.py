"""What ``kubectl vcuda cost`` bills, from a real Prometheus, against what the pods held.

The use that is shown is judged in :mod:`bench.usage_error`. 200 pods of every kind of phases in five
namespaces on one node of eight cards, a third of them there for 5 to 20 seconds, in 40 minutes of modelled
time; Prometheus looks every 30 seconds. The pods go through the kubelet stand-in and the agent's own books,
sampler, meter and exporter. Three times the agent is replaced and away for 20 seconds. What was scraped is
handed to Prometheus as blocks. The oracle is the list of pods: from when to when each was there, and the
peak over its phases, worked out by hand for each kind.
"""

from __future__ import annotations

import heapq
import random
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from bench import usage_error
from bench.rows import Row
from gpu_manager.adapters import prometheus
from gpu_manager.cli.kubectl.cost import Grouping, Range, bill
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.servers.exporter import Exporter
from gpu_manager.services.billing import BillMeter
from gpu_manager.services.enforcement.usage import UsageSampler
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeCards, FakeClock, FakeStore
from tests.fakes.prometheus import Prometheus

PARTS: Final = ("hours", "usage")
PODS, NAMESPACES, SECONDS, SCRAPE = 200, 5, 2400, 30
RESTARTS, AWAY = 3, 20
_SHORT, _LONG = (5, 20), (60, 300)

# Kind: (init containers, app containers, the peak over the phases); containers are (cores, memory units).
_KINDS: Final[Mapping[str, tuple[list[tuple[int, int]], list[tuple[int, int]], int]]] = {
    "one app": ([], [(30, 10)], 30),
    "an equal init": ([(50, 10)], [(50, 10)], 50),
    "a larger init": ([(60, 20)], [(20, 10)], 60),
    "a smaller init": ([(10, 2)], [(20, 10), (15, 4)], 35),
    "three inits": ([(10, 2), (40, 4), (20, 2)], [(25, 4)], 40),
    "a whole card": ([], [(100, 0)], 100),
}


@dataclass
class _Life:
    """A pod: when it comes and goes (seconds from the start), and what it holds."""

    name: str
    kind: str
    namespace: str
    cores: int
    begins: float
    lasts: float
    began: float | None = None
    ended: float | None = None
    obj: dict[str, Any] = field(default_factory=dict)

    def make(self) -> dict[str, Any]:
        """Its object, with a new UID."""
        inits, apps, _ = _KINDS[self.kind]
        self.obj = pod(
            self.name,
            *(container(f"c{i}", *amounts) for i, amounts in enumerate(apps)),
            init=[container(f"i{i}", *amounts) for i, amounts in enumerate(inits)],
        )
        self.obj["metadata"]["namespace"] = self.namespace
        return self.obj


class _Node:
    """The agent's parts over one disk, on a clock of its own."""

    def __init__(self, rig: NodeRig, clock: FakeClock) -> None:
        self.rig, self.clock = rig, clock
        self.store = FakeStore()
        self.scraped: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = defaultdict(
            list
        )
        self.start()

    def start(self) -> None:
        rig = self.rig
        self.usage = UsageSampler(
            rig.state, FakeCards(rig.states), rig.pods, rig.tenants, rig.processes, self.clock, rig.metrics
        )
        self.meter = BillMeter(rig.state, self.usage, self.store, self.clock, rig.metrics, "boot")
        self.usage.sample()
        self.meter.restore()
        self.registry = CollectorRegistry()
        self.registry.register(Exporter(rig.state, self.usage, "", bills=lambda: self.meter.told))

    def tick(self) -> None:
        self.usage.sample()
        self.meter.look()

    def scrape(self) -> None:
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name.startswith(("vcuda_namespace_", "vcuda_pod_", "vcuda_container_core_limit")):
                    key = sample.name, tuple(sorted(sample.labels.items()))
                    self.scraped[key].append((self.clock.time, sample.value))


def _lives(choose: random.Random) -> list[_Life]:
    found = []
    for n in range(PODS):
        kind, begins = choose.choice(list(_KINDS)), choose.uniform(0, SECONDS - 400)
        lasts = choose.uniform(*(_SHORT if n % 3 == 0 else _LONG))
        found.append(_Life(f"p{n}", kind, f"team-{n % NAMESPACES}", _KINDS[kind][2], begins, lasts))
    return found


def _live(node: _Node, lives: list[_Life], choose: random.Random) -> None:
    """Everything that happens, in the order of the modelled time."""
    start = node.clock.time
    serial = iter(range(1 << 30))
    events: list[tuple[float, int, str, Any]] = []

    def at(when: float, what: str, about: Any = None) -> None:
        heapq.heappush(events, (when, next(serial), what, about))

    for life in lives:
        at(life.begins, "begin", life)
    for second in range(SECONDS + 120):
        at(second + choose.random() * 0.05, "tick")
    for look in range(0, SECONDS + 120, SCRAPE):
        at(look + 0.7, "scrape")
    away = sorted(choose.uniform(200, SECONDS - 200) for _ in range(RESTARTS))
    gone: set[str] = set()
    while events:
        when, _, what, life = heapq.heappop(events)
        node.clock.time = start + when
        absent = any(a <= when < a + AWAY for a in away)
        if absent and what == "begin":
            at(when + AWAY, what, life)  # the kubelet admits nobody without the agent
        elif what == "begin":
            _begin(node, life, when, at)
        elif what == "init done":
            if life.obj["metadata"]["uid"] not in gone:
                life.obj["status"]["initContainerStatuses"] = [
                    {"name": one["name"], "state": {"terminated": {"exitCode": 0}}}
                    for one in life.obj["spec"]["initContainers"]
                ]
                node.rig.pods.bind(parse_pod(life.obj))
        elif what == "end":
            life.ended = when
            gone.add(life.obj["metadata"]["uid"])
            node.rig.delete(life.obj)
            if not absent:
                node.meter.look()  # as the watch makes it look
        elif not absent and away and when > away[0] + AWAY:
            away.pop(0)
            node.start()
        elif not absent:
            node.tick() if what == "tick" else node.scrape()


def _begin(node: _Node, life: _Life, when: float, at: Any) -> None:
    if not node.rig.admit(life.make()).admitted:  # the node is full
        node.rig.delete(life.obj)
        at(when + 7, "begin", life)
        return
    life.began = when
    node.meter.look()  # as the change of the books makes it look
    at(when + life.lasts / 4, "init done", life)
    at(when + life.lasts, "end", life)


def _blocks(node: _Node, directory: Path) -> None:
    """What was scraped, as Prometheus keeps it."""
    lines = []
    for (name, labels), samples in sorted(node.scraped.items()):
        shown = ",".join(f'{key}="{value}"' for key, value in labels)
        lines += [f"{name}{{{shown}}} {value} {at:.3f}" for at, value in samples]
    names = sorted({name for name, _ in node.scraped})
    text = "".join(
        f"# TYPE {name} unknown\n" + "".join(f"{line}\n" for line in lines if line.startswith(f"{name}{{"))
        for name in names
    )
    source = directory / "scraped.txt"
    source.write_text(text + "# EOF\n", encoding="utf-8")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(source), str(directory / "data")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def _errors(due: Mapping[str, float], billed: Mapping[str, float]) -> float:
    """The largest, in percent of what was due."""
    return max(100 * abs(billed.get(who, 0.0) - hours) / hours for who, hours in due.items())


def rows(*, full: bool, only: str = "") -> Iterator[Row]:  # noqa: ARG001 - as every group has it
    """The rows, of one part or both; ``full`` makes no difference."""
    if only != "hours":
        yield from usage_error.rows()
    if only != "usage":
        yield from _hours()


def _hours() -> Iterator[Row]:
    """What ``cost`` bills."""
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        why = "Prometheus is not installed (Debian's package prometheus)"
        yield Row("bill_error_percent", None, "percent", "≤ 0.5", note=why)
        return
    choose = random.Random(7)
    begins = float(round(time.time()) - 2 * SECONDS)
    lives = _lives(choose)
    with tempfile.TemporaryDirectory(prefix="vcuda-bench-") as place:
        clock = FakeClock(begins)
        with NodeRig(Path(place) / "node", clock=clock) as rig:
            node = _Node(rig, clock)
            _live(node, lives, choose)
        server = Prometheus(Path(place) / "prometheus", [])
        _blocks(node, Path(place) / "prometheus")
        with server:
            way = prometheus.by_address(server.url)
            span = Range(begins - 60, clock.time)
            lines = bill(way, Grouping(("NAMESPACE",)), span)
            by_pod = bill(way, Grouping(("NAMESPACE", "POD")), span)
    due: dict[str, float] = defaultdict(float)
    for life in lives:
        if life.began is not None and life.ended is not None:
            due[life.namespace] += life.cores * (life.ended - life.began) / 3600
    billed = {line.who[0]: line.figures["core_hours"] or 0.0 for line in lines}
    summed: dict[str, float] = defaultdict(float)
    for line in by_pod:
        summed[line.who[0]] += line.figures["core_hours"] or 0.0
    note = (
        f"worst of {len(due)} namespaces, {sum(life.ended is not None for life in lives)} pods of "
        f"{len(_KINDS)} kinds of phases, a third for 5 to 20 s, scraped every {SCRAPE} s of modelled time, "
        f"{RESTARTS} replacements of the agent; {_errors(due, summed):.3f} by the sums of pods; "
        "baseline: the gauges of containers' limits, summed over the same scrapes"
    )
    by_gauge: dict[str, float] = defaultdict(float)
    for (name, labels), samples in node.scraped.items():
        if name == "vcuda_container_core_limit_ratio":
            by_gauge[dict(labels)["namespace"]] += sum(v for _, v in samples) * 100 * SCRAPE / 3600
    error = _errors(due, billed)
    yield Row(
        "bill_error_percent", round(error, 3), "percent", "≤ 0.5", round(_errors(due, by_gauge), 1), note=note
    )

"""The admission service: what a scheduler waits for; :mod:`bench.admission_program` and
:mod:`bench.admission_rate` measure it as a whole.

``extender_p99_ms_*``: one filter call with so many node names, each after a bind somewhere, from the bytes
of the question to those of the answer; the bare loop beside it reads the question and writes the names back.
``worst_legal_pod_ms``, ``worst_legal_pod_deadline_ms``: one filter call for a pod of up to the most
containers. ``extender_pair_p99_ms_*``: filter and prioritize of one pod together, on a cluster with 50,000
pods, where every twentieth pod asks for amounts that none asked for before.
"""

from __future__ import annotations

import importlib
import json
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from admission.cluster.snapshot import NODES, PODS, ClusterState
from admission.extender.binding import BindAnswer, Binder, BindOutcome, BindRules
from admission.extender.feasibility import FeasibilityJudge
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.verbs import Extender
from admission.quota.quota_book import QuotaBook
from bench import admission_program, admission_rate, books, defrag, roll_outs, simulated_pods
from bench.api_process import CARDS, MODELS, node
from bench.rows import Row, percentile
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.adapters.score_routine import roll_out_routine
from gpu_manager.domain.cluster.pod_charges import allocation_annotations, allocations_of
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.placement.place import find
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.rules.legal_values import MOST_ASKING
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.runtime.program import spare_pauses

Obj = dict[str, Any]
_SHAPES = ((10, 4), (20, 8), (30, 20), (50, 32), (70, 40), (100, 0), (200, 0), (400, 0))


class _Api:
    """Binds at once; the watch shows it at once."""

    def __init__(self, cluster: ClusterState) -> None:
        self.cluster = cluster
        self.pods: dict[tuple[str, str], Obj] = {}
        self.seconds = 0.0  # that a Binding takes

    def bind(self, pod: Pod, node: str, annotations: Mapping[str, str], seconds: float) -> BindAnswer:
        time.sleep(self.seconds)
        obj = self.pods[pod.namespace, pod.name]
        obj["metadata"]["annotations"] = {**obj["metadata"].get("annotations", {}), **annotations}
        obj["spec"]["nodeName"] = node
        self.cluster.apply(PODS, "MODIFIED", obj)
        return BindAnswer(BindOutcome.BOUND)

    def fetch(self, namespace: str, name: str) -> Pod | None:
        obj = self.pods.get((namespace, name))
        return None if obj is None else parse_pod(obj)


class Scheduler:
    """A cluster of so many nodes and the extender over it, called as kube-scheduler calls it.

    ``hurried``: a question has its deadline.
    """

    def __init__(self, nodes: int, seed: int = 0, *, hurried: bool = True) -> None:
        self.random = random.Random(seed)
        self.cluster = ClusterState(DEFAULT_UNIT)
        self.api = _Api(self.cluster)
        quota, clock = QuotaBook(), SystemClock()
        self.judge = judge = FeasibilityJudge()
        quota.update(None)
        binder = Binder(self.cluster, quota, judge, self.api, clock, BindRules(leads=lambda _seconds: True))
        self.offering = partial(
            Extender,
            self.cluster,
            quota,
            judge,
            LeastFragmentation(self.cluster, routine=roll_out_routine()),
            binder,
            clock=clock if hurried else None,
        )
        self.extender = self.offering()
        self.names = [f"node-{n:05d}" for n in range(nodes)]
        self.cluster.replace(NODES, [node(name, MODELS[n % 3]) for n, name in enumerate(self.names)])
        self.cluster.replace(PODS, [])
        self._count = 0

    def pod(self, shape: tuple[int, int] | None = None) -> Obj:
        """The next pod, known to all."""
        obj = self._made(shape)
        self.cluster.apply(PODS, "ADDED", obj)
        return obj

    def fill(self, count: int) -> int:
        """So many bound pods on nodes by chance, as a first list shows them; how many there was room for.

        Each lies where the domain's placement puts it on its node.
        """
        views, books, bound = self.cluster.snapshot().nodes, dict[str, Ledger](), []
        for _ in range(count):
            obj, name = self._made(), self.random.choice(self.names)
            pod, there = parse_pod(obj), views[name].node
            ledger = books.setdefault(name, views[name].ledger.copy())
            placement = find(judged_request(pod, there.unit), there.cards, there.topology, ledger)
            if placement is None:
                continue
            ledger.commit(tuple(allocations_of(pod, placement)))
            obj["metadata"]["annotations"] = allocation_annotations(
                pod, name, placement, there.cards, 0.0, assigned=True
            )
            obj["spec"]["nodeName"] = name
            bound.append(obj)
        self.cluster.replace(PODS, bound)
        self.judge.prepare(self.cluster.snapshot())  # as the service does each second
        return len(bound)

    def _made(self, shape: tuple[int, int] | None = None) -> Obj:
        core, memory = shape or self.random.choice(_SHAPES)
        self._count += 1
        limits = {CORE: str(core), **({MEMORY: str(memory)} if memory else {})}
        obj: Obj = {
            "metadata": {
                "name": f"pod-{self._count}",
                "namespace": f"team-{self._count % 7}",
                "uid": f"uid-{self._count}",
                "annotations": {},
            },
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": "Pending"},
        }
        self.api.pods[obj["metadata"]["namespace"], obj["metadata"]["name"]] = obj
        return obj

    def question(self, pod: Obj, names: Sequence[str]) -> bytes:
        """ExtenderArgs as kube-scheduler writes them."""
        asked = {"Pod": pod, "Nodes": None, "NodeNames": list(names)}
        return json.dumps(asked, separators=(",", ":")).encode()

    def fitting(self, question: bytes) -> list[str]:
        """Filter's answer."""
        return list(json.loads(self.extender.filter(question).body)["NodeNames"] or ())

    def best(self, question: bytes) -> str:
        """Prioritize's choice."""
        given = json.loads(self.extender.prioritize(question).body)
        return str(max(given, key=lambda entry: entry["Score"])["Host"])

    def bind(self, pod: Obj, node: str) -> str:
        """Bind's error, empty if it is bound."""
        meta = pod["metadata"]
        body = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": node,
        }
        return str(json.loads(self.extender.bind(json.dumps(body).encode()).body)["Error"])

    def place(self, pod: Obj, names: Sequence[str]) -> str:
        """All three; the conflict's words, empty if bound or if there was no room."""
        fitting = self.fitting(self.question(pod, names))
        return self.bind(pod, self.best(self.question(pod, fitting))) if fitting else ""


PARTS = ("spread", "filter", "pair", "books", "containers", "defrag", "simulate", "program", "rate")


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """The group's table, or one part of it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    parts = (only,) if only else PARTS
    if "spread" in parts:
        yield from importlib.import_module("bench.admission_spread").rows(
            full=full
        )  # it stands on this module
        yield from roll_outs.rows(full=full)
    if "filter" in parts:
        for names, bar in ((500, "≤ 25"), (5000, "≤ 60")):
            yield _latency(names, bar, full=full)
    if "pair" in parts:
        for names, bar in ((5000, "≤ 60"), (10_000, "≤ 120")):
            yield _pair(names, bar, full=full)
    if "books" in parts:
        yield from books.rows()
    if "containers" in parts:
        yield _worst_legal_pod(full=full, hurried=False)
        yield _worst_legal_pod(full=full, hurried=True)
    if "defrag" in parts:
        yield from defrag.rows()
    if "simulate" in parts:
        yield from simulated_pods.rows()
    if "program" in parts:
        yield from admission_program.rows(full=full)
    if "rate" in parts:
        yield from admission_rate.rows(full=full)


def _worst_legal_pod(*, full: bool, hurried: bool) -> Row:
    """The longest filter for pods of one to the most containers, on part-used nodes.

    ``hurried``: with the question's deadline, as the service has it; what is late is asked about again.
    """
    nodes, pods, late = 1000, 1000 if full else 200, 0
    scheduler = Scheduler(nodes, hurried=hurried)
    held = scheduler.fill(nodes * 3)
    took, waited = [], []
    for number in range(pods):
        if number % 50 == 0:
            spare_pauses()  # as the service does by itself every few seconds
        pod = scheduler.pod()
        pod["spec"]["containers"] = _containers(scheduler.random)
        scheduler.cluster.apply(PODS, "MODIFIED", pod)
        question = scheduler.question(pod, scheduler.names)
        began, clock = time.thread_time(), time.perf_counter()
        answer = scheduler.extender.filter(question).body
        took.append(time.thread_time() - began)
        waited.append(time.perf_counter() - clock)
        said = json.loads(answer)
        fitting, late = said["NodeNames"] or (), late + bool(said["Error"])
        if fitting and number % 10 == 0:  # so that the nodes change
            scheduler.bind(pod, scheduler.best(scheduler.question(pod, fitting)))
        if not pod["spec"].get("nodeName"):
            scheduler.cluster.apply(PODS, "DELETED", pod)
    kinds = len({view.kind for view in scheduler.cluster.snapshot().nodes.values()})
    deadline = f"with its deadline, {late} not judged in time" if hurried else "without its deadline"
    note = (
        f"filter's processor time {deadline}, {nodes} nodes of {kinds} kinds, {held} pods there;"
        f" {pods} random pods of"
        f" up to {MOST_ASKING} containers, p99 {percentile(took, 99) * 1e3:.1f} ms,"
        f" median {percentile(took, 50) * 1e3:.1f} ms; by the wall clock p99"
        f" {percentile(waited, 99) * 1e3:.1f} ms"
    )
    name = "worst_legal_pod_deadline_ms" if hurried else "worst_legal_pod_ms"
    return Row(name, round(max(took) * 1e3, 1), "ms", "≤ 250", None, full, note)


def _containers(chance: random.Random) -> list[Obj]:
    """Up to the most that are legal, alike or not, small or large, a few whole cards among them."""
    count, alike = chance.randint(1, MOST_ASKING), chance.random() < 0.3
    largest = chance.choice((3, 12, 99))
    wholes = chance.choice((0, 0, 1, 4))
    shape = chance.randint(1, largest), chance.randint(1, 12)
    shapes = [
        (100, 0) if at < wholes else shape if alike else (chance.randint(1, largest), chance.randint(1, 12))
        for at in range(count)
    ]
    return [
        {
            "name": f"c{at}",
            "resources": {"limits": {CORE: str(core), **({MEMORY: str(memory)} if memory else {})}},
        }
        for at, (core, memory) in enumerate(shapes)
    ]


def _pair(names: int, bar: str, *, full: bool) -> Row:
    calls = 3000 if full else 300
    scheduler = Scheduler(names)
    held = scheduler.fill(50_000)
    for _ in range(100):  # the choice among nodes learns what is asked for
        scheduler.place(scheduler.pod(), scheduler.random.sample(scheduler.names, 8))
    took, waited, service = [], [], 0.0
    for number in range(calls):
        if number % 50 == 0:
            spare_pauses()  # as the service does by itself every few seconds
        new = scheduler.random.randint(1, 99), scheduler.random.randint(1, 60)
        pod = scheduler.pod(new if number % 20 == 0 else None)
        question = scheduler.question(pod, scheduler.names)
        began = time.thread_time(), time.perf_counter(), time.process_time()
        reply = scheduler.extender.filter(question)
        first = time.thread_time() - began[0], time.perf_counter() - began[1], time.process_time() - began[2]
        second = scheduler.question(pod, json.loads(reply.body)["NodeNames"])
        began = time.thread_time(), time.perf_counter(), time.process_time()
        given = scheduler.extender.prioritize(second)
        took.append(first[0] + time.thread_time() - began[0])
        waited.append(first[1] + time.perf_counter() - began[1])
        service += first[2] + time.process_time() - began[2]
        scores = json.loads(given.body)
        scheduler.bind(pod, str(max(scores, key=lambda entry: entry["Score"])["Host"]))
    kinds = len({view.kind for view in scheduler.cluster.snapshot().nodes.values()})
    note = (
        f"filter and prioritize, processor time; {CARDS} cards a node, {held} pods there, {kinds} kinds of"
        f" nodes; every 20th pod of a new kind; median {percentile(took, 50) * 1e3:.1f} ms, most"
        f" {max(took) * 1e3:.1f} ms; wall p99 {percentile(waited, 99) * 1e3:.1f} ms; with the threads beside"
        f" {service / calls * 1e3:.1f} ms a pod; in-process"
    )
    return Row(
        f"extender_pair_p99_ms_{names}", round(percentile(took, 99) * 1e3, 1), "ms", bar, None, full, note
    )


def _latency(names: int, bar: str, *, full: bool) -> Row:
    calls = 5000 if full else 1000
    scheduler = Scheduler(names)
    held = scheduler.fill(names * 2)  # part-used, as a cluster at work is
    for _ in range(100):  # and asked before: the choice among nodes learns what is asked for
        scheduler.place(scheduler.pod(), scheduler.random.sample(scheduler.names, 8))
    spare_pauses()  # as the service does by itself
    took, bare, ranking = [], [], []
    for _ in range(calls):
        pod = scheduler.pod()
        question = scheduler.question(pod, scheduler.names)
        began = time.perf_counter()
        reply = scheduler.extender.filter(question)
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
        json.dumps({"NodeNames": json.loads(question)["NodeNames"]}).encode()
        bare.append(time.perf_counter() - began)
        fitting = json.loads(reply.body)["NodeNames"]
        second = scheduler.question(pod, fitting)
        began = time.perf_counter()
        best = scheduler.best(second)
        ranking.append(time.perf_counter() - began)
        scheduler.bind(pod, best)
    figure = percentile(took, 99) * 1e3
    note = (
        f"filter, {CARDS} cards a node, {held} pods there, median {percentile(took, 50) * 1e3:.1f} ms,"
        f" most {max(took) * 1e3:.1f} ms (the first of a new request);"
        f" prioritize p99 {percentile(ranking, 99) * 1e3:.1f} ms; in-process"
    )
    return Row(
        f"extender_p99_ms_{names}",
        round(figure, 2),
        "ms",
        bar,
        round(percentile(bare, 99) * 1e3, 2),
        full,
        note,
    )

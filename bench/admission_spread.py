"""What a pod costs the extender in a used cluster: pods on all nodes, names in another order for each pod.

``pair_cpu_ms_*``: processor time of filter, prioritize and what the service prepares after each, threads
beside included, a pod. ``best_nodes_bytes_*``: what the scheduler reads of both answers a pod where filter
offers at most 16 nodes. The nodes and pods are openb's: pods are dealt to nodes by chance until 80 % of the
cards' cores are held; then each pod that comes is bound, and one of those that run leaves. kube-scheduler's
workers append nodes as they pass its filters, so no two questions have the same order; nodes that lack host
CPU or cores in sum it leaves out itself.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from admission.cluster.snapshot import NODES, PODS
from admission.extender.verbs import Reply
from bench.admission import Scheduler
from bench.placement import data
from bench.placement.trace import Node, Pod, Trace, read
from bench.placement.wire import node_object, pod_object
from bench.rows import Row, percentile
from gpu_manager.domain.cluster.pod_charges import allocation_annotations, allocations_of
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.placement.place import find
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.runtime.program import spare_pauses

Obj = dict[str, Any]
BARS: Final = {1000: "≤ 3", 5000: "≤ 3", 10_000: "≤ 6"}  # nodes → processor time a pod, in ms
_LOAD: Final = 0.8  # of the cards' cores
_LEARNT: Final = 100  # pods before the first that counts
_BEST: Final = 16  # nodes that filter offers at most, where it offers the best alone


class UsedCluster(Scheduler):
    """openb's nodes, as often as it takes, with its pods on all of them. ``trace``: the input."""

    def __init__(self, trace: Trace, nodes: int, seed: int = 0) -> None:
        super().__init__(0, seed)
        self._able = [pod for pod in trace.pods if pod.cores]
        self._free: dict[str, list[int]] = {}  # host CPU and cores, as kube-scheduler counts them
        self._running: deque[tuple[Pod, Obj]] = deque()
        self._number = 0
        self._load(trace.nodes, nodes)

    def _load(self, kinds: Sequence[Node], nodes: int) -> None:
        some = [kinds[at % len(kinds)] for at in range(nodes)]
        self.names = [f"node-{at:05d}" for at in range(nodes)]
        objects = []
        for name, kind in zip(self.names, some, strict=True):
            objects.append(node_object(kind, name))
            self._free[name] = [kind.cpu, kind.cards * CORES_PER_CARD]
        self.cluster.replace(NODES, objects)
        views = self.cluster.snapshot().nodes
        books = {name: views[name].ledger.copy() for name in self.names}
        wanted, held, bound = _LOAD * sum(cores for _, cores in self._free.values()), 0, []
        while held < wanted:
            pod, obj = self.next()
            name = self.random.choice(self.names)
            request, node = judged_request(parse_pod(obj), views[name].node.unit), views[name].node
            placement = self._takes(name, pod) and find(request, node.cards, node.topology, books[name])
            if not placement:
                continue
            books[name].commit(tuple(allocations_of(parse_pod(obj), placement)))
            notes = allocation_annotations(parse_pod(obj), name, placement, node.cards, 0.0, assigned=True)
            obj["metadata"]["annotations"] |= notes
            obj["spec"]["nodeName"] = name
            self._put(name, pod, 1)
            bound.append((pod, obj))
            held += pod.cores
        self.random.shuffle(bound)
        self._running.extend(bound)
        self.cluster.replace(PODS, [obj for _, obj in bound])
        self.judge.prepare(self.cluster.snapshot())  # as the service does each second

    def next(self) -> tuple[Pod, Obj]:
        """One of the trace's pods that ask for cards, drawn by chance."""
        pod = self.random.choice(self._able)
        self._number += 1
        obj = pod_object(pod, self._number)
        meta = obj["metadata"]
        self.api.pods[meta["namespace"], meta["name"]] = obj
        return pod, obj

    def able(self, pod: Pod) -> list[str]:
        """The nodes that pass kube-scheduler's own filters, in the order of its workers."""
        found = [name for name in self.names if self._takes(name, pod)]
        self.random.shuffle(found)
        return found

    def turn_over(self, pod: Pod, obj: Obj, node: str) -> None:
        """The pod is bound there, and the oldest one leaves."""
        error = self.bind(obj, node)
        assert not error, error
        self._put(node, pod, 1)
        self._running.append((pod, obj))
        left, gone = self._running.popleft()
        self.cluster.apply(PODS, "DELETED", gone)
        self._put(gone["spec"]["nodeName"], left, -1)

    def _takes(self, name: str, pod: Pod) -> bool:
        cpu, cores = self._free[name]
        return cpu >= pod.shape.cpu and cores >= pod.cores

    def _put(self, name: str, pod: Pod, sign: int) -> None:
        self._free[name][0] -= sign * pod.shape.cpu
        self._free[name][1] -= sign * pod.cores


def rows(*, full: bool) -> Iterator[Row]:
    """The row of each size; without the trace, rows that say so."""
    folder = data("openb")
    for nodes, bar in BARS.items():
        if folder is None:
            yield Row(f"pair_cpu_ms_{nodes}", None, "ms", bar, None, full, "the openb trace is not here")
            continue
        files = folder / "openb_node_list_gpu_node.csv", folder / "openb_pod_list_default.csv"
        cluster = UsedCluster(read(*files), nodes)
        figure, _, note = _pairs(cluster, full=full)
        yield Row(f"pair_cpu_ms_{nodes}", figure, "ms", bar, None, full, note)
        cluster.extender = cluster.offering(best_nodes=_BEST)
        figure, received, note = _pairs(cluster, full=full)
        note = f"in place of the names of all that fit, at {figure} ms of processor time: {note}"
        yield Row(f"best_nodes_bytes_{nodes}", received, "bytes", "≤ 1000", None, full, note)


def _pairs(cluster: UsedCluster, *, full: bool) -> tuple[float, int, str]:
    """Processor time of both questions a pod in ms, bytes of both answers, and more of it in words."""
    took: list[tuple[float, float, float]] = []
    offered, received, unplaced, held = 0, 0, 0, len(cluster.cluster.snapshot().nodes)
    for number in range(_LEARNT + (2000 if full else 300)):
        if number % 50 == 0:
            spare_pauses()  # as the service does by itself every few seconds
        pod, obj = cluster.next()
        cluster.cluster.apply(PODS, "ADDED", obj)
        names = cluster.able(pod)
        filtered, first = _timed(cluster.extender.filter, cluster.question(obj, names))
        fitting = json.loads(filtered)["NodeNames"] or []
        given, second, node = b"", 0.0, "".join(fitting)
        if len(fitting) > 1:
            given, second = _timed(cluster.extender.prioritize, cluster.question(obj, fitting))
            node = max(json.loads(given), key=lambda entry: entry["Score"])["Host"]
        began = time.process_time()
        if fitting:
            cluster.turn_over(pod, obj, node)
        else:
            unplaced += 1
            cluster.cluster.apply(PODS, "DELETED", obj)
        if number >= _LEARNT:
            offered, received = offered + len(names), received + len(filtered) + len(given)
            took.append((first, second, time.process_time() - began))
    means = [sum(part) / len(took) * 1e3 for part in zip(*took, strict=True)]
    pairs = [first + second for first, second, _ in took]
    kinds = len({(view.state, view.cpu) for view in cluster.cluster.snapshot().nodes.values()})
    note = (
        f"filter {means[0]:.2f}, prioritize {means[1]:.2f}, bind and its watch events {means[2]:.2f} ms;"
        f" p99 of both {percentile(pairs, 99) * 1e3:.1f} ms; {offered / len(took):,.0f} names a question of"
        f" {held:,} nodes of {kinds:,} kinds; {len(took)} pods, {unplaced} without room; in process"
    )
    return round(means[0] + means[1], 2), received // len(took), note


def _timed(verb: Callable[[bytes], Reply], question: bytes) -> tuple[bytes, float]:
    """The answer, and its processor time with that of what the verb prepares while the scheduler reads it."""
    began = time.process_time()
    reply = verb(question)
    if reply.after is not None:
        reply.after()
    return reply.body, time.process_time() - began

"""An agent marks a pod, and the evictor evicts it: each with an account of its own, over the API stand-in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.adapters.kube.connection import connect
from gpu_manager.adapters.kube.kube import Kube
from gpu_manager.adapters.kube.reflector import Pause
from gpu_manager.adapters.kube.tasks import KubeEvictions
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.domain.contract import (
    CORE,
    EVENT_EVICTED,
    EVICT,
    EvictionMark,
    decode_eviction_mark,
    encode_eviction_mark,
)
from gpu_manager.domain.kube.evictions import RENEW_SECONDS
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.services.evictor import Evictor
from sandbox.api import StandInApi
from sandbox.api.access import AccessRules, User, service_account
from tests.fakes.open_files import open_files
from tests.fakes.waiting import PATIENCE, until

AGENT, EVICTOR = (service_account("kube-system", name) for name in ("gpu-manager", "gpu-manager-evictor"))
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "o", "controller": True}
SOON = Pause(0.01, 0.05)


class AheadClock(SystemClock):
    """The machine's clock, moved forward by hand."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def authorize(user: User, access: AccessRules) -> bool:
    """The chart's roles, as far as evictions go."""
    if access.resource == "pods/eviction":
        return user != AGENT
    return user != EVICTOR or (access.verb, access.resource) in {
        *(("list", "pods"), ("watch", "pods")),
        *(("create", "events"), ("patch", "events")),
    }


class Cluster:
    def __init__(self, api: StandInApi) -> None:
        self.api, self.clock = api, AheadClock()
        self._open: list[Kube | KubeEvictions] = []
        connection = connect(url=api.url, token="evictor")
        self.evictions = KubeEvictions(connection, self.clock, "evictor-x", pause=SOON)
        self.evictor = Evictor(self.evictions, self.clock, per_minute=10, node_per_minute=3)
        self._open.append(self.evictions)
        self.evictions.start()
        assert self.evictions.wait(PATIENCE)

    def agent(self, *, marks: bool = True) -> Kube:
        kube = Kube(
            connect(url=self.api.url, token="agent"),
            "n1",
            clock=self.clock,
            pause=SOON,
            mark_evictions=marks,
        )
        self._open.append(kube)
        kube.start()
        assert kube.pods.wait(PATIENCE)
        return kube

    def make(self, name: str = "train", **meta: object) -> Pod:
        container = {"name": "c", "image": "i", "resources": {"limits": {CORE: "100"}}}
        meta = {"name": name, "ownerReferences": [OWNER], **meta}
        spec = {"nodeName": "n1", "containers": [container]}
        made = self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        return parse_pod(made)

    def mark(self, name: str = "train") -> EvictionMark | None:
        return decode_eviction_mark(
            (self.api.get("pods", name)["metadata"].get("annotations") or {}).get(EVICT)
        )

    def deleted(self, name: str = "train") -> bool:
        return "deletionTimestamp" in self.api.get("pods", name)["metadata"]

    def close(self) -> None:
        for one in reversed(self._open):
            one.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with StandInApi(tokens={"agent": AGENT, "evictor": EVICTOR}, authorize=authorize) as api:
        made = Cluster(api)
        yield made
        made.close()


def test_the_agent_marks_and_the_evictor_evicts_and_tells(cluster: Cluster) -> None:
    agent, pod = cluster.agent(), cluster.make()
    agent.pods.evict(pod, "its card is\x1b another")
    mark = until(cluster.mark)
    assert (mark.uid, mark.reason) == (pod.uid, "its card is\\x1b another")
    until(cluster.evictions.marked)
    assert not cluster.deleted(), "the agent itself evicts nobody"
    cluster.evictor.look()
    assert cluster.deleted()
    (event,) = until(lambda: cluster.api.list("events", fields=f"reason={EVENT_EVICTED}"))
    assert event["message"] == "evicted, as the agent of node n1 asked: its card is\\x1b another"
    assert event["source"] == {"component": "gpu-manager-evictor", "host": "evictor-x"}
    used = {(a.user, a.resource) for a in cluster.api.verbs_used()}
    assert (AGENT.name, "pods/eviction") not in used


def test_a_budget_holds_a_marked_pod_and_its_mark_is_renewed_until_it_is_gone(cluster: Cluster) -> None:
    agent, pod = cluster.agent(), cluster.make(labels={"app": "web"})
    cluster.api.patch("pods", "train", {"status": {"phase": "Running"}}, subresource="status")
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}}
    cluster.api.create({**budget, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}})
    agent.pods.evict(pod, "why")
    first = until(cluster.mark)
    until(cluster.evictions.marked)
    cluster.evictor.look()
    assert not cluster.deleted()
    cluster.clock.ahead += RENEW_SECONDS + 1
    agent.pods.annotate(pod, {"wakes": "the outbox"})
    until(lambda: cluster.mark().at >= first.at + RENEW_SECONDS)
    cluster.api.delete("poddisruptionbudgets", "web")
    until(lambda: (cluster.evictor.look(), cluster.deleted())[1])


def test_an_agent_that_changes_its_mind_takes_its_mark_away(cluster: Cluster) -> None:
    agent, pod = cluster.agent(), cluster.make()
    agent.pods.evict(pod, "why")
    until(cluster.mark)
    agent.pods.evict(pod, None)
    until(lambda: cluster.mark() is None)
    until(lambda: not cluster.evictions.marked())
    cluster.evictor.look()
    assert not cluster.deleted()


@pytest.mark.parametrize("marks", [True, False])
def test_an_agent_takes_away_marks_that_it_did_not_write(cluster: Cluster, marks: bool) -> None:
    pod = cluster.make()
    text = encode_eviction_mark(EvictionMark(pod.uid, "of the run before", cluster.clock.now()))
    cluster.api.patch("pods", "train", {"metadata": {"annotations": {EVICT: text}}})
    agent = cluster.agent(marks=marks)
    until(lambda: cluster.mark() is None)
    cluster.api.patch("pods", "train", {"metadata": {"annotations": {EVICT: text}}})
    until(lambda: cluster.mark() is None)
    if marks:
        agent.pods.evict(pod, "its own")
        assert until(cluster.mark).reason == "its own"


def test_an_agent_of_a_release_without_marks_evicts_as_long_as_its_role_lets_it(cluster: Cluster) -> None:
    pod, old = (
        cluster.make(),
        Kube(connect(url=cluster.api.url, token="sandbox-admin"), "n1", clock=cluster.clock),
    )
    old.start()
    old.pods.evict(pod, "why")
    until(cluster.deleted)
    old.close()
    assert not cluster.evictions.marked()


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", json.dumps({"v": 1, "uid": "x", "reason": "r", "at": 1}), '{"v":1}', "\ud7ff" * 9],
)
def test_no_mark_costs_the_evictor_more_than_itself(cluster: Cluster, text: str) -> None:
    cluster.make("odd", annotations={EVICT: text})
    good = cluster.make("good")
    text = encode_eviction_mark(EvictionMark(good.uid, "why", cluster.clock.now()))
    cluster.api.patch("pods", "good", {"metadata": {"annotations": {EVICT: text}}})
    until(lambda: len(cluster.evictions.marked()) == 2)
    cluster.evictor.look()
    assert cluster.deleted("good")
    assert not cluster.deleted("odd")


def test_a_namesake_is_not_evicted_in_its_predecessors_place(cluster: Cluster) -> None:
    pod = cluster.make()
    cluster.api.delete("pods", "train", grace=0)
    text = encode_eviction_mark(EvictionMark(pod.uid, "why", cluster.clock.now()))
    cluster.make(annotations={EVICT: text})
    until(cluster.evictions.marked)
    cluster.evictor.look()
    assert not cluster.deleted()
    assert cluster.evictions.evict(pod) is not None, "the API server refuses it by the UID, too"
    assert not cluster.deleted()


def test_the_program_evicts_what_is_marked_opens_no_port_and_ends_by_its_signal(cluster: Cluster) -> None:
    pod = cluster.make()
    text = encode_eviction_mark(EvictionMark(pod.uid, "why", cluster.clock.now()))
    cluster.api.patch("pods", "train", {"metadata": {"annotations": {EVICT: text}}})
    command = [sys.executable, "-m", "gpu_manager", "evict-marked", f"--api-url={cluster.api.url}"]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: cluster.api.list("events", fields=f"reason={EVENT_EVICTED}"))
    assert cluster.deleted()
    sockets = set(open_files(program.pid))
    listening = {
        f"socket:[{line.split()[9]}]"
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{program.pid}/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    }
    assert not sockets & listening
    program.terminate()
    _, log = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert events == ["evictor_started", "evicted"]

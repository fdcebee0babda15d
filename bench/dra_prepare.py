"""What the kubelet waits for and what containers get: claims prepared in random order under faults, and how
long one takes beside a bare fsync.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from bench.dra_shuffle import NODE, Agent, Fuse, ShuffledNode
from bench.rows import OUTPUT, Row, file_system, in_memory, percentile
from gpu_manager.adapters.kube.claims import KubeClaims
from gpu_manager.adapters.kube.connection import connect
from gpu_manager.domain.contract import DRA_DRIVER, DRA_SOCKET
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.pb.dra.v1 import api_pb2, api_pb2_grpc
from gpu_manager.servers.dra_plugin import DraPlugin
from sandbox.api import StandInApi
from sandbox.claims import ClaimScheduler
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeProcesses

PREPARES = {False: 1_000, True: 10_000}
SEEDS = {False: 2, True: 5}
CALLS = {False: 300, True: 2_000}
_AT_ONCE = 12  # claims that are prepared at a time
_SOCKET_SECONDS = 10.0


def shuffled(*, full: bool) -> Iterator[Row]:
    """What is wrong of shuffled prepares with kills and reboots."""
    counts: Counter[str] = Counter()
    wrong = overcommit = mismatch = 0
    started = time.monotonic()
    for seed in range(SEEDS[full]):
        with in_memory() as place, ShuffledNode(place, seed) as node:
            node.run(PREPARES[full] // SEEDS[full])
            wrong, overcommit = wrong + node.wrong, overcommit + node.overcommit
            mismatch += node.mismatch
            counts += node.counts
    kills = counts["agent killed"], counts["kubelet killed"], counts["reboots"]
    note = (
        f"{counts['prepares']} prepares of claims, {SEEDS[full]} seeds; {kills[0]} kills of the agent at a "
        f"step of its own, {kills[1]} of the kubelet stand-in, {kills[2]} reboots with an emptied /run, API "
        f"faults, {counts['refused']} pods refused of schedulers that knew nothing of the others, "
        f"{counts['lingering']} claims whose processes lingered; containers judged {counts['judged']} times "
        "by what they mount (cards, amounts, ceiling, priority, preload, gates), "
        f"{counts['looks']} times ones with admin access; "
        f"{time.monotonic() - started:.0f} s"
    )
    yield Row("dra_wrong", wrong, "containers", "= 0", full=full, note=note)
    yield Row("dra_overcommit", overcommit, "instants", "= 0", full=full, note="the same run")
    yield Row("dra_cdi_mismatch", mismatch, "containers", "= 0", full=full, note="the same run")


class _TimedClaims:
    """Notes how long the API server took to answer."""

    def __init__(self, claims: KubeClaims) -> None:
        self._claims = claims
        self.seconds = 0.0

    def read(self, namespace: str, name: str) -> Any:
        started = time.perf_counter()
        try:
            return self._claims.read(namespace, name)
        finally:
            self.seconds = time.perf_counter() - started


def timed(*, full: bool) -> Row:
    """The time of NodePrepareResources over the driver's socket, books on the disk, one claim a call."""
    ours: list[float] = []
    answers: list[float] = []
    bare: list[float] = []
    OUTPUT.parent.mkdir(exist_ok=True)
    with (
        in_memory() as place,
        tempfile.TemporaryDirectory(dir=OUTPUT.parent) as disk,
        StandInApi() as api,
    ):
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        connection = connect(url=api.url)
        claims = _TimedClaims(KubeClaims(connection, DEFAULT_UNIT))
        agent = Agent(place, connection, FakeProcesses(), Fuse(), books=Path(disk), claims=claims)
        agent.publish()
        stop = threading.Event()
        plugin = DraPlugin(place, agent.state, agent.preparer, service_metrics(), stop)
        thread = threading.Thread(target=plugin.run, daemon=True)
        thread.start()
        scheduler, stub = ClaimScheduler(api), _stub(place / DRA_SOCKET)
        held: list[api_pb2.Claim] = []
        for number in range(CALLS[full] + _AT_ONCE):
            if len(held) >= _AT_ONCE:
                _unprepare(api, scheduler, stub, held.pop(0))
            claim = _claim(api, scheduler, number)
            started = time.perf_counter()
            answer = stub.NodePrepareResources(api_pb2.NodePrepareResourcesRequest(claims=[claim]))
            seconds = time.perf_counter() - started
            if answer.claims[claim.uid].error:
                raise RuntimeError(answer.claims[claim.uid].error)
            held.append(claim)
            if number >= _AT_ONCE:
                ours.append(seconds - claims.seconds)
                answers.append(claims.seconds)
                bare.append(_bare_fsync(agent.books))
        stop.set()
        thread.join(10)
        connection.close()
        kind = file_system(agent.books)
    figure, fsync = percentile(ours, 99) * 1e3, percentile(bare, 99) * 1e3
    return Row(
        "prepare_p99_over_fsync_ms",
        round(figure - fsync, 2),
        "ms",
        "≤ 5",
        baseline=round(fsync, 2),
        full=full,
        note=f"p99 {figure:.2f} without the API server's answer, beside {fsync:.2f} of the bare fsync; "
        f"medians {percentile(ours, 50) * 1e3:.2f} and {percentile(bare, 50) * 1e3:.2f}; the API server's "
        f"answer: median {percentile(answers, 50) * 1e3:.2f}, p99 {percentile(answers, 99) * 1e3:.2f} "
        f"(a stand-in); {len(ours)} calls, driver, kubelet and API server in one process; books on {kind}",
    )


def _stub(socket: Path) -> api_pb2_grpc.DRAPluginStub:
    channel = grpc.insecure_channel(f"unix://{socket}")
    grpc.channel_ready_future(channel).result(_SOCKET_SECONDS)
    return api_pb2_grpc.DRAPluginStub(channel)


def _claim(api: StandInApi, scheduler: ClaimScheduler, number: int) -> api_pb2.Claim:
    """A claim that the scheduler has allocated for a pod."""
    capacity = {"requests": {"cores": "20", "memory": "2Gi"}}
    request = {"name": "gpu", "exactly": {"deviceClassName": DRA_DRIVER, "capacity": capacity}}
    claim = api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": f"claim-{number}"},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    name = claim["metadata"]["name"]
    pod = {
        "metadata": {"name": f"pod-{number}", "namespace": "default", "uid": f"uid-{number}"},
        "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]},
    }
    if not scheduler.allocate(pod, NODE):
        raise RuntimeError("the claim does not fit: the bench holds more than the cards have")
    return api_pb2.Claim(namespace="default", uid=claim["metadata"]["uid"], name=name)


def _unprepare(
    api: StandInApi, scheduler: ClaimScheduler, stub: api_pb2_grpc.DRAPluginStub, claim: api_pb2.Claim
) -> None:
    stub.NodeUnprepareResources(api_pb2.NodeUnprepareResourcesRequest(claims=[claim]))
    scheduler.release("default", claim.name, f"uid-{claim.name.removeprefix('claim-')}")
    api.delete("resourceclaims", claim.name)


def _bare_fsync(books: Path) -> float:
    """As many bytes as the books have now, in the file system that they are in."""
    newest = max(books.glob("ledger.?"), key=lambda path: path.stat().st_mtime_ns)
    data = newest.read_bytes().rstrip(b"\0")
    handle = os.open(books / "bare", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        started = time.perf_counter()
        os.ftruncate(handle, 0)
        os.pwrite(handle, data, 0)
        os.fsync(handle)
        return time.perf_counter() - started
    finally:
        os.close(handle)

"""Claims in random order on one node, while agent and kubelet are killed at any step, and who judges them.

The agent's side is the product's, in this process: books on the disk, control pages, CDI specs, the API
server's claims over HTTP. Whatever it asks of the world is a step, at which it may die; the next agent has
what the dead one left on the disk.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

from bench.dra_deaths import Dropped, Fuse, Fused, Killed, KubeletKilled
from bench.dra_terms import BATCH, BATCH_CLASS, Terms, seen_terms, write_terms
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.kube.claims import KubeClaims, KubeSlices
from gpu_manager.adapters.kube.connection import Connection, connect
from gpu_manager.adapters.simulated import SimulatedCards
from gpu_manager.adapters.store import DiskFiles, FileStore
from gpu_manager.agent.backends import build_injector
from gpu_manager.agent.config import Config
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.device import device_names
from gpu_manager.domain.dra.sides import Front
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import DEFAULT_UNIT, ZERO, Amount, parse_quantity
from gpu_manager.ports.api_server import Claims
from gpu_manager.servers.dra_plugin import PluginCalls
from gpu_manager.services.allocation.books import Books, NodeCards
from gpu_manager.services.allocation.books_format import decode
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.claims.prepare import ClaimPreparer
from gpu_manager.services.claims.upkeep import ORDER_SECONDS, SlicePublisher
from sandbox import cdi
from sandbox.api import StandInApi
from sandbox.claims import ClaimScheduler
from sandbox.kubelet.dra import DraManager
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeClock, FakePods, FakeProcesses
from vcuda.page.layout import uuid_text
from vcuda.page.limits import read_limits

NODE, NAMESPACE, PROFILE = "bench", "default", "t4x4"
_NAMES = 24  # of claims: used again as soon as they are free, as names are
_TRIES = 6  # of the kubelet, before a pod counts as stuck; the last ones are without faults
_STEPS = 18  # most that a call takes, more or less


class Agent:
    """The DRA side of an agent, over what earlier ones left in ``place``."""

    def __init__(
        self,
        place: Path,
        connection: Connection,
        processes: FakeProcesses,
        fuse: Fuse,
        *,
        books: Path | None = None,
        claims: Claims | None = None,
    ) -> None:
        """``books`` is where they are kept, if not beside the rest; ``claims`` asks another API server."""
        cards = SimulatedCards.named(PROFILE, node=NODE)
        self.cards: tuple[CardState, ...] = tuple(cards.list())
        self.books = books or place / "ledger"
        store = FileStore(self.books, Fused(DiskFiles(), fuse))
        stored = FileStore(self.books).load()
        grants, _ = decode(stored) if stored else ((), ())
        metrics, clock = service_metrics(), FakeClock()
        node = NodeCards.of(NODE, DEFAULT_UNIT, self.cards, cards.topology())
        self.state = NodeState(Books(node, grants), store, metrics)
        settings = Config(
            NODE,
            cards=f"simulated:{PROFILE}",
            front=Front.DRA,
            state=place / "state",
            pages=place / "pages",
            cdi=place / "cdi",
        )
        asked = Fused(claims or KubeClaims(connection, DEFAULT_UNIT), fuse)
        pages = Fused(FileControlPages(place / "pages"), fuse)
        self._injector = build_injector(settings, lambda: self.cards)
        injector = Fused(self._injector, fuse)
        self.preparer = ClaimPreparer(self.state, asked, FakePods(), pages, injector, processes, metrics)
        self.calls = PluginCalls(self.preparer, metrics)
        self._clock = clock
        self._publisher = SlicePublisher(self.state, KubeSlices(connection, NODE), clock, metrics, 1)
        self.preparer.restore()

    def publish(self) -> None:
        """Publish the order of the cards as it is now, and remove what nothing names any more."""
        self._clock.pass_(ORDER_SECONDS)
        self._publisher.look()
        self._injector.prune({grant.directory for grant in self.state.view.grants.values()})


class _Line:
    """The kubelet's connection to the agent, at either end of which one may die."""

    def __init__(self, node: ShuffledNode) -> None:
        self._node = node

    def NodePrepareResources(self, request: Any, *, timeout: float) -> Any:  # noqa: N802  # the API's name
        return self._call("NodePrepareResources", request)

    def NodeUnprepareResources(self, request: Any, *, timeout: float) -> Any:  # noqa: N802
        return self._call("NodeUnprepareResources", request)

    def _call(self, name: str, request: Any) -> Any:
        node = self._node
        node.counts["calls"] += 1
        if node.kubelet_dies == "before":
            raise KubeletKilled
        try:
            answer = getattr(node.agent.calls, name)(request, None)
        except Killed as error:
            raise Dropped from error
        if node.kubelet_dies == "after":
            raise KubeletKilled
        return answer


@dataclass(slots=True)
class RunningPod:
    """A pod that was prepared: its object, and its claims."""

    obj: Mapping[str, Any]
    claims: tuple[str, ...]


class ShuffledNode:
    """One node, its API server, kubelet and agent. ``run`` shuffles; the counters say what was wrong."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self._rng = place, Random(seed)
        self._names = itertools.count()
        self.api = StandInApi()
        self.counts: Counter[str] = Counter()
        self._terms: dict[tuple[str, str], Terms] = {}  # by claim and request
        self.wrong = self.overcommit = self.mismatch = 0
        self.kubelet_dies = ""
        self._running: dict[str, RunningPod] = {}

    def __enter__(self) -> Self:
        self.api.start()
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.api.create(BATCH_CLASS)
        self._connection = connect(url=self.api.url)
        self._processes, self._fuse = FakeProcesses(), Fuse()
        self._scheduler = ClaimScheduler(self.api, seed=1)
        self._start_agent()
        self._start_kubelet()
        names = device_names([state.card for state in self.agent.cards])
        self._card_of = {name: uuid for uuid, name in names.items()}
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self.api.stop()

    def run(self, prepares: int) -> None:
        """Until so many claims were asked to be prepared."""
        while self.counts["prepares"] < prepares:
            self.agent.publish()
            kind = self._rng.random()
            if kind < 0.55:
                self._come()
            elif kind < 0.95:
                self._leave()
            elif kind < 0.97:
                self._restart_kubelet()
            elif kind < 0.99:
                self._restart_agent()
            else:
                self._reboot()
            self._judge()
        while self._running:
            self._leave()
        self._judge()
        if held := self.agent.state.view.ledger.claims:
            self.wrong += len(held)  # what nobody holds is booked
            self.counts["left over"] = len(held)

    # What happens.

    def _come(self) -> None:
        """A pod comes with claims of its own, or shares one."""
        shared = self._rng.choice(list(self._running.values())) if self._running else None
        if shared is not None and self._rng.random() < 0.1:
            names: tuple[str, ...] = shared.claims[:1]
        else:
            names = tuple(itertools.islice(self._new_claims(), self._rng.choice((1, 1, 1, 2))))
        pod = self._pod(names)
        # Sometimes the scheduler knows nothing of the others' claims: it acts on a copy that is old.
        used: Mapping[str, Mapping[str, int]] | None = {"old": {}} if self._rng.random() < 0.05 else None
        if not self._scheduler.allocate(pod, NODE, used):
            self.counts["no room"] += 1
            self._forget(RunningPod(pod, names))
            self._leave()
            return
        fits = self._fits(names)
        if self._prepare(pod, names):
            self._running[pod["metadata"]["uid"]] = RunningPod(pod, names)
            self.wrong += not fits
        else:
            self.counts["refused"] += 1
            self.wrong += fits
            self._end(RunningPod(pod, names))

    def _leave(self) -> None:
        """A pod ends; sometimes its processes take longer than its containers."""
        if not self._running:
            return
        pod = self._running[self._rng.choice(list(self._running))]
        uid = PodUid(pod.obj["metadata"]["uid"])
        alone = all(sum(name in one.claims for one in self._running.values()) == 1 for name in pod.claims)
        if alone and self._rng.random() < 0.1:
            self._processes.living.add(uid)
            try:
                self._manager.unprepare(uid)
                self.wrong += 1  # released while its processes hold the card
            except NodeUnready:
                self.counts["lingering"] += 1
            self._judge()
            self._processes.living.clear()
        del self._running[uid]  # a kubelet that starts again does not prepare it again
        self._end(pod)

    def _end(self, pod: RunningPod) -> None:
        uid = pod.obj["metadata"]["uid"]
        for attempt in range(_TRIES):
            self._risk(attempt)
            try:
                self._manager.unprepare(uid)
                break
            except (NodeUnready, KubeletKilled):
                self._recover()
        else:
            self.wrong += 1
            self.counts["stuck"] += 1
        self._recover()
        self._forget(pod)

    def _forget(self, pod: RunningPod) -> None:
        """Its objects go, but claims that others use."""
        uid = pod.obj["metadata"]["uid"]
        self.api.delete("pods", pod.obj["metadata"]["name"], grace=0)
        for name in pod.claims:
            self._scheduler.release(NAMESPACE, name, uid)
            claim = self.api.get("resourceclaims", name)
            if claim is not None and not (claim.get("status") or {}).get("reservedFor"):
                self.api.delete("resourceclaims", name)

    def _prepare(self, pod: Mapping[str, Any], names: Sequence[str]) -> bool:
        """As the kubelet: again and again. False if it is refused to the last."""
        for attempt in range(_TRIES):
            self.counts["prepares"] += len(names)
            self._risk(attempt)
            try:
                self._manager.prepare(pod)
                self._recover()
                return True
            except (NodeUnready, KubeletKilled):
                self._recover()
        return False

    def _risk(self, attempt: int) -> None:
        """Something may happen to this call."""
        self._fuse.left, self.kubelet_dies = -1, ""
        if attempt >= _TRIES // 2:
            return
        kind = self._rng.random()
        if kind < 0.2:
            self._fuse.left = self._rng.randrange(_STEPS)
        elif kind < 0.3:
            self.kubelet_dies = self._rng.choice(("before", "after"))
        elif kind < 0.35:
            self.api.fail(1, 503, match="get resourceclaims")
        elif kind < 0.4:
            self.api.cut(1, match="get resourceclaims", after=True)

    def _recover(self) -> None:
        """Who died is started again."""
        self.api.faults.clear()
        if self._fuse.burnt:
            self.counts["agent killed"] += 1
            self._restart_agent()
        if self.kubelet_dies:
            self.counts["kubelet killed"] += 1
            self._restart_kubelet()
        self._fuse.left, self.kubelet_dies = -1, ""

    def _start_agent(self) -> None:
        self._fuse.left, self._fuse.burnt = -1, False
        self.agent = Agent(self.place, self._connection, self._processes, self._fuse)
        self.agent.publish()

    def _start_kubelet(self) -> None:
        self._manager = DraManager(self.place, lambda _, name: self.api.get("resourceclaims", name))
        self._manager.connect(DRA_DRIVER, _Line(self))

    def _restart_agent(self) -> None:
        """It may die in its start, too."""
        if self._rng.random() < 0.2:
            self._fuse.left, self._fuse.burnt = self._rng.randrange(_STEPS), False
            try:
                Agent(self.place, self._connection, self._processes, self._fuse)
            except Killed:
                self.counts["agent killed"] += 1
        self._start_agent()

    def _restart_kubelet(self) -> None:
        """It prepares the claims of every pod again."""
        self.kubelet_dies = ""
        self._start_kubelet()
        for pod in self._running.values():
            self.wrong += not self._prepare_again(pod)

    def _prepare_again(self, pod: RunningPod) -> bool:
        self.counts["prepares"] += len(pod.claims)
        try:
            self._manager.prepare(pod.obj)
        except NodeUnready:
            self.counts["not prepared again"] += 1
            return False
        return True

    def _reboot(self) -> None:
        """All processes end, and what lies in memory is gone."""
        self.counts["reboots"] += 1
        for gone in ("pages", "cdi"):
            shutil.rmtree(self.place / gone, ignore_errors=True)
        self._restart_agent()
        self._restart_kubelet()

    # Objects.

    def _new_claims(self) -> Iterator[str]:
        taken = {claim["metadata"]["name"] for claim in self.api.list("resourceclaims")}
        free = [name for name in (f"claim-{n}" for n in range(_NAMES)) if name not in taken]
        self._rng.shuffle(free)
        for name in free or [f"claim-{next(self._names)}-more"]:
            requests = [self._request(f"r{n}") for n in range(self._rng.choice((1, 1, 1, 2)))]
            written = {one["name"]: write_terms(self._rng, one) for one in requests}
            self._terms |= {(name, request): terms for request, (_, terms) in written.items()}
            config = [said for said, _ in written.values() if said is not None]
            self.api.create(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaim",
                    "metadata": {"name": name},
                    "spec": {"devices": {"requests": requests, "config": config}},
                }
            )
            yield name

    def _request(self, name: str) -> dict[str, Any]:
        exactly: dict[str, Any] = {"deviceClassName": self._rng.choice((DRA_DRIVER, DRA_DRIVER, BATCH))}
        if self._rng.random() < 0.9:
            cores, units = self._rng.choice((5, 10, 20, 30, 60)), self._rng.randint(1, 16)
            requests = {"cores": str(cores), "memory": f"{units * 256}Mi"}
            exactly["capacity"] = {"requests": requests}
        if self._rng.random() < 0.1:
            exactly["count"] = 2
        if self._rng.random() < 0.1:
            exactly["adminAccess"] = True
        return {"name": name, "exactly": exactly}

    def _pod(self, names: Sequence[str]) -> Mapping[str, Any]:
        containers = []
        for name in names:
            claim = self.api.get("resourceclaims", name) or {"spec": {"devices": {"requests": ()}}}
            for request in claim["spec"]["devices"]["requests"]:
                for copy in range(self._rng.choice((1, 1, 2))):
                    asked = {"name": name, "request": request["name"]}
                    containers.append(
                        {
                            "name": f"{name}-{request['name']}-{copy}",
                            "image": "x",
                            "resources": {"claims": [asked]},
                        }
                    )
        spec = {
            "containers": containers,
            "resourceClaims": [{"name": name, "resourceClaimName": name} for name in names],
        }
        meta = {"name": f"pod-{next(self._names)}", "namespace": NAMESPACE}
        return self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    # Judgement: by what containers would mount, never by the agent's books.

    def _results(self, name: str) -> Sequence[Mapping[str, Any]]:
        claim = self.api.get("resourceclaims", name)
        allocation = ((claim or {}).get("status") or {}).get("allocation") or {}
        results: Sequence[Mapping[str, Any]] = (allocation.get("devices") or {}).get("results") or ()
        return results

    def _fits(self, names: Sequence[str]) -> bool:
        """True if what these claims were allocated has room beside all that is held."""
        sums = {state.card.uuid: ZERO for state in self.agent.cards}
        held = {name for one in self._running.values() for name in one.claims}
        for name in held.union(names):
            for result in self._results(name):
                sums[self._card_of[result["device"]]] += _amount(result)
        return all(sums[state.card.uuid].fits_in(_room(state)) for state in self.agent.cards)

    def _judge(self) -> None:
        """Every container that runs now."""
        held: dict[str, dict[CardUuid, Amount]] = {}  # the pages that are mounted → what they grant
        owners: dict[str, tuple[str, str]] = {}
        known = cdi.read_specs(self.place / "cdi")
        for pod in self._running.values():
            for container in pod.obj["spec"]["containers"]:
                asked = container["resources"]["claims"][0]
                owner = asked["name"], asked["request"]
                try:
                    devices = self._manager.cdi_devices(pod.obj, container["name"])
                    edits = cdi.resolve(known, devices)
                except NodeUnready:
                    devices = ()
                if not devices:  # it has nothing of what it asked for
                    self.mismatch += 1
                    continue
                page, given = self._given(edits)
                wanted = {
                    self._card_of[one["device"]]: _amount(one)
                    for one in self._results(owner[0])
                    if one["request"] == owner[1]
                }
                self.wrong += given != wanted
                self.wrong += bool(page) and seen_terms(edits, page) != self._terms[owner]
                self.mismatch += owners.setdefault(page or devices[0], owner) != owner
                held[page or devices[0]] = given
                self.counts["judged"] += 1
                self.counts["looks"] += ZERO in wanted.values()
        for state in self.agent.cards:
            sums = sum((given.get(state.card.uuid, ZERO) for given in held.values()), ZERO)
            self.overcommit += not sums.fits_in(_room(state))

    def _given(self, edits: cdi.ContainerEdits) -> tuple[str, dict[CardUuid, Amount]]:
        """The page that a container mounts, and what it grants; whole cards have none."""
        page = edits.mounts.get("/etc/vcuda/limits", "")
        if not page:
            whole = {state.card.uuid: _room(state) for state in self.agent.cards}
            cards = edits.env["VCUDA_CARDS"].split(",")
            return "", {CardUuid(uuid): whole[CardUuid(uuid)] for uuid in cards}
        try:
            limits = read_limits(Path(page).read_bytes())
        except OSError:
            return page, {}
        return page, {
            CardUuid(uuid_text(card.uuid)): Amount(int(card.core_limit or 0), int(card.memory_limit or 0))
            for card in limits.cards
        }


def _room(state: CardState) -> Amount:
    return state.card.capacity(DEFAULT_UNIT)


def _amount(result: Mapping[str, Any]) -> Amount:
    """What the container is to have; admin access is to have a page of nothing."""
    if result.get("adminAccess"):
        return ZERO
    consumed = result["consumedCapacity"]
    return Amount(int(parse_quantity(consumed["cores"])), int(parse_quantity(consumed["memory"])))

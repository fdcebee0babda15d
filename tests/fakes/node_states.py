"""A node that is not ours for long: its driver comes and goes, another plugin is beside, its toolkit changes.

The agent's services run on a modelled clock, with the kubelet's stand-in and a driver made of files. A scheduler
binds a pod only where the agent's published state has room for it.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu_manager.adapters.driver_files.device_nodes import DeviceNodes
from gpu_manager.adapters.driver_files.driver import multiarch
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.injector import DriverFiles
from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import DoesNotFit, NodeUnready
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.place import place
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.rules.pod_request import bound_request
from gpu_manager.ports.control_pages import Limit
from gpu_manager.services.allocation.prestart import PreStart
from gpu_manager.services.cards.closed_cards import InjectionWatch, OtherPlugins
from gpu_manager.services.cards.health import Health
from gpu_manager.services.recovery.repairs import InjectionKeeper
from tests.component.driver_roots import DriverRoot, Objects
from tests.fakes.direct import DirectRig
from tests.fakes.injected import Place
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeCards, FakeClock, FakeNodeObject, FakeTenants

CARDS = tuple(
    CardState(Card(i, CardUuid(f"GPU-{i:08x}-0000-4000-8000-000000000000"), "A100", 16 * GIB, minor=i))
    for i in range(4)
)
_SHAPES = ((30, 8), (60, 20), (10, 4), (3, 1), (100, 0), (90, 40))
_LIBRARIES = f"usr/lib/{multiarch()}"
_STEPS = 30
EVENTS = (
    "driver gone",
    "driver back",
    "uvm missing",
    "uvm listed",
    "plugin beside",
    "plugin gone",
    "container restarted",
    "toolkit changed",
    "pod ended",
)
_MENDS = frozenset(("driver back", "uvm listed", "plugin gone", "pod ended"))


class _Pages(FakeTenants):
    """Pages as files, which the injector asks for."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def open(self, name: str, limits: Sequence[Limit]) -> None:
        super().open(name, limits)
        (self._directory / name).mkdir(parents=True, exist_ok=True)
        for page in ("limits", "usage"):
            (self._directory / name / page).touch()


class _Asked:
    """What the allocator calls when a container could not be injected."""

    def __init__(self, look: Callable[[], object]) -> None:
        self.append = lambda _: look()


class ChangingNode(DirectRig):
    """``failed`` are pods that the kubelet refused for good, ``bare`` containers that started without what their
    card needs; ``done`` counts what happened.
    """

    def __init__(self, directory: Path, objects: Objects, seed: int) -> None:
        self.rng = random.Random(seed)
        self.own = Place(directory / "agent") if (directory / "agent").mkdir(parents=True) is None else None
        self.root = DriverRoot(directory / "node", objects)
        self.root.install()
        self.root.nodes(range(len(CARDS)))
        self.proc = directory / "proc"
        self.proc.mkdir()
        self.strategy = self.rng.choice((Strategy.DIRECT, Strategy.CDI))
        self.foreign: dict[str, list[str]] = {}
        self.waiting: list[dict[str, Any]] = []
        self.placed: dict[str, tuple[dict[str, Any], tuple[CardUuid, ...]]] = {}
        self.unstarted: set[str] = set()
        self.failed: list[str] = []
        self.bare: list[str] = []
        self.done: Counter[str] = Counter()
        self.clock_ = FakeClock()
        self._announced: Any = None
        super().__init__(directory / "kubelet", states=CARDS, clock=self.clock_, seed=seed)
        self.tenants = _Pages(self.own.pages)

    # The agent.

    def start_agent(self, *, wait: bool = True) -> None:
        host = HostFiles(self.root.root)
        nodes = DeviceNodes(host, "/", proc=self.proc, mknod=lambda path, *_: path.write_text(""))
        self.injector = DriverFiles(  # type: ignore[assignment]  # in place of the fake
            self.strategy,
            cards=lambda: self.state.node.cards,
            state=self.own.state,
            pages=self.own.pages,
            libraries=self.own.package,
            host=host,
            cdi_dir=self.own.cdi,
            nodes=nodes,
        )
        self.injector.lacking = ""  # type: ignore[attr-defined]  # the rig's own question
        self.health = Health(FakeCards(CARDS), FakeNodeObject(), self.clock_)
        self.health.discover()
        self.watch = InjectionWatch(self.injector, self.health, self.metrics)  # type: ignore[arg-type]
        self.not_injected = _Asked(self.probe)  # type: ignore[assignment]
        self.others = OtherPlugins(
            lambda: self.foreign, self.health, lambda *_: None, self.clock_, lambda *_: None
        )
        self.others.look()
        self.watch.look()
        self.health.settle()
        self.states = self.health.states()
        super().start_agent(wait=wait)
        self.health.subscribe(lambda states: self.state.refit(states, self.topology))
        self.keeper = InjectionKeeper(self.state, self.pods, self.injector, self.clock_, lambda: None)  # type: ignore[arg-type]
        self.keeper.look()

    def _serve(self, proof: PreStart) -> None:
        proof.not_injectable = self.watch.why_not
        super()._serve(proof)

    def probe(self) -> None:
        """The agent looks whether it can inject, and tells."""
        self.watch.look()
        self.settle()

    def settle(self) -> None:
        self.health.settle()
        if self.state.offer != self._announced:
            self._announced = self.state.offer
            self.plugin.announce()
            self.kubelet.publish_node()

    def second(self) -> None:
        """One second passes for the agent's threads."""
        self.clock_.pass_(1)
        self.others.look()
        self.keeper.look()
        self.probe()

    # What happens to the node.

    def events(self) -> dict[str, Callable[[], object]]:
        """What may happen next, by name; a node is mended sooner than it breaks."""
        here = (self.root.root / _LIBRARIES / "libcuda.so.1").exists()
        uvm = (self.root.root / "dev/nvidia-uvm").exists()
        return {
            **({"driver gone": self._drop_driver} if here else {"driver back": self._bring_driver}),
            **({"uvm missing": self._drop_uvm} if uvm else {"uvm listed": self._list_uvm}),
            **({"plugin gone": self.foreign.clear} if self.foreign else {"plugin beside": self._plugin}),
            "container restarted": self._restart_container,
            "toolkit changed": self._change_toolkit,
            "pod ended": self._end_pod,
        }

    def _drop_driver(self) -> None:
        place = self.root.root / _LIBRARIES
        place.rename(place.with_name("away"))

    def _bring_driver(self) -> None:
        place = self.root.root / _LIBRARIES
        shutil.rmtree(place, ignore_errors=True)
        place.with_name("away").rename(place)

    def _drop_uvm(self) -> None:
        (self.proc / "devices").unlink(missing_ok=True)
        (self.root.root / "dev/nvidia-uvm").unlink()

    def _list_uvm(self) -> None:
        (self.proc / "devices").write_text("Character devices:\n195 nvidia\n236 nvidia-uvm\n")

    def _plugin(self) -> None:
        count = self.rng.randint(1, len(CARDS))
        self.foreign["nvidia.com/gpu"] = [str(s.card.uuid) for s in self.rng.sample(CARDS, count)]

    def _change_toolkit(self) -> None:
        self.strategy = Strategy.CDI if self.strategy is Strategy.DIRECT else Strategy.DIRECT
        self.restart_agent()
        self.settle()

    def _restart_container(self) -> None:
        running = [uid for uid in self.placed if self.kubelet.running(uid)]
        if running:
            uid = self.rng.choice(running)
            self.kubelet.stop_container(uid, "c")
            self.unstarted.add(uid)

    def _end_pod(self) -> None:
        if self.placed:
            uid = self.rng.choice(sorted(self.placed))
            obj, _ = self.placed.pop(uid)
            self.unstarted.discard(uid)
            self.kubelet.finish(uid)
            self.kubelet.delete(uid)
            self.pods.forget(f"default/{obj['metadata']['name']}")
            self.reclaimer.look()

    # What the cluster does.

    def create(self) -> None:
        cores, units = self.rng.choice(_SHAPES)
        self.waiting.append(pod(f"p{self.done['created']}", container("c", cores, units)))
        self.done["created"] += 1

    def bind(self) -> None:
        """Bind what has room by the agent's published state; the rest waits."""
        for obj in list(self.waiting):
            view = self.state.view
            request = bound_request(self.parsed(obj))
            allocatable, asked = self.kubelet.allocatable(), request.containers[0].request
            try:
                found = place(request, view.node.cards, self.topology, view.ledger)["c"]
            except DoesNotFit:
                self.done["waited"] += 1
                continue
            if allocatable.get(CORE, 0) < asked.cores or (asked.memory and not allocatable.get(MEMORY)):
                continue
            self.waiting.remove(obj)
            shares = [(view.node.card(s.card), s.amount.cores, s.amount.memory) for s in found]
            made = pod(obj["metadata"]["name"], *obj["spec"]["containers"], on={"c": shares})
            uid = made["metadata"]["uid"]
            result = self.admit(made)
            if not result.admitted:
                self.failed.append(f"{self.done['created']}: {result.message}")
                continue
            held = self.state.view.grants[PodUid(uid), "c"]
            self.placed[uid] = made, held.allocation.cards
            self.unstarted.add(uid)
            self.done["admitted"] += 1

    def start(self) -> None:
        """The kubelet starts what is to be started; what is refused is tried again."""
        for uid in sorted(self.unstarted):
            try:
                given = self.kubelet.start_container(uid, "c")
            except NodeUnready:
                self.done["start waited"] += 1
                continue
            self.unstarted.discard(uid)
            self.done["started"] += 1
            if wrong := self._lacks(given, self.placed[uid][1]):
                self.bare.append(f"{uid}: {wrong}")

    def _lacks(self, given: Any, cards: Sequence[CardUuid]) -> str:
        """What the container was to be given and that is not there, as the runtime finds it."""
        files = [m.host_path for m in given.mounts]
        nodes = [d.host_path for d in given.devices]
        for name in [f.name for f in given.cdi_devices]:
            spec = self.own.cdi / f"tencent.com-vcuda_{name.partition('=')[2].removeprefix('a-')}.json"
            if not spec.exists():
                return f"no spec {spec.name}"
            text = spec.read_text()
            nodes += [f"/dev/nvidia{s.card.minor}" for s in CARDS if f'"/dev/nvidia{s.card.minor}"' in text]
        wanted = {f"/dev/nvidia{s.card.minor}" for s in CARDS if s.card.uuid in cards}
        if not wanted <= set(nodes):
            return f"{wanted} are not given, but {nodes}"
        missing = [path for path in (*files, *nodes) if not self._there(path)]
        return f"missing {missing}" if missing else ""

    def _there(self, path: str) -> bool:
        """The agent's own files have the same path on the node; its links lead to the node's files."""
        own = Path(path)
        if own.is_relative_to(self.own.base) and not own.is_symlink():
            return own.exists()
        return (self.root.root / str(own.readlink() if own.is_symlink() else own).lstrip("/")).exists()

    # The whole.

    def run(self) -> list[str]:
        """One random order of events; what went wrong."""
        for _ in range(_STEPS):
            events = self.events()
            weights = [3 if name in _MENDS else 1 for name in events]
            (name,) = self.rng.choices(list(events), weights)
            events[name]()
            self.done[name] += 1
            if self.rng.random() < 0.5:
                self.create()
                self.bind()  # at the worst moment: the agent has not looked yet
            self.start()
            for _ in range(self.rng.randint(1, 4)):
                self.second()
                if len(self.waiting) < 6:
                    self.create()
                self.bind()
                self.start()
        return [*self.failed, *self.bare, *self._settled()]

    def _settled(self) -> list[str]:
        """With the node whole again for a minute, nothing is left over: each container runs, and pods that have
        room are placed.
        """
        for name in ("driver back", "uvm listed", "plugin gone"):
            self.events().get(name, lambda: None)()
        for _ in range(20):
            self.second()
            self.bind()
            self.start()
        return [f"{uid} never started" for uid in sorted(self.unstarted)] + [
            f"card {s.card.index} stays closed: {s.reason}" for s in self.health.states() if not s.healthy
        ]

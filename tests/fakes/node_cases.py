"""Cases of nodes that were reported in public, one file or directory each, and what the product should make of them.

The folder lies beside the checkout, where there is one; what is right stands here, not in its files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_manager.adapters.diagnosis.machine import gather_kubelet, gather_runtime
from gpu_manager.adapters.driver_files.device_nodes import DeviceNodes
from gpu_manager.adapters.driver_files.driver import DriverFinder
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.node_config import runtime_socket
from gpu_manager.adapters.kubelet.checkpoint import FILE_NAME, parse_checkpoint
from gpu_manager.adapters.manifests import read_manifests
from gpu_manager.adapters.nvml.cards import NvmlCards
from gpu_manager.cli.kubectl.migrate.command import migrate
from gpu_manager.cli.kubectl.migrate.model import MigrationTerms
from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.contract import KUBELET_DIR
from gpu_manager.domain.doctor import NODE_CHECKS, examine
from gpu_manager.domain.doctor.facts import Facts
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid, parse_pod
from gpu_manager.domain.other_plugins import offered_elsewhere
from gpu_manager.domain.placement.card_sets import best_set
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.placement.place import judge
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, MIB
from gpu_manager.domain.rules.legal_values import check_pod, warn_pod
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.topology import Link, LinkKind, Topology, parse_topology
from gpu_manager.services.cards.closed_cards import MemoryOutside
from gpu_manager.services.cards.health import Health
from gpu_manager.services.enforcement.usage_sample import Sample
from tests.component.driver_roots import DriverRoot, Objects
from tests.fakes.nvml import FakeNvml, Gpu
from tests.fakes.ports import FakeClock, FakeNodeObject

FOLDER = Path(__file__).parents[2].parent / "shared/cases/node"
DCGM_PAGE = Path(__file__).parents[2] / "docs/dcgm.md"
GKE = "/home/kubernetes/bin/nvidia"

Judge = Callable[[Path], str]
"""What is wrong of a case; empty if the product's answer is right."""


class Host:
    """All processes are the node's own."""

    def in_no_pod(self, pid: int) -> bool | None:
        return True


def driver(path: Path) -> FakeNvml:
    """The driver that a case describes: a word and its values a line."""
    gpus: list[Gpu] = []
    for words in (line.split() for line in path.read_text().splitlines() if line and line[0] != "#"):
        if words[0] == "count":
            gpus = [Gpu(i, total=16 * GIB, reserved=0, used=0) for i in range(int(words[1]))]
        elif words[0] == "computemode":
            for gpu in gpus:
                gpu.compute_mode = int(words[1])
        elif words[0] == "card":
            _card(gpus[int(words[1])], words[2], words[3:])
    return FakeNvml(*gpus)


def _card(gpu: Gpu, what: str, values: list[str]) -> None:
    if what == "name":
        gpu.name = " ".join(values)
    elif what in ("mem", "used"):
        setattr(gpu, {"mem": "total"}.get(what, what), int(values[0]) * MIB)
    elif what == "proc":
        gpu.compute[4242] = int(values[1]) * MIB
    else:
        gpu.fail[{"memret": "memory", "procret": "processes_v3"}[what]] = int(values[0])


def _cards(path: Path) -> NvmlCards:
    return NvmlCards(driver(path), sysfs=Path("/nonexistent"))


def whole_alone(path: Path) -> str:
    """Every card is open, and closed to fractions with a reason."""
    states = _cards(path).list()
    part = ContainerRequest("c", ContainerKind.APP, 0, Request(30, GIB))
    whole = ContainerRequest("c", ContainerKind.APP, 0, Request(100, 0))
    ledger = Ledger([s.card for s in states], DEFAULT_UNIT)
    links = Topology.uniform(len(states), Link(LinkKind.SYS))
    refused = str(judge(PodRequest(PodUid("p"), (part,)), states, links, ledger))
    given = judge(PodRequest(PodUid("p"), (whole,)), states, links, ledger)
    if not all(s.open and s.card.whole_only for s in states) or "given whole alone" not in refused:
        return f"a fraction is answered: {refused}"
    return "" if isinstance(given, dict) else f"a whole card is refused: {given}"


def withdrawn(path: Path) -> str:
    """What is held outside is no longer offered after ten seconds."""
    cards, clock = _cards(path), FakeClock()
    health = Health(cards, FakeNodeObject(), clock)
    health.discover()
    watch = MemoryOutside(Host(), health, clock)
    for _ in range(12):
        uses, listed = cards.usage()
        watch.look(Sample(clock.monotonic(), cards={u.uuid: u for u in uses}, listed=listed))
        clock.pass_(1)
    health.settle()
    rooms = [s.card.capacity(DEFAULT_UNIT).memory >> 20 for s in health.states()]
    return "" if all(0 < room <= 15360 - 13000 for room in rooms) else f"{rooms} MiB are offered"


def found_by_itself(path: Path) -> str:
    """The driver of GKE is found without being told; without it nothing can be injected, with the cure."""
    if not _cards(path).list():
        return "no card is listed"
    with TemporaryDirectory(prefix="vcuda-case-") as place:
        node = DriverRoot(Path(place) / "node", Objects(Path(place)))
        host, links = HostFiles(node.root), Path(place) / "links"
        node.nodes(range(1))
        for found in (False, True):
            if found:
                node.install(f"{GKE}/lib64")
            try:
                DriverFinder(host, "/", links).find()
                DeviceNodes(host, "/").require("nvidiactl", "nvidia-uvm")
            except NodeUnready as error:
                if found or "--driver-root" not in str(error):
                    return str(error)
            else:
                if not found:
                    return "a node without a driver can inject"
    return ""


def by_number(path: Path) -> str:
    """Every id names the card of that minor number."""
    cards = [Card(i, CardUuid(f"GPU-{i}"), "L4", 24 * GIB, minor=1 - i) for i in range(2)]
    wrong = []
    for line in filter(None, path.read_text().splitlines()):
        what, resource, device = line.split("\t")
        if offered_elsewhere({resource: [device]}, cards) != {CardUuid("GPU-1"): resource}:
            wrong.append(what)
    return ", ".join(wrong)


def root(
    strategy: str, *finds: str, silent: tuple[str, ...] = (), why: str = "", told: str = "auto"
) -> Judge:
    """The strategy that is chosen, and findings of the doctor that are there, or not."""

    def judged(path: Path) -> str:
        with TemporaryDirectory(prefix="vcuda-case-") as place:
            node, away = Path(place) / "node", Path(place) / "proc"
            shutil.copytree(path, node)
            if path.name == "k0s-root-dir":
                _kubelet(away, "--root-dir=/var/lib/k0s/kubelet")
            host = HostFiles(node)
            runtime = gather_runtime(host, runtime_socket(host, KUBELET_DIR, away), sysfs=node)
            kubelet = gather_kubelet(host, KUBELET_DIR, policy=told, sysfs=node, proc=away)
        found = {
            f.check.id for f in examine(Facts(0.0, runtime=runtime, kubelet=kubelet), NODE_CHECKS).findings
        }
        if strategy not in ("", runtime.strategy) or why not in f"{runtime.why} {runtime.broken}":
            return f"{runtime.strategy}: {runtime.why} {runtime.broken}"
        missing, loud = set(finds) - found, found & set(silent)
        return f"the doctor lacks {sorted(missing)}, cries {sorted(loud)}" if missing or loud else ""

    return judged


def _kubelet(proc: Path, *words: str) -> None:
    (proc / "812").mkdir(parents=True)
    (proc / "812/comm").write_text("kubelet\n")
    (proc / "812/cmdline").write_text("\0".join(("kubelet", *words)) + "\0")


def picked(pick: int, busy: int | None, *cards: int) -> Judge:
    """The best set of so many cards."""

    def judged(path: Path) -> str:
        parsed = parse_topology(path.read_text())
        free = frozenset(range(parsed.topology.size)) - {busy}
        found = best_set(parsed.topology, free, pick, parsed.nodes)
        return "" if found == cards else f"cards {found} are picked, of NUMA nodes {parsed.nodes}"

    return judged


def checkpoint(*finds: str, entries: int) -> Judge:
    """What the doctor says of a kubelet's checkpoint, and how many entries of NVIDIA's plugin it has."""

    def judged(path: Path) -> str:
        text = path.read_bytes()
        with TemporaryDirectory(prefix="vcuda-case-") as place:
            plugins = Path(place) / KUBELET_DIR.lstrip("/") / "device-plugins"
            plugins.mkdir(parents=True)
            data = json.loads(text)
            data["Data"]["RegisteredDevices"].setdefault("tencent.com/vcuda-core", ["a"])
            (plugins / FILE_NAME).write_text(json.dumps(data))
            facts = gather_kubelet(HostFiles(Path(place)), KUBELET_DIR, sysfs=Path(place), proc=Path(place))
        found = {f.check.id for f in examine(Facts(0.0, kubelet=facts), NODE_CHECKS).findings}
        read = parse_checkpoint(text, ["nvidia.com/gpu"])
        right = {"two-plugins"} & found == set(finds) and len(read) == entries
        return "" if right else f"findings {sorted(found)}, {len(read)} entries"

    return judged


def checked(*rules: tuple[str, ...]) -> Judge:
    """The rules that each manifest breaks or is warned by, in the file's order."""

    def judged(path: Path) -> str:
        told = tuple(_rules(manifest.pod) for manifest in read_manifests(path.read_bytes()) if manifest.pod)
        return "" if told == rules else f"{told}"

    return judged


def _rules(pod: Mapping[str, object]) -> tuple[str, ...]:
    try:
        parsed = parse_pod(pod)
    except RequestInvalid:
        return ("pod-unreadable",)
    found = (*check_pod(parsed, DEFAULT_UNIT, 1), *warn_pod(parsed, DEFAULT_UNIT))
    return tuple(sorted({one.rule.id for one in found}))


def migrated(path: Path) -> str:
    """A file for another system is answered, its shares translated or named as left."""
    return "" if migrate(path.name, path.read_bytes(), MigrationTerms()).findings else "nothing is said"


def join(path: Path) -> str:
    """The page's join is the one that holds where a card has two series."""
    return (
        "" if "max by (uuid) (label_replace(DCGM" in DCGM_PAGE.read_text() else "the page joins many to one"
    )


CASES: Mapping[str, Judge] = {
    "nvml/gke-l4.conf": found_by_itself,
    "nvml/exclusive-process.conf": whole_alone,
    "nvml/gb10.conf": whole_alone,
    "nvml/host-process.conf": withdrawn,
    "other-plugin-ids.tsv": by_number,
    "roots/toolkit-hardened": root("direct", silent=("cgroup-driver-differs",), why="unprivileged pods"),
    "roots/ctk-default-only-nvidia": root(
        "nvidia", "devices-lost-on-reload", silent=("cgroup-driver-differs",)
    ),
    "roots/aks-dropin-v4-over-root-v2": root(
        "direct",
        "runtime-config-broken",
        silent=("default-runtime-wrong", "cgroup-driver-differs"),
        why="is of version 4, above the 2 of",
    ),
    "roots/containerd-v4-own-socket": root(
        "cdi", silent=("cgroup-driver-differs", "runtime-not-found"), why="version 4"
    ),
    "roots/k0s-root-dir": root("", silent=("pod-resources-absent", "kubelet-socket-absent")),
    "roots/kubelet-restricted": root("", "topology-policy-differs", told="none"),
    "topo/v100-hgx2-16.txt": picked(8, 0, *range(8, 16)),
    "topo/b200-nic11-nic12-glued.txt": picked(4, 0, 4, 5, 6, 7),
    "topo/b200-card2-off-fabric.txt": picked(7, None, 0, 1, 3, 4, 5, 6, 7),
    "topo/b200-nic11-glued-to-cpu-affinity.txt": picked(2, 0, 2, 3),
    "topo/h100-tabs-nic8nic9-glued.txt": picked(4, 0, 4, 5, 6, 7),
    "topo/h20-42nics.txt": picked(4, 0, 4, 5, 6, 7),
    "checkpoints/nvidia-plugin-just-removed.json": checkpoint(entries=0),
    "checkpoints/posted-two-pods-one-card.json": checkpoint("two-plugins", entries=3),
    "pods/init-and-main.yaml": checked(("init-container-asks",)),
    "pods/predecessor.yaml": checked(
        ("pod-unreadable",),
        ("memory-beside-whole-cards",),
        ("memory-without-core",),
        ("resource-unknown",),
        (),
        ("memory-beside-whole-cards", "visible-devices-set"),
    ),
    "pods/time-slicing.yaml": migrated,
    "pods/time-slicing-config.yaml": migrated,
    "prometheus/rules.yml": join,
    "prometheus/test.yml": join,
}


def given(folder: Path = FOLDER) -> Iterator[str]:
    """The cases that lie in the folder, by the names of :data:`CASES`."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        yield str(Path(*name.parts[:2])) if name.parts[0] == "roots" else str(name)


def wrong(folder: Path = FOLDER) -> dict[str, str]:
    """What is wrong, by case; a case that nobody judges is wrong."""
    names = dict.fromkeys(given(folder))
    return {
        name: why
        for name in names
        if (why := CASES[name](folder / name) if name in CASES else "no test judges it")
    }

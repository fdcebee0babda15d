"""MIG instances: layouts of simulated machines against what NVIDIA publishes, and shuffled admissions on a
node of instances and a card, as in the group association, half of them of pods that name a profile.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench import association, soak
from bench.rows import Row
from bench.world import World
from gpu_manager.adapters.driver_files.device_nodes import CONTROL, DeviceNodes
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.simulated import SimulatedCards
from gpu_manager.domain.contract import CORE, GPU_MODEL, MEMORY
from gpu_manager.domain.ids import DeviceIds
from gpu_manager.domain.resources import DEFAULT_UNIT

PROFILE: Final = "mig-h200"
QUICK: Final = 1_000  # admissions
GOLDEN: Final = Path(__file__).parents[1] / "tests/data/mig/layouts.json"
_INSTANCES: Final = 15  # of a card in the driver's list of capabilities
_EACH: Final = 9  # capabilities of a GPU instance: itself, and eight compute instances


class MigWorld(World):
    """A node of two divided H200 and a whole one, its instances given."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(profile=PROFILE, seed=seed)

    def command(self, arguments: Mapping[str, str]) -> list[str]:
        """The agent's command line."""
        return [*super().command(arguments), "--mig-instances"]


def capabilities(cards: int) -> str:
    """The driver's list of capabilities, in the order of NVIDIA's example."""
    lines, number = ["config 1", "monitor 2"], 3
    for card in range(cards):
        for gi in range(_INSTANCES):
            lines.append(f"gpu{card}/gi{gi}/access {number}")
            lines += [f"gpu{card}/gi{gi}/ci{ci}/access {number + 1 + ci}" for ci in range(_EACH - 1)]
            number += _EACH
    return "\n".join(lines) + "\n"


def seen(machine: str, base: Path) -> list[dict[str, Any]]:
    """What a node makes of the machine's instances: memory, ids and device nodes. ``base`` is empty."""
    cards = [s.card for s in SimulatedCards.named(machine, instances=lambda: True).list()]
    ids = DeviceIds(tuple(cards), DEFAULT_UNIT)
    (base / "proc/driver/nvidia-caps").mkdir(parents=True)
    (base / "proc/driver/nvidia-caps/mig-minors").write_text(capabilities(len(cards)))
    nodes = DeviceNodes(HostFiles(base / "root"), "/", proc=base / "proc")
    found = []
    for card in (card for card in cards if card.instance is not None and card.minor is not None):
        caps = nodes.capabilities(card.minor or 0, card.instance) if card.instance else ()
        for name in (f"nvidia{card.minor}", *caps, *CONTROL):
            (base / "root/dev" / name).parent.mkdir(parents=True, exist_ok=True)
            (base / "root/dev" / name).touch()
        given = [node.path for node in nodes.of([card.minor or 0], caps)]
        found.append(
            {
                "index": card.index,
                "model": card.model,
                "memory_mib": card.memory >> 20,
                "cores": len(ids.of_card[CORE][card.uuid]),
                "units": len(ids.of_card[MEMORY][card.uuid]),
                "nodes": [path for path in given if path.removeprefix("/dev/") not in CONTROL],
            }
        )
    return found


def layouts(*, full: bool) -> Iterator[Row]:
    """Whether capacities, ids and device nodes of the simulated machines are those of the golden files."""
    golden: dict[str, list[dict[str, Any]]] = json.loads(GOLDEN.read_text("utf-8"))
    wrong = 0
    for machine, expected in golden.items():
        with tempfile.TemporaryDirectory(prefix="vcuda-bench-") as base:
            found = seen(machine, Path(base))
        wrong += sum(one not in expected for one in found) + abs(len(found) - len(expected))
    yield Row(
        "mig_layouts_wrong",
        wrong,
        "instances",
        "= 0",
        full=full,
        note=f"of {sum(map(len, golden.values()))} on {', '.join(golden)}: memory by go-nvml 0.13.4, "
        "profiles and device nodes by NVIDIA's MIG user guide",
    )


def _shape(chance: random.Random) -> dict[str, Any]:
    """Half of the pods name instances, some of them cards too; a container gets one of them at most."""
    shape = association.shape_by_chance(chance)
    if chance.random() < 0.5:
        return shape
    named = chance.choice(("1g.18gb", "1g.18gb", "H200-MIG-1g.18gb", "2g.35gb", "3g.71gb", "1g.18gb,H200"))
    shape["containers"] = [(name, min(core, 100), memory) for name, core, memory in shape["containers"]]
    return {**shape, "annotations": {GPU_MODEL: named}}


def measure(seed: int, admissions: int = soak.ADMISSIONS) -> soak.Outcome:
    """One slice of the soak."""
    return association.measure(seed, admissions, _shape, MigWorld)


def admissions(*, full: bool) -> Iterable[Row]:
    """Shuffled admissions with faults: the judge reads the limits under the mounts of every container."""
    return association.shuffled(measure, "mig", full=full, quick=QUICK, what="half by profile")

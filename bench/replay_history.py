"""One cluster's life, recorded, and another record judged again, by the sources that are found first.

``python -m bench.replay_history GIVEN OWN SEED`` schedules pods in memory and records that in ``OWN``. It
prints what was answered, and the numbers of the decisions of the record ``GIVEN`` that these sources answer
otherwise: so a mutated copy of the sources is run beside the true ones.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

import structlog

from admission.replay.judges import Judges, Player
from admission.replay.recorder import DecisionRecorder
from gpu_manager.adapters.record_ring import RecordRing
from gpu_manager.domain.contract import CORE, MEMORY
from tests.fakes.extender import UNIT, World, container, node, pod
from tests.fakes.ports import FakeClock

PODS = 150


def record(directory: Path, seed: int) -> None:
    """Pods of many kinds come and go on nodes of three models, under quotas."""
    dice = random.Random(seed)
    ring = RecordRing(directory, 64 << 20)
    recorder = DecisionRecorder(ring, FakeClock(), {"unit": UNIT, "minimum_cores": 1})
    quota = {"team": {"quota": {"*": 6}}, "other": {"quota": {"A100": 3, "T4": 4}}}
    world = World(_nodes(dice), quota=quota, expecting=True, recorder=recorder, deployed=True)
    running: list[Any] = []
    for number in range(PODS):
        asking = _pod(dice, f"p{number}")
        world.create(asking)
        if world.schedule(asking):
            running.append(asking)
        if running and dice.random() < 0.4:
            world.delete(running.pop(dice.randrange(len(running))))
    recorder.write()


def _nodes(dice: random.Random) -> list[Any]:
    found = []
    for at in range(10):
        model, gib = dice.choice((("A100", 40), ("T4", 16), ("H100", 80)))
        link = dice.choice(("NV4", "PIX", "SYS"))
        made = node(f"n{at}", dice.choice((2, 4, 8)), model=model, memory=gib << 30, link=link)
        made["status"]["allocatable"] = {**made["status"]["allocatable"], "cpu": str(dice.choice((16, 64)))}
        found.append(made)
    return found


def _pod(dice: random.Random, name: str) -> Any:
    core = dice.choice((10, 20, 30, 50, 60, 70, 100, 200, 400))
    annotations = {
        "tencent.com/placement": dice.choice(("binpack", "binpack", "spread", "topology")),
        "tencent.com/vcuda-priority": dice.choice(("normal", "normal", "protected", "best-effort")),
    }
    if dice.random() < 0.3:
        annotations["tencent.com/gpu-model"] = dice.choice(("A100", "T4"))
    if core >= 100:
        del annotations["tencent.com/vcuda-priority"]
    memory = None if core >= 100 else dice.choice((4, 16, 40))
    limits = {key: str(value) for key, value in ((CORE, core), (MEMORY, memory)) if value}
    main = {"name": "main", "resources": {"limits": limits, "requests": {"cpu": str(dice.choice((1, 4)))}}}
    init = [container("init", core, memory)] if core < 100 and dice.random() < 0.3 else []
    namespace = dice.choice(("default", "default", "team", "other"))
    return pod(name, namespace=namespace, containers=[main], init=init, annotations=annotations)


def _lines(directory: Path) -> Any:
    return (line for path in sorted(directory.iterdir()) for line in path.read_bytes().splitlines())


def judged(directory: Path) -> list[Any]:
    """Kind, pod, recorded answer and present answer of each decision."""
    player = Player(Judges().judge)
    found = [(one.line["k"], one.pod, one.recorded, one.now) for one in player.play(_lines(directory))]
    assert not player.passed, player.passed
    return found


def main() -> None:
    """The command line."""
    given, own, seed = sys.argv[1:]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    record(Path(own), int(seed))
    mine = [(*one, recorded) for *one, recorded, _ in judged(Path(own))]
    differ = [at for at, (_, _, recorded, now) in enumerate(judged(Path(given))) if recorded != now]
    print(json.dumps({"answers": mine, "differ": differ}))


if __name__ == "__main__":
    main()

"""Decisions of the whole service, recorded and judged again; constants mutated and found; what it costs.

The service is a program beside an API server in another process, asked as kube-scheduler asks, with all of
its threads. Its record is judged by another process under another PYTHONHASHSEED, time zone and locale.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from admission.replay.recorder import DecisionRecorder
from bench.admission_flow import Scheduled, schedule
from bench.admission_program import wait_for, world
from bench.replay_agent import agent
from bench.replay_history import record
from bench.replay_report import leaks, size
from bench.rows import Measure, Row, rows_of
from gpu_manager.adapters.record_ring import RecordRing
from gpu_manager.domain.resources import GIB
from tests.fakes.extender import UNIT, World, node, pod
from tests.fakes.ports import FakeClock

ROOT: Final = Path(__file__).parents[1]
_NODES: Final = 1000
_ELSEWHERE: Final = {"PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "LC_ALL": "C", "HOSTNAME": "elsewhere"}
_SAID: Final = re.compile(r"^(\d+) decisions .*; (?:(none) differs|(\d+) differ)", re.MULTILINE)
_DOMAIN: Final = "gpu_manager/domain/"
_QUESTION: Final = b'{"Pod":%b,"Nodes":null,"NodeNames":%b}'
# An editable installation finds the sources that it was made of before any other.
_BY_TREE: Final = """
import runpy, sys
sys.meta_path[:] = [each for each in sys.meta_path if "Redirecting" not in type(each).__name__]
sys.path[0] = sys.argv.pop(1)
runpy.run_module("bench.replay_history", run_name="__main__")
"""


class Mutant(NamedTuple):
    """A file of the sources, a text that it has once, and what stands there instead."""

    path: str
    text: str
    instead: str


MUTANTS: Final = (
    Mutant(f"{_DOMAIN}score/scorer.py", "FILL_UP: Final = 0.03", "FILL_UP: Final = 0.5"),
    Mutant(f"{_DOMAIN}score/scorer.py", "ROLL_OUT: Final = 1.0", "ROLL_OUT: Final = 0.5"),
    Mutant(f"{_DOMAIN}score/scorer.py", "PRICE: Final = 0.5", "PRICE: Final = 2.0"),
    Mutant(f"{_DOMAIN}score/scorer.py", "PACK: Final = 8.0", "PACK: Final = 80.0"),
    Mutant(f"{_DOMAIN}score/scorer.py", "OPEN: Final = 4.0", "OPEN: Final = 40.0"),
    Mutant(f"{_DOMAIN}score/scorer.py", "BESIDE: Final = 10.0", "BESIDE: Final = 0.0"),
    Mutant(f"{_DOMAIN}score/multi_gpu_slots.py", "ALWAYS: Final = 0.15", "ALWAYS: Final = 1.5"),
    Mutant(f"{_DOMAIN}score/multi_gpu_slots.py", "MISSED: Final = 1.0", "MISSED: Final = 0.0"),
    Mutant(f"{_DOMAIN}score/multi_gpu_slots.py", "IDLE: Final = 100.0", "IDLE: Final = 0.0"),
    Mutant(f"{_DOMAIN}score/fragmentation.py", "BAGS: Final = 128", "BAGS: Final = 64"),
    Mutant(f"{_DOMAIN}score/fragmentation.py", "_SEED: Final = 20_241", "_SEED: Final = 20_242"),
    Mutant(f"{_DOMAIN}topology.py", "LinkKind.NVLINK: 100,", "LinkKind.NVLINK: 1,"),
    Mutant(
        f"{_DOMAIN}placement/place.py",
        "ranked = ((-cores, -memory, at) for cores, memory, at in trial.suiting(group))",
        "ranked = ((-memory, -cores, at) for cores, memory, at in trial.suiting(group))",
    ),
    Mutant(
        f"{_DOMAIN}placement/ledger.py",
        "return init_peak.peak(sidecars + apps)",
        "return init_peak + sidecars + apps",
    ),
    Mutant(
        f"{_DOMAIN}placement/card_sets.py",
        "return min(scores, key=lambda card: (-scores[card], sum(",
        "return max(scores, key=lambda card: (-scores[card], sum(",
    ),
    Mutant(f"{_DOMAIN}priority.py", "return 2 if priority is Priority.NORMAL else -1", "return 0"),
    Mutant("admission/extender/ranking.py", "BEST, SECOND = 10, 8", "BEST, SECOND = 10, 9"),
    Mutant("admission/extender/refusal_lines.py", "FULL_LINES: Final = 8", "FULL_LINES: Final = 2"),
    Mutant(
        "admission/extender/feasibility.py",
        "sums[model] = sums.get(model, ZERO) - amount",
        "sums[model] = sums.get(model, ZERO)",
    ),
    Mutant(
        "admission/cluster/nodes.py",
        "models[model] = before + amount if sign > 0 else before - amount",
        "models[model] = before + amount if sign > 0 else before",
    ),
)


def _service(*, full: bool) -> Iterator[Row]:
    """A service's burst, judged again; the ring under a limit that it has to keep."""
    pods = 3400 if full else 500
    with tempfile.TemporaryDirectory(prefix="vcuda-replay-") as place:
        flow, ring = _recorded(pods, Path(place), 256)
        code, said, took = _judged(Path(place))
    match = _SAID.search(said)
    assert match is not None, said
    count, differ = int(match[1]), int(match[3] or 0) + said.count("not judged")
    note = f"{count} decisions over {_NODES:,} nodes, {flow.bound} pods in {flow.seconds:.0f} s; exit {code}"
    yield Row("replay_differences", differ, "count", "≤ 0", None, full, note)
    per = took * 10_000 / count
    yield Row("replay_10000_s", round(per, 1), "s", "≤ 30", None, full, f"processor time; {note}")
    note = f"{ring / pods / 1024:.1f} KiB a pod, {_NODES:,} nodes; the states of all nodes begin each segment"
    with tempfile.TemporaryDirectory(prefix="vcuda-replay-") as place:
        flow, small = _recorded(2 * pods, Path(place), 8)
        code, said, _ = _judged(Path(place))
    assert code == 0, said
    yield Row(
        "replay_ring_mib", round(small / (1 << 20), 1), "MiB", "≤ 8", None, full, f"limit 8 MiB; {note}"
    )


def _recorded(pods: int, directory: Path, mib: int) -> tuple[Scheduled, int]:
    """Schedule so many pods; how it went, and bytes of the record."""
    names = [f"node-{n:05d}" for n in range(_NODES)]
    with world(_NODES, "--leader-mode=alone", f"--record-directory={directory}", f"--record-mib={mib}") as (
        api,
        service,
    ):
        waiting = api.pods("flow", pods)
        wait_for(api, service, len(waiting))
        flow = schedule(service.extender_port, waiting, names)
    return flow, sum(path.stat().st_size for path in directory.iterdir())


def _judged(directory: Path) -> tuple[int, str, float]:
    """Exit status and words of ``gpu-manager replay``, and its processor time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "gpu_manager", "replay", str(directory)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **_ELSEWHERE}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return done.returncode, done.stdout + done.stderr, took


def _mutants(*, full: bool) -> Iterator[Row]:
    """Each mutated source against its own service: do they part at the decision that replay names?"""
    seed, found, silent, missed = 1, 0, [], []
    with tempfile.TemporaryDirectory(prefix="vcuda-replay-") as text:
        place = Path(text)
        record(place / "true", seed)
        true = _history(ROOT, place, "again", seed)
        assert true["differ"] == []
        for at, mutant in enumerate(MUTANTS if full else MUTANTS[::4]):
            said = _history(_mutated(place / f"tree-{at}", mutant), place, f"own-{at}", seed)
            parts = (
                n
                for n, pair in enumerate(zip(true["answers"], said["answers"], strict=False))
                if pair[0] != pair[1]
            )
            first = next(parts, None)
            name = f"{Path(mutant.path).stem}: {mutant.instead}"
            if first is None and not said["differ"]:
                silent.append(name)
            elif first == next(iter(said["differ"]), None):
                found += 1
            else:
                missed.append(name)
    asked = found + len(missed)
    note = (
        f"{found} of {asked} found at the first decision that a service of the same sources answers otherwise"
    )
    note += f"; without effect here: {'; '.join(silent) or 'none'}" + (
        f"; missed: {'; '.join(missed)}" if missed else ""
    )
    yield Row("replay_mutants_missed", len(missed), "count", "≤ 0", None, full, note)


def _mutated(tree: Path, mutant: Mutant) -> Path:
    """A copy of the sources in which one text is another."""
    tree.mkdir()
    for package in ("admission", "gpu_manager"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    for other in ("tests", "vcuda", "bench"):
        (tree / other).symlink_to(ROOT / other)
    path = tree / mutant.path
    text = path.read_text(encoding="utf-8")
    assert text.count(mutant.text) == 1, mutant
    path.write_text(text.replace(mutant.text, mutant.instead), encoding="utf-8")
    return tree


def _history(tree: Path, place: Path, own: str, seed: int) -> Mapping[str, Any]:
    command = [sys.executable, "-c", _BY_TREE, str(tree), str(place / "true"), str(place / own), str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def _overhead(*, full: bool) -> Iterator[Row]:
    """Processor time of recording beside that of the questions, in one thread: what is handed over is written
    in turns with the questions that it came from. As kube-scheduler asks: in bytes as Go writes them, about
    the nodes in another order for each pod.
    """
    turns, found = (40 if full else 10), []
    names, dice = [f"node-{n:05d}" for n in range(_NODES)], random.Random(1)
    with tempfile.TemporaryDirectory(prefix="vcuda-replay-") as place:
        recorder = DecisionRecorder(RecordRing(Path(place), 64 << 20), FakeClock(), {"unit": UNIT})
        nodes = [node(name, 8, memory=40 * GIB) for name in names]
        cluster = World(nodes, expecting=True, recorder=recorder, deployed=True)
        cluster.cluster.snapshot()
        recorder.write()
        for turn in range(turns + 2):
            asked = 0.0
            for at in range(20):
                core = (10, 30, 50, 100, 200)[at % 5]
                asking = pod(f"p{turn}-{at}", core, 4 if core < 100 else None)
                dice.shuffle(names)
                asked += _scheduled(cluster, asking, names)
            began = time.thread_time()
            recorder.write()
            found.append((asked, time.thread_time() - began))
    questions, written = (statistics.median(column) / 20 * 1e3 for column in zip(*found[2:], strict=True))
    percent = 100 * statistics.median(written / asked for asked, written in found[2:])
    note = (
        f"of one thread, {_NODES:,} nodes: {written:.2f} ms a pod beside {questions:.2f} for filter,"
        " prioritize, bind and the watch in process, without HTTP and the API server"
    )
    yield Row("record_overhead_percent", round(percent, 1), "%", "≤ 3", None, full, note)


def _scheduled(cluster: World, asking: dict[str, Any], names: Sequence[str]) -> float:
    """Seconds of processor time that a pod takes until it is bound, without what is the scheduler's part."""
    body, text, took = _compact(asking), _compact(names), -time.thread_time()
    cluster.create(asking)
    reply = cluster.extender.filter(_QUESTION % (body, text))
    if reply.after is not None:
        reply.after()
    took += time.thread_time()
    text = _compact(json.loads(reply.body)["NodeNames"])
    took -= time.thread_time()
    reply = cluster.extender.prioritize(_QUESTION % (body, text))
    if reply.after is not None:
        reply.after()
    took += time.thread_time()
    (best,) = (entry["Host"] for entry in json.loads(reply.body) if entry["Score"] == 10)
    took -= time.thread_time()
    assert not cluster.bind(asking, best)
    return took + time.thread_time()


def _compact(found: object) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


PARTS: Final[Mapping[str, Measure]] = {
    "service": _service,
    "mutants": _mutants,
    "overhead": _overhead,
    "agent": agent,
    "leaks": leaks,
    "size": size,
}


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """All rows of the group, or those of one part."""
    return rows_of(PARTS, only, full=full)

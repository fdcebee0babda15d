"""The replays of pods that leave and of pods that stay, compiled: choices and figures of those in Python.

``bench/native/departures`` has both runs, the world and two published policies. What changes with the mix of
requests is asked of the product's own scorer, at each refresh. Tests hold the replays equal to the last
digit; pods that leave are replayed 25 times faster.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.code_digest import code_digest
from bench.placement.departures import PATIENCE, Coming, Outcome
from bench.placement.replay import Run
from bench.placement.trace import Node, Pod, typical
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.fragmentation import _CORES_AT, _PLACE_BITS, BAGS
from gpu_manager.domain.score.request_mix import REMEMBERED, Arrivals, RequestShape, Stock
from gpu_manager.domain.score.scorer import Scorer

SOURCE: Final = Path(__file__).resolve().parents[1] / "native" / "departures"
_FLAGS: Final = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-Wall", "-Wextra")
POLICIES: Final = ("ours", "FGD", "BestFit")  # those that it knows, as the enumeration in room.h
_MOST_CARDS: Final = 8
_MOST_MODELS: Final = 64
_INT, _LONG, _DOUBLE, _SET = ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_uint64
_ANY: Final = ctypes.c_void_p


class _Shape(ctypes.Structure):
    _fields_ = (("cores", _INT), ("cards", _INT), ("cpu", _INT), ("pad", _INT), ("models", _SET))


class _Node(ctypes.Structure):
    _fields_ = (("cpu", _INT), ("memory", _INT), ("cards", _INT), ("model", _INT))


class _Arrival(ctypes.Structure):
    _fields_ = (("at", _DOUBLE), ("runs", _DOUBLE), ("shape", _INT), ("memory", _INT))


class _Terms(ctypes.Structure):
    _fields_ = (
        ("asked", _ANY),
        ("bag_cpu", _ANY),
        ("steps", _INT),
        ("models", _INT),
        ("least", _INT),
        ("singles", _INT),
        ("fill_weight", _ANY),
        ("fill_cores", _ANY),
        ("fill_cpu", _ANY),
        ("fill_allowed", _ANY),
        ("fill_part", _DOUBLE),
        ("roll_part", _DOUBLE),
        ("model_price", _ANY),
        ("cpu_left", _DOUBLE),
        ("pack", _DOUBLE),
        ("open", _DOUBLE),
        ("several", _INT),
        ("pad", _INT),
        ("slot_cards", _ANY),
        ("slot_cpu", _ANY),
        ("slot_models", _ANY),
        ("rate", _ANY),
        ("missed", _ANY),
        ("always", _ANY),
        ("idle", _DOUBLE),
        ("spare", _ANY),
        ("spare_cpu", _LONG),
    )


class _Typical(ctypes.Structure):
    _fields_ = (
        ("count", _INT),
        ("pad", _INT),
        ("popularity", _ANY),
        ("cpu", _ANY),
        ("cores", _ANY),
        ("cards", _ANY),
        ("models", _ANY),
        ("none", _ANY),
    )


class _Course(ctypes.Structure):
    _fields_ = (("node", _ANY), ("held", _ANY), ("fragments", _ANY))


class _Result(ctypes.Structure):
    _fields_ = (("area", _DOUBLE), ("last", _DOUBLE), ("begin", _DOUBLE), ("gave_up", _LONG))


_REFRESH: Final = ctypes.CFUNCTYPE(_INT, _INT, _INT, ctypes.POINTER(_Terms))


@dataclass(slots=True)
class Stayed(Run):
    """With the node of each pod by its number, -1 where it found none."""

    nodes: list[int] = field(default_factory=list)


def available() -> bool:
    """True where a C++ compiler is."""
    return shutil.which("g++") is not None


@cache
def digest() -> str:
    """Of the compiled replay, with its bridge, without their comments: twelve hex digits."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(SOURCE.iterdir())]
    bare = "\n".join(line.partition("//")[0].strip() for text in texts for line in text.splitlines())
    return hashlib.sha256((bare + code_digest([Path(__file__)])).encode()).hexdigest()[:12]


@cache
def _library() -> Any:
    target = SOURCE.parents[2] / "build" / "bench" / f"departures-{digest()}.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        part = target.with_suffix(".part")
        command = ["g++", *_FLAGS, "-shared", "-fPIC", "-o", str(part), str(SOURCE / "replay.cpp")]
        subprocess.run(command, check=True)
        part.rename(target)
    library = ctypes.CDLL(str(target))
    library.departures_run.restype = _Result
    return library


class _Kept:
    """Arrays that a structure points to, for as long as it is used."""

    def __init__(self) -> None:
        self._arrays: list[Any] = []

    def at(self, values: object, kind: type) -> int:
        array: Any = np.ascontiguousarray(values, kind)
        self._arrays.append(array)
        return int(array.ctypes.data)


def run(
    nodes: Sequence[Node],
    coming: Sequence[Coming],
    policy: str,
    patience: float = PATIENCE,
    known: Sequence[Pod] = (),
    stock: Mapping[str, Stock] | None = None,
    new_scorer: Callable[..., Scorer] = Scorer,
) -> Outcome:
    """What :func:`bench.placement.departures.run` says. ``policy``: ours, FGD or BestFit; ``known``: the pods
    of FGD's mix; ``stock``: the cards that ours counts, by model.
    """
    given = _Given(nodes, coming, policy, known, stock or {}, new_scorer)
    found: _Result = _library().departures_run(
        *given.cluster, _DOUBLE(patience), *given.refreshes, ctypes.byref(given.typical)
    )
    given.check()
    capacity = CORES_PER_CARD * sum(node.cards for node in nodes)
    asked = sum(each.pod.cores for each in coming[len(coming) // 2 :])
    return Outcome(
        100 * found.area / (found.last - found.begin) / capacity,
        100 * found.gave_up / asked if asked else 0.0,
    )


def stay(
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    policy: str,
    known: Sequence[Pod],
    stock: Mapping[str, Stock],
    new_scorer: Callable[..., Scorer] = Scorer,
    arrived: Sequence[int] = (),
) -> Stayed:
    """What :func:`bench.placement.replay.replay` says of pods that come and stay, without its times; as for
    :func:`run`. Fragments are counted by the mix of the ``known`` pods under every policy. ``arrived``: how
    many pods have come when each is placed, if not just those up to it.
    """
    coming = [Coming(pod, 0.0, 0.0) for pod in pods]
    given = _Given(nodes, coming, policy, known, stock, new_scorer, arrived)
    node, held = np.zeros(len(pods), np.int32), np.zeros(len(pods), np.int64)
    fragments = np.zeros(len(pods), np.float64)
    course = _Course(node.ctypes.data, held.ctypes.data, fragments.ctypes.data)
    _library().arrivals_run(
        *given.cluster, *given.refreshes, ctypes.byref(given.typical), ctypes.byref(course)
    )
    given.check()
    found, asked, capacity = Stayed(), 0, CORES_PER_CARD * sum(node.cards for node in nodes)
    columns: dict[int, list[tuple[int, float]]] = {}
    for pod, taken, pieces in zip(pods, held.tolist(), fragments.tolist(), strict=True):
        asked += pod.cores
        columns.setdefault(int(100 * asked / capacity + 0.5), []).append((taken, pieces))
    found.by_percent(columns, capacity)
    found.nodes = node.tolist()
    found.placed = sum(at >= 0 for at in found.nodes)
    found.rejected = len(pods) - found.placed
    found.rejected_cpu = sum(not pod.cores and at < 0 for pod, at in zip(pods, found.nodes, strict=True))
    return found


class _Given:
    """What both replays are told: the cluster with its pods, and when and by whom the terms are refreshed."""

    def __init__(
        self,
        nodes: Sequence[Node],
        coming: Sequence[Coming],
        policy: str,
        known: Sequence[Pod],
        stock: Mapping[str, Stock],
        new_scorer: Callable[..., Scorer],
        arrived: Sequence[int] = (),
    ) -> None:
        arrived = arrived or range(1, len(coming) + 1)
        if len(coming) >= REMEMBERED or any(node.cards > _MOST_CARDS for node in nodes):
            raise ValueError(
                f"the compiled replay takes fewer than {REMEMBERED} pods and {_MOST_CARDS} cards"
            )
        models = sorted({*stock, *(node.model for node in nodes)})
        shapes = list(dict.fromkeys(each.pod.shape for each in coming))
        if len(models) > _MOST_MODELS or any(shape.memory for shape in shapes):
            raise ValueError(f"the compiled replay takes {_MOST_MODELS} models, and no memory of cards")
        number = {shape: at for at, shape in enumerate(shapes)}
        kinds = (_Shape(s.cores, s.cards, s.cpu, 0, _models(s, models)) for s in shapes)
        hosts = (_Node(n.cpu, n.memory, n.cards, models.index(n.model)) for n in nodes)
        pods = (_Arrival(c.at, c.runs, number[c.pod.shape], c.pod.host_memory) for c in coming)
        due = list(_due(coming, arrived)) if policy == "ours" else []
        self._ours, self._kept = _Ours(coming, arrived, dict(stock), models, new_scorer), _Kept()
        self.cluster = (
            POLICIES.index(policy),
            (_Shape * len(shapes))(*kinds),
            len(shapes),
            (_Node * len(nodes))(*hosts),
            len(nodes),
            (_Arrival * len(coming))(*pods),
            len(coming),
        )
        self.refreshes = ((_INT * max(1, len(due)))(*due), len(due), _REFRESH(self._ours.refresh))
        self.typical = _typical(known, models, self._kept)

    def check(self) -> None:
        """Raise what the scorer raised within the replay."""
        if self._ours.error is not None:
            raise self._ours.error


def _models(shape: RequestShape, models: Sequence[str]) -> int:
    return sum(1 << at for at, model in enumerate(models) if shape.allows(model))


def _due(coming: Sequence[Coming], arrived: Sequence[int]) -> Iterator[int]:
    """The placements at which the mix is refreshed: they depend on nothing else."""
    arrivals = Arrivals()
    for at, so_far in enumerate(arrived):
        for each in coming[len(arrivals) : so_far]:
            arrivals.add(each.pod.shape)
        if arrivals.due:
            arrivals.mix()
            yield at


def _typical(pods: Sequence[Pod], models: Sequence[str], kept: _Kept) -> _Typical:
    classes = typical(pods) if pods else []
    shapes = [shape for shape, _ in classes]
    return _Typical(
        len(shapes),
        0,
        kept.at([share for _, share in classes], np.float64),
        kept.at([s.cpu for s in shapes], np.int64),
        kept.at([min(s.cores, CORES_PER_CARD) for s in shapes], np.int64),
        kept.at([max(1, s.cards) for s in shapes], np.int64),
        kept.at([_models(s, models) for s in shapes], np.uint64),
        kept.at([s.cores == 0 for s in shapes], np.uint8),
    )


class _Ours:
    """The product's scorer, whose terms the compiled replay takes at each refresh."""

    def __init__(
        self,
        coming: Sequence[Coming],
        arrived: Sequence[int],
        stock: dict[str, Stock],
        models: Sequence[str],
        new_scorer: Callable[..., Scorer],
    ) -> None:
        self._arrived = arrived
        self._coming, self._stock, self._models, self._new = coming, stock, models, new_scorer
        self._arrivals, self._came, self._gone = Arrivals(), 0, 0
        self._arrivals.mix()  # the first draw goes to the scorer of before any arrival
        self._kept = _Kept()
        self.error: Exception | None = None

    def refresh(self, at: int, gone: int, terms: Any) -> int:
        """Called from the replay, which no exception can pass: 0 ends it."""
        self.error = RuntimeError("the replay was interrupted")  # unless the terms are whole
        try:
            self._refresh(at, gone, terms.contents)
            self.error = None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self.error = error
        return int(self.error is None)

    def _refresh(self, at: int, gone: int, terms: _Terms) -> None:
        for each in self._coming[self._came : self._arrived[at]]:
            self._arrivals.add(each.pod.shape)
        self._arrivals.leave(gone - self._gone)
        self._came, self._gone = self._arrived[at], gone
        scorer, kept = self._new(self._arrivals.mix(), self._stock), _Kept()
        self._kept = kept  # those before are used no more
        waste, slots = scorer.waste, scorer.places
        fill, roll = waste._fill, waste._roll  # what the scorer is made of, copied
        if sorted(scorer.stock) != list(self._models):
            raise ValueError("models that the compiled replay does not know")
        terms.asked = kept.at(roll._asked >> _CORES_AT << _PLACE_BITS, np.uint16)  # it knows no memory
        terms.bag_cpu = kept.at(roll._cpu, np.int32)
        terms.steps, terms.models, _ = roll._asked.shape
        terms.least = roll._least >> _CORES_AT << _PLACE_BITS
        terms.singles = len(fill._weights)
        terms.fill_weight = kept.at(fill._weights, np.int64)
        terms.fill_cores = kept.at(fill._cores, np.int64)
        terms.fill_cpu = kept.at(fill._cpu, np.int64)
        terms.fill_allowed = kept.at(fill._allowed, np.uint8)
        first, second = waste._weights
        terms.fill_part, terms.roll_part = first / _VALUE_OF_FILL, second / (BAGS * _VALUE)
        terms.model_price = kept.at([scorer._prices[model] for model in self._models], np.float64)
        terms.cpu_left, terms.pack, terms.open = scorer._cpu_left, scorer._pack, scorer._open
        terms.several = len(slots._shapes)
        terms.slot_cards = kept.at([s.cards for s in slots._shapes], np.int32)
        terms.slot_cpu = kept.at([s.cpu for s in slots._shapes], np.int32)
        terms.slot_models = kept.at([_models(s, self._models) for s in slots._shapes], np.uint64)
        terms.rate = kept.at(slots._rate, np.float64)
        terms.missed = kept.at(slots._missed, np.float64)
        terms.always = kept.at(slots._always, np.float64)
        terms.spare = kept.at(slots._spare, np.float64)
        terms.idle, terms.spare_cpu = slots._idle, slots._cpu


_VALUE: Final = 256_000  # one core, as the fragmentation counts
_VALUE_OF_FILL: Final = 1_000_000 * _VALUE

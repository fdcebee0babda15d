"""kube-scheduler as far as it costs the extender: pods decided one by one, bound beside that, 16 at a time.

What the scheduler itself would work on a pod is no part of the figure, and it has cores of its own: so
questions are put together of bytes made before, and of an answer no more is read than the choice needs.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from sandbox.http_client import LoopbackClient

Obj = dict[str, Any]
BINDERS: Final = 16
_QUESTION: Final = b'{"Pod":%b,"Nodes":null,"NodeNames":%b}'
_FITTING: Final = re.compile(rb'"NodeNames":(\[[^]]*\])')
_BEST: Final = b'","Score":10}'


@dataclass(slots=True)
class Scheduled:
    """How a burst went."""

    seconds: float = 0.0
    bound: int = 0
    conflicts: int = 0
    unplaced: int = 0


class _Scheduler:
    """kube-scheduler's three calls about one pod after the other, in bytes."""

    def __init__(self, port: int, names: Sequence[str]) -> None:
        self._line = LoopbackClient(port)
        self._names = json.dumps(names, separators=(",", ":")).encode()

    def choose(self, pod: bytes) -> str:
        """The node that gets the 10; empty if none fits."""
        fitting = _FITTING.search(self._ask("filter", _QUESTION % (pod, self._names)))
        assert fitting is not None
        names = fitting[1]
        if b"," in names:
            before, *after = self._ask("prioritize", _QUESTION % (pod, names)).split(_BEST)
            assert len(after) == 1
            return before.rpartition(b'"')[2].decode()
        return names.decode().strip('[]"')

    def bind(self, pod: Obj, node: str) -> str:
        """Why not; empty if it is bound."""
        meta = pod["metadata"]
        names = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
        return str(json.loads(self._ask("bind", json.dumps({**names, "Node": node}).encode()))["Error"])

    def close(self) -> None:
        self._line.close()

    def _ask(self, verb: str, question: bytes) -> bytes:
        kind = {"Content-Type": "application/json"}
        status, said = self._line.ask("POST", f"/scheduler/{verb}", question, kind)
        assert status == 200, said
        return said


def schedule(port: int, pods: Sequence[Obj], names: Sequence[str]) -> Scheduled:
    """Have the extender there decide on them, and bind them; refused ones are tried again."""
    found, scheduler = Scheduled(), _Scheduler(port, names)
    waiting = deque((pod, json.dumps(pod).encode()) for pod in pods)
    binding: deque[tuple[tuple[Obj, bytes], Future[str]]] = deque()
    began = time.perf_counter()
    with ThreadPoolExecutor(BINDERS) as pool:
        while waiting or binding:
            if waiting:
                pod, text = waiting.popleft()
                node = scheduler.choose(text)
                if node:
                    binding.append(((pod, text), pool.submit(scheduler.bind, pod, node)))
                else:
                    found.unplaced += 1
            while binding and (binding[0][1].done() or not waiting):
                asked, bound = binding.popleft()
                if bound.result():
                    found.conflicts += 1
                    waiting.append(asked)
                else:
                    found.bound += 1
    found.seconds = time.perf_counter() - began
    scheduler.close()
    return found

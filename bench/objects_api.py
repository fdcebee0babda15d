"""An API server stand-in whose objects mean harm, in a process of its own.

It prints its URL, and ends with its input. The objects' text is made each time that it is sent: they may be
more than this process has memory for.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from bench.api_process import MODELS, node, other, pod
from bench.objects_texts import made as made_text
from gpu_manager.domain.contract import ADMISSION_NAME, NAMESPACE
from sandbox.api import StandInApi

_SENT_AS_WRITTEN: Final = ("hostile", "large", "node", "claim")


class _Objects:
    def __init__(self, nodes: int) -> None:
        self.api = StandInApi(history=200_000)
        self._nodes = nodes
        self._made = 0
        for n in range(nodes):
            self.api.create(node(f"node-{n:05d}", MODELS[n % 3]))

    def answer(self, kind: str, count: int) -> Any:
        """Make so many of that kind; what the caller is told."""
        if kind == "lead":
            return self._give_up_lease()
        answer: Any = [self._create(kind) for _ in range(count)][-1]
        if kind == "forget":  # every watch has to begin with a list, whose last pod is new
            self.api.compact()
            self.api.drop_watches()
        return answer

    def _create(self, kind: str) -> Any:
        self._made += 1
        name = f"{kind}-{self._made}"
        if kind in _SENT_AS_WRITTEN:
            one = made_text(kind, self._made)
            self._put(one.obj, one.write)
        elif kind == "others":
            obj = other(f"web-{self._made:06d}", f"node-{self._made % self._nodes:05d}")
            self._put(obj, lambda meta: json.dumps({**obj, "metadata": meta}).encode())
        elif kind == "replica":
            self.api.create(made_text(kind, self._made).obj)
        elif kind == "forget":
            return self.api.create(pod(f"zz-{self._made}", 30, 20))  # of a list the last
        elif kind in ("waiting", "affine"):
            return self.api.create(made_text(kind, self._made).obj)
        else:
            began = time.monotonic()
            self.api.create(made_text(kind, self._made).obj)
            return began
        return name

    def _put(self, obj: Mapping[str, Any], write: Callable[[Mapping[str, Any]], bytes]) -> None:
        meta = {**obj["metadata"], "uid": f"uid-{self._made}"}
        self.api.create_written(
            {**obj, "metadata": meta}, lambda version: write({**meta, "resourceVersion": str(version)})
        )

    def _give_up_lease(self) -> str:
        """As its holder does, just after that has renewed it: the other replica polls it first. Who has it
        then.
        """
        renewed = self._lease()
        while self._lease() == renewed:
            time.sleep(0.01)
        before = self._lease()["holderIdentity"]
        self.api.patch("leases", ADMISSION_NAME, {"spec": {"holderIdentity": ""}}, NAMESPACE)
        while (holder := self._lease()["holderIdentity"]) in ("", before):
            time.sleep(0.01)
        return str(holder)

    def _lease(self) -> Any:
        found = self.api.get("leases", ADMISSION_NAME, NAMESPACE)
        assert found is not None, "nobody has taken the Lease"
        return found["spec"]


def main() -> None:
    """``NODES``, then on the input lines ``KIND COUNT``; answers when they are there."""
    objects = _Objects(int(sys.argv[1]))
    with objects.api:
        print(objects.api.url, flush=True)
        for line in sys.stdin:
            kind, count = line.split()
            print(json.dumps(objects.answer(kind, int(count))), flush=True)


if __name__ == "__main__":
    main()

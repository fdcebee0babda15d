"""An API server stand-in whose pods mean harm, in a process of its own: prints its URL, ends with its input.

Their text is made each time that it is sent: they may be more than this process has memory for.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from bench.api_process import MODELS, node, other, pod
from sandbox.api import StandInApi

_HOSTILE_BYTES: Final = 150 << 10  # 10,000 of them are what an etcd of 2 GiB has room for
_LARGE_BYTES: Final = 1_200 << 10
_FIELDS: Final = (  # of managedFields, as the API server keeps them
    b'{"f:a":' * 1_500 + b"{}" + b"}" * 1_500,
    b"[" * 9_990 + b"]" * 9_990,
    b'{"f:\xff":{}}',
    b'{"f:a":%b}' % (b"1" * 5_000),
    b"[" + b",".join([b"[]"] * 20_000) + b"]",
)


def hostile(name: str, fields: bytes, size: int) -> tuple[dict[str, Any], Callable[[int], bytes]]:
    """A pod of the node n1, and what writes it out in so many bytes."""
    obj = other(name, "n1")
    obj["metadata"]["uid"] = f"uid-{name}"
    spec, status = (json.dumps(obj[key]).encode() for key in ("spec", "status"))

    def write(version: int) -> bytes:
        meta = {**obj["metadata"], "resourceVersion": str(version)}
        rest = size - len(fields) - len(spec) - 600
        arguments = json.dumps(["x" * max(0, rest)]).encode()
        text = b'{"kind":"Pod","apiVersion":"v1","metadata":%b,"managedFields":[{"fieldsV1":%b}]},'
        filled = spec.replace(b'"name": "main"', b'"name": "main", "args": %b' % arguments)
        return text % (json.dumps(meta).encode()[:-1], fields) + b'"spec":%b,"status":%b}' % (filled, status)

    return obj, write


def affine(name: str) -> dict[str, Any]:
    """A pod that waits for cards and lists nodes in 0.8 MiB, made before a rule forbade that."""
    made = pod(name, 10, 1)
    values = [f"{name}-{number:06d}" for number in range(45_000)]
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": values}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    made["spec"]["affinity"] = {"nodeAffinity": required}
    return made


def main() -> None:
    """``NODES``, then on the input lines ``KIND COUNT``; answers when they are there."""
    api = StandInApi(history=200_000)
    for n in range(int(sys.argv[1])):
        api.create(node(f"node-{n:05d}", MODELS[n % 3]))
    made = 0
    with api:
        print(api.url, flush=True)
        for line in sys.stdin:
            kind, count = line.split()
            answer: object = []
            for _ in range(int(count)):
                made += 1
                if kind in ("hostile", "large"):
                    size = _HOSTILE_BYTES if kind == "hostile" else _LARGE_BYTES
                    fields = _FIELDS[made % len(_FIELDS)] if kind == "hostile" else b"{}"
                    api.create_written(*hostile(f"{kind}-{made}", fields, size))
                elif kind == "affine":
                    api.create(affine(f"affine-{made}"))
                elif kind == "others":
                    api.create(other(f"web-{made:06d}", f"node-{made % int(sys.argv[1]):05d}"))
                elif kind in ("waiting", "forget"):
                    answer = api.create(pod(f"zz-{made}", 30, 20))  # of a list the last
                else:
                    api.create(other(f"{kind}-{made}", "n1"))
                    answer = time.monotonic()
            if kind == "forget":  # every watch has to begin with a list, whose last pod is new
                api.compact()
                api.drop_watches()
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

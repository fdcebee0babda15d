"""What the admission service takes of memory, by size of the cluster: the figures of docs/operations.

``python -m bench.admission_memory 10 500 2000 5000``: for each size the whole program beside an API server
in another process. Nodes have eight cards and run twenty pods without cards; two pods with cards a node are
placed by filter, prioritize and bind.
"""

from __future__ import annotations

import argparse
import time

from bench.admission_flow import schedule
from bench.admission_program import mebibytes, wait_for, world

_PODS_A_NODE = 2
_OTHERS_A_NODE = 20
_SETTLE_SECONDS = 25.0  # what is sorted out in the background, twice over


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.admission_memory", description=__doc__)
    parser.add_argument("nodes", type=int, nargs="+")
    print("nodes  pods  started  at work  most  (MiB)")
    for nodes in parser.parse_args().nodes:
        print(*(f"{figure:>7}" for figure in _measured(nodes)), flush=True)


def _measured(nodes: int) -> tuple[int, int, int, int, int]:
    with world(nodes) as (api, service):
        pod = service.process.pid
        time.sleep(5)
        started = mebibytes(pod, "VmRSS")
        api.pods("others", nodes * _OTHERS_A_NODE)
        pods = api.pods("pod", nodes * _PODS_A_NODE)
        wait_for(api, service, len(pods))
        done = schedule(service.extender_port, pods, [f"node-{n:05d}" for n in range(nodes)])
        time.sleep(_SETTLE_SECONDS)
        return nodes, done.bound, started, mebibytes(pod, "VmRSS"), mebibytes(pod, "VmHWM")


if __name__ == "__main__":
    main()

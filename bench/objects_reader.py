"""``python -m bench.objects_reader PLACE``: what an agent reads of its node n1, in a process as large as one.

``PLACE`` is ``--api-url=URL`` or ``--kubeconfig=PATH``. For each pod whose name begins with ``honest`` it
prints when it hears of it, by the clock that all processes share. Ends with its input; then prints its
figures.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import structlog

import gpu_manager.agent.composition  # noqa: F401 - what an agent has loaded
from bench.admission_program import mebibytes
from gpu_manager.adapters.kube.connection import connect
from gpu_manager.adapters.kube.kube import Kube
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.ports.api_server import KnownPod
from sandbox.api import ADMIN_TOKEN


def main() -> None:
    """See above."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    how, _, place = sys.argv[1].partition("=")
    real = how == "--kubeconfig"
    connection = connect(kubeconfig=Path(place)) if real else connect(url=place, token=ADMIN_TOKEN)
    kube = Kube(connection, "n1", clock=SystemClock())
    heard: set[str] = set()

    def hear(found: KnownPod) -> None:
        if found.pod.name.startswith("honest") and found.pod.name not in heard:
            heard.add(found.pod.name)
            print(json.dumps(time.monotonic()), flush=True)

    kube.pods.on_change(hear)
    kube.start()
    assert kube.pods.wait(600)
    print(json.dumps(mebibytes(os.getpid(), "VmRSS")), flush=True)
    sys.stdin.read()
    figures = {
        "peak": mebibytes(os.getpid(), "VmHWM"),
        "error": kube.pods.error,
        "unreadable": sum(kube.unreadable.values()),
        "pods": sum(len(pods) for pods in kube.pods.local().values()),
    }
    kube.close()
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()

"""The kubelet's own listing, asked from inside the cluster. Only while nothing is being admitted: it may forget
ids that are on their way.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from tests.cluster.cluster import Cluster
from tests.cluster.parts import ROOT

SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
LISTER: Final = Path(__file__).resolve().parent / "lister.py"


def command(*words: str) -> list[str]:
    """The program that asks, with words for it."""
    return ["env", f"PYTHONPATH={ROOT}", sys.executable, str(LISTER), SOCKET, *words]


def ask(cluster: Cluster, *words: str) -> Any:
    """``list``, or ``get NAMESPACE POD``."""
    done = cluster.inside(*command(*words))
    if done.returncode:
        raise RuntimeError(f"the kubelet cannot be asked: {done.stderr.strip()}")
    return json.loads(done.stdout)

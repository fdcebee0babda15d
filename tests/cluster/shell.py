"""Command lines as a person types them, with kubectl and its plugin on the path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cluster.cluster import Cluster

_SECONDS: Final = 400


def environment(cluster: Cluster) -> dict[str, str]:
    """Of a shell in which ``kubectl`` and ``kubectl vcuda`` speak to the cluster."""
    programs = (Path(cluster.parts["kubectl"]).parent, Path(sys.executable).parent)
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "KUBECONFIG": str(cluster.kubeconfig)}


def typed(cluster: Cluster, words: str | Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a line to its end."""
    line = words if isinstance(words, str) else " ".join(words)
    return subprocess.run(
        line,
        shell=True,
        env=environment(cluster),
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )

"""The admission service as a process of its own, beside a sandbox's API server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.sandbox import until

ROOT = Path(__file__).parents[2]


@contextmanager
def admission(directory: Path, kubeconfig: Path) -> Iterator[tuple[int, int]]:
    """Its ports while it runs: for webhooks (HTTPS), for schedulers. The log is ``admission.log``."""
    arguments = ["--webhook-address", "127.0.0.1", "--webhook-port", "0", "--kubeconfig", str(kubeconfig)]
    arguments += ["--extender-address", "127.0.0.1:0", "--leader-mode", "alone"]
    log = directory / "admission.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "admission", *arguments], stdout=file, stderr=file, cwd=ROOT
        )
    try:

        def running() -> dict[str, Any] | None:
            assert process.poll() is None, log.read_text()
            lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
            return next((line for line in lines if line.get("event") == "running"), None)

        line = until(running, 30)
        yield int(line["port"]), int(line["extender_port"])
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

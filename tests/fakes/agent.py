"""The agent as its own process, with everything of its node in one directory."""

from __future__ import annotations

import sys
from pathlib import Path

NODE = "n1"


def agent_command(directory: Path, *arguments: str, api: str = "http://127.0.0.1:1") -> list[str]:
    """Its command line; ``arguments`` come on top, in place of what they name."""
    places = {
        "--node-name": NODE,
        "--api-url": api,
        "--kubelet-dir": str(directory / "kubelet"),
        "--state-dir": str(directory / "state"),
        "--pages-dir": str(directory / "pages"),
        "--http-address": "127.0.0.1",
        "--http-port": "0",
        "--cards": "simulated:t4x4",
        "--device-injection": "simulated",
    }
    given = {name for name in arguments if name.startswith("--")}
    defaults = [word for pair in places.items() if pair[0] not in given for word in pair]
    return [sys.executable, "-m", "gpu_manager", "run", *defaults, *arguments]

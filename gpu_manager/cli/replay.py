"""``gpu-manager replay``: the command of the admission service, found by its entry point."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from gpu_manager.cli.sandbox import GROUP
from gpu_manager.domain.errors import NodeUnready


def __getattr__(name: str) -> Any:
    """``command`` is the function of the admission service.

    Raises:
        NodeUnready: what that service is made of is not installed.
    """
    if name != "command":
        raise AttributeError(name)
    for found in entry_points(group=GROUP, name="replay"):
        try:
            return found.load()
        except ImportError as error:
            reason = f": {error}"
            break
    else:
        reason = ""
    raise NodeUnready(
        f"replay needs what the admission service is made of{reason}: run it in that image, or install it"
        " with pip install 'gpu-manager[admission]'"
    )

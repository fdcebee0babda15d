"""``gpu-manager sandbox``: the command of the package ``gpu-manager-sandbox``, found by its entry point."""

from __future__ import annotations

from importlib.metadata import entry_points, version
from typing import Any, Final

from gpu_manager.domain.errors import NodeUnready

GROUP: Final = "gpu_manager.commands"


def __getattr__(name: str) -> Any:
    """``command`` is the function of the installed package.

    Raises:
        NodeUnready: the package is not installed.
    """
    if name != "command":
        raise AttributeError(name)
    for found in entry_points(group=GROUP, name="sandbox"):
        return found.load()
    package = f"gpu-manager-sandbox=={version('gpu-manager')}"
    raise NodeUnready(
        "the sandbox is not installed: it is a package of its own, so that no production image carries "
        f"stand-ins. Install it with pip install {package}; in a clone of the project, make setup does"
    )

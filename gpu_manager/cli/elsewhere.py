"""Commands that come with other packages, found by their entry points.

``gpu-manager sandbox`` is the one of ``gpu-manager-sandbox``, ``gpu-manager replay`` that of the admission
service.
"""

from __future__ import annotations

from importlib.metadata import entry_points, version
from typing import Any

from gpu_manager.domain.errors import NodeUnready


def __getattr__(name: str) -> Any:
    """The function of the installed package.

    Raises:
        NodeUnready: the package, or what it needs, is not installed.
    """
    if name not in ("sandbox", "replay"):
        raise AttributeError(name)
    reason = ""
    for found in entry_points(group="gpu_manager.commands", name=name):
        try:
            return found.load()
        except ImportError as error:
            reason = f": {error}"
    if name == "replay":
        raise NodeUnready(
            f"replay needs what the admission service is made of{reason}: run it in that image, or install it"
            " with pip install 'gpu-manager[admission]'"
        )
    package = f"gpu-manager-sandbox=={version('gpu-manager')}"
    raise NodeUnready(
        f"the sandbox is not installed{reason}: it is a package of its own, so that no production image "
        f"carries stand-ins. Install it with pip install {package}; in a clone of the project, make setup "
        "does"
    )

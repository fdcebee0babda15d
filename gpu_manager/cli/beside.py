"""Programs beside the agent: ``keep``, ``evict-marked``, and ``sandbox`` and ``replay`` of other packages."""

from __future__ import annotations

import os
import socket
import threading
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any

import structlog

from gpu_manager.domain.contract import PAGES_DIR
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.runtime import threads
from gpu_manager.runtime.arguments import Option
from gpu_manager.runtime.program import Ending, configure_log

log = structlog.get_logger(__name__)


# `gpu-manager evict-marked`: evicts, within a rate, the pods that agents mark.


_LOOK_SECONDS = 1.0


def evict_marked(
    kubeconfig: Annotated[Path | None, Option(help="Path of a kubeconfig; default: the pod's own.")] = None,
    api_url: Annotated[str | None, Option(help="Address of an API server without credentials.")] = None,
    per_minute: Annotated[
        int, Option(min=1, max=1000, help="Evictions of the whole cluster that are tried in a minute.")
    ] = 10,
    node_per_minute: Annotated[
        int, Option(min=1, max=1000, help="Evictions of one node's pods that are tried in a minute.")
    ] = 3,
    log_level: Annotated[
        str, Option(envvar="LOG_LEVEL", help="Log level: debug, info, warning, error, or 0..8.")
    ] = "info",
) -> None:
    """Evict the pods that agents mark until SIGTERM. Needs no node, and opens no port.

    Examples:
      gpu-manager evict-marked --per-minute 5
    """
    configure_log(log_level)
    from gpu_manager.adapters.kube.connection import connect  # noqa: PLC0415  # same
    from gpu_manager.adapters.kube.tasks import KubeEvictions  # noqa: PLC0415  # same
    from gpu_manager.adapters.machine import SystemClock  # noqa: PLC0415  # the adapters, only where needed
    from gpu_manager.services.evictor import Evictor  # noqa: PLC0415  # same

    ending, stop, clock = Ending(), threading.Event(), SystemClock()
    connection = connect(kubeconfig=kubeconfig, url=api_url)
    evictions = KubeEvictions(connection, clock, socket.gethostname().lower())
    evictor = Evictor(evictions, clock, per_minute=per_minute, node_per_minute=node_per_minute)
    evictions.start()
    looking = threads.every(_LOOK_SECONDS, "evict", evictor.look, stop, at_once=True)
    looking.start()
    log.info("evictor_started", per_minute=per_minute, node_per_minute=node_per_minute)
    ending.wait()
    stop.set()
    looking.join(_LOOK_SECONDS)
    evictions.close()
    connection.close()


def keep(
    pages_dir: Annotated[Path, Option(help="Directory of the control pages.")] = Path(PAGES_DIR),
) -> None:
    """Keep all control pages and gates open for writing until SIGTERM, beside the agent.

    The kernel gives no container a lease on a file that is open for writing, and with a lease it could make
    the agent wait when that returns.

    Examples:
      gpu-manager keep
    """
    from gpu_manager.agent.backends import installed_libraries  # noqa: PLC0415  # the adapters, only where needed

    program = (installed_libraries() or Path()) / "vcuda-gates"
    if not program.is_file():
        raise NodeUnready("this package has no vcuda-gates: install the wheel of this machine's architecture")
    os.execv(program, ["vcuda-gates", "keep", str(pages_dir)])  # noqa: S606 - our own program, by its whole path


# Commands that come with other packages, found by their entry points.
# `gpu-manager sandbox` is the one of `gpu-manager-sandbox`, `gpu-manager replay` that of the admission
# service.


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

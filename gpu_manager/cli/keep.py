"""``gpu-manager keep``: what has the control pages open while the agent is away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from gpu_manager.domain.contract import PAGES_DIR
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.runtime.arguments import Option


def command(
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

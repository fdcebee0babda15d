"""The systems to migrate from: for each of their names its equivalent, or why there is none.

Names and meanings are those of the projects' documentation and source as of mid 2026.
"""

from typing import Final

from gpu_manager.cli.kubectl.migrate.systems.nvidia import MIG, TIME_SLICING
from gpu_manager.cli.kubectl.migrate.systems.others import (
    GPUSHARE,
    HAMI,
    KAI,
    PREDECESSOR,
    VGPU_MANAGER,
    VOLCANO,
)

SYSTEMS: Final = (PREDECESSOR, GPUSHARE, VGPU_MANAGER, HAMI, VOLCANO, KAI, TIME_SLICING)

__all__ = ["MIG", "PREDECESSOR", "SYSTEMS", "TIME_SLICING"]

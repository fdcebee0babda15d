"""``gpu-manager forget``; see :mod:`gpu_manager.cli.cordon`."""

from gpu_manager.cli.cordon import forget as command

__all__ = ["command"]

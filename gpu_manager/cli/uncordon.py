"""``gpu-manager uncordon``; see :mod:`gpu_manager.cli.cordon`."""

from gpu_manager.cli.cordon import uncordon as command

__all__ = ["command"]

"""``kubectl vcuda uncordon``; see :mod:`gpu_manager.cli.kubectl.cordon`."""

from gpu_manager.cli.kubectl.cordon import uncordon as command

__all__ = ["command"]

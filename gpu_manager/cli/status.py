"""``gpu-manager status``; see :mod:`gpu_manager.cli.ask`."""

from gpu_manager.cli.ask import status as command

__all__ = ["command"]

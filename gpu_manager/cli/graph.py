"""``gpu-manager graph``; see :mod:`gpu_manager.cli.ask`."""

from gpu_manager.cli.ask import graph as command

__all__ = ["command"]

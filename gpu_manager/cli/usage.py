"""``gpu-manager usage``; see :mod:`gpu_manager.cli.ask`."""

from gpu_manager.cli.ask import usage as command

__all__ = ["command"]

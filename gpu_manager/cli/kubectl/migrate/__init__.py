"""``kubectl vcuda migrate``: translates manifests of other systems, and reports what has no equivalent."""

from gpu_manager.cli.kubectl.migrate.command import command

__all__ = ["command"]

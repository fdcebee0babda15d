"""``kubectl vcuda migrate``: manifests of other systems in our words, a diff, and what has no equivalent."""

from gpu_manager.cli.kubectl.migrate.command import command

__all__ = ["command"]

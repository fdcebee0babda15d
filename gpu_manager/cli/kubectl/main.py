"""The program ``kubectl-vcuda``, which kubectl finds on PATH and runs as ``kubectl vcuda``."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_manager.cli.program import Commands, Program

# name → (module, summary): one line makes a command.
COMMANDS: Commands = {
    "check": ("gpu_manager.cli.check", "Say whether manifests are legal, why not, and what would be."),
    "migrate": (
        "gpu_manager.cli.kubectl.migrate",
        "Turn manifests of gpu-manager, HAMi, gpushare, time-slicing or vgpu-manager into ours.",
    ),
    "version": ("gpu_manager.cli.version", "Print the version."),
}

PROGRAM = Program("kubectl vcuda", "Fractions of cards in a cluster: who has what, and why not.", COMMANDS)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 2 for bad input, 1 for "no", 0 for "yes"."""
    return PROGRAM.run(arguments)


def main() -> None:
    """The console script."""
    PROGRAM.main()

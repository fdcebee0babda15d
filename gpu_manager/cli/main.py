"""The program ``gpu-manager``: which commands there are; :mod:`gpu_manager.cli.program` runs them."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_manager.cli.program import Commands, LazyProgram

# One line makes a command.
COMMANDS: Commands = {
    "check": ("gpu_manager.cli.check", "Say whether manifests are legal, why not, and what would be."),
    "completion": ("gpu_manager.cli.completion", "Print the script that completes commands in a shell."),
    "cordon": ("gpu_manager.cli.cordon", "Close cards to new shares."),
    "doctor": ("gpu_manager.cli.doctor", "Find what is wrong on this machine, each with its cure."),
    "evict-marked": ("gpu_manager.cli.evict_marked", "Evict the pods that agents mark, within a rate."),
    "forget": ("gpu_manager.cli.cordon:forget", "Stop missing cards that have vanished for good."),
    "graph": (
        "gpu_manager.cli.ask:graph",
        "Show the cards of the running agent, and who holds what of them.",
    ),
    "keep": ("gpu_manager.cli.keep", "Keep control pages open while the agent is away."),
    "run": ("gpu_manager.cli.run", "Run the agent of this node."),
    "sandbox": ("gpu_manager.cli.sandbox", "Keep a node with simulated cards up, on a laptop."),
    "status": ("gpu_manager.cli.ask:status", "Say whether the running agent can serve pods."),
    "topology": ("gpu_manager.cli.topology", "Pick the best-joined cards of an nvidia-smi topo -m matrix."),
    "uncordon": ("gpu_manager.cli.cordon:uncordon", "Open cards that were closed."),
    "usage": ("gpu_manager.cli.ask:usage", "Show what each container asked for and uses."),
    "version": ("gpu_manager.cli.kubectl.version:own", "Print the version."),
}

PROGRAM = LazyProgram(
    "gpu-manager", "Share NVIDIA cards between Kubernetes pods: exact, measured, explained.", COMMANDS
)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 2 for bad input, 1 for "no", 0 for "yes"."""
    return PROGRAM.run(arguments)


def main() -> None:
    """The console script."""
    PROGRAM.main()

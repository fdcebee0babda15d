"""The program ``kubectl-vcuda``, which kubectl finds on PATH and runs as ``kubectl vcuda``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from gpu_manager.cli.program import Commands, LazyProgram

# One line makes a command.
COMMANDS: Commands = {
    "advise": ("kubectl.advise", "Say what size running containers should have, and why."),
    "autoscaler": ("kubectl.autoscaler", "Print what an autoscaler must know of nodes to come."),
    "check": ("check", "Say whether manifests are legal, why not, and what would be."),
    "cordon": ("kubectl.cards:cordon", "Close cards to new shares."),
    "cost": ("kubectl.cost", "Show core-hours, GiB-hours and waste, by namespace, pod or label."),
    "defrag": ("kubectl.defrag", "Print the fewest moves that make room for a pod."),
    "doctor": ("kubectl.doctor", "Find what is wrong in the cluster, each with its cure."),
    "explain": ("kubectl.explain", "Say why a pod waits, or where one would go."),
    "graph": ("kubectl.cards:graph", "Show the cards of the cluster, and who holds what of them."),
    "migrate": (
        "kubectl.migrate.command",
        "Translate manifests of HAMi, Volcano, KAI, gpushare, NVIDIA's plugin and others.",
    ),
    "report": ("kubectl.report", "Write what a bug report needs, without a name in it."),
    "quota": ("kubectl.quota", "Show what namespaces may hold of cards, and what they hold."),
    "resize": ("kubectl.resize", "Change the share of a running container in place."),
    "simulate": ("kubectl.simulate", "Say whether pods would fit, or what if a node goes."),
    "top": ("kubectl.top", "Show what each container was given, and what it uses of it."),
    "ui": ("kubectl.ui", "Open the cluster's console in the browser."),
    "uncordon": ("kubectl.cards:uncordon", "Open cards that were closed."),
    "version": ("kubectl.version", "Show the versions of this program, the service, the agents."),
}


def _names(kind: str, before: Sequence[str]) -> Iterator[str]:
    from gpu_manager.cli.kubectl.names import completed  # noqa: PLC0415  # only for completions

    return completed(kind, before) if kind else iter(())


PROGRAM = LazyProgram(
    "kubectl vcuda", "Fractions of cards in a cluster: who has what, and why not.", COMMANDS, _names
)


run = PROGRAM.run
main = PROGRAM.main  # the console script


def complete() -> None:
    """``kubectl_complete-vcuda``, which kubectl calls with the words typed so far.

    The last line is a number that tells the shell what else to do: 0 to complete files too, 4 not to.
    """
    found = PROGRAM.completions(sys.argv[1:])
    print("\n".join([*found, f":{4 if found else 0}"]))

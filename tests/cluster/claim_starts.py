"""How much longer a pod takes to start with a claim, named or of a template, than the same pod without one.

``python -m tests.cluster claim-starts``: the node gives its cards by claims meanwhile. As :mod:`tests.cluster.starts` counts.
"""

from __future__ import annotations

import random
import statistics
import sys
from dataclasses import dataclass
from typing import Final

from tests.cluster import product, starts
from tests.cluster.cdi_off import back_to_simulated
from tests.cluster.claims import BY_CLAIM, Claims, part
from tests.cluster.cluster import Cluster
from tests.cluster.pods import container, pod

ROUNDS: Final = 30
KINDS: Final = ("claim", "template", "plain")


@dataclass(frozen=True, slots=True)
class ClaimStarts:
    """Milliseconds of each start, by kind."""

    taken: dict[str, list[float]]

    def added_ms(self, kind: str) -> float:
        """Difference of the medians."""
        return statistics.median(self.taken[kind]) - statistics.median(self.taken["plain"])

    def as_json(self) -> dict[str, object]:
        """For the record."""
        return {
            "claim_added_ms": round(self.added_ms("claim")),
            "template_added_ms": round(self.added_ms("template")),
            "plain_ms": round(statistics.median(self.taken["plain"])),
            "rounds": len(self.taken["plain"]),
        }


def measure(cluster: Cluster, rounds: int = ROUNDS, seed: int = 1) -> ClaimStarts:
    """One pod at a time, the kinds in a random order in each round. A named claim is there before its pod."""
    product.install(cluster, admission=True, **BY_CLAIM)
    dice, made = random.Random(seed), Claims(cluster)
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    try:
        for at in range(rounds):
            for kind in dice.sample(KINDS, k=len(KINDS)):
                name, share = f"start-{at}-{kind}", part(starts.CORES, starts.UNITS)
                manifest = pod(name, container("c"))
                if kind == "template":
                    manifest = made.by_template(name, share)
                elif kind == "claim":
                    manifest = made.by_claim(name, made.claim(name, share))
                taken[kind].append(starts.timed(cluster, made.pods, manifest))
            told = ", ".join(f"{kind} {taken[kind][-1]:.0f}" for kind in KINDS)
            sys.stdout.write(f"{at + 1:3} {told} ms\n")
            sys.stdout.flush()
        made.clear()
    finally:
        back_to_simulated(cluster)
    return ClaimStarts(taken)

"""``make demo``: a node with 8 simulated cards, pods that share them, refusals, limits, metrics; checked."""

from sandbox.demo.run import run

__all__ = ["run"]

"""The picture of docs/internals/placement-study.md; :mod:`bench.placement.page` draws it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib import pyplot as plt

from bench.placement.study import CURVE, ROOT, Result

PICTURE: Final = ROOT / "docs" / "assets" / "placement.svg"
_SHOWN: Final = {
    "ours": ("this project", "#0b6e4f", "-"),
    "FGD": ("FGD", "#c1121f", "-"),
    "BestFit": ("Best-Fit", "#e09f3e", "-"),
    "GpuPacking": ("GpuPacking", "#5f6c7b", "--"),
    "GpuClustering": ("GpuClustering", "#5f6c7b", ":"),
    "DotProd": ("DotProd", "#8d99ae", "-."),
    "Random": ("Random", "#b0b7c3", ":"),
}


def draw(runs: list[Result], path: Path) -> None:
    """Allocation above, fragmentation below, over arrived demand, means over the seeds at hand."""
    mpl.rcParams["svg.hashsalt"] = "placement"  # the same figures give the same file
    figure, (above, below) = plt.subplots(2, 1, figsize=(7.5, 7.5), sharex=True, layout="constrained")
    for policy, (name, colour, line) in _SHOWN.items():
        mine = [
            r for r in runs if r["trace"] == "default" and r["policy"] == policy and r["order"] == r["seed"]
        ]
        if not mine:
            continue
        for axis, what, begin in ((above, "allocation", 70), (below, "fragmentation", 5)):
            at = [x for x in CURVE if x >= begin and all(str(x) in r[what] for r in mine)]
            mean = [statistics.mean(r[what][str(x)] for r in mine) for x in at]
            axis.plot(at, mean, line, color=colour, label=f"{name} ({len(mine)} seeds)", linewidth=1.6)
    above.set(ylabel="GPUs allocated, %", ylim=(82, 97), xlim=(80, 130))
    below.set(ylabel="fragmentation, % of the cluster's GPUs", xlabel="arrived GPU demand, % of the cluster")
    below.set(ylim=(0, 20))
    for axis in (above, below):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    below.legend(frameon=False, fontsize=9, ncols=3, loc="upper right")
    figure.savefig(path, metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=110)

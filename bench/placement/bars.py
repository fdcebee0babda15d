"""The bars of placement, and the rows that are judged by them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench.rows import Row

BARS: Final = {
    "openb_default_100": "≥ 95.95",
    "openb_default_130": "≥ 96.02",
    "openb_permuted_spread": "≤ 0.05",
    "openb_wire_100": "≤ 0.1",
    "priority_allocated_points": "≤ 0.5",
    "priority_protected_percent": "≥ 90",
    "fractions_nodes_ratio": "≤ 1.1",
    "fractions_nodes_spread": "= 0",
    "nodes_used_over_best_fit": "≤ 1",
    "nodes_used_mean_ratio": "≤ 1.03",
    "nodes_used_spread": "= 0",
    "nodes_whole_below_best_fit": "≤ 0",
    "kin_share_130": "≥ 1.3",
    "kin_cpu_130": "≥ 1.3",
    "kin_multi_130": "≥ 0.1",
    "kin_spec_100": "≥ 2",
    "frag_default_80": "≤ 5.5",
    "frag_default_100": "≤ 4.2",
    "memory_mix_points": "≥ 0.5",
    "memory_mix_refused_points": "≥ 0.5",
    "restart_rejected_points": "≤ 0.1",
    "departures_waiting_points": "≤ 0",
    "departures_waiting_upper": "≤ 0.2",
    "departures_observed_points": "≤ 0",
    "decision_p50_ms": "≤ 1",
    "decision_p99_ms": "≤ 5",
    "topology_single": "≥ 1",
    "topology_sequence": "≥ 0.97",
    "topology_sequence_worst": "≥ 0.93",
    "topology_in_time": "≥ 0.97",
    "topology_in_time_worst": "≥ 0.93",
    "best_set_ms": "≤ 5",
}
_UNITS: Final = {
    "openb_permuted_spread": "points",
    "openb_wire_100": "points",
    "priority_allocated_points": "points",
    "fractions_nodes_ratio": "ratio",
    "fractions_nodes_spread": "nodes",
    "nodes_used_over_best_fit": "ratio",
    "nodes_used_mean_ratio": "ratio",
    "nodes_used_spread": "nodes",
    "nodes_whole_below_best_fit": "pods",
    "memory_mix_points": "points over FGD",
    "memory_mix_refused_points": "points over FGD",
    "restart_rejected_points": "points",
    "departures_waiting_points": "points",
    "departures_waiting_upper": "points",
    "departures_observed_points": "points",
    "decision_p50_ms": "ms",
    "decision_p99_ms": "ms",
    "topology_single": "ratio",
    "topology_sequence": "ratio",
    "topology_sequence_worst": "ratio",
    "topology_in_time": "ratio",
    "topology_in_time_worst": "ratio",
    "best_set_ms": "ms",
}


class Rows:
    """Makes the group's rows. ``full``: at the size that docs quote."""

    def __init__(self, full: bool) -> None:  # noqa: FBT001 - what the table's column says
        self.full = full

    def __call__(self, name: str, figure: float | None, note: str, baseline: float | None = None) -> Row:
        """The row of that name."""
        unit = _UNITS.get(name, "points over FGD" if name.startswith("kin_") else "%")
        shown = None if figure is None else round(figure, 4)
        return Row(name, shown, unit, BARS[name], baseline, self.full, note)

    def missing(self, *starts: str, note: str) -> Iterator[Row]:
        """Those whose names start so, without a figure."""
        where = f"{note} (folder of that name under $BENCH_DATA)"
        return (self(name, None, where) for name in BARS if name.startswith(starts))

"""Checks for common problems of nodes and clusters, over facts that were gathered once.

``facts`` defines the facts, each group of checks has its own module, ``table`` lists all checks in reading
order, and :func:`examine` runs them.
"""

from gpu_manager.domain.doctor.facts import (
    DoctorCheck,
    DoctorFinding,
    Facts,
    Report,
    Severity,
    Skipped,
    Unseen,
)
from gpu_manager.domain.doctor.table import CHECKS, CLUSTER_CHECKS, NODE_CHECKS, examine

__all__ = [
    "CHECKS",
    "CLUSTER_CHECKS",
    "NODE_CHECKS",
    "DoctorCheck",
    "DoctorFinding",
    "Facts",
    "Report",
    "Severity",
    "Skipped",
    "Unseen",
    "examine",
]

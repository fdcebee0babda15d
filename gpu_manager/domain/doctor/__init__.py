"""What goes wrong on real nodes and in real clusters: pure checks over facts that were gathered once.

``facts`` says what can be known, each group of checks stands in a file of its own, ``table`` holds them all
in the order in which they are read, and :func:`examine` judges.
"""

from gpu_manager.domain.doctor.check import DoctorCheck, DoctorFinding, Report, Severity, Skipped, Unseen
from gpu_manager.domain.doctor.facts import Facts
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

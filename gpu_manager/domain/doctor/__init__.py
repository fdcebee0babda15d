"""Checks for common problems of nodes and clusters, over facts that were gathered once.

``facts`` defines the facts, each group of checks has its own module; here all checks stand in reading order,
and :func:`examine`, which runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gpu_manager.domain.doctor.agent import AGENT
from gpu_manager.domain.doctor.control import CONTROL
from gpu_manager.domain.doctor.facts import (
    DoctorCheck,
    DoctorFinding,
    Facts,
    Report,
    Severity,
    Skipped,
    Unseen,
    seen,
)
from gpu_manager.domain.doctor.machine import BOTH, DRIVER, KUBELET, RUNTIME
from gpu_manager.domain.doctor.nodes import NODES

NODE_CHECKS: Final[tuple[DoctorCheck, ...]] = (*DRIVER, *RUNTIME, *KUBELET, *BOTH, *AGENT)
CLUSTER_CHECKS: Final[tuple[DoctorCheck, ...]] = (*NODES, *CONTROL)
CHECKS: Final[tuple[DoctorCheck, ...]] = (*NODE_CHECKS, *CLUSTER_CHECKS)
_NO_NODE: Final = (
    "this machine is no Kubernetes node and shows no NVIDIA card: nothing for the agent to do here. "
    "`gpu-manager sandbox --demo` shows it at work without either; on a node, run this again; "
    "`kubectl vcuda doctor` looks at a cluster from outside"
)
_SHOWN: Final = 10  # cases of one check of a cluster that are named; the rest is counted
_ORDER: Final = (Severity.TROUBLE, Severity.WARNING)


def examine(facts: Facts, checks: Sequence[DoctorCheck] = CHECKS) -> Report:
    """Run every check; trouble comes first. Checks that cannot run are grouped by reason."""
    findings: list[DoctorFinding] = []
    passed: list[str] = []
    unseen: dict[str, list[str]] = {}
    for check in checks:
        try:
            texts = list(check.judge(_group(facts, check.group), facts.now))
            if check.group == "cluster" and len(texts) > _SHOWN:
                texts[_SHOWN:] = [f"and {len(texts) - _SHOWN} more like these"]
        except Unseen as why:
            unseen.setdefault(str(why), []).append(check.id)
            continue
        findings += [DoctorFinding(check, text) for text in texts]
        if not texts:
            passed.append(check.id)
    findings.sort(key=lambda f: _ORDER.index(f.check.severity))
    skipped = tuple(Skipped(tuple(ids), why) for why, ids in unseen.items())
    return Report(tuple(findings), tuple(passed), skipped, tuple(_notes(facts)))


def _group(facts: Facts, name: str) -> Any:
    """Return the part of the facts that a check receives. Raises Unseen if it was not read."""
    parts = [
        seen(getattr(facts, part), facts.blind.get(part, f"the {part} was not looked at"))
        for part in name.split("+")
    ]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _notes(facts: Facts) -> list[str]:
    notes = []
    no_card = facts.driver is not None and not (facts.driver.pci_cards or facts.driver.nvml_cards)
    if no_card and facts.kubelet is None and facts.agent is None:
        return [_NO_NODE]
    if facts.driver is not None and facts.driver.library:
        notes.append(f"driver {facts.driver.library}")
    if facts.runtime is not None:
        are = "are" if facts.agent is not None else "would be"
        notes.append(f"cards {are} injected by {facts.runtime.strategy}: {facts.runtime.why}")
    if facts.agent is not None:
        notes.append(f"the agent at {facts.agent.url} is {facts.agent.version}")
    return notes

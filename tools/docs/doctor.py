"""``docs/doctor.md``: every check of the doctor, with its cure."""

from __future__ import annotations

from gpu_manager.domain.doctor import CLUSTER_CHECKS, NODE_CHECKS
from gpu_manager.domain.doctor.facts import DoctorCheck
from tools.docs.markdown import made_page

_INTRODUCTION = """\
`gpu-manager doctor` looks at the machine it runs on: driver, container runtime, kubelet and the running
agent. `kubectl vcuda doctor` looks at the cluster through the API server, with your own rights.
Both say what is wrong and its cure, and what they could not look at; the first also which way of injecting
cards will work and why, by the judgement of `--device-injection auto`.
Exit code: 0 good (warnings do not count), 1 trouble, 2 bad input. `-o json` and `-o yaml` for programs."""


def doctor_page() -> str:
    """The page, as Markdown."""
    return made_page(
        "The doctor's checks",
        _INTRODUCTION,
        "## On a node",
        *(_entry(check) for check in NODE_CHECKS),
        "## In the cluster",
        *(_entry(check) for check in CLUSTER_CHECKS),
    )


def _entry(check: DoctorCheck) -> str:
    return f"### {check.id}\n\n*{check.severity.value.capitalize()}.* {check.what}\n\n**Cure.** {check.cure}"

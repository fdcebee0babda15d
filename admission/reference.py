"""Pages of the reference about this program, from the code itself; ``docs`` holds what they print."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from admission.cluster.snapshot import NODES, PODS, ClusterState
from admission.extender.cluster_metrics import ClusterFigures, ClusterMetrics
from admission.quota.rules import KEY, QuotaBook
from admission.serving.metrics import AdmissionMetrics
from admission.webhook.admission_review import ReviewVerdict
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.markdown import family_row, option_row, table


class AdmissionPage(Enum):
    """The pages there are."""

    FLAGS = "flags"
    METRICS = "metrics"


_MADE: Final = "Printed by `gpu-quota-admission --print-reference {page}`; do not edit by hand."


def page_of(page: AdmissionPage, options: Iterable[Any], old_flags: Iterable[str]) -> str:
    """As Markdown. ``options`` are click's; ``old_flags`` those of the predecessor that do nothing."""
    parts = _flags(options, old_flags) if page is AdmissionPage.FLAGS else _metrics()
    title, *rest = parts
    return "\n\n".join((f"# {title}", _MADE.format(page=page.value), *rest)) + "\n"


def _flags(options: Iterable[Any], old_flags: Iterable[str]) -> tuple[str, ...]:
    shown = (option for option in options if option.name != "help")
    ignored = ", ".join(f"`--{name}`" for name in old_flags)
    return (
        "Flags of `gpu-quota-admission`",
        table(("flag", "default", "environment", "meaning"), map(option_row, shown)),
        "## The predecessor's",
        (
            "`--address` and `--master` keep their meaning. Accepted, with one warning, and without effect: "
            f"{ignored}. Those in `EXTRA_FLAGS` count too."
        ),
    )


def _metrics() -> tuple[str, ...]:
    """Every family that the service exports, of webhooks, certificates, scheduler and quota."""
    families = sorted(described(), key=lambda f: str(f.name))
    return (
        "Metrics of admission",
        (
            "Served on `:9443` under `/metrics`, as Prometheus text or OpenMetrics. What is not known yet "
            "has no series."
        ),
        table(("name", "type", "labels", "meaning"), map(family_row, families)),
    )


def described() -> list[Any]:
    """The families as they are scraped once everything has happened: counters have no labels before that."""
    metrics = AdmissionMetrics("")
    metrics.judged("", ReviewVerdict(allowed=True), 0.0)
    metrics.answered("", 200)
    metrics.reloaded(taken=True)
    metrics.watch_expiry(lambda: 0.0)
    figures = ClusterMetrics(metrics.registry)
    figures.count("", "")
    figures.asked("", 200, 0.0)
    figures.bypassed("")
    figures.quota_rejected()
    figures.show_writes_dropped(int)
    cluster, quota = ClusterState(DEFAULT_UNIT), QuotaBook()
    for kind in (NODES, PODS):
        cluster.replace(kind, ())
    quota.update({"data": {KEY: '{"": {"quota": {"": 1}, "memory": {"": 1}}}'}})
    figures.show(ClusterFigures(cluster, quota, lambda: True, lambda: {"": 0.0}, lambda: {"": 0}))
    return list(metrics.registry.collect())

"""Pages of the reference about the admission service, from the code itself."""

from __future__ import annotations

from typing import Any

from admission.__main__ import OLD_FLAGS, command
from admission.cluster.snapshot import NODES, PODS, ClusterState
from admission.extender.cluster_metrics import ClusterFigures, ClusterMetrics
from admission.quota.quota_book import QuotaBook
from admission.serving.metrics import AdmissionMetrics
from admission.webhook.admission_review import ReviewVerdict
from gpu_manager.domain.contract import ADMISSION_NAME, QUOTA_KEY
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.runtime.arguments import Command
from tools.docs.markdown import family_row, made_page, option_row, table


def flags_page() -> str:
    """The options of ``gpu-quota-admission``."""
    options = Command(ADMISSION_NAME, command).parameters
    ignored = ", ".join(f"`--{name}`" for name in OLD_FLAGS)
    return made_page(
        "Flags of `gpu-quota-admission`",
        table(("flag", "default", "environment", "meaning"), map(option_row, options)),
        "## The predecessor's",
        "`--address` and `--master` keep their meaning. Accepted, with one warning, and without effect: "
        f"{ignored}. Those in `EXTRA_FLAGS` count too.",
    )


def metrics_page() -> str:
    """Every family that the service exports, of webhooks, certificates, scheduler and quota."""
    families = sorted(described(), key=lambda f: str(f.name))
    return made_page(
        "Metrics of admission",
        "Served on `:9443` under `/metrics`, as Prometheus text or OpenMetrics. What is not known yet "
        "has no series.",
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
    figures.asked("filter", 200, 0.0)
    figures.bypassed("")
    figures.quota_rejected()
    figures.show_writes_dropped(int)
    cluster, quota = ClusterState(DEFAULT_UNIT), QuotaBook()
    for kind in (NODES, PODS):
        cluster.replace(kind, ())
    quota.update({"data": {QUOTA_KEY: '{"": {"quota": {"": 1}, "memory": {"": 1}}}'}})
    figures.show(
        ClusterFigures(cluster, quota, lambda: True, lambda: {"": 0.0}, lambda: {"": 0}, lambda: {"": 0})
    )
    return list(metrics.registry.collect())

"""What a panel of a dashboard is, and the pieces of queries that several of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CONTAINER = '{namespace=~"$namespace", pod=~"$pod"}'
NODE = '{node=~"$node"}'
ONE = '{node=~"$node", card=~"$card"}'
OF_MODEL = "on (node, uuid) group_left (model) vcuda_card_info"
IDLE = "clamp_min(vcuda_container_core_limit_ratio - vcuda_container_core_usage_ratio, 0)"
ENERGY = "vcuda_container_energy_joules_total"
POD_COLUMNS = {"namespace": "Namespace", "pod": "Pod"}
WHO = "{{namespace}}/{{pod}} {{container}}"
CARD = "{{node}} card {{card}}"
EXPIRY = "vcuda_admission_certificate_expiry_timestamp_seconds"
QUOTA = "max by (namespace, model) (vcuda_admission_quota_memory_bytes_{})"
MEMORY = "vcuda_container_memory"


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: its queries by legend. ``about`` answers what a reader asks of it."""

    title: str
    queries: Mapping[str, str]
    about: str = ""
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    stack: bool = False
    most: float | None = None
    alarm: float | None = None  # red from here on
    columns: Mapping[str, str] = field(default_factory=dict)  # of a table: label → title
    sort: str = ""  # a table's query or column whose worst comes first; default: its first query's largest
    words: Mapping[str, Mapping[int, tuple[str, str]]] = field(
        default_factory=dict
    )  # query → value → word, colour


HEALTHY = {0: ("unhealthy", "red"), 1: ("healthy", "green")}
CORDONED = {0: ("open", "text"), 1: ("cordoned", "orange")}
CARD_HEALTH = (
    "Whether the driver and the agent trust a card, and whether somebody closed it; the unhealthy come first."
)
HEALTH_OF_CARDS = Panel(
    "Health",
    {"healthy": f"vcuda_card_healthy{NODE}", "cordoned": f"vcuda_card_cordoned{NODE}"},
    CARD_HEALTH,
    kind="table",
    columns={"node": "Node", "card": "Card", "uuid": "UUID"},
    words={"healthy": HEALTHY, "cordoned": CORDONED},
)
"""A row for each card of the chosen nodes."""


def row(title: str) -> Panel:
    """The heading of the panels after it; a click folds them."""
    return Panel(title, {}, kind="row", width=24, height=1)


def rise(metric: str, by: str = "", minutes: int = 5) -> str:
    """How much a counter grew of late, summed by some labels."""
    grown = f"increase({metric}[{minutes}m])"
    return f"sum by ({by}) ({grown})" if by else grown


def slowest(metric: str, by: str, selector: str = "") -> str:
    """The 99th percentile of a histogram."""
    return f"histogram_quantile(0.99, sum by (le, {by}) (rate({metric}_bucket{selector}[5m])))"


def hours(metric: str) -> str:
    """Core-hours of a pod over the dashboard's range."""
    mean = f"avg_over_time(vcuda_container_core_{metric}_ratio{CONTAINER}[$__range])"
    return f"100 * sum by (namespace, pod) ({mean}) * $__range_s / 3600"


def throttled(by: str) -> str:
    """Seconds per second that processes wait for their share."""
    return f"sum by ({by}) (rate(vcuda_container_throttled_seconds_total[5m]))"


def beyond(given: str, advised: str) -> str:
    """By pod, what its containers have and are advised not to have: the ten largest."""
    by = "by (namespace, pod, container)"
    each = f"sum {by} ({given}) - sum {by} (vcuda_container_{advised}) > 0"
    return f"topk(10, sum by (namespace, pod) ({each}))"


def stat(
    title: str, query: str, *, unit: str = "short", alarm: float | None = None, about: str = ""
) -> Panel:
    return Panel(title, {"": query}, about, "stat", unit, 4, 4, alarm=alarm)


def gauge(title: str, queries: Mapping[str, str], about: str = "", width: int = 12) -> Panel:
    return Panel(title, queries, about, "bargauge", "percentunit", width, 8, most=1.0)

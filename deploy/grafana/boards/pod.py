"""The board of pods: what each container asked for, got and used."""

from __future__ import annotations

from deploy.grafana.panels import CONTAINER, WHO, Panel, hours, rise, row

BOARD = (
    "Cards: pod",
    (
        ("namespace", "vcuda_container_core_limit_ratio"),
        ("pod", 'vcuda_container_core_limit_ratio{namespace=~"$namespace"}'),
    ),
    (
        row("What it has and uses"),
        Panel(
            "Share of the card's time",
            {
                f"{WHO} used": f"vcuda_container_core_usage_ratio{CONTAINER}",
                f"{WHO} share": f"vcuda_container_core_limit_ratio{CONTAINER}",
                f"{WHO} ceiling": f"vcuda_container_core_ceiling_ratio{CONTAINER}",
            },
            "Used: measured. Share: what it is sure of. Ceiling: how far it may go while its card is idle.",
            unit="percentunit",
        ),
        Panel(
            "Memory",
            {
                f"{WHO} used": f"vcuda_container_memory_used_bytes{CONTAINER}",
                f"{WHO} limit": f"vcuda_container_memory_limit_bytes{CONTAINER}",
            },
            "What its processes hold of each card, and the limit at which an allocation is refused.",
            unit="bytes",
        ),
        Panel(
            "Cores booked and advised",
            {
                f"{WHO} booked": f"vcuda_container_core_limit_ratio{CONTAINER}",
                f"{WHO} advised": f"vcuda_container_core_advised_ratio{CONTAINER}",
            },
            "Percent of a card, as in a request. No advice yet: kubectl vcuda advise reports why.",
            unit="percentunit",
        ),
        Panel(
            "Memory booked and advised",
            {
                f"{WHO} booked": f"vcuda_container_memory_limit_bytes{CONTAINER}",
                f"{WHO} advised": f"vcuda_container_advised_memory_bytes{CONTAINER}",
            },
            "Absent where the program takes what it sees, or still grows: then there is nothing to advise.",
            unit="bytes",
        ),
        row("How its limits were held"),
        Panel(
            "Delivered share against target",
            {WHO: f"vcuda_container_core_delivered_ratio{CONTAINER}"},
            "Use over share while it had work: 100 % is the whole share, more is time of an idle card.",
            unit="percentunit",
        ),
        Panel(
            "Throttled",
            {WHO: f"rate(vcuda_container_throttled_seconds_total{CONTAINER}[1m])"},
            "Seconds per second that its processes waited for their share, summed over them.",
            unit="s",
        ),
        Panel(
            "Memory refused",
            {WHO: rise(f"vcuda_container_memory_refusals_total{CONTAINER}")},
            "Allocations in the last 5 minutes that the limit refused.",
        ),
        Panel(
            "Enforcement of its limits",
            {"held": f"vcuda_container_enforcement{CONTAINER}"},
            "Active: its limits are enforced; exclusive: it has whole cards; tampered: it changed its page.",
            kind="table",
            columns={
                "namespace": "Namespace",
                "pod": "Pod",
                "container": "Container",
                "node": "Node",
                "card": "Card",
                "state": "State",
            },
            sort="State",
            words={"held": {1: ("now", "text")}},
        ),
        row("Bill"),
        Panel(
            "Core-hours in this range",
            {
                "booked": hours("limit"),
                "used": hours("usage"),
            },
            "As if it had run through the whole range; kubectl vcuda cost bills the time it ran.",
            kind="table",
            columns={"namespace": "Namespace", "pod": "Pod"},
            width=24,
        ),
    ),
)

"""The board of nodes: who has what of each card, and whether the agent is well."""

from __future__ import annotations

from deploy.grafana.panels import (
    CARD,
    HEALTH_OF_CARDS,
    MEMORY,
    NODE,
    WHO,
    Panel,
    gauge,
    rise,
    row,
    slowest,
)

BOARD = (
    "Cards: node",
    (("node", "vcuda_card_info"),),
    (
        row("Now"),
        gauge(
            "Cores booked, by card",
            {CARD: f"vcuda_card_cores_booked_ratio{NODE}"},
            "The part of each card's time that containers have been given.",
        ),
        gauge(
            "Cores used, by card",
            {CARD: f"sum by (node, card) (vcuda_container_core_usage_ratio{NODE})"},
            "The part of each card's time that containers use now.",
        ),
        Panel(
            "Shares",
            {
                "cores, %": f"100 * vcuda_container_core_limit_ratio{NODE}",
                "memory": f"vcuda_container_memory_limit_bytes{NODE}",
                "used cores, %": f"100 * vcuda_container_core_usage_ratio{NODE}",
                "used memory": f"vcuda_container_memory_used_bytes{NODE}",
            },
            "Each container's share of each card in percent, and what it uses of it now; the largest first.",
            kind="table",
            width=24,
            height=10,
            columns={
                "node": "Node",
                "card": "Card",
                "namespace": "Namespace",
                "pod": "Pod",
                "container": "Container",
            },
        ),
        row("Use"),
        Panel(
            "Use, by container",
            {WHO: f"vcuda_container_core_usage_ratio{NODE}"},
            "The part of a card's time that each container used, stacked: a node of 8 cards has 800 %.",
            unit="percentunit",
            stack=True,
        ),
        Panel(
            "Memory, by card",
            {
                f"{CARD} used": f"vcuda_card_memory_used_bytes{NODE}",
                f"{CARD} booked": f"vcuda_card_memory_booked_bytes{NODE}",
            },
            "Booked: promised to containers. Used: held by all processes of the card.",
            unit="bytes",
        ),
        Panel(
            "Busy, by the driver's count",
            {CARD: f"vcuda_card_utilization_ratio{NODE}"},
            "The part of the time in which the driver saw any kernel on the card, whoever ran it.",
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            "Fragmentation",
            {"{{node}}": f"vcuda_node_fragmentation_ratio{NODE}"},
            "The part of the free cores on cards partly used: room for fractions, not for whole cards.",
            unit="percentunit",
            most=1.0,
        ),
        row("Limits"),
        Panel(
            "Delivered share against target",
            {WHO: f"vcuda_container_core_delivered_ratio{NODE}"},
            "Use over share: 1 is the whole share, more is time of an idle card.",
            unit="percentunit",
        ),
        Panel(
            "Throttled",
            {WHO: f"rate(vcuda_container_throttled_seconds_total{NODE}[1m])"},
            "Seconds per second that its processes waited for their share, summed over them.",
            unit="s",
        ),
        Panel(
            "Memory used over limit",
            {WHO: f"{MEMORY}_used_bytes{NODE} / ({MEMORY}_limit_bytes{NODE} > 0)"},
            "At 100 % the next allocation is refused.",
            unit="percentunit",
        ),
        Panel(
            "Refusals",
            {
                "Allocate: {{result}}": rise(
                    'vcuda_allocations_total{node=~"$node", result!="granted"}', "result"
                ),
                "start refused": rise(f"vcuda_container_starts_refused_total{NODE}"),
                f"memory limit: {WHO}": rise(f"vcuda_container_memory_refusals_total{NODE}"),
            },
            "In the last 5 minutes.",
        ),
        row("Health of cards and agent"),
        HEALTH_OF_CARDS,
        Panel(
            "The agent",
            {
                "age of usage, s": f"vcuda_sample_age_seconds{NODE}",
                "evasion detection lacks {{lacks}}": f"vcuda_evasion_detection_blind{NODE}",
                "evaders": f"vcuda_evaders{NODE}",
                "ids off their card: {{resource}}": f"vcuda_allocations_id_card_mismatch{NODE}",
                "allocations without a pod": f"vcuda_unidentified_allocations{NODE}",
            },
            "The age of its usage figures, and faults that it has found, all 0 on a node that is well.",
        ),
        Panel(
            "Allocate and Prepare: 99th percentile",
            {
                "{{resource}}": slowest("vcuda_allocate_duration_seconds", "resource", NODE),
                "a claim": slowest("vcuda_prepare_duration_seconds", "node", NODE),
            },
            "Of a claim with the API server's answer.",
            unit="s",
        ),
        Panel(
            "Memory limits enforced outside the library",
            {"{{kind}}": f"sum by (kind) (vcuda_driver_memory_limits{NODE})"},
            "By kind: how many containers' memory is bounded by the driver, not by the library alone.",
        ),
        row("Claims"),
        Panel(
            "Claims",
            {
                "{{node}} {{result}} {{reason}}": rise(f"vcuda_claims_total{NODE}", "node, result, reason"),
                "{{node}} held by processes alone": f"sum by (node) (vcuda_lingering_claims{NODE})",
                "{{node}} slice not published": f"sum by (node) (vcuda_slice_unpublished{NODE})",
            },
            "What was answered in the last 5 minutes; all 0 on nodes that give no card by claims.",
        ),
        Panel(
            "Cards, by front",
            {"{{node}} {{front}}": f"count by (node, front) (vcuda_card_front{NODE})"},
            "plugin: extended resources; dra: ResourceClaims.",
            stack=True,
        ),
    ),
)

"""What the dashboards show: queries, panel by panel. :mod:`deploy.grafana.dashboards` writes the JSON."""

from __future__ import annotations

from deploy.grafana.panels import (
    CARD,
    CONTAINER,
    ENERGY,
    EXPIRY,
    IDLE,
    MEMORY,
    NODE,
    OF_MODEL,
    ONE,
    POD_COLUMNS,
    QUOTA,
    WHO,
    Panel,
    beyond,
    gauge,
    hours,
    rise,
    slowest,
    stat,
    throttled,
)

CLUSTER = (
    "Cards: cluster",
    (("node", "vcuda_card_info"),),
    (
        stat("Cards", "count(vcuda_card_info)"),
        stat(
            "Unhealthy or cordoned",
            "sum(clamp_max(1 - vcuda_card_healthy + vcuda_card_cordoned, 1))",
            alarm=1,
        ),
        stat("Booked", "avg(vcuda_card_cores_booked_ratio)", unit="percentunit"),
        stat("Used", "sum(vcuda_container_core_usage_ratio) / count(vcuda_card_info)", unit="percentunit"),
        stat("Waiting pods", "max(vcuda_admission_waiting_pods)", alarm=1),
        stat(
            "Evaders", "sum(vcuda_evaders)", alarm=1, about="Containers that are bypassing their limits now."
        ),
        Panel(
            "Cores booked and used, in cards",
            {
                "booked": "sum(vcuda_card_cores_booked_ratio)",
                "used": "sum(vcuda_container_core_usage_ratio)",
                "capacity": "count(vcuda_card_info)",
            },
            "The gap between booked and used is waste; the gap between capacity and booked is free room.",
        ),
        Panel(
            "Memory booked and used",
            {
                "booked": "sum(vcuda_card_memory_booked_bytes)",
                "used": "sum(vcuda_card_memory_used_bytes)",
                "capacity": "sum(vcuda_card_memory_total_bytes)",
            },
            unit="bytes",
        ),
        gauge("Booked, by node", {"{{node}}": "avg by (node) (vcuda_card_cores_booked_ratio)"}),
        Panel(
            "Fragmentation",
            {"{{node}}": "vcuda_node_fragmentation_ratio"},
            "Share of the free cores that lie on cards partly used: room for fractions, not for whole cards.",
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            "By model",
            {
                "cards": "count by (model) (vcuda_card_info)",
                "booked, %": f"100 * avg by (model) (vcuda_card_cores_booked_ratio * {OF_MODEL})",
                "used, %": f"100 * sum by (model) (vcuda_container_core_usage_ratio * {OF_MODEL})"
                " / count by (model) (vcuda_card_info)",
            },
            kind="table",
            width=8,
            columns={"model": "Model"},
        ),
        Panel(
            "Most cards booked and idle",
            {"cards": f"topk(10, sum by (namespace, pod) ({IDLE}))"},
            "Whole cards' worth of cores that a pod has booked and does not use now: the ten largest.",
            kind="table",
            width=8,
            columns=POD_COLUMNS,
        ),
        Panel(
            "Most throttled",
            {"s/s": f"topk(10, {throttled('namespace, pod')})"},
            "Seconds per second that a pod's processes wait for their share: the ten largest.",
            kind="table",
            width=8,
            columns=POD_COLUMNS,
        ),
        Panel(
            "Cores beyond advice",
            {"cores": beyond("100 * vcuda_container_core_limit_ratio", "cores")},
            "What containers have booked above the size that their agent advises: the ten largest.",
            kind="table",
            columns=POD_COLUMNS,
        ),
        Panel(
            "Memory beyond advice",
            {"bytes": beyond("vcuda_container_memory_limit_bytes", "memory_bytes")},
            "Only containers whose memory can be judged: kubectl vcuda advise says of the others why not.",
            kind="table",
            unit="bytes",
            columns=POD_COLUMNS,
        ),
        Panel(
            "Power, by node",
            {"{{node}}": "sum by (node) (vcuda_card_power_watts)"},
            "Empty where the driver does not tell its cards' power.",
            unit="watt",
            stack=True,
        ),
        Panel(
            "Energy, by namespace",
            {
                "{{namespace}}": f'sum by (namespace) (increase({ENERGY}{{pod!=""}}[1h])) / 3600',
                "nobody": f'sum(increase({ENERGY}{{pod=""}}[1h])) / 3600',
            },
            "In the hour before, by who used the cards. Empty where the driver does not tell their energy.",
            unit="watth",
            stack=True,
        ),
        Panel(
            "Cores booked, by namespace",
            {"{{namespace}}": "100 * sum by (namespace) (vcuda_pod_core_booked_ratio)"},
            stack=True,
        ),
        Panel(
            "Waste, by namespace",
            {"{{namespace}}": f"100 * sum by (namespace) ({IDLE})"},
            "Cores booked and not used, summed over containers.",
            stack=True,
        ),
        Panel(
            "Memory booked, by namespace",
            {"{{namespace}}": "sum by (namespace) (vcuda_pod_memory_booked_bytes)"},
            unit="bytes",
            stack=True,
        ),
        Panel(
            "Quota: cards used and granted",
            {
                "used": "max by (namespace, model) (vcuda_admission_quota_cards_used)",
                "granted": "max by (namespace, model) (vcuda_admission_quota_cards_limit)",
            },
            kind="table",
            columns={"namespace": "Namespace", "model": "Model"},
        ),
        Panel(
            "Quota: memory used over granted",
            {"{{namespace}} {{model}}": f"{QUOTA.format('used')} / {QUOTA.format('limit')}"},
            kind="bargauge",
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            "Protected pods",
            {
                "protected": "sum(max by (namespace) (vcuda_admission_protected_pods))",
                "of them beside a tenant that does not make way": (
                    "sum(max by (namespace) (vcuda_admission_unprotected_pods))"
                ),
            },
            "Normal and other protected tenants of a card do not make way. Empty where no pod is protected.",
        ),
        Panel(
            "Refusals",
            {
                "webhook: {{result}} {{rule}}": rise(
                    'vcuda_admission_decisions_total{result="denied"}', "result, rule"
                ),
                "extender: {{step}} {{result}}": rise(
                    'vcuda_admission_scheduling_total{result!~"fits|found|bound|ended"}', "step, result"
                ),
                "node: {{node}}": rise('vcuda_allocations_total{result="refused"}', "node"),
                "memory limit: {{namespace}}": rise("vcuda_container_memory_refusals_total", "namespace"),
            },
            "In the last 5 minutes, by who refused.",
        ),
        Panel(
            "Webhook and extender: 99th percentile",
            {
                "webhook {{verb}}": slowest("vcuda_admission_duration_seconds", "verb"),
                "extender {{verb}}": slowest("vcuda_admission_extender_duration_seconds", "verb"),
            },
            unit="s",
        ),
        Panel(
            "Leaders and reservations",
            {
                "leaders": "sum(vcuda_admission_leader)",
                "reservations of pods being bound": "sum(vcuda_admission_reservations)",
            },
            "Exactly one leader binds pods.",
            width=6,
        ),
        Panel(
            "Certificate expires in",
            {"days": f"min({EXPIRY} - time()) / 86400"},
            "Renewed automatically, by the service or by cert-manager.",
            width=6,
        ),
        Panel(
            "Health",
            {"healthy": f"vcuda_card_healthy{NODE}", "cordoned": f"vcuda_card_cordoned{NODE}"},
            kind="table",
            width=24,
            columns={"node": "Node", "card": "Card", "uuid": "UUID"},
        ),
    ),
)

NODE_BOARD = (
    "Cards: node",
    (("node", "vcuda_card_info"),),
    (
        gauge("Cores booked, by card", {CARD: f"vcuda_card_cores_booked_ratio{NODE}"}),
        gauge("Cores used, by card", {CARD: f"sum by (node, card) (vcuda_container_core_usage_ratio{NODE})"}),
        Panel(
            "Shares",
            {
                "cores": f"100 * vcuda_container_core_limit_ratio{NODE}",
                "memory": f"vcuda_container_memory_limit_bytes{NODE}",
                "used cores": f"100 * vcuda_container_core_usage_ratio{NODE}",
                "used memory": f"vcuda_container_memory_used_bytes{NODE}",
            },
            "Each container's share of each card, and what it uses of it now.",
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
        Panel(
            "Use, by container",
            {WHO: f"vcuda_container_core_usage_ratio{NODE}"},
            unit="percentunit",
            stack=True,
        ),
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
            unit="percentunit",
        ),
        Panel(
            "Memory, by card",
            {
                f"{CARD} used": f"vcuda_card_memory_used_bytes{NODE}",
                f"{CARD} booked": f"vcuda_card_memory_booked_bytes{NODE}",
            },
            unit="bytes",
        ),
        Panel(
            "Busy, by the driver's count",
            {CARD: f"vcuda_card_utilization_ratio{NODE}"},
            unit="percentunit",
            most=1.0,
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
        Panel(
            "Allocate: 99th percentile",
            {"{{resource}}": slowest("vcuda_allocate_duration_seconds", "resource", NODE)},
            unit="s",
        ),
        Panel(
            "Health",
            {"healthy": f"vcuda_card_healthy{NODE}", "cordoned": f"vcuda_card_cordoned{NODE}"},
            kind="table",
            columns={"node": "Node", "card": "Card", "uuid": "UUID"},
        ),
        Panel(
            "The agent",
            {
                "age of usage, s": f"vcuda_sample_age_seconds{NODE}",
                "evasion detection lacks {{lacks}}": f"vcuda_evasion_detection_blind{NODE}",
                "evaders": f"vcuda_evaders{NODE}",
                "ids off their card: {{resource}}": f"vcuda_allocations_id_card_mismatch{NODE}",
                "allocations without a pod": f"vcuda_unidentified_allocations{NODE}",
            },
        ),
        Panel(
            "Fragmentation",
            {"{{node}}": f"vcuda_node_fragmentation_ratio{NODE}"},
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            "Memory limits enforced outside the library",
            {"{{kind}}": f"sum by (kind) (vcuda_driver_memory_limits{NODE})"},
        ),
    ),
)

CARD_BOARD = (
    "Cards: card",
    (("node", "vcuda_card_info"), ("card", 'vcuda_card_info{node=~"$node"}')),
    (
        gauge("Cores booked", {CARD: f"vcuda_card_cores_booked_ratio{ONE}"}),
        Panel(
            "Health",
            {
                "healthy": f"vcuda_card_healthy{ONE}",
                "cordoned": f"vcuda_card_cordoned{ONE}",
                "XID errors": f"sum by (node, card, uuid) (vcuda_card_xid_errors_total{ONE})",
            },
            kind="table",
            columns={"node": "Node", "card": "Card", "uuid": "UUID"},
        ),
        Panel(
            "Who held it",
            {WHO: f"vcuda_container_core_limit_ratio{ONE}"},
            "Share of the card's time that each container had.",
            unit="percentunit",
            stack=True,
        ),
        Panel(
            "Use, by container",
            {WHO: f"vcuda_container_core_usage_ratio{ONE}"},
            unit="percentunit",
            stack=True,
        ),
        Panel(
            "Memory, by container",
            {WHO: f"vcuda_container_memory_used_bytes{ONE}"},
            unit="bytes",
            stack=True,
        ),
        Panel(
            "Throttled",
            {WHO: f"rate(vcuda_container_throttled_seconds_total{ONE}[5m])"},
            "Seconds per second that its processes waited for their share, summed over them.",
            unit="s",
        ),
        Panel(
            "Power",
            {CARD: f"vcuda_card_power_watts{ONE}"},
            "Empty where the driver does not tell it.",
            unit="watt",
        ),
        Panel(
            "Temperature",
            {CARD: f"vcuda_card_temperature_celsius{ONE}"},
            "Empty where the driver does not tell it.",
            unit="celsius",
        ),
        Panel(
            "Power, by container",
            {WHO: f'rate({ENERGY}{{node=~"$node", card=~"$card", pod!=""}}[5m])'},
            "The card's power by the time that each used of it.",
            unit="watt",
            stack=True,
        ),
        Panel(
            "Memory refused",
            {WHO: rise(f"vcuda_container_memory_refusals_total{ONE}")},
            "Allocations in the last 5 minutes that the limit refused.",
        ),
    ),
)

POD = (
    "Cards: pod",
    (
        ("namespace", "vcuda_container_core_limit_ratio"),
        ("pod", 'vcuda_container_core_limit_ratio{namespace=~"$namespace"}'),
    ),
    (
        Panel(
            "Share of the card's time",
            {
                f"{WHO} used": f"vcuda_container_core_usage_ratio{CONTAINER}",
                f"{WHO} share": f"vcuda_container_core_limit_ratio{CONTAINER}",
                f"{WHO} ceiling": f"vcuda_container_core_ceiling_ratio{CONTAINER}",
            },
            unit="percentunit",
        ),
        Panel(
            "Memory",
            {
                f"{WHO} used": f"vcuda_container_memory_used_bytes{CONTAINER}",
                f"{WHO} limit": f"vcuda_container_memory_limit_bytes{CONTAINER}",
            },
            unit="bytes",
        ),
        Panel(
            "Cores booked and advised",
            {
                f"{WHO} booked": f"100 * vcuda_container_core_limit_ratio{CONTAINER}",
                f"{WHO} advised": f"vcuda_container_advised_cores{CONTAINER}",
            },
            "Hundredths of a card. Advised is absent until it can be told: kubectl vcuda advise says why.",
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
        Panel(
            "Delivered share against target",
            {WHO: f"vcuda_container_core_delivered_ratio{CONTAINER}"},
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
            kind="table",
            columns={
                "namespace": "Namespace",
                "pod": "Pod",
                "container": "Container",
                "node": "Node",
                "card": "Card",
                "state": "State",
            },
        ),
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

BOARDS = {"cluster": CLUSTER, "node": NODE_BOARD, "card": CARD_BOARD, "pod": POD}

"""The board of the cluster: how much is booked, used, free, refused, and by whom."""

from __future__ import annotations

from deploy.grafana.panels import (
    ENERGY,
    EXPIRY,
    HEALTH_OF_CARDS,
    IDLE,
    NODE,
    OF_MODEL,
    POD_COLUMNS,
    QUOTA,
    Panel,
    beyond,
    gauge,
    rise,
    row,
    slowest,
    stat,
    throttled,
)

BOARD = (
    "Cards: cluster",
    (("node", "vcuda_card_info"),),
    (
        row("Now"),
        stat("Cards", "count(vcuda_card_info)", about="Cards that the agents publish."),
        stat(
            "Unhealthy or cordoned",
            "sum(clamp_max(1 - vcuda_card_healthy + vcuda_card_cordoned, 1))",
            alarm=1,
            about="Cards on which nothing new is placed; the table at the end names them.",
        ),
        stat(
            "Booked",
            "avg(vcuda_card_cores_booked_ratio)",
            unit="percentunit",
            about="Of all cards' cores, the part that pods have been given.",
        ),
        stat(
            "Used",
            "sum(vcuda_container_core_usage_ratio) / count(vcuda_card_info)",
            unit="percentunit",
            about="Of all cards' time, the part that containers use.",
        ),
        stat(
            "Waiting pods",
            "max(vcuda_admission_waiting_pods)",
            alarm=1,
            about="Pods that ask for cards and have no node; kubectl vcuda explain reports why.",
        ),
        stat(
            "Evaders", "sum(vcuda_evaders)", alarm=1, about="Containers that are bypassing their limits now."
        ),
        row("Capacity"),
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
            "Booked: promised to pods. Used: held by all processes. Capacity: the memory of all cards.",
            unit="bytes",
        ),
        gauge(
            "Booked, by node",
            {"{{node}}": "avg by (node) (vcuda_card_cores_booked_ratio)"},
            "Of each node's cores, the part that pods have been given; orange where hardly any is left.",
        ),
        Panel(
            "Fragmentation",
            {"{{node}}": "vcuda_node_fragmentation_ratio"},
            "Share of the free cores that lie on cards partly used: room for fractions, not for whole cards.",
            unit="percentunit",
            most=1.0,
        ),
        row("Who holds, and who wastes"),
        Panel(
            "Cards booked, by namespace",
            {"{{namespace}}": "sum by (namespace) (vcuda_pod_core_booked_ratio)"},
            "In cards: 1 is the whole time of one card.",
            stack=True,
        ),
        Panel(
            "Waste, by namespace",
            {"{{namespace}}": f"sum by (namespace) ({IDLE})"},
            "In cards: what is booked and not used, summed over containers.",
            stack=True,
        ),
        Panel(
            "Memory booked, by namespace",
            {"{{namespace}}": "sum by (namespace) (vcuda_pod_memory_booked_bytes)"},
            "What the namespace's pods have been promised, on all cards.",
            unit="bytes",
            stack=True,
        ),
        Panel(
            "By model",
            {
                "cards": "count by (model) (vcuda_card_info)",
                "booked, %": f"100 * avg by (model) (vcuda_card_cores_booked_ratio * {OF_MODEL})",
                "used, %": f"100 * sum by (model) (vcuda_container_core_usage_ratio * {OF_MODEL})"
                " / count by (model) (vcuda_card_info)",
            },
            "Cards of each model, and how much of their time is given and used.",
            kind="table",
            columns={"model": "Model"},
        ),
        Panel(
            "Most cards booked and idle",
            {"cards": f"topk(10, sum by (namespace, pod) ({IDLE}))"},
            "Whole cards' worth of cores that a pod has booked and does not use now: the ten largest.",
            kind="table",
            columns=POD_COLUMNS,
        ),
        Panel(
            "Most throttled",
            {"s/s": f"topk(10, {throttled('namespace, pod')})"},
            "Seconds per second that a pod's processes wait for their share: the ten largest.",
            kind="table",
            columns=POD_COLUMNS,
        ),
        Panel(
            "Cards beyond advice",
            {"cards": beyond("vcuda_container_core_limit_ratio", "core_advised_ratio")},
            "What containers have booked above the size that their agent advises: the ten largest.",
            kind="table",
            columns=POD_COLUMNS,
        ),
        Panel(
            "Memory beyond advice",
            {"bytes": beyond("vcuda_container_memory_limit_bytes", "advised_memory_bytes")},
            "Only containers whose memory can be judged: kubectl vcuda advise says of the others why not.",
            kind="table",
            unit="bytes",
            columns=POD_COLUMNS,
        ),
        row("Quota and priority"),
        Panel(
            "Quota: cards used and granted",
            {
                "used": "max by (namespace, model) (vcuda_admission_quota_cards_used)",
                "granted": "max by (namespace, model) (vcuda_admission_quota_cards_limit)",
            },
            "In cards; a namespace without a quota is not in the list.",
            kind="table",
            columns={"namespace": "Namespace", "model": "Model"},
        ),
        Panel(
            "Quota: memory used over granted",
            {"{{namespace}} {{model}}": f"{QUOTA.format('used')} / {QUOTA.format('limit')}"},
            "At 100 % a pod that asks for more is refused or waits.",
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
        row("Power and energy"),
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
        row("Claims"),
        Panel(
            "Claims",
            {
                "{{result}} {{reason}}": rise("vcuda_claims_total", "result, reason"),
                "held by processes alone": "sum(vcuda_lingering_claims)",
            },
            "What was answered in the last 5 minutes; a refused claim is asked for again and again.",
        ),
        Panel(
            "Cards, by front",
            {"{{front}}": f"count by (front) (vcuda_card_front{NODE})"},
            "plugin: extended resources; dra: ResourceClaims.",
            stack=True,
        ),
        row("Health of cards and service"),
        HEALTH_OF_CARDS,
        Panel(
            "Webhook and extender: 99th percentile",
            {
                "webhook {{verb}}": slowest("vcuda_admission_duration_seconds", "verb"),
                "extender {{verb}}": slowest("vcuda_admission_extender_duration_seconds", "verb"),
            },
            "One request in a hundred takes longer than this; the API server waits 10 s for the webhook.",
            unit="s",
        ),
        Panel(
            "Leaders and reservations",
            {
                "leaders": "sum(vcuda_admission_leader)",
                "reservations of pods being bound": "sum(vcuda_admission_reservations)",
            },
            "Exactly one leader binds pods.",
        ),
        Panel(
            "Certificate expires in",
            {"days": f"min({EXPIRY} - time()) / 86400"},
            "Renewed automatically, by the service or by cert-manager.",
        ),
    ),
)

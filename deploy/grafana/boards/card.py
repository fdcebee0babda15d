"""The board of a card: who held it over time, and its health."""

from __future__ import annotations

from deploy.grafana.panels import (
    CARD,
    CARD_HEALTH,
    CORDONED,
    ENERGY,
    HEALTHY,
    ONE,
    WHO,
    Panel,
    gauge,
    rise,
    row,
)

BOARD = (
    "Cards: card",
    (("node", "vcuda_card_info"), ("card", 'vcuda_card_info{node=~"$node"}')),
    (
        row("Now"),
        gauge(
            "Cores booked",
            {CARD: f"vcuda_card_cores_booked_ratio{ONE}"},
            "The part of the card's time that containers have been given; orange where hardly any is left.",
        ),
        Panel(
            "Health",
            {
                "healthy": f"vcuda_card_healthy{ONE}",
                "cordoned": f"vcuda_card_cordoned{ONE}",
                "XID errors": f"sum by (node, card, uuid) (vcuda_card_xid_errors_total{ONE})",
            },
            f"{CARD_HEALTH} XID errors: since the agent's start.",
            kind="table",
            columns={"node": "Node", "card": "Card", "uuid": "UUID"},
            words={"healthy": HEALTHY, "cordoned": CORDONED},
        ),
        row("Who held it"),
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
            "The part of the card's time that each container used, one upon the other: 100 % is all of it.",
            unit="percentunit",
            stack=True,
        ),
        Panel(
            "Memory, by container",
            {WHO: f"vcuda_container_memory_used_bytes{ONE}"},
            "Memory of the card that each container's processes hold, one upon the other.",
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
            "Memory refused",
            {WHO: rise(f"vcuda_container_memory_refusals_total{ONE}")},
            "Allocations in the last 5 minutes that the limit refused.",
        ),
        row("The hardware"),
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
    ),
)

"""The console's files with data of any size behind them, as the admission service serves it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from gpu_manager import ui
from tests.fakes.web import given, send, serving

GIB = 1 << 30
GROUPS = ("room", "room", "quota", "never", "fits", "node", "refused", "")
SHARES = ((), (30,), (100,), (50, 25), (20, 20, 20))
Obj = dict[str, Any]


def holder(pod: str, cores: int, **more: Any) -> Obj:
    """A container named ``main`` with 5 GiB, whose use is not known."""
    fixed = {"namespace": "team-a", "pod": pod, "container": "main", "cores": cores, "memory": 5 * GIB}
    return {**fixed, "planned": False, "ended": False, "core_used": None, "memory_used": None, **more}


def card(index: int, *holders: Obj, uuid: str = "", **more: Any) -> Obj:
    """An A100 of 40 GiB."""
    return {
        "index": index,
        "uuid": uuid or f"GPU-{index}",
        "model": "A100",
        "healthy": True,
        "cordoned": False,
        "mig": False,
        "reason": "",
        "open": True,
        "cores_free": 100 - sum(h["cores"] for h in holders),
        "memory": 40 * GIB,
        "memory_free": 40 * GIB - sum(h["memory"] for h in holders),
        "holders": list(holders),
        **more,
    }


def node(name: str, *cards: Obj) -> Obj:
    """A node whose cards are joined by nothing better than the bus."""
    links = [["SYS"] * len(cards)] * len(cards)
    return {"node": name, "unit": 1 << 28, "links": links, "cards": list(cards)}


def row(pod: str, **more: Any) -> Obj:
    """A pod that waits."""
    why = {"why": "waits: of 2 nodes, 2 have no room now", "change": "ask 50 cores", "group": "room"}
    return {
        "pod": pod,
        "created": "2026-01-01T00:00:00Z",
        "priority": 0,
        "asks": "80 cores, 5 GiB",
        **why,
        **more,
    }


def cluster(*nodes: Obj, waiting: Any = (), quota: Any = (), **more: Any) -> Obj:
    """A whole answer of ``/ui/data``."""
    return {
        "nodes": list(nodes),
        "generation": "x-1",
        "full": True,
        "gone": [],
        "namespace": "",
        "ranges": ["10m", "1h"],
        "age": 0.0,
        "usage_age": 1.0,
        "silent": [],
        "waiting": list(waiting),
        "quota": list(quota),
        "left_out": {"nodes": 0, "waiting": 0},
        **more,
    }


def nodes(count: int, cards: int, pods: int, seed: int = 1) -> list[Obj]:
    """So many nodes with about so many pods: one card in 37 is sick, one in 41 cordoned."""
    dice = random.Random(seed)
    each = pods / (count * cards)
    found = []
    for at in range(count):
        made = []
        for index in range(cards):
            number = at * cards + index
            state: Obj = {"uuid": f"GPU-{number:05d}"}
            if number % 37 == 5:
                state |= {"healthy": False, "open": False, "reason": "XID 79: the card is lost"}
            elif number % 41 == 7:
                state |= {"cordoned": True, "open": False}
            several = int(each) + (dice.random() < each % 1)
            size = 100 // max(1, several) // 10 * 10
            held = [
                holder(
                    f"job-{number}-{i}",
                    size,
                    core_used=size / 100 * dice.random(),
                    memory_used=dice.randrange(5 * GIB),
                )
                for i in range(several)
            ]
            made.append(card(index, *held, **state))
        found.append(node(f"gpu-node-{at:04d}", *made))
    return found


def waiting(count: int) -> list[Obj]:
    """Pods that wait, of every group."""
    return [row(f"team-b/job-{i}", group=GROUPS[i % len(GROUPS)], priority=i % 3 * 100) for i in range(count)]


QUOTA = [
    {"namespace": "team-a", "model": "*", "cores": 800, "cores_used": 830, "memory": None, "memory_used": 0},
    {
        "namespace": "team-b",
        "model": "A100",
        "cores": 400,
        "cores_used": 0,
        "memory": GIB,
        "memory_used": GIB,
    },
]
SAID = {
    "pod": "team-b/job-0",
    "line": "waits: of 8 nodes, 8 have no room now",
    "change": "ask 50 cores",
    "quota": ["4 cards of A100, 4 used or being bound"],
    "nodes": [
        {"node": "gpu-node-0001", "outcome": "room", "line": "card 1 has 20 cores free", "victims": ["a/b"]}
    ],
}


def past(*names: str, **more: Any) -> Obj:
    """An answer of ``/ui/history`` with a line for each pod's container; nothing answered at its third moment."""
    series = [
        {
            "namespace": "team-a",
            "pod": name,
            "container": "main",
            "uuid": "GPU-00000",
            "node": "n1",
            "cores": [0.2, 0.3, None, 0.1 * at, 0.5],
            "memory": [GIB, GIB, None, 2 * GIB, 2 * GIB],
            "waited": [None, 0.0, None, 0.4, 0.1],
        }
        for at, name in enumerate(names)
    ]
    start = {"start": 1_790_000_000.0, "step": 5.0, "source": "agents", "left_out": 0}
    return {**start, "series": series, **more}


TRENDS = {"cards": {f"GPU-{n:05d}": [(n * 7 + at * 5) % 101 for at in range(20)] for n in range(64)}}
WASTE = {
    "source": "prometheus",
    "seconds": 3600,
    "left_out": 0,
    "pods": [
        {"namespace": "team-a", "pod": "job-0-0", "wasted": 90000.0, "used": 18000.0, "booked": 108000.0},
        {"namespace": "team-a", "pod": "job-9-0", "wasted": 40.0, "used": None, "booked": None},
    ],
}


HEALTH = {
    "since": 1_790_000_000.0,
    "events": [
        {
            "event": "card_closed",
            "text": "XID 79: the card is lost",
            "first": 1_790_000_900.0,
            "last": 1_790_000_900.0,
            "count": 1,
        },
        {"event": "closing_xid", "text": "79", "first": 1_790_000_900.0, "last": 1_790_000_900.0, "count": 1},
        {"event": "xid", "text": "31", "first": 1_790_000_100.0, "last": 1_790_000_200.0, "count": 7},
    ],
}


ADVICE = {
    "containers": [
        {
            "container": "main",
            "given": {"cores": 50, "memory": 5 * GIB},
            "cores": {"value": 20, "reason": "while it works it would use up to 20 cores without a limit"},
            "memory": {"value": None, "reason": "it still grows"},
        }
    ]
}


EVENTS = {
    "left_out": 0,
    "more": True,
    "events": [
        {
            "kind": "Warning",
            "reason": "FailedScheduling",
            "message": "0/8 nodes are available: 8 have no card with 80 free cores.",
            "source": "default-scheduler",
            "first": 1_790_000_100.0,
            "last": 1_790_000_900.0,
            "count": 7,
        },
        {
            "kind": "Normal",
            "reason": "VcudaAllocated",
            "message": "30 cores, 5 GiB of card 3",
            "source": "gpu-manager",
            "first": None,
            "last": None,
            "count": 1,
        },
    ],
}


@contextmanager
def console(whole: Obj, change: Obj | None = None) -> Iterator[str]:
    """Serves the console; yields its URL. ``/ui/data`` gives the whole and, to who has it, the change."""
    bodies = [json.dumps(whole if answer is None else answer).encode() for answer in (whole, change)]
    judged = {"workloads": [{"kind": "Pod", "name": "team-b/x", "copies": 1, "said": SAID}]}

    def respond(handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path
        if (file := ui.asset(path)) is not None:
            send(handler, file[1], 200, kind=file[0], Content_Security_Policy=ui.CONTENT_POLICY)
            return
        if path == "/ui/data":
            body = bodies["since=" in handler.path]
        else:
            if handler.command == "POST":
                given(handler)
            others = {
                "/ui/what-if": judged,
                "/ui/history": past("job-0", "job-1"),
                "/ui/trends": TRENDS,
                "/ui/waste": WASTE,
                "/ui/health": HEALTH,
                "/ui/advice": ADVICE,
                "/ui/events": EVENTS,
            }
            body = json.dumps(others.get(path, SAID)).encode()
        send(handler, body, 200, kind="application/json")

    with serving(respond) as url:
        yield url

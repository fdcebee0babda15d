"""The agent's HTTP on :5678: metrics, usage, graph, a page for people, health for the kubelet.

The paths and the shape of ``/usage`` are the predecessor's. Every answer comes from memory;
:mod:`gpu_manager.servers.http` serves them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry

from gpu_manager import ui
from gpu_manager.domain.advice.sized import Sized, pod_advice_json, sized_json
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_json import node_json, node_text
from gpu_manager.domain.cluster.usage_history import MINUTES, HistoryQuery, UsageHistory, history_json, reach
from gpu_manager.domain.cluster.usage_json import read_usage
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.resources import CORES_PER_CARD, MIB
from gpu_manager.scrape import scrape
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.cards.health import Health
from gpu_manager.services.enforcement.usage import UsageSampler

Answer = tuple[HTTPStatus, str, bytes]
_JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
_PATHS: Final = (
    b"paths: /ui /ui/data /ui/history /ui/health /ui/advice /metric /metrics /usage /advice /graph /version"
    b" /healthz /readyz\n"
)
_HISTORY_SECONDS: Final = 5.0  # between two figures of the console's history


class Status:
    """The pages behind the paths; every method answers from what is in memory."""

    def __init__(
        self,
        state: NodeState,
        usage: UsageSampler,
        registry: CollectorRegistry,
        version: str,
        ready: Callable[[], Mapping[str, bool]],
        why: Callable[[], str] = str,
        sized: Callable[[], Sequence[Sized]] = tuple,
        health: Health | None = None,
    ) -> None:
        """``ready`` names what must hold, ``why`` what stands in the way, ``sized`` the sizes advised.

        ``health`` tells what happened to cards; None: nobody does.
        """
        self._health = health
        self._state = state
        self._usage = usage
        self._registry = registry
        self._version = version
        self._ready = ready
        self._why = why
        self._sized = sized
        self._lock = threading.Lock()  # of the history
        self._history = UsageHistory()
        self._kept_at = float("-inf")

    def answer(self, path: str, accept: str, query: str = "") -> Answer:
        """Status, content type and body for one GET; ``accept`` is that header, ``query`` the URL's."""
        if path in ("/metric", "/metrics"):
            page, content_type = scrape(self._registry, accept)
            return HTTPStatus.OK, content_type, page
        if path == "/usage":
            return _json(HTTPStatus.OK, self.usage())
        if path == "/advice":
            return _json(HTTPStatus.OK, {"containers": [sized_json(one) for one in self._sized()]})
        if path == "/graph":
            graph = self.graph()
            return (
                _json(HTTPStatus.OK, graph)
                if _JSON in accept
                else (HTTPStatus.OK, TEXT, node_text(graph).encode())
            )
        if path == "/ui/data":
            return _json(HTTPStatus.OK, self._data())
        if path == "/ui/history":
            return self._past(query)
        if path == "/ui/advice":
            namespace, _, pod = parse_qs(query).get("name", [""])[0].partition("/")
            return _json(HTTPStatus.OK, pod_advice_json(self._sized(), namespace, pod))
        if path == "/ui/health":
            return self._card_health(query)
        if (file := ui.asset(path)) is not None:
            return HTTPStatus.OK, *file
        if path == "/version":
            return _json(HTTPStatus.OK, {"version": self._version})
        if path == "/healthz":
            return HTTPStatus.OK, TEXT, b"ok\n"
        if path == "/readyz":
            return self._readiness()
        return HTTPStatus.NOT_FOUND, TEXT, _PATHS

    def _data(self) -> dict[str, Any]:
        """What the console shows; its history goes on while somebody looks."""
        now, last = time.monotonic(), self._usage.last
        with self._lock:
            if now - self._kept_at >= _HISTORY_SECONDS:
                self._kept_at = now
                self._history.record(self._state.node.name, now, read_usage(self.usage()))
        age = round(max(0.0, now - last.at), 1)
        return {"nodes": [self.graph()], "waiting": None, "age": age, "ranges": [MINUTES]}

    def _past(self, query: str) -> Answer:
        asked = parse_qs(query)
        try:
            wanted = HistoryQuery.parse(*(asked.get(key, [""])[0] for key in ("subject", "name")))
        except RequestInvalid as error:
            return HTTPStatus.BAD_REQUEST, TEXT, f"{error}\n".encode()
        with self._lock:
            series = self._history.read(wanted, time.monotonic(), _HISTORY_SECONDS)
            left_out = self._history.left_out
        start = time.time() - reach(_HISTORY_SECONDS)
        return _json(HTTPStatus.OK, history_json(series, start, _HISTORY_SECONDS, "agents", left_out))

    def _card_health(self, query: str) -> Answer:
        """What happened to the card that the query names."""
        if self._health is None:
            return HTTPStatus.NOT_FOUND, TEXT, b"this agent does not watch its cards\n"
        card = CardUuid(parse_qs(query).get("card", [""])[0])
        events = [asdict(one) for one in self._health.events(card)]
        return _json(HTTPStatus.OK, {"since": self._health.began, "events": events})

    def _readiness(self) -> Answer:
        checks: dict[str, Any] = dict(self._ready())
        if all(checks.values()):
            return _json(HTTPStatus.OK, checks)
        why = self._why()
        return _json(HTTPStatus.SERVICE_UNAVAILABLE, checks | ({"why": why} if why else {}))

    def usage(self) -> dict[str, Any]:
        """Pod UID → its containers, their cards and what they asked for (MiB, percent, cards)."""
        sample = self._usage.last
        node = self._state.node
        pods: dict[str, Any] = {}
        for key, grant in sample.grants.items():
            allocation = grant.allocation
            pod = pods.setdefault(
                key[0], {"project": allocation.namespace, "pod": allocation.pod_name, "stat": {}, "spec": {}}
            )
            if allocation.claim is not None:
                pod["claim"] = allocation.claim.name
            pod["spec"][key[1]] = {
                "gpu": sum(s.amount.cores for s in allocation.shares) / CORES_PER_CARD,
                "mem": sum(s.amount.memory for s in allocation.shares) / MIB,
            }
            pod["stat"][key[1]] = {"dev": []}
        for use in sample.shares:
            state = node.card(use.share.card)
            device: dict[str, Any] = {"id": state.card.pci_bus_id if state else "", "uuid": use.share.card}
            if state is not None:
                device |= {"card_idx": str(state.card.index), "device_mem": state.card.memory / MIB}
            if use.core is not None:
                device["gpu"] = use.core * 100
            if use.held is not None:
                device["mem"] = use.held / MIB
            if use.throttled is not None:
                device["throttled"] = use.throttled
            pods[use.key[0]]["stat"][use.key[1]]["dev"].append(device | {"pids": list(use.pids)})
        return {"usage": pods}

    def graph(self) -> dict[str, Any]:
        """The node's cards, who holds what of them, and how they are joined."""
        sample = self._usage.last
        used = {(u.key, u.share.card): u for u in sample.shares}

        def more(holder: Allocation, card: CardUuid) -> Mapping[str, Any]:
            use = used.get((holder.key, card))
            return {
                "planned": not holder.granted,
                "ended": holder.key in sample.ended,
                "memory_used": use.held if use else None,
                "core_used": use.core if use else None,
            }

        view = self._state.view
        return node_json(view.node.name, view.node.cards, view.node.topology, view.ledger, more)


def _json(status: HTTPStatus, value: object) -> Answer:
    return status, _JSON, (json.dumps(value, indent=1) + "\n").encode()

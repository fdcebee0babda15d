"""The agent's HTTP on :5678: metrics, usage, graph, a page for people, health for the kubelet.

The paths and the shape of ``/usage`` are the predecessor's. Every answer comes from memory, and all but the
metrics name only the pods that the caller may hear of;
:mod:`gpu_manager.servers.http` serves them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry

from gpu_manager import ui
from gpu_manager.domain.advice.size import Sized, pod_advice_json, sized_json, within_scope
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_json import hidden, node_json, node_text
from gpu_manager.domain.cluster.node_past import STEP, HeldShare, waste_json, waste_of_shares
from gpu_manager.domain.cluster.usage_history import (
    HOUR,
    HOUR_SECONDS,
    MINUTE,
    MINUTES,
    SECONDS,
    HistoryQuery,
    HistorySubject,
    Series,
    history_json,
    reach,
)
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.features import stages
from gpu_manager.domain.names import ALL_NAMES, NO_NAMES, NameScope, container_digest
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.resources import CORES_PER_CARD, MIB
from gpu_manager.runtime.inbound import scrape
from gpu_manager.services.allocation.books import Key
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.cards.health import Health
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.enforcement.usage_sample import Place, UsagePast

# Not to hold by these does not make the agent's pod unready: its metrics go on, and a roll-out does not hang.
_TOLD: Final = frozenset({"injection"})
Answer = tuple[HTTPStatus, str, bytes]
_JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
_PATHS: Final = (
    b"paths: /ui /ui/data /ui/history /ui/trends /ui/health /ui/advice /ui/waste /metric /metrics /usage"
    b" /usage/history /advice /graph /records /version /healthz /readyz\n"
)
NAMING: Final = (
    "/usage", "/usage/history", "/advice", "/graph", "/ui/data", "/ui/history", "/ui/advice",
    "/ui/waste", "/records",
)  # fmt: skip
"""The paths whose answers depend on whose names may be told."""
_NOT_NAMED: Final = (
    HTTPStatus.FORBIDDEN,
    TEXT,
    b"pods are named to callers who may get them: send Authorization: Bearer <token>\n",
)


@dataclass(eq=False, repr=False)
class Status:
    """The status pages by path; every method answers from memory.

    ``ready`` names what must hold, ``why`` what stands in the way, ``sized`` the sizes advised,
    ``differing`` by how much the driver's figure exceeds an account, where that is reported. ``past``
    remembers what was used; None: nothing is. ``records``: the newest recorded decisions, lines of JSON.

    ``health`` tells what happened to cards; None: nobody does.
    """

    state: NodeState
    sampler: UsageSampler
    registry: CollectorRegistry
    version: str
    ready: Callable[[], Mapping[str, bool]]
    why: Callable[[], str] = str
    sized: Callable[[], Sequence[Sized]] = tuple
    health: Health | None = None
    differing: Callable[[], Mapping[Place, float]] = dict
    past: InitVar[UsagePast | None] = None
    records: Callable[[], Sequence[bytes]] = tuple

    def __post_init__(self, past: UsagePast | None) -> None:
        self._past_use = past or UsagePast(self.state.node.name)

    def answer(self, path: str, accept: str, query: str = "", scope: NameScope = ALL_NAMES) -> Answer:
        """Status, content type and body for one GET; ``accept`` is that header, ``query`` the URL's.

        ``scope``: the namespace whose names the caller may see.
        """
        if path in ("/metric", "/metrics"):
            page, content_type = scrape(self.registry, accept)
            return HTTPStatus.OK, content_type, page
        if path == "/usage":
            return _json(HTTPStatus.OK, self.usage(scope))
        if path == "/advice":
            told = [sized_json(within_scope(one, scope)) for one in self.sized()]
            return _json(HTTPStatus.OK, {"containers": told})
        if path == "/graph":
            graph = self.graph(scope)
            return (
                _json(HTTPStatus.OK, graph)
                if _JSON in accept
                else (HTTPStatus.OK, TEXT, node_text(graph).encode())
            )
        if path == "/records":
            if scope != ALL_NAMES:
                return _NOT_NAMED
            return HTTPStatus.OK, _JSON, b'{"lines":[' + b",".join(self.records()) + b"]}\n"
        if path == "/ui/data":
            return _json(HTTPStatus.OK, self._data(scope))
        if path == "/ui/history":
            return self._past(query, scope)
        if path == "/usage/history":
            return _json(HTTPStatus.OK, self._past_use.as_json(time.monotonic(), scope.covers))
        if path == "/ui/trends":
            return _json(HTTPStatus.OK, {"cards": self._past_use.trends(time.monotonic())})
        if path == "/ui/advice":
            return self._advice(query, scope)
        if path == "/ui/waste":
            return _json(HTTPStatus.OK, self._waste(scope))
        if path == "/ui/health":
            return self._card_health(query)
        if (file := ui.asset(path)) is not None:
            return HTTPStatus.OK, *file
        if path == "/version":
            return _json(HTTPStatus.OK, {"version": self.version, "features": stages()})
        if path == "/healthz":
            return HTTPStatus.OK, TEXT, b"ok\n"
        if path == "/readyz":
            return self._readiness()
        return HTTPStatus.NOT_FOUND, TEXT, _PATHS

    def _data(self, scope: NameScope) -> dict[str, Any]:
        """What the console shows."""
        age = round(max(0.0, time.monotonic() - self.sampler.last.at), 1)
        data = {"nodes": [self.graph(scope)], "waiting": None, "age": age, "ranges": [MINUTES, HOUR]}
        return {**data, "named": scope != NO_NAMES, "namespace": scope.namespace or ""}

    def _past(self, query: str, scope: NameScope) -> Answer:
        asked = parse_qs(query)
        subject, name, span = (asked.get(key, [""])[0] for key in ("subject", "name", "span"))
        try:
            wanted = HistoryQuery.parse(subject, name, scope.namespace or "")
        except RequestInvalid as error:
            return HTTPStatus.BAD_REQUEST, TEXT, f"{error}\n".encode()
        if scope == NO_NAMES and wanted.subject is HistorySubject.POD:
            return _NOT_NAMED
        hour = span == HOUR
        series, left_out = self._series(wanted, scope, hour=hour)
        step, reached = (MINUTE, HOUR_SECONDS) if hour else (STEP, SECONDS)
        start = time.time() - reach(step, reached)
        return _json(HTTPStatus.OK, history_json(series, start, step, "agents", left_out))

    def _series(self, query: HistoryQuery, scope: NameScope, *, hour: bool) -> tuple[list[Series], int]:
        """What is remembered; of a card one sum, where its holders may not be named."""
        now = time.monotonic()
        if scope != NO_NAMES or query.subject is not HistorySubject.CARD:
            return self._past_use.read(query, now, hour=hour)
        cards = HistoryQuery(HistorySubject.NODE, self.state.node.name)
        found, left_out = self._past_use.read(cards, now, hour=hour)
        return [one for one in found if one.labels["uuid"] == query.name], left_out

    def _waste(self, scope: NameScope) -> dict[str, Any]:
        """Pods that may be named and left cores idle in the last hour."""
        sample = self.sampler.last
        held = (
            HeldShare(one.namespace, one.pod_name, (*one.key, share.card), share.amount.cores)
            for one in (grant.allocation for grant in sample.grants.values())
            if one.key not in sample.ended and scope.covers(one.namespace)
            for share in one.shares
        )
        used = self._past_use.sums(time.monotonic())
        return waste_json(waste_of_shares(held, used), int(HOUR_SECONDS), "agents")

    def _advice(self, query: str, scope: NameScope) -> Answer:
        """The advice for the pod that ``uid`` names or, to those who may hear its name, ``name``."""
        asked = parse_qs(query)
        uid, name = (asked.get(key, [""])[0] for key in ("uid", "name"))
        namespace, _, pod = name.partition("/")
        if uid:
            mine = [replace(one, uids=(uid,)) for one in self.sized() if uid in one.uids]
        elif not name or scope.covers(namespace):
            mine = [one for one in self.sized() if one.workload[0] == namespace and pod in one.pods]
        else:
            return _NOT_NAMED
        return _json(HTTPStatus.OK, pod_advice_json(within_scope(one, scope) for one in mine))

    def _card_health(self, query: str) -> Answer:
        """What happened to the card that the query names."""
        if self.health is None:
            return HTTPStatus.NOT_FOUND, TEXT, b"this agent does not watch its cards\n"
        card = CardUuid(parse_qs(query).get("card", [""])[0])
        events = [asdict(one) for one in self.health.events(card)]
        return _json(HTTPStatus.OK, {"since": self.health.began, "events": events})

    def _readiness(self) -> Answer:
        checks, why = dict(self.ready()), self.why()
        waits = all(holds for name, holds in checks.items() if name not in _TOLD)
        code = HTTPStatus.OK if waits else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(code, checks | ({"why": why} if why else {}))

    def usage(self, scope: NameScope = ALL_NAMES) -> dict[str, Any]:
        """Pod UID → its containers, their cards and requests (MiB, percent, cards).

        A container whose name the caller may not see is given by a digest, and its processes are not listed.
        """
        sample, differing = self.sampler.last, self.differing()
        node = self.state.node
        pods: dict[str, Any] = {}
        names: dict[Key, str] = {}
        for key, grant in sample.grants.items():
            allocation = grant.allocation
            told = scope.covers(allocation.namespace)
            whose = (allocation.namespace, allocation.pod_name) if told else ("", "")
            pod = pods.setdefault(key[0], {"project": whose[0], "pod": whose[1], "stat": {}, "spec": {}})
            if allocation.claim is not None:
                pod["claim"] = allocation.claim.name if told else ""
            container = names[key] = key[1] if told else container_digest(*key)
            pod["spec"][container] = {
                "gpu": sum(s.amount.cores for s in allocation.shares) / CORES_PER_CARD,
                "mem": sum(s.amount.memory for s in allocation.shares) / MIB,
            }
            pod["stat"][container] = {"dev": []}
        for use in sample.shares:
            state = node.card(use.share.card)
            held = sample.grants.get(use.key)
            device: dict[str, Any] = {"id": state.card.pci_bus_id if state else "", "uuid": use.share.card}
            if state is not None:
                device |= {"card_idx": str(state.card.index), "device_mem": state.card.memory / MIB}
            if use.core is not None:
                device["gpu"] = use.core * 100
            if use.held is not None:
                device["mem"] = use.held / MIB
            if use.throttled is not None:
                device["throttled"] = use.throttled
            if use.refusals is not None:
                device["refused"] = use.refusals
            if use.place in differing:
                device["account_difference"] = round(differing[use.place] * 100, 1)
            if use.longest:
                device["longest"] = use.longest
            if held is not None and held.allocation.is_admin:
                device["admin"] = True
            elif held is not None and not use.share.whole:
                device["priority"] = held.allocation.priority.value
            if names[use.key] == use.key[1]:
                device["pids"] = list(use.pids)
            pods[use.key[0]]["stat"][names[use.key]]["dev"].append(device)
        return {"usage": pods}

    def graph(self, scope: NameScope = ALL_NAMES) -> dict[str, Any]:
        """The node's cards, their holders and their links; a holder is hidden if the caller may not see its
        name.
        """
        sample = self.sampler.last
        used = {(u.key, u.share.card): u for u in sample.shares}

        def more(holder: Allocation, card: CardUuid) -> Mapping[str, Any]:
            use = used.get((holder.key, card))
            return {
                "planned": not holder.granted,
                "ended": holder.key in sample.ended,
                "memory_used": use.held if use else None,
                "core_used": use.core if use else None,
                "refusals": use.refusals if use else None,
                **({} if scope.covers(holder.namespace) else hidden(holder)),
            }

        view = self.state.view
        return node_json(view.node.name, view.node.cards, view.node.topology, view.ledger, more)


def _json(status: HTTPStatus, value: object) -> Answer:
    return status, _JSON, (json.dumps(value, indent=1) + "\n").encode()

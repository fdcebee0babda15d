"""The agent's own Node object: the values published there, and operators' cordons of cards."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import structlog

from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.adapters.kube.objects import Obj
from gpu_manager.adapters.kube.outbox import Outbox
from gpu_manager.adapters.kube.reading import list_all
from gpu_manager.adapters.kube.reflector import Pause, Reflector, WatchedObjects
from gpu_manager.adapters.kube.tasks import EventTeller, LeaveTaints, MergeMetadata, Thing, publish_node
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_json import whole_number
from gpu_manager.domain.contract import (
    CORDON,
    CORE,
    EVENT_UNREADABLE,
    FORGET,
    FRONT_LABEL,
    INVENTORY,
    STARTUP_TAINT,
    decode_inventory,
    decode_uuids,
    encode_uuids,
)
from gpu_manager.domain.dra.sides import Front
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.store import Store

log = structlog.get_logger(__name__)

_AGAIN_SECONDS = 30.0  # shortest time between two repairs of keys that others changed


class KubeNode(WatchedObjects):
    """Watches the Node and patches it. Published keys are restored if they are removed.

    Cordons outlive the Node object: a recreated one, with another UID and no cordons, gets them back.
    """

    def __init__(
        self,
        connection: Connection,
        node: str,
        *,
        clock: Clock,
        outbox: Outbox,
        pause: Pause | None = None,
        cordons: Store | None = None,
        startup_taint: bool = False,
    ) -> None:
        """``cordons`` keeps them while no agent runs; without it they live as long as this agent.
        ``startup_taint``: remove the taint of a node that joined, once pods can be given cards there.
        """
        self._startup_taint = startup_taint
        self._connection = connection
        self._node = node
        self._clock = clock
        self._outbox = outbox
        self._teller = EventTeller(connection, clock, node)
        self._lock = threading.Lock()
        self._cordons = cordons
        self._uid, self._cordoned = _load(cordons)
        self._to_forget: frozenset[CardUuid] = frozenset()
        self._wanted: tuple[dict[str, str], dict[str, str | None]] = ({}, {})
        self._there: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        self._repaired = float("-inf")
        reflector = Reflector(
            connection,
            "nodes",
            "/api/v1/nodes",
            f"metadata.name={node}",
            replaced=self._replaced,
            changed=self._changed,
            unreadable=lambda found: self.event(EVENT_UNREADABLE, found.event),
            pause=pause,
        )
        super().__init__(reflector)

    def publish(self, annotations: Mapping[str, str], labels: Mapping[str, str | None]) -> None:
        """See :meth:`gpu_manager.ports.api_server.InventoryPublisher.publish`; unchanged values are not
        written again.
        """
        with self._lock:
            self._wanted = ({**self._wanted[0], **annotations}, {**self._wanted[1], **labels})
            task = self._task()
            if self._holds() and not self._outbox.waiting(task.key):
                return
        self._outbox.put(task)

    def shown(self) -> bool:
        """See :meth:`gpu_manager.ports.api_server.InventoryPublisher.shown`."""
        with self._lock:
            return self._there is not None and _has(self._there[0], self._wanted[0])

    def label(self, key: str) -> str:
        """The value of a label of the Node object as last seen; empty without it."""
        with self._lock:
            return text(self._there[1].get(key)) if self._there is not None else ""

    def cordoned(self) -> frozenset[CardUuid]:
        """Cards that the operator has closed, as last read; they stay closed while the API server is away."""
        with self._lock:
            return self._cordoned

    def to_forget(self) -> frozenset[CardUuid]:
        """Vanished cards that the operator does not expect back, as last seen."""
        with self._lock:
            return self._to_forget

    def forgot(self, uuids: Collection[CardUuid]) -> None:
        """Remove cards from the operator's annotation; the annotation is deleted with the last of them."""
        with self._lock:
            self._to_forget = left = self._to_forget.difference(uuids)
        self._outbox.put(publish_node(self._connection, self._node, {FORGET: encode_uuids(left) or None}))

    def elsewhere(self, uuids: Collection[CardUuid]) -> frozenset[CardUuid]:
        """Those of the cards that another node lists in working order. Raises NodeUnready."""
        found: set[CardUuid] = set()
        for node in list_all(self._connection, "list nodes", "/api/v1/nodes"):
            meta = mapping(node.get("metadata"))
            shown = decode_inventory(mapping(meta.get("annotations")).get(INVENTORY))
            if shown is not None and meta.get("name") != self._node:
                found |= {state.card.uuid for state in shown.cards if state.healthy}
        return frozenset(found.intersection(uuids))

    def event(self, reason: str, message: str) -> None:
        """Record a warning Event about the node; its uid is the node's name there, as the kubelet has it."""
        subject = Thing("Node", self._node, "default", self._node)
        self._outbox.put(self._teller.event(subject, reason, message))

    def _task(self) -> MergeMetadata:
        return publish_node(self._connection, self._node, dict(self._wanted[0]), dict(self._wanted[1]))

    def _holds(self) -> bool:
        if self._there is None:
            return False
        annotations, labels = self._there
        return _has(annotations, self._wanted[0]) and _has(labels, self._wanted[1])

    def _replaced(self, nodes: Iterable[Obj], take: Callable[[Obj], None]) -> None:
        for node in nodes:
            take(node)

    def _changed(self, node: Mapping[str, Any], gone: bool) -> None:  # noqa: FBT001 - the watch's word for DELETED
        meta = mapping(node.get("metadata"))
        annotations = mapping(meta.get("annotations"))
        if not gone:
            self._note_cordons(text(meta.get("uid")), annotations)
            if self._startup_taint and (left := left_taints(node)) is not None:
                version = text(meta.get("resourceVersion"))
                self._outbox.put(LeaveTaints(self._connection, self._node, version, left))
        with self._lock:
            if gone:
                self._there = None
                return
            self._there = (annotations, meta.get("labels") or {})
            self._to_forget = decode_uuids(annotations.get(FORGET))
            task = self._task()
            if self._holds() or self._outbox.waiting(task.key):
                return
            now = self._clock.monotonic()
            self._repaired = max(now, self._repaired + _AGAIN_SECONDS)
            delay = self._repaired - now
        self._outbox.put(task, delay)

    def _note_cordons(self, uid: str, annotations: Mapping[str, str]) -> None:
        said = decode_uuids(annotations.get(CORDON))
        with self._lock:
            made_anew = self._uid not in ("", uid)
            kept = self._cordoned if made_anew and CORDON not in annotations else frozenset()
            if (uid, said | kept) == (self._uid, self._cordoned):
                return
            self._uid, self._cordoned = uid, said | kept
            state = json.dumps({"uid": uid, "cordoned": encode_uuids(self._cordoned)}).encode()
        if kept:
            log.warning("cordons_restored", node=self._node, cards=sorted(kept))
            self._outbox.put(publish_node(self._connection, self._node, {CORDON: encode_uuids(kept)}))
        if self._cordons is not None:
            try:
                self._cordons.save(state)
            except NodeUnready as error:
                log.warning("cordons_not_saved", reason=str(error))


def _load(cordons: Store | None) -> tuple[str, frozenset[CardUuid]]:
    """The UID of the Node as last seen, and its cordons; nothing where that cannot be read."""
    try:
        state = cordons.load() if cordons is not None else None
        kept = mapping(json.loads(state)) if state is not None else {}
    except (NodeUnready, ValueError, RecursionError) as error:
        log.error("cordons_lost", reason=str(error))
        kept = {}
    return text(kept.get("uid")), decode_uuids(text(kept.get("cordoned")))


def left_taints(node: Mapping[str, Any]) -> list[Any] | None:
    """The taints of a node without that of its start; None if it has none, or must keep it for now: until its
    agent serves, and its kubelet has reported the devices, so that an autoscaler sees them too.
    """
    meta, status = mapping(node.get("metadata")), mapping(node.get("status"))
    taints = mapping(node.get("spec")).get("taints")
    if not isinstance(taints, list):
        return None
    left = [taint for taint in taints if mapping(taint).get("key") != STARTUP_TAINT]
    shown = decode_inventory(mapping(meta.get("annotations")).get(INVENTORY))
    by_claims = mapping(meta.get("labels")).get(FRONT_LABEL) == Front.DRA.value
    reported = by_claims or whole_number(mapping(status.get("allocatable")).get(CORE)) > 0
    serves = shown is not None and shown.serving and reported
    return left if serves and len(left) < len(taints) else None


def _has(there: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    return all(there.get(key) == value for key, value in wanted.items())

"""The ResourceClaimTemplates of converted pods: created before their pod, collected later.

A template is named by a digest of its content, so that every replica creates the same one. Before a pod is
admitted its template exists, with the time when it was last needed. A template that no pod has needed for an
hour and that no living pod names is deleted, unless it changed since it was read: for a pod that is just
being created that time is updated first, which either finds the template gone or keeps it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from gpu_manager.domain.contract import TEMPLATE_NEEDED, TURNED_LABEL
from gpu_manager.domain.errors import NodeUnready, printable
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)

FRESH_SECONDS: Final = 60.0
"""For how long a replica relies on what it has said itself of a template."""

IDLE_SECONDS: Final = 3600.0
"""After which a template that no pod has needed is looked at. Far above what clocks differ, and above
:data:`FRESH_SECONDS` with the time that the API server takes to store a pod."""

SWEEP_SECONDS: Final = 60.0
_TRIES: Final = 3  # another replica may make or delete it between two steps
_MOST_FRESH: Final = 4096


class TemplateApi(Protocol):
    """ResourceClaimTemplates at the API server. All raise NodeUnready: it does not answer, or refuses."""

    def create(self, namespace: str, body: Mapping[str, Any]) -> bool:
        """Store the template; False if one of that name exists."""

    def annotate(self, namespace: str, name: str, annotations: Mapping[str, str]) -> bool:
        """Merge annotations into the template; False if there is none of that name."""

    def delete(self, namespace: str, name: str, uid: str, version: str) -> bool:
        """Delete this template in this version; False if it is gone or has changed."""

    def named_by_pods(self, namespace: str) -> Collection[str]:
        """Return the names of templates that pods of the namespace which have not ended name, read now."""


@dataclass(frozen=True, slots=True)
class TurnedTemplate:
    """A template that was made for turned pods. ``needed`` is in seconds since 1970."""

    namespace: str
    name: str
    uid: str
    version: str
    needed: float


def read_turned_template(obj: Mapping[str, Any]) -> TurnedTemplate | None:
    """Read a ResourceClaimTemplate; None if this service did not create it. Without a time of last need it
    counts as needed long ago.
    """
    meta = mapping(obj.get("metadata"))
    if mapping(meta.get("labels")).get(TURNED_LABEL) != "true":
        return None
    said = text(mapping(meta.get("annotations")).get(TEMPLATE_NEEDED))
    needed = float(said) if said.isascii() and said.isdecimal() and len(said) < 16 else 0.0
    return TurnedTemplate(
        text(meta.get("namespace")),
        text(meta.get("name")),
        text(meta.get("uid")),
        text(meta.get("resourceVersion")),
        needed,
    )


class ClaimTemplates:
    """Thread-safe; :meth:`sweep` is for one thread of the leader."""

    def __init__(self, api: TemplateApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._lock = threading.Lock()
        self._fresh: dict[tuple[str, str], float] = {}  # said by this replica, by the monotonic clock
        self._looked: dict[tuple[str, str], float] = {}

    def ensure(self, namespace: str, name: str, spec: Mapping[str, Any]) -> str:
        """Keep the template in existence while a pod which names it is being stored; returns why that failed,
        empty if it did not. ``spec`` is that of its claims.
        """
        key, now = (namespace, name), self._clock.monotonic()
        with self._lock:
            if now - self._fresh.get(key, float("-inf")) < FRESH_SECONDS:
                return ""
        try:
            for _ in range(_TRIES):
                needed = {TEMPLATE_NEEDED: str(int(self._clock.now()))}
                if self._api.annotate(namespace, name, needed) or self._create(namespace, name, spec, needed):
                    self._note(key, now)
                    return ""
        except NodeUnready as error:
            log.warning(
                "claim_template_not_made", namespace=printable(namespace), name=name, reason=str(error)
            )
            return str(error)
        return "it is made and deleted again and again"

    def _create(self, namespace: str, name: str, spec: Mapping[str, Any], needed: Mapping[str, str]) -> bool:
        meta = {
            "name": name,
            "namespace": namespace,
            "labels": {TURNED_LABEL: "true"},
            "annotations": dict(needed),
        }
        made = self._api.create(namespace, {"metadata": meta, "spec": {"spec": dict(spec)}})
        if made:
            log.info("claim_template_made", namespace=printable(namespace), name=name)
        return made

    def _note(self, key: tuple[str, str], now: float) -> None:
        with self._lock:
            if len(self._fresh) >= _MOST_FRESH:
                self._fresh = {k: at for k, at in self._fresh.items() if now - at < FRESH_SECONDS}
            self._fresh[key] = now

    def forget(self, namespace: str, name: str) -> None:
        """The template was deleted: the next pod that needs it finds out at once."""
        with self._lock:
            self._fresh.pop((namespace, name), None)

    def sweep(self, templates: Iterable[TurnedTemplate]) -> int:
        """Delete templates that no pod needs; returns their number. A template that pods name is checked
        again after another hour.

        Raises:
            NodeUnready: the API server does not answer; the rest stays.
        """
        now, today = self._clock.monotonic(), self._clock.now()
        idle: dict[str, list[TurnedTemplate]] = {}
        known = set()
        for one in templates:
            key = (one.namespace, one.name)
            known.add(key)
            is_due = now - self._looked.get(key, float("-inf")) >= IDLE_SECONDS
            if today - one.needed >= IDLE_SECONDS and is_due:
                idle.setdefault(one.namespace, []).append(one)
        self._looked = {key: at for key, at in self._looked.items() if key in known}
        deleted = 0
        for namespace, found in idle.items():
            named = self._api.named_by_pods(namespace)
            for one in found:
                if one.name in named:
                    self._looked[namespace, one.name] = now
                elif self._api.delete(namespace, one.name, one.uid, one.version):
                    log.info("claim_template_deleted", namespace=printable(namespace), name=one.name)
                    deleted += 1
        return deleted

"""The quota in force as its ConfigMap changes, and what it refuses already when a pod is created."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.domain.cluster.node_books import Used
from gpu_manager.domain.cluster.quota import NO_QUOTA, QUOTA_PLACE, Quota, read_quota, refusal
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import Amount

NOT_SYNCED: Final = "GPU quota has not been synced, please retry later"  # the predecessor's words


def refuse_at_create(
    quota: Quota,
    used: Used,
    namespace: str,
    asked: Amount,
    models: Iterable[str],
    protected: Used | None = None,
) -> str | None:
    """Why a pod cannot be created; None if it can.

    Only if less is granted than it asks, of every model that it may use: otherwise it waits for its turn,
    however little is left. ``models``: those that it may use in this cluster. ``protected``: what protected
    shares hold, where the pod asks for such; else None.
    """
    mine = quota.of(namespace, Priority.NORMAL if protected is None else Priority.PROTECTED)
    candidates = sorted(set(models))
    if mine is None or not candidates:
        return None
    reasons: list[str] = []
    for model in candidates:
        if not mine.passed({}, {model: asked}):
            return None
        held = (protected or {}).get(namespace, {})  # with the sums as they are
        reasons += mine.passed(used.get(namespace, {}), {model: asked}, held).values()
    return refusal(namespace, reasons)


@dataclass(frozen=True, slots=True)
class QuotaNews:
    """What a change of the ConfigMap did. ``namespaces``: whose quota changed ("*": all that are not named).

    ``complaint`` is for an Event and a metric; empty if it was taken.
    """

    namespaces: frozenset[str] = frozenset()
    complaint: str = ""


class QuotaBook:
    """The quota in force; ``current`` is None before the first word of the API. Thread-safe.

    ``place``: namespace and name of the ConfigMap, for texts.
    """

    def __init__(self, place: tuple[str, str] = QUOTA_PLACE) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._current: Quota | None = None
        self._complaint = ""

    @property
    def current(self) -> Quota | None:
        """The last good one; None if there has been none yet."""
        with self._lock:
            return self._current

    @property
    def complaint(self) -> str:
        """Why the ConfigMap as it stands is not in force; empty if it is."""
        with self._lock:
            return self._complaint

    def missing(self) -> str:
        """Why no pod can be judged, for people; empty once there is a quota in force."""
        with self._lock:
            if self._current is not None:
                return ""
            return f"{NOT_SYNCED}: {self._complaint}" if self._complaint else NOT_SYNCED

    def update(self, obj: Mapping[str, Any] | None) -> QuotaNews:
        """The ConfigMap as it is now, None if there is none: then nobody is limited.

        What cannot be used leaves the last good one in force.
        """
        try:
            quota = read_quota(obj, self._place)
        except NodeUnready as error:
            with self._lock:
                self._complaint = str(error)
            return QuotaNews(complaint=str(error))
        with self._lock:
            old = self._current or NO_QUOTA
            self._current, self._complaint = quota, ""
        names = old.named | quota.named
        return QuotaNews(frozenset(n for n in names if old.entry(n) != quota.entry(n)))

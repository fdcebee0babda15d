"""Pods that bypassed the rules or the scheduler: they hold, or may hold, cards that were not given to them.

A pod bypasses them through an excluded namespace, while the webhook was not installed, by ``spec.nodeName``,
or with a scheduler that does not call the extender. The agent still enforces its own ledger; this module
reports such pods.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from admission.cluster.pod_view import PodView
from gpu_manager.domain.contract import ALLOCATION, PREDICATE_NODE
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.rules.pod_request import judged_request

log = structlog.get_logger(__name__)

ILLEGAL: Final = "illegal"
UNBOUND: Final = "no-binding"
FOREIGN: Final = "foreign-binding"
REASONS: Final = (ILLEGAL, UNBOUND, FOREIGN)


@dataclass(frozen=True, slots=True)
class BypassFinding:
    """One pod, the reason why it is reported, and a sentence."""

    occupant: PodView
    reason: str
    text: str


class Bypasses:
    """Keeps the findings about each pod until it is gone. Thread-safe.

    ``found`` is called once per pod; it must not wait. ``unseen``: namespaces whose pods the webhooks do not
    get, so that breaking a rule there is no bypass.
    """

    def __init__(
        self, unit: int, minimum_cores: int, unseen: Collection[str], found: Callable[[BypassFinding], None]
    ) -> None:
        self._unit = unit
        self._minimum_cores = minimum_cores
        self._unseen = frozenset(unseen)
        self._found = found
        self._lock = threading.Lock()
        self._known: dict[PodUid, BypassFinding | None] = {}  # once it is on a node; None: nothing is wrong

    def look(self, occupant: PodView) -> None:
        """Judge a pod as the watch shows it, once: the agent may write the annotation later."""
        if not occupant.pod.node or occupant.pod.terminal:
            return
        with self._lock:
            if occupant.uid in self._known:
                return
            finding = self._judge(occupant)
            self._known[occupant.uid] = finding
        if finding is not None:
            log.warning("bypassed", pod=occupant.pod.key, reason=finding.reason, text=finding.text)
            self._found(finding)

    def forget(self, uid: PodUid) -> None:
        """The pod is gone."""
        with self._lock:
            self._known.pop(uid, None)

    def retain(self, uids: Collection[PodUid]) -> None:
        """All pods but these are gone."""
        with self._lock:
            for uid in self._known.keys() - set(uids):
                del self._known[uid]

    def findings(self) -> Sequence[BypassFinding]:
        """The findings about present pods."""
        with self._lock:
            return [finding for finding in self._known.values() if finding is not None]

    def counts(self) -> Mapping[str, int]:
        """How many there are now, by reason."""
        found = Counter(finding.reason for finding in self.findings())
        return {reason: found[reason] for reason in REASONS}

    def _judge(self, occupant: PodView) -> BypassFinding | None:
        pod = occupant.pod
        if occupant.lent:
            return None  # neither the webhooks nor the extender is asked about such a pod
        where = f"runs on node {printable(pod.node)}"
        if pod.namespace not in self._unseen:
            try:
                judged_request(pod, self._unit, self._minimum_cores)
            except RequestInvalid as error:
                cure = "It gets no card; delete it, and see why the webhook did not refuse it"
                return BypassFinding(
                    occupant, ILLEGAL, f"{where} though the rules refuse it: {error}. {cure}"
                )
        if occupant.assigned is not None or pod.annotations.get(PREDICATE_NODE) == pod.node:
            return None  # ours, or the predecessor's
        who = f"spec.nodeName or scheduler {printable(pod.scheduler)!r}" if pod.scheduler else "spec.nodeName"
        if ALLOCATION in pod.annotations:
            text = f"{where} with cards noted for another pod or node ({ALLOCATION}): the note is ignored"
            return BypassFinding(occupant, FOREIGN, f"{text}; the agent chooses its cards")
        text = f"{where} without a choice of cards: {who} placed it there, not the scheduler extender"
        return BypassFinding(
            occupant, UNBOUND, f"{text}; the agent chooses its cards, or refuses it if none fit"
        )

"""The data of the cluster's console: every card with its holders, the pods that wait, the quotas.

A console asks every two seconds, and an explanation can take a second of a core in a large cluster. So one
state serves everyone with the same rights who asks within that time; a console that was answered before gets
only the nodes that changed since; and each state works out only as many reasons as fit into half a second,
the oldest first; the others are as they were a moment ago.
"""

from __future__ import annotations

import gzip
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from admission.cluster.node_view import BY_CLAIMS, NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from admission.console.agents_usage import AgentAnswer
from admission.explain.explanation import BARRED, FITS, HELD, Explanation
from admission.extender.feasibility import Unfit
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.cluster.node_json import hidden, node_json
from gpu_manager.domain.cluster.quota import Quota
from gpu_manager.domain.cluster.usage_json import NodeUsage, used_share
from gpu_manager.domain.contract import RESIZE, RESIZED
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.resize.judgement import resize_progress
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO
from gpu_manager.ports.clock import Clock

MOST_NODES: Final = 1000  # with their cards, the fullest first; the rest is counted
MOST_WAITING: Final = 200
KEPT_SECONDS: Final = 2.0
MOST_SCOPES: Final = 8  # namespaces whose state is kept at once, all of them together counting as one
_REASONS_SECONDS: Final = 0.5  # for all scopes together
_NOT_YET: Final = "being worked out"
_COMPRESSION_LEVEL: Final = 1
NOT_KNOWN: Final[NodeUsage] = {}


@dataclass(frozen=True, slots=True)
class PageSources:
    """``snapshot`` raises NodeUnready before the first lists; ``waiting`` is in no order, of one namespace or
    (None) of all; ``explain`` names pods of all namespaces if its second argument is true; ``quota`` is None
    while no quota can be read; ``usage`` is what the agents said, by node; ``ranges`` of time have a history;
    ``stale_seconds``: for how long the API server has told nothing, 0 while it is watched.
    """

    snapshot: Callable[[], Snapshot]
    waiting: Callable[[str | None], tuple[PodView, ...]]
    explain: Callable[[PodView, bool], Explanation]
    quota: Callable[[], Quota | None]
    usage: Callable[[], Mapping[str, AgentAnswer]] = dict
    ranges: Sequence[str] = ()
    stale_seconds: Callable[[], float] = float


class ClusterPage:
    """Thread-safe."""

    def __init__(self, sources: PageSources, clock: Clock) -> None:
        self._sources = sources
        self._clock = clock
        self._lock = threading.Lock()
        self._scopes: OrderedDict[str, _Scope] = OrderedDict()

    def data(self, namespace: str = "", since: str = "", *, zipped: bool = False) -> bytes:
        """JSON for ``/ui/data``, gzipped if asked. Raises NodeUnready.

        ``namespace``: the only one whose pods are named, empty for all. ``since``: ``generation`` of the
        answer that the console has; nodes that have not changed since are left out then.
        """
        with self._lock:
            scope = self._scopes.pop(namespace, None) or _Scope(namespace, self._sources, self._clock)
            self._scopes[namespace] = scope
            if len(self._scopes) > MOST_SCOPES:
                self._scopes.popitem(last=False)
            if self._clock.monotonic() - scope.made >= KEPT_SECONDS:
                scope.refresh(_REASONS_SECONDS / len(self._scopes))
            return scope.answer(since, zipped=zipped)


class _Drawn(NamedTuple):
    """A node's JSON, what it was made of, and the generation in which it was."""

    view: NodeView
    usage: NodeUsage
    made: int
    text: str


class _Scope:
    """The state for those who may see the pods of one namespace (empty: of all)."""

    def __init__(self, namespace: str, sources: PageSources, clock: Clock) -> None:
        self.made = float("-inf")
        self._namespace = namespace
        self._sources = sources
        self._clock = clock
        self._name = secrets.token_hex(4)  # another replica's generations are not ours
        self._number = 0
        self._drawn: dict[str, _Drawn] = {}
        self._gone: dict[str, int] = {}  # node that is shown no more → generation
        self._told: dict[PodUid, tuple[float, Explanation]] = {}  # when it was worked out
        self._rest: dict[str, Any] = {}
        self._answers: dict[tuple[int, bool], bytes] = {}  # to who has that generation, gzipped or not

    def refresh(self, reasons_seconds: float) -> None:
        """Take in the cluster as it is now. Raises NodeUnready."""
        snapshot, mine = self._sources.snapshot(), self._namespace
        views = [view for view in snapshot.nodes.values() if view.node.cards]
        views.sort(key=lambda view: (-len(view.charges) - len(view.held_claims), view.name))
        shown = {view.name: view for view in views[:MOST_NODES]}
        waiting = sorted(
            self._sources.waiting(mine or None), key=lambda o: (-o.pod.priority, o.pod.began, o.uid)
        )
        self._work_out(waiting[:MOST_WAITING], reasons_seconds)
        said = self._sources.usage()
        quota = self._sources.quota()
        if quota is not None and mine:
            quota = quota.only(mine)
        self._number += 1
        for name in self._drawn.keys() - shown.keys():
            del self._drawn[name]
            self._gone[name] = self._number
        if len(self._gone) > MOST_NODES:  # nodes come and go: every console begins anew
            self._gone.clear()
            self._name = secrets.token_hex(4)
        for name, view in sorted(shown.items()):
            usage = said[name].usage if name in said else NOT_KNOWN
            drawn = self._drawn.get(name)
            if drawn is None or drawn.view is not view or drawn.usage is not usage:
                self._drawn[name] = _Drawn(view, usage, self._number, _compact(graph(view, mine, usage)))
                self._gone.pop(name, None)
        now = self._clock.monotonic()
        self._rest = {
            "age": round(self._sources.stale_seconds(), 1),
            "usage_age": round(max((now - said[name].at for name in shown if name in said), default=0.0), 1),
            "silent": [name for name in sorted(shown) if name not in said],
            "namespace": mine,
            "ranges": list(self._sources.ranges),
            "waiting": [self._row(o) for o in waiting[:MOST_WAITING]],
            "quota": None if quota is None else quota.rows(snapshot.used, snapshot.protected),
            "left_out": {"nodes": len(views) - len(shown), "waiting": max(0, len(waiting) - MOST_WAITING)},
        }
        self._answers.clear()
        self.made = self._clock.monotonic()

    def answer(self, since: str, *, zipped: bool) -> bytes:
        """What changed after that generation; everything if it is not one of ours."""
        name, _, number = since.partition("-")
        known = name == self._name and number.isascii() and number.isdecimal() and len(number) < 12
        seen = min(int(number), self._number) if known else 0
        if (seen, zipped) not in self._answers:
            nodes = ",".join(text for _, _, made, text in self._drawn.values() if made > seen)
            rest = {
                "generation": f"{self._name}-{self._number}",
                "full": not seen,
                "gone": [node for node, made in self._gone.items() if made > seen] if seen else [],
                **self._rest,
            }
            body = f'{{"nodes":[{nodes}],{_compact(rest)[1:]}'.encode()
            self._answers[seen, zipped] = gzip.compress(body, _COMPRESSION_LEVEL) if zipped else body
        return self._answers[seen, zipped]

    def _work_out(self, waiting: list[PodView], seconds: float) -> None:
        there = {o.uid for o in waiting}
        self._told = {uid: told for uid, told in self._told.items() if uid in there}
        ends = self._clock.monotonic() + seconds
        for occupant in sorted(waiting, key=lambda o: self._told[o.uid][0] if o.uid in self._told else 0.0):
            explanation = self._sources.explain(occupant, not self._namespace)
            now = self._clock.monotonic()
            self._told[occupant.uid] = now, explanation
            if now >= ends:
                return

    def _row(self, occupant: PodView) -> Mapping[str, Any]:
        pod = occupant.pod
        row = {"pod": pod.key, "created": pod.created, "priority": pod.priority}
        if occupant.uid not in self._told:
            return {**row, "asks": "", "why": _NOT_YET, "change": "", "group": ""}
        _, said = self._told[occupant.uid]
        return {**row, "asks": said.asks, "why": said.line, "change": said.change, "group": _group(said)}


_GROUPS: Final = (
    FITS,
    *(u.value for u in (Unfit.ROOM, Unfit.REFUSED, Unfit.KEPT, Unfit.QUOTA)),
    BARRED,
    Unfit.NEVER.value,
)


def _group(explanation: Explanation) -> str:
    """Whether somebody holds it, else the outcome on the nodes nearest to taking the pod; the word for
    no cards if none has any.
    """
    if explanation.held:
        return HELD
    return next((word for word in _GROUPS if explanation.counts.get(word)), Unfit.NODE.value)


def graph(view: NodeView, namespace: str = "", usage: NodeUsage = NOT_KNOWN) -> dict[str, Any]:
    """One node in the shape of the agent's ``/graph``.

    ``namespace``: the only one whose holders are named and whose use is told, empty for all; others are
    ``hidden``. ``usage`` is what the node's agent said. Cards of a node that takes no pods are not open, with
    its reason; those that are given by ResourceClaims say it themselves.
    """
    problem = "" if view.problem == BY_CLAIMS else view.problem

    def more(holder: Allocation, card: CardUuid) -> Mapping[str, Any]:
        used = used_share(usage, holder.pod, holder.container, card)
        pod = view.bound.get(holder.pod)
        fields = {
            "planned": pod is not None and pod.reserved,
            "ended": pod is not None and holder.container in pod.pod.ended_inits,
            "stuck": "" if pod is None else _stuck(pod.pod, holder.container),
            "gone": None if pod is not None or holder.claim is not None else str(holder.pod),
            "memory_used": used.memory,
            "core_used": None if used.cores is None else used.cores / CORES_PER_CARD,
            "refusals": used.refusals,
            "resize": None if pod is None else _resize(pod.pod, holder, view.node.unit),
        }
        if namespace in ("", holder.namespace):
            return fields
        blank = dict.fromkeys(("stuck", "gone", "memory_used", "core_used", "refusals", "resize"))
        return {**fields, **blank, **hidden(holder)}

    cards: Sequence[CardState] = view.node.cards
    if problem:
        cards = [replace(state, reason=state.reason or problem) for state in cards]
    stranded = ZERO if view.ids is None else view.ids.stranded
    found = node_json(view.name, cards, view.node.topology, view.ledger, more, stranded)
    if view.kept is not None:
        found["kept"] = view.kept.as_json(namespace)
    if problem:
        found["cards"] = [{**card, "open": False} for card in found["cards"]]
    return found


def _stuck(pod: Pod, container: str) -> str:
    """Why the kubelet does not run it; empty if it does, or will."""
    return next((c.stuck for c in pod.containers if c.name == container), "")


def _resize(pod: Pod, holder: Allocation, unit: int) -> Mapping[str, Any] | None:
    """How far the holder's resize is; None if it has the size of its spec."""
    if pod.annotations.keys().isdisjoint((RESIZE, RESIZED)):
        return None
    found = resize_progress(pod, holder.container, unit)
    if found is None:
        return None
    sizes = {"spec": found.spec, "wanted": found.wanted, "held": found.held}
    return {
        **{name: None if size is None else asdict(size) for name, size in sizes.items()},
        "stage": found.stage.value,
        "why": found.why,
    }


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))

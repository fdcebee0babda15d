"""Judges the members of a gang together: places are kept for all missing members, or for none (ADR 21).

The scheduler filters one member after the other, and may bind them minutes later. From the first call on the
places of all are kept in the cluster's accounting. Once one of them is lost, the places of all unbound
members are released: so no gang holds room that it cannot use, and two gangs never wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NamedTuple

import structlog

from admission.cluster.node_view import AWAY
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState
from admission.config import GANG_SECONDS
from admission.extender.binding import Obstacle
from admission.extender.feasibility import FeasibilityCheck, FeasibilityJudge, Unfit
from admission.gangs.members import MOST_MEMBERS, GangKey, GangMembers, GangState, mark_of, named, shown
from admission.gangs.seats import GangDecision, Missing, Seated, Seats, is_free
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.cluster.quota import Quota
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)

_TRIAL_SECONDS: Final = 0.5  # between two trials of one gang, and of two on a copy of the books
_TRIALS: Final = 8  # gangs a second that are tried whether they have room meanwhile
_PARTS_OF_TIME: Final = 10  # one of so many goes to gangs that are bound in part
_EVICTION_SECONDS: Final = 10.0  # kube-scheduler's longest pause; for so long an answer about a gang stands


@dataclass(slots=True)
class _Kept:
    """The places of one gang. ``chosen``: node, and what its scheduler had said then, of members that it has
    placed. ``evicting``: they are kept one by one, for each has pods of lower priority to evict. ``held``:
    what keeps all of them from being bound, in the state of that generation and under that quota.
    """

    since: float
    chosen: dict[PodUid, tuple[str, int]] = field(default_factory=dict)
    evicting: bool = False
    held: tuple[int, Quota | None, Obstacle | None] = -1, None, None


class _Standing(NamedTuple):
    """What a gang holds and misses. ``placed``: the node of each member whose place is kept; ``bound``: how
    many members are bound, or are being bound, or have succeeded while others live; ``need``: how many with
    cards lack a node. Those without cards are taken to find theirs.
    """

    placed: Mapping[PodUid, str]
    bound: int
    need: int

    @property
    def together(self) -> bool:
        """True if its missing members are judged together."""
        return 0 < self.need <= MOST_MEMBERS


@dataclass(slots=True)
class _Refusal:
    """Why a gang has no places, by a question at that time, when it had so many members. ``fits``: whether
    all of them had room when that was last tried, at ``tried``, in the state of that ``age``.
    """

    text: str
    at: float
    members: int
    tried: float
    age: int
    fits: bool = False


@dataclass(eq=False, repr=False)
class GangKeeper:
    """Keeps places for gangs. Thread-safe, by the lock of the cluster's state, which ``members`` shares.

    ``binds``: whether this process binds such a pod. ``seconds``: how long places of members are kept that
    were not filtered; 0: pods are judged alone. ``unread``: True for API groups whose PodGroups must be read
    and were not yet. ``recorded`` is called wherever places were sought.
    """

    members: GangMembers
    cluster: ClusterState
    judge: FeasibilityJudge
    quota: QuotaBook
    clock: Clock
    binds: Callable[[Pod], bool]
    _: KW_ONLY
    minimum_cores: int = 1
    seconds: float = GANG_SECONDS
    unread: Callable[[str], bool] = lambda _api: False
    recorded: Callable[[GangDecision], object] = lambda _decision: None

    def __post_init__(self) -> None:
        self._kept: dict[GangKey, _Kept] = {}
        self._refusals: dict[GangKey, _Refusal] = {}  # the last, of gangs that have no places
        self._evictions: dict[GangKey, tuple[float, bool]] = {}  # tried when, and whether all would fit
        self._last_trial = -_TRIAL_SECONDS
        self._states = 0, -1  # how many states there were, and the generation of the present one
        # Gangs of which only some members are bound, and the state in which the others last had no room.
        self._in_part: dict[GangKey, int] = {}
        self._parts_again = 0.0  # not before then, so that they cost little where nodes are many

    # What a scheduler asks.

    def before_filter(self, pod: PodView, shown: Mapping[str, Any], names: Sequence[str]) -> str:
        """Ensure that all missing members of the pod's gang have a place, the pod itself on one of these
        nodes.

        Returns why the pod is refused; empty if it is judged like any other. ``shown`` is the object that the
        scheduler sent. Raises NodeUnready: the watch has not shown it yet, or no PodGroup was read yet.
        """
        with self.cluster.lock:
            if self.seconds and self.cluster.pod(pod.uid) is None and mark_of(shown) is not None:
                raise NodeUnready(
                    f"{printable(pod.pod.key)} is of a gang and not known here yet, please retry later"
                )
            gang = self._judged(pod)
            self._complete_parts(gang, pod.pod.priority)
            if gang is None:
                return ""
            if (kept := self._kept.get(gang)) is not None:
                kept.chosen.pop(pod.uid, None)
            now, there = self.clock.monotonic(), len(self.members.of(gang))
            last = self._refusals.get(gang)
            if last is not None and now - last.at < _TRIAL_SECONDS and last.members == there:
                return last.text  # the others are asked about at once; what is judged for one holds for all
            age = self._age()
            refused = self._complete(gang, pod, names)
            if refused:
                self._refusals[gang] = _Refusal(refused, now, there, now, age)
                self._give_back(gang, refused)
                if self._standing(gang).bound:
                    self._in_part.setdefault(gang, -1)
            else:
                self._refusals.pop(gang, None)
            return refused

    def chosen(self, pod: PodView, node: str) -> None:
        """Its scheduler has placed the pod there: it is not moved while it waits."""
        with self.cluster.lock:
            if gang := self._judged(pod):
                self._keep(gang).chosen[pod.uid] = node, pod.verdict

    def place_of(self, uid: PodUid) -> str:
        """The node where the pod's place is kept with its gang's; empty for any other pod."""
        with self.cluster.lock:
            return self.cluster.expected_on(uid) if self.members.gang_of(uid) in self._kept else ""

    def hold(self, uid: PodUid, node: str) -> Obstacle | None:
        """What keeps the member from being bound to that node at this moment; None if nothing does, or if its
        bind is judged by the node alone.

        Until one is bound all missing members must have a place that their own bind would find free now.
        Later its own place alone counts, if what holds it ends by itself.
        """
        with self.cluster.lock:
            pod = self.cluster.pod(uid)
            gang = self._judged(pod) if pod is not None else None
            if gang is None or not (standing := self._standing(gang)).together:
                return None
            if standing.bound:
                self._in_part.setdefault(gang, -1)
                own = self._closed(uid, node)
                return own if own is not None and own.passes else None
            if (have := len(standing.placed)) < standing.need:
                some = f"{have} of the {standing.need} members that {named(gang)} lacks have a place"
                return Obstacle(f"{some}: none is bound until all have")
            turn, quota = self.cluster.glance().turn, self.quota.current
            kept = self._kept.get(gang, _Kept(0.0))
            if kept.held[0] != turn or kept.held[1] is not quota:
                found = (self._closed(one, where) for one, where in {**standing.placed, uid: node}.items())
                kept.held = turn, quota, next(filter(None, found), None)
            return kept.held[2]

    def has_room(self, pod: PodView) -> bool | None:
        """True if a refused member would have a place with all others now; None for a pod judged alone.

        Tried once a second at most, less often where more than :data:`_TRIALS` gangs wait.
        """
        with self.cluster.lock:
            gang = self._judged(pod)
            if gang is None or not (standing := self._standing(gang)).together:
                return None
            if pod.uid in standing.placed:
                kept = self._kept.get(gang)
                return kept is not None and pod.uid not in kept.chosen  # kept since another was asked about
            last, now = self._refusals.get(gang), self.clock.monotonic()
            if last is None or self._too_few(gang):
                return False
            pause = max(1.0, len(self._refusals) / _TRIALS)
            if now >= last.tried + pause and last.age != self._age():
                missing = self._missing(gang, self._wanted(gang, pod, standing), None)
                last.fits, last.tried = self._take(gang, missing).failed is None, now
                if last.fits:
                    self.cluster.withdraw(one.pod.uid for one in missing)
                self._left_as_it_was()
                last.age = self._age()
            return last.fits

    def make_way(self, question: FeasibilityCheck) -> bool:
        """End places of a gang of lower priority, where the pod that no node takes fits without them."""
        with self.cluster.lock:
            snapshot = self.cluster.snapshot()
            for gang in self._lower(question.pod.priority):
                places = self._placed(gang)
                here = (snapshot.nodes.get(name) for name in dict.fromkeys(places.values()))
                if any(view and question.without(view, places) is not None for view in here):
                    self._free(gang, f"{printable(question.pod.key)}, of higher priority, took its room")
                    return True
            return False

    # What happens beside.

    def begin(self) -> None:
        """Begin to lead. Places kept by the previous leader are not known here."""
        with self.cluster.lock:
            self._kept.clear()
            self._in_part = {gang: -1 for gang in self.members.all() if self._standing(gang).bound}
        self.settle()

    def settle(self) -> None:
        """Release the places of gangs that lost one, and of those kept long enough. Called each second."""
        with self.cluster.lock:
            self._complete_parts()
            now = self.clock.monotonic()
            for gang, kept in list(self._kept.items()):
                placed, _, need = self._standing(gang)
                if not placed:
                    del self._kept[gang]
                elif gone := next((node for uid, node in placed.items() if not self._stands(uid, node)), ""):
                    self._free(gang, f"a card of its places on {printable(gone)} is closed or gone")
                elif len(placed) < need and not kept.evicting:
                    self._free(gang, f"{need - len(placed)} of its members have lost their place")
                elif (
                    need > 0 and now >= kept.since + self.seconds and not placed.keys() <= kept.chosen.keys()
                ):
                    self._free(gang, f"not all members were asked about in {self.seconds:.0f} s")
            self._refusals = {gang: one for gang, one in self._refusals.items() if self.members.of(gang)}

    def state(self, uid: PodUid) -> GangState | None:
        """The gang of a pod; None if it is in none, or if gangs are not judged."""
        with self.cluster.lock:
            gang = self.members.gang_of(uid)
            if gang is None or not self.seconds:
                return None
            members, minimum = self.members.of(gang).values(), self.members.minimum(gang)
            placed, _, need = self._standing(gang)
            return GangState(
                gang,
                minimum,
                sum(not one.ended for one in members),
                tuple(one.name for one in members if one.bound),
                len(placed),
                0 if minimum is None else max(0, need),
                last.text if (last := self._refusals.get(gang)) else self._too_few(gang),
            )

    # Every method below is called with the lock held.

    def _judged(self, pod: PodView) -> GangKey | None:
        """The pod's gang, if its members are judged together here."""
        gang, known = self.members.gang_of(pod.uid), self.cluster.pod(pod.uid)
        if not self.seconds or gang is None or known is None or not self.binds(known.pod):
            return None
        return gang if self.members.minimum(gang) is not None or self.unread(gang.api) else None

    def _complete_parts(self, asks: GangKey | None = None, least: float = -math.inf) -> None:
        """Keep places for the missing members of gangs that are bound in part, before ``asks`` or a pod of
        priority ``least`` is judged: it would have the room, and the gang hold its cards in vain.
        """
        if (began := self.clock.monotonic()) < self._parts_again:
            return
        for gang in [one for one in self._in_part if one != asks and not self.unread(one.api)]:
            now, waiting = self._standing(gang), self._waiting(gang)
            if not waiting or now.need <= 0 or not now.bound or not self._judged(waiting[0]):
                del self._in_part[gang]
            elif (
                waiting[0].pod.priority >= least
                and self._in_part[gang] != self._age()
                and len(now.placed) < now.need
            ):
                if refused := self._complete(gang, waiting[0], None):
                    self._give_back(gang, refused)
                    self._in_part[gang] = self._age()
                else:
                    self._refusals.pop(gang, None)
        self._parts_again = began + _PARTS_OF_TIME * (self.clock.monotonic() - began)

    def _give_back(self, gang: GangKey, refused: str) -> None:
        if not self._free(gang, refused):
            self._left_as_it_was()

    def _complete(self, gang: GangKey, pod: PodView, names: Sequence[str] | None) -> str:
        """Keep a place for each missing member; return why that is not possible. Raises NodeUnready."""
        if self.members.minimum(gang) is None:
            raise NodeUnready(f"PodGroups of {gang.api} have not been listed yet, please retry later")
        if not (standing := self._standing(gang)).together:
            return ""
        if few := self._too_few(gang):
            return few
        if len(standing.placed.keys() - {pod.uid}) >= standing.need:
            return ""  # past the minimum
        wanted = self._wanted(gang, pod, standing)
        missing = self._missing(gang, wanted, names)
        found = self._take(gang, missing)
        if found.failed is not None:
            found = self._take_from_lower(gang, pod.pod.priority, missing, found)
        evicting = found.failed is not None and self._fits_by_eviction(gang, wanted, names)
        if found.failed is None or evicting:
            self._keep(gang).evicting = evicting
            return ""
        return f"{named(gang)} lacks {len(wanted)} members and has room for less: {found.refusal}"

    def _too_few(self, gang: GangKey) -> str:
        """Say how many members there are, while too few have come: a scheduler may not ask before."""
        there, minimum = len(self.members.of(gang)), self.members.minimum(gang) or 0
        if there >= minimum or self.members.has_begun(gang):
            return ""
        return f"{named(gang)} has {there} of the {minimum} members that it wants at least"

    def _take_from_lower(
        self, gang: GangKey, priority: int, missing: Sequence[Missing], failed: Seated
    ) -> Seated:
        """The same once gangs of lower priority have given up their places, where that is enough."""
        lower = self._lower(priority)
        if not lower or not self._may_try():
            return failed
        theirs = [uid for one in lower for uid in self._placed(one)]
        if self._take(gang, missing, theirs).failed is not None:
            return failed
        while failed.failed is not None and lower:
            self._free(lower.pop(0), "a gang of higher priority took its room")
            failed = self._take(gang, missing)
        return failed

    def _fits_by_eviction(
        self, gang: GangKey, wanted: Sequence[PodView], names: Sequence[str] | None
    ) -> bool:
        """True if all would fit without the pods of lower priority: then each may evict for itself."""
        now = self.clock.monotonic()
        tried, fits = self._evictions.get(gang, (-_EVICTION_SECONDS, False))
        if now - tried < _EVICTION_SECONDS or not self._may_try():
            return fits and now - tried < _EVICTION_SECONDS
        views, priority = self.cluster.snapshot().nodes.values(), wanted[0].pod.priority
        lower = [uid for view in views for uid, one in view.bound.items() if one.pod.priority < priority]
        fits = False
        if lower:
            missing = self._missing(gang, wanted, names, anew=True)
            fits = self._take(gang, missing, [*lower, *self._placed(gang)]).failed is None
        self._evictions = {one: tried for one, tried in self._evictions.items() if now - tried[0] < 60}
        self._evictions[gang] = now, fits
        return fits

    def _age(self) -> int:
        """The number of the cluster's present state, in which a gang that had no room has none."""
        count, turn = self._states
        if turn != self.cluster.glance().turn:
            self._states = count + 1, self.cluster.glance().turn
        return self._states[0]

    def _left_as_it_was(self) -> None:
        """Places were taken on trial and given back: the state is the one before."""
        self._states = self._states[0], self.cluster.glance().turn

    def _may_try(self) -> bool:
        now = self.clock.monotonic()
        if now - self._last_trial < _TRIAL_SECONDS:
            return False
        self._last_trial = now
        return True

    def _take(
        self, gang: GangKey, missing: Sequence[Missing], without: Sequence[PodUid] | None = None
    ) -> Seated:
        """Keep places; with ``without`` on a copy of the books, in which these pods have gone."""
        now, quota, judge = self.cluster.snapshot(), self.quota.current, self.judge
        books = self.cluster
        if without is not None:  # a judge that is shared would mix up the states of nodes
            own = {each.pod.uid for each in missing}.intersection(without)
            books, judge = self.cluster.copy_without(set(without) - own), FeasibilityJudge()
            books.withdraw(own)
        of = quota.of if quota else (lambda *_: None)
        found = Seats(books, judge, of, self.minimum_cores, self.seconds).take(
            missing, self.clock.monotonic()
        )
        self.recorded(GangDecision(gang.name, now.turn, now.claimed, without, found))
        return found

    def _missing(
        self, gang: GangKey, wanted: Sequence[PodView], names: Sequence[str] | None, *, anew: bool = False
    ) -> list[Missing]:
        """Those of the ``wanted`` members without a place, and where each may go: the first, which is asked
        about, to ``names``; one that is placed, there alone. ``anew``: all, as if nothing were kept.
        """
        kept, found = None if anew else self._kept.get(gang), []
        for one in wanted:
            asked, place = one is wanted[0], "" if anew else self.cluster.expected_on(one.uid)
            offered = not asked or names is None or (place in names and self._is_good(one.uid, place))
            if not place or not offered:
                node, verdict = kept.chosen.get(one.uid, ("", 0)) if kept and not asked else ("", 0)
                waits_there = node and one.verdict in (0, verdict)  # and would be bound there
                found.append(Missing(one, names if asked else [node] if waits_there else None))
        return found

    def _wanted(self, gang: GangKey, pod: PodView, now: _Standing) -> list[PodView]:
        """The members that are to have a place: this one, those that have one, then the most important."""
        others = [one for one in self._waiting(gang) if one.uid != pod.uid]
        others.sort(key=lambda one: (one.uid not in now.placed, -one.pod.priority, one.pod.began, one.uid))
        return [pod, *others[: now.need - 1]]

    def _waiting(self, gang: GangKey) -> list[PodView]:
        """The members that look for a node and ask for cards."""
        known = [one for uid in self.members.of(gang) if (one := self.cluster.pod(uid)) is not None]
        return [one for one in known if one.waits and not self.cluster.reserved_on(one.uid)]

    def _placed(self, gang: GangKey) -> dict[PodUid, str]:
        """The members whose place is kept, and the node of each."""
        found = {uid: self.cluster.expected_on(uid) for uid in self.members.of(gang)}
        return {uid: node for uid, node in found.items() if node}

    def _stands(self, uid: PodUid, node: str) -> bool:
        """True if the cards of a kept place are still there and open."""
        view = self.cluster.snapshot().nodes.get(node)
        if view is None:
            return False
        open_ = {state.card.uuid for state in view.node.cards if state.open}
        held = view.ledger.of_pod(uid)
        return bool(held) and all(open_.issuperset(one.cards) for one in held.values())

    def _is_good(self, uid: PodUid, node: str) -> bool:
        """True if nobody else has come to hold the cards of a kept place, which are there and open."""
        view = self.cluster.glance().nodes.get(node)
        return view is not None and self._stands(uid, node) and is_free(view, uid)

    def _closed(self, uid: PodUid, node: str) -> Obstacle | None:
        """Why the member's bind to that node would be refused now, or move it to other cards; None if it
        would be bound where its place is kept.
        """
        pod, snapshot = self.cluster.pod(uid), self.cluster.glance()
        view = snapshot.nodes.get(node)
        if pod is None or view is None:
            return Obstacle(f"a pod or the node {printable(node)} is gone")
        try:
            request = judged_request(pod.pod, self.cluster.unit, self.minimum_cores)
        except RequestInvalid:
            return None  # its bind says so
        quota = self.quota.current
        mine = quota.of(pod.pod.namespace, request.priority) if quota else None
        question = self.judge.ask(pod, request, snapshot, mine, chosen=True)
        if not isinstance(question.on(view), Unfit) and is_free(view, uid):
            return None
        gone = view.gone - view.held_claims.keys()
        passes = view.problem == AWAY or bool(gone and question.without(view, gone))
        ends = "for a moment" if passes else "any more"
        return Obstacle(
            f"the place of {printable(pod.pod.name)} on {printable(node)} is not free {ends}", passes
        )

    def _standing(self, gang: GangKey) -> _Standing:
        members = self.members.of(gang).items()
        bound = sum(one.bound or bool(self.cluster.reserved_on(uid)) for uid, one in members)
        bound += self.members.done(gang)
        plain = sum(not (one.bound or one.ended) and self.cluster.pod(uid) is None for uid, one in members)
        need = (self.members.minimum(gang) or 0) - bound - plain
        return _Standing(self._placed(gang), bound, need)

    def _lower(self, priority: int) -> list[GangKey]:
        """Gangs with places of which all members have a lower priority and none is bound, the least
        important first.
        """
        found = {}
        for gang in self._kept:
            most = max((one.pod.priority for one in self._waiting(gang)), default=priority)
            if most < priority and not self._standing(gang).bound:
                found[gang] = most
        return sorted(found, key=found.__getitem__)

    def _keep(self, gang: GangKey) -> _Kept:
        return self._kept.setdefault(gang, _Kept(self.clock.monotonic()))

    def _free(self, gang: GangKey, reason: str) -> bool:
        """End all places of the gang; False if it has none. Members that are bound stay, and are named."""
        placed = self._placed(gang)
        self._kept.pop(gang, None)
        if placed:
            bound = shown([one.name for one in self.members.of(gang).values() if one.bound])
            where = f"{gang.namespace}/{gang.name}"
            log.info("gang_released", gang=where, reason=reason, places=len(placed), bound=bound)
        for uid in placed:
            self.cluster.give_up(uid)
        return bool(placed)

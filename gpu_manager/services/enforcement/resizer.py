"""Gives running fractions the size that the scheduler has reserved for them.

An increase is booked before it is in force. A decrease of cores is in force before the cores are given back.
Memory decreases step by step: the limit falls to what the program holds, and the memory above it is given
back once page and driver have shown the program below the limit, after the limit was published. So the ledger
never promises memory that a program may still take, and no program loses memory that it holds. Equal parts of
several cards take each step together: the part that holds most of its card decides.

On a node without an extender the agent alone judges resize requests, by its own ledger.

The elastic limit follows its annotation too while the pod runs. A starting container uses the limit in the
ledger. So the ledger follows the annotation when the pod changes, when a starting agent finds it changed, and
when the ledger was rebuilt without the pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, EVENT_RESIZE_WAITS, EVENT_RESIZED, MEMORY, RESIZE, RESIZED
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, quoted
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.explain import explain_shares
from gpu_manager.domain.resize.judgement import check_resize, judge_room, legal_sizes, resized, size_of
from gpu_manager.domain.resize.sizes import Sizes, answer_of
from gpu_manager.domain.resources import CORES_PER_CARD, Amount, format_bytes
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.allocation.prestart import LimitPages
from gpu_manager.services.enforcement.usage_sample import Sample

log = structlog.get_logger(__name__)


class ElasticLimit:
    """Thread-safe. A failed update is repeated at the pod's next change."""

    def __init__(self, state: NodeState, limits: LimitPages) -> None:
        self._state = state
        self._limits = limits

    def follow(self, pod: Pod) -> None:
        """Update the pod's pages and the ledger from its annotation; an illegal one changes nothing."""
        ceiling = legal_ceiling_of(pod)
        if ceiling is None or pod.terminal:
            return
        with self._limits.changing:
            self._follow(pod, ceiling)

    def _follow(self, pod: Pod, ceiling: int) -> None:
        stale = _others(self._state.view, pod, ceiling)
        if not stale:
            return
        now = [replace(grant, ceiling=ceiling) for grant in stale]
        try:
            for grant in now:
                self._limits.write(grant)
            self._state.set_ceilings({g.key: g.ceiling for g in now}, {g.key: g.ceiling for g in stale})
        except NodeUnready as error:
            log.warning("elastic_limit_not_changed", pod=pod.key, ceiling=ceiling, reason=str(error))
            return
        log.info("elastic_limit_changed", pod=pod.key, before=stale[0].ceiling, now=ceiling)


def _others(view: StateView, pod: Pod, ceiling: int) -> Sequence[Grant]:
    """The pod's fractions with another ceiling in the ledger."""
    grants = (view.grants.get(a.key) for a in view.ledger.of_pod(pod.uid).values())
    return [g for g in grants if g and g.directory and g.ceiling != ceiling and limits_of(g)]


PATIENCE_SECONDS: Final = 3.0  # an unobstructed step takes a second or two


@dataclass(slots=True)
class _Wait:
    """Since when a container's next step waits (monotonic), and the last message to its pod about it."""

    since: float
    told: str = ""


@dataclass(eq=False, repr=False)
class Resizer:
    """Resizes containers. Thread-safe. ``follow`` is called when a pod changes, ``look`` after each
    sample.

    ``last``: the newest sample of usage. ``tell`` writes what a pod holds into its annotation. ``alone``:
    there is no extender, so the agent judges requests itself; ``minimum_cores`` is then the smallest part
    of a card that it gives.
    """

    state: NodeState
    pods: Pods
    limits: LimitPages
    pages: ControlPages
    last: Callable[[], Sample]
    clock: Clock
    tell: Callable[[Pod], object] = lambda _: None
    _: KW_ONLY
    alone: bool = False
    minimum_cores: int = 1

    def __post_init__(self) -> None:
        self._key = RESIZE if self.alone else RESIZED
        self._pending: set[PodUid] = set()
        self._local: object = None  # the API's pods, of which _by_uid was made
        self._by_uid: Mapping[PodUid, Pod] = {}
        self._asking: frozenset[PodUid] = frozenset()
        self._capped: dict[Key, float] = {}  # when the memory cap in the ledger was published (monotonic)
        self._unwritten: set[Key] = set()  # whose page lags behind the ledger
        self._waits: dict[Key, _Wait] = {}

    def follow(self, pod: Pod) -> None:
        """Bring each fraction of the pod nearer to its size; ``look`` retries steps that have to wait."""
        with self.limits.changing:
            self._follow(pod)

    def look(self) -> None:
        """Retry waiting steps, and sizes that were annotated before their container was admitted."""
        with self.limits.changing:
            local = self.pods.local()
            if local is not self._local:
                self._local = local
                self._by_uid = {
                    f.pod.uid: f.pod for named in local.values() for f in named if not f.tombstone
                }
                self._asking = frozenset(u for u, pod in self._by_uid.items() if self._key in pod.annotations)
            self._pending &= self._by_uid.keys()
            if due := self._pending | self._asking:
                for pod in [pod for uid, pod in self._by_uid.items() if uid in due]:
                    self._follow(pod)
            grants = self.state.view.grants
            for key in (self._capped.keys() | self._waits.keys() | self._unwritten) - grants.keys():
                self._forget(key)

    def _follow(self, pod: Pod) -> None:
        self._pending.discard(pod.uid)
        if pod.terminal:
            return
        grants, changed = self.state.view.grants, False
        for name, size in self._sizes(pod).items():
            grant = grants.get((pod.uid, name))
            if grant is None or not grant.directory or not limits_of(grant) or not _is_legal(grant, size):
                continue  # whole cards keep their size, and a fraction stays one
            if self._has(grant, size):
                if grant.key in self._waits:  # its last step was taken, though not saved
                    self._done(pod, grant)
                    changed = True
                continue
            changed = True  # a failed step may have booked something
            try:
                now = self._step(grant, size)
            except (DoesNotFit, NodeUnready) as error:
                self._wait(pod, grant.key, f"cannot have {size} yet: {error}", warning=True)
                continue
            if self._has(now, size):
                self._done(pod, now)
            else:
                self._wait(pod, now.key, _progress(now, size, self._used(now)))
        if changed:
            self.tell(pod)

    def _sizes(self, pod: Pod) -> Sizes:
        """The sizes for the pod's containers, as the scheduler answered, or as the agent judges alone."""
        if not self.alone:
            answer = answer_of(pod)
            return answer.sizes if answer else {}
        lone = lone_sizes(self.state, pod, self.minimum_cores)
        for name, why in lone.refused.items():
            reason = why.removeprefix(f"container {quoted(name)}: ")
            self._wait(pod, (pod.uid, name), f"keeps its size: {reason}", warning=True)
        return lone.sizes

    def _has(self, grant: Grant, size: Amount) -> bool:
        there = resized(grant.allocation, size).shares == grant.allocation.shares and not grant.memory_cap
        return there and grant.key not in self._unwritten

    def _step(self, grant: Grant, size: Amount) -> Grant:
        """One step towards the size; returns the resulting grant.

        Raises:
            DoesNotFit: a card has no room yet.
            NodeUnready: the ledger or a page cannot be written.
        """
        held = size_of(grant.allocation)
        if not size.fits_in(held):  # book first: no other pod may be promised it
            held, cap = held.peak(size), grant.memory_cap if size.memory < held.memory else 0
            grant = self.state.resize(grant, held, cap)
            self._publish(grant)
        if size.cores < held.cores:  # in force first
            held = replace(held, cores=size.cores)
            self._publish(replace(grant, allocation=resized(grant.allocation, held)))
            grant = self.state.resize(grant, held, grant.memory_cap)
        if size.memory < held.memory:
            return self._free_memory(grant, held, size.memory)
        if grant.memory_cap:  # a shrink that was withdrawn
            grant = self.state.resize(grant, held)
            self._publish(grant)
        if grant.key in self._unwritten:
            self._publish(grant)
        return grant

    def _free_memory(self, grant: Grant, held: Amount, wanted: int) -> Grant:
        """Give back memory that the program does not hold, and lower its limit to what it holds."""
        published, parts = self._capped.get(grant.key), len(grant.allocation.shares)
        if published is not None and grant.memory_cap:
            self._publish(grant)  # a start of the container may have written an older limit
            used = self._used(grant, after=published)
            if used is not None and used <= grant.memory_cap:
                held = replace(held, memory=grant.memory_cap * parts)
                grant = self.state.resize(grant, held)
        used = self._used(grant)
        if used is None or held.memory == wanted:
            return grant
        unit = self.state.node.unit
        cap = max(wanted // parts, -(-used // unit) * unit)
        if cap < (grant.memory_cap or held.memory // parts):
            grant = self.state.resize(grant, held, cap)
        elif not grant.memory_cap or published is not None:
            return grant
        self._publish(grant)
        self._capped[grant.key] = self.clock.monotonic()
        return grant

    def _publish(self, grant: Grant) -> None:
        self._unwritten.add(grant.key)
        self.limits.write(grant)
        self._unwritten.discard(grant.key)

    def _used(self, grant: Grant, after: float | None = None) -> int | None:
        """Bytes that the container holds of the card of which it holds most, by its page now and by the
        driver in the last sample; None if either is unknown, or if that sample was taken before ``after``.
        """
        sample = self.last()
        uses = {use.share.card: use for use in sample.shares if use.key == grant.key}
        driver = [use.held for use in uses.values() if use.held is not None]
        known = uses.keys() == set(grant.allocation.cards) and len(driver) == len(uses)
        if not known or (after is not None and sample.at <= after):
            return None
        page = Counter[CardUuid]()
        for use in self.pages.usage(grant.directory):
            page[use.card] += use.memory
        return max(*driver, *(page[card] + use.beyond for card, use in uses.items()))

    def _done(self, pod: Pod, grant: Grant) -> None:
        self._forget(grant.key)
        text = explain_shares(grant.allocation.shares, self.state.node.cards)
        log.info("resized", pod=pod.key, container=grant.key[1], now=text)
        self.pods.event(pod, EVENT_RESIZED, f"container {quoted(grant.key[1])} has {text} now")

    def _wait(self, pod: Pod, key: Key, text: str, *, warning: bool = False) -> None:
        """Let the step wait until the next call of ``look``. An Event and a log line give the reason, once
        per text: a fault at once, a step in progress only if it takes longer than usual.
        """
        self._pending.add(pod.uid)
        now = self.clock.monotonic()
        wait = self._waits.setdefault(key, _Wait(now))
        if wait.told != text and (warning or now - wait.since >= PATIENCE_SECONDS):
            wait.told = text
            log.info("resize_waits", pod=pod.key, container=key[1], reason=text)
            self.pods.event(pod, EVENT_RESIZE_WAITS, f"container {quoted(key[1])} {text}", warning=warning)

    def _forget(self, key: Key) -> None:
        self._capped.pop(key, None)
        self._waits.pop(key, None)
        self._unwritten.discard(key)


def _is_legal(grant: Grant, size: Amount) -> bool:
    """True if each part of this size is a fraction of a card."""
    part = size.part(len(grant.allocation.shares))
    return 0 < part.cores < CORES_PER_CARD and part.memory > 0


def _progress(grant: Grant, size: Amount, used: int | None) -> str:
    """A text about a step in progress. ``used``: bytes that it holds of one card, None if unknown."""
    parts = len(grant.allocation.shares)
    over = max(0 if used is None else used, grant.memory_cap) - size.memory // parts
    where = " on one of its cards" if parts > 1 else ""
    waits = (
        f"{format_bytes(over)} of its memory{where} are freed" if over > 0 else "its use of memory is seen"
    )
    return f"is not at {size} yet: it waits until {waits}"


@dataclass(frozen=True, slots=True)
class LoneSizes:
    """What a pod's containers shall have now, by name, and why others keep what they have."""

    sizes: Mapping[str, Amount] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def lone_sizes(state: NodeState, pod: Pod, minimum_cores: int) -> LoneSizes:
    """The sizes that the pod's own request gives its containers; those of its spec if it requests none.

    A container whose size equals its device ids' is left alone if nothing is requested: the size may be
    older. There is no quota without an extender. ``minimum_cores`` is the smallest part of a card.
    """
    view = state.view
    held = {a.container: g for a in view.ledger.of_pod(pod.uid).values() if (g := view.grants.get(a.key))}
    fractions = {name: grant for name, grant in held.items() if grant.directory and limits_of(grant)}
    wanted = legal_sizes(pod, state.node.unit, minimum_cores)
    if wanted is None:
        why = str(check_resize(pod, state.node.unit, minimum_cores)[0].message)
        return LoneSizes(refused=dict.fromkeys(fractions, why))
    if RESIZE not in pod.annotations:
        fractions = {name: grant for name, grant in fractions.items() if _is_resized(grant, state.node.unit)}
    sizes: dict[str, Amount] = {}
    refused: dict[str, str] = {}
    for name in wanted.keys() & fractions.keys():
        allocation = fractions[name].allocation
        known = {uuid: card for uuid in allocation.cards if (card := state.node.card(uuid)) is not None}
        gone = len(known) < len(allocation.cards)
        no = None if gone else judge_room(view.ledger, allocation, wanted[name], known)
        if no is None:
            sizes[name] = wanted[name]
        else:
            refused[name] = str(no)
    return LoneSizes(sizes, refused)


def _is_resized(grant: Grant, unit: int) -> bool:
    has = size_of(grant.allocation)
    counted = {CORE: has.cores, MEMORY: has.memory // unit}
    return bool(grant.memory_cap) or any(len(grant.ids.get(r, ())) not in (0, n) for r, n in counted.items())

"""Compares the accounts in the pages with the driver's figures every second, and reports differences.

:mod:`gpu_manager.domain.enforcement.second_witness` judges. A difference is reported by an Event, a log line
and a metric; a container whose account is too low is charged more until the two agree. Where the driver has
no figures per process nothing is compared, and :attr:`Compared.unwitnessed` lists the cards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import EVENT_ACCOUNT_DIFFERS
from gpu_manager.domain.enforcement.second_witness import (
    GAP,
    PERIOD_SECONDS,
    SILENCE_SECONDS,
    AccountWitness,
    Means,
    Reading,
    Verdict,
)
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.cards import ProcessUse
from gpu_manager.ports.clock import Clock
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.usage_sample import (
    Place,
    Sample,
    ShareUse,
    described,
    is_beside_others,
    pods_by_uid,
    users_of,
)

log = structlog.get_logger(__name__)

EVENT_SECONDS: Final = 60.0  # between two Events about one container
IDLE_SECONDS: Final = 2 * PERIOD_SECONDS  # an idle container is forgotten after this time


@dataclass(slots=True)
class _Case:
    witness: AccountWitness
    worked_at: float
    told_at: float = -EVENT_SECONDS
    told: Verdict = Verdict.AGREES


@dataclass(frozen=True, slots=True)
class Compared:
    """Results of the comparison, by container and card.

    ``differences``: the driver's figure minus the account, averaged over a minute, as a share of the card;
    ``differing``: the reported ones. ``gains``: factor by which a container must be charged more than its
    library measures. ``unwitnessed``: cards with containers that cannot be compared, and what is missing:
    ``host-pid``, ``mig`` or ``samples``.
    """

    differences: Mapping[Place, float] = field(default_factory=dict)
    differing: Mapping[Place, float] = field(default_factory=dict)
    gains: Mapping[Place, float] = field(default_factory=dict)
    unwitnessed: Mapping[CardUuid, str] = field(default_factory=dict)


NOTHING: Final = Compared()


@dataclass(eq=False, repr=False)
class AccountCheck:
    """Runs the comparison. One thread calls ``look``; any may read the results.

    ``host_pid``: whether the node's processes are visible. ``gap``: the difference that is reported, as a
    share of the card.
    """

    state: NodeState
    last_sample: Callable[[], Sample]
    pods: Pods
    host_pid: Callable[[], bool]
    clock: Clock
    gap: float = GAP

    def __post_init__(self) -> None:
        self._seen = Sample(self.clock.monotonic())
        self._cases: dict[Place, _Case] = {}
        self._found = NOTHING

    @property
    def found(self) -> Compared:
        """The last results; empty if samples have stopped, since the driver may hang."""
        return self._found if self.clock.monotonic() - self._seen.at < SILENCE_SECONDS else NOTHING

    def look(self) -> None:
        """Compare the last sample, unless it was compared before."""
        sample, before = self.last_sample(), self._seen
        seconds, self._seen = sample.at - before.at, sample
        if seconds <= 0 or (sample.shares is before.shares and not (sample.processes or self._cases)):
            return
        used = {use.place: use for use in sample.shares if use.enforcement == "active"}
        lacks = self._lacks(sample, used)
        for place, use in used.items():
            self._compare(place, use, sample, seconds, witnessed=place[1] not in lacks)
        for gone in self._cases.keys() - used.keys():
            del self._cases[gone]
        self._found = self._summed_up(lacks)

    def _lacks(self, sample: Sample, used: Mapping[Place, ShareUse]) -> dict[CardUuid, str]:
        lacks = {}
        mig = {state.card.uuid for state in self.state.node.cards if not state.card.undivided}
        for _, card in used:
            told = sample.cards.get(card)
            if card in mig:
                lacks[card] = "mig"
            elif told is not None and not (told.samples_processes and told.lists_processes):
                lacks[card] = "samples"
            elif not self.host_pid():
                lacks[card] = "host-pid"
        return lacks

    def _compare(
        self, place: Place, use: ShareUse, sample: Sample, seconds: float, *, witnessed: bool
    ) -> None:
        case = self._cases.get(place)
        gain = case.witness.gain if case else 1.0
        reading = _reading(use, sample, seconds, gain) if witnessed else None
        works = reading is not None and max(reading.account, reading.driver) > 0
        if case is None:
            if not works:
                return
            case = self._cases[place] = _Case(AccountWitness(self.gap), sample.at)
        if reading is None:
            case.witness.miss(seconds)
        else:
            case.witness.add(reading)
        if works:
            case.worked_at = sample.at
        self._report(place, case, sample)
        if sample.at - case.worked_at > IDLE_SECONDS and case.told is Verdict.AGREES:
            del self._cases[place]

    def _report(self, place: Place, case: _Case, sample: Sample) -> None:
        """Report a change, once."""
        verdict = case.witness.verdict
        if verdict is case.told or sample.at - case.told_at < EVENT_SECONDS:
            return
        case.told, case.told_at = verdict, sample.at
        (key, card), text = place, _text(verdict, case.witness.means)
        grant, differs = sample.grants.get(key), verdict is not Verdict.AGREES
        (log.warning if differs else log.info)(
            "account_compared", pod=key[0], container=key[1], card=card, verdict=verdict.value, why=text
        )
        text = f"{described(key[1], grant)} on card {self.state.node.index(card)}: {text}"
        for pod in users_of(key, grant, pods_by_uid(self.pods.local())):
            self.pods.event(pod, EVENT_ACCOUNT_DIFFERS, text, warning=differs)

    def _summed_up(self, lacks: Mapping[CardUuid, str]) -> Compared:
        judged = {place: case.witness for place, case in self._cases.items()}
        differences = {place: one.means.difference for place, one in judged.items() if one.means}
        return Compared(
            differences,
            {p: d for p, d in differences.items() if judged[p].verdict is not Verdict.AGREES},
            {place: one.gain for place, one in judged.items() if one.gain != 1.0},
            lacks,
        )


def _reading(use: ShareUse, sample: Sample, seconds: float, gain: float) -> Reading | None:
    """Both figures for one second; None if either is missing."""
    card, processes = sample.cards.get(use.share.card), sample.processes.get(use.place, ())
    driver = _seen(processes)
    if card is None or driver is None or use.account is None or seconds >= SILENCE_SECONDS:
        return None
    if use.account and not processes:
        return None  # the driver does not show which processes work
    busy = sample.busy.get(use.share.card, 0.0)
    if not busy and card.utilisation:
        return None  # the card was busy, and the driver has no sample of any process
    return Reading(
        seconds,
        use.account / gain,
        driver / 100,
        use.launches,
        processes=len(processes),
        shared=is_beside_others(processes, busy),
        longest=use.longest,
        card=None if card.utilisation is None else card.utilisation / 100,
        everyone=busy / 100,
    )


def _seen(processes: Sequence[ProcessUse]) -> float | None:
    """The share of the card, in percent, that the driver saw these use; None if it lacks a process's
    figure.
    """
    told = [process.utilisation for process in processes]
    known = [percent for percent in told if percent is not None]
    return min(100.0, sum(known)) if len(known) == len(told) else None


def _text(verdict: Verdict, means: Means | None) -> str:
    if verdict is Verdict.AGREES or means is None:
        return "its account of the card's time and the driver's figure are not known to differ any more"
    figures = f"its account is {means.account:.0%} of the card's time, the driver counts {means.driver:.0%}"
    if verdict is Verdict.BELOW:
        return f"{figures}; it is held by the driver's figure until the two agree"
    return f"{figures}; its limit holds by its account, so it gets less than its share"

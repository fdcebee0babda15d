"""Who is named an evader, for what, and when: tables of figures beside verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.enforcement.evasion import (
    CLEARED,
    CONTEXT_BYTES,
    EVICTABLE,
    NEEDED,
    SHARED_SAMPLES,
    ContainerEvidence,
    ContainerProcess,
    EvasionReason,
    SharedTime,
    Suspicion,
    judge,
    weigh,
)
from gpu_manager.domain.resources import GIB, MIB
from tests.seeds import generator

OWN = ContainerProcess(4711, 3 * GIB, 25.0, registered=True)
FAIR = ContainerEvidence(
    (OWN,),
    held=True,
    limited=True,
    memory_limit=5 * GIB,
    ceiling=0.30,
    claimed_memory=3 * GIB,
    claimed_busy=0.25,
    tampering="",
)


def shown(facts: ContainerEvidence) -> set[EvasionReason]:
    return {reason for reason, evidence in judge(facts).items() if evidence}


def test_a_container_that_keeps_to_its_share_is_judged_and_cleared_of_all() -> None:
    assert judge(FAIR) == dict.fromkeys(
        set(EvasionReason) - {EvasionReason.FOREIGN_CARD, EvasionReason.ADMIN, EvasionReason.SLICE}, ""
    )


EVASIONS = {
    "own copy of the driver": (
        replace(FAIR, processes=(replace(OWN, registered=False),)),
        EvasionReason.UNREGISTERED,
    ),
    "a raw ioctl user beside an honest process": (
        replace(FAIR, processes=(OWN, ContainerProcess(4712, None, None, registered=False))),
        EvasionReason.UNREGISTERED,
    ),
    "memory past the limit beside what processes share": (
        replace(
            FAIR,
            processes=tuple(replace(OWN, pid=pid, utilisation=4.0) for pid in range(1, 7)),
            twice=8 * GIB,
        ),
        EvasionReason.MEMORY,
    ),
    "a slot, but memory past the limit": (
        replace(FAIR, processes=(replace(OWN, memory=7 * GIB),)),
        EvasionReason.MEMORY,
    ),
    "a page that owns up to more than the limit": (
        replace(FAIR, processes=(replace(OWN, memory=9 * GIB),), claimed_memory=9 * GIB),
        EvasionReason.MEMORY,
    ),
    "memory hidden in part, past the limit in all": (
        replace(FAIR, processes=(replace(OWN, memory=5 * GIB + MIB),), claimed_memory=1 * GIB),
        EvasionReason.MEMORY,
    ),
    "a foreign card": (
        ContainerEvidence((ContainerProcess(9, GIB),), held=False),
        EvasionReason.FOREIGN_CARD,
    ),
    "a foreign card of which the driver tells no bytes": (
        ContainerEvidence((ContainerProcess(9),), held=False),
        EvasionReason.FOREIGN_CARD,
    ),
    "time not owned up to": (
        replace(FAIR, processes=(replace(OWN, utilisation=96.0),), claimed_busy=0.02),
        EvasionReason.TIME,
    ),
    "time of two processes": (
        replace(
            FAIR,
            processes=(replace(OWN, utilisation=40.0), replace(OWN, pid=2, memory=MIB, utilisation=45.0)),
        ),
        EvasionReason.TIME,
    ),
    "a page put back": (replace(FAIR, tampering="it had 7 bytes"), EvasionReason.TAMPERED),
    "a page put back while the card cannot be read": (
        replace(FAIR, processes=None, tampering="it had 7 bytes"),
        EvasionReason.TAMPERED,
    ),
}


@pytest.mark.parametrize(("facts", "reason"), EVASIONS.values(), ids=EVASIONS)
def test_each_way_to_evade_is_named_for_what_it_is(facts: ContainerEvidence, reason: EvasionReason) -> None:
    assert shown(facts) == {reason}


HONEST = {
    "the context and lazily loaded code of a full container": replace(
        FAIR, processes=(replace(OWN, memory=5 * GIB + 900 * MIB),), claimed_memory=5 * GIB
    ),
    "three contexts": replace(
        FAIR,
        processes=tuple(replace(OWN, pid=p, memory=2 * GIB, utilisation=8.0) for p in (1, 2, 3)),
        claimed_memory=4 * GIB,
    ),
    "processes that share memory, counted for each of them": replace(
        FAIR, processes=tuple(replace(OWN, pid=pid, utilisation=4.0) for pid in range(1, 7)), twice=15 * GIB
    ),
    "memory hidden within the share": replace(FAIR, claimed_memory=0),
    "time hidden within the share": replace(FAIR, claimed_busy=0.0),
    "more time than claimed, within what samples err": replace(
        FAIR, processes=(replace(OWN, utilisation=39.0),), claimed_busy=0.0
    ),
    "a page that claims too much": replace(FAIR, claimed_busy=1.0),
    "nothing runs": replace(FAIR, processes=(), claimed_memory=0, claimed_busy=0.0),
    "no process on a foreign card": ContainerEvidence((), held=False),
    "whole card, no page": ContainerEvidence((ContainerProcess(1, 70 * GIB, 100.0),), held=True),
}


@pytest.mark.parametrize("facts", HONEST.values(), ids=HONEST)
def test_what_honest_containers_look_like_accuses_nobody(facts: ContainerEvidence) -> None:
    assert shown(facts) == set()


ABSENT = {
    "nothing can be read": (ContainerEvidence(None, held=True, limited=True), set(EvasionReason)),
    "the card cannot be read": (replace(FAIR, processes=None), set(EvasionReason) - {EvasionReason.TAMPERED}),
    "the process is ending": (
        replace(FAIR, processes=(replace(OWN, registered=None),)),
        {EvasionReason.UNREGISTERED},
    ),
    "no bytes by process": (replace(FAIR, processes=(replace(OWN, memory=None),)), {EvasionReason.MEMORY}),
    "no samples by process": (
        replace(FAIR, processes=(replace(OWN, utilisation=None),)),
        {EvasionReason.TIME},
    ),
    "no page": (
        replace(FAIR, claimed_busy=None, tampering=None),
        {EvasionReason.TIME, EvasionReason.TAMPERED},
    ),
}


@pytest.mark.parametrize(("facts", "unknown"), ABSENT.values(), ids=ABSENT)
def test_what_cannot_be_read_neither_accuses_nor_clears(
    facts: ContainerEvidence, unknown: set[EvasionReason]
) -> None:
    assert not unknown & set(judge(facts))


def test_an_unreadable_page_does_not_hide_memory_past_the_limit() -> None:
    facts = replace(FAIR, claimed_memory=None, processes=(replace(OWN, memory=6 * GIB + MIB),))
    assert shown(facts) == {EvasionReason.MEMORY}


def test_the_evidence_says_which_process_how_much_and_what_is_its_own() -> None:
    over = judge(replace(FAIR, processes=(replace(OWN, memory=8 * GIB),)))[EvasionReason.MEMORY]
    assert over == ("process 4711 uses 8 GiB, 3 GiB past the limit of 5 GiB; its page accounts for 3 GiB")
    many = tuple(ContainerProcess(p, GIB, registered=False) for p in range(5, 0, -1))
    assert judge(replace(FAIR, processes=many))[EvasionReason.UNREGISTERED].startswith(
        "processes 1, 2, 3 and 2 more use 5 GiB past the library"
    )


processes = st.lists(
    st.builds(
        ContainerProcess,
        st.integers(1, 1 << 22),
        st.none() | st.integers(0, 200 * GIB),
        st.none() | st.floats(0, 100),
        registered=st.none() | st.booleans(),
    ),
    max_size=6,
    unique_by=lambda p: p.pid,
).map(tuple)


@given(
    st.none() | processes,
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 1 << 48),
    st.none() | st.floats(0, 1),
)
def test_what_a_page_claims_never_makes_a_container_look_better_than_its_limit_allows(
    seen: tuple[ContainerProcess, ...] | None,
    held: bool,
    limited: bool,
    memory: int | None,
    busy: float | None,
) -> None:
    facts = ContainerEvidence(seen, held, limited, 5 * GIB, 0.3, memory, busy, "")
    verdicts = judge(facts)
    if seen is None or not held or not limited:
        return
    used = [p.memory for p in seen if p.memory is not None]
    if sum(used) > 5 * GIB + CONTEXT_BYTES * len(seen):
        assert verdicts[EvasionReason.MEMORY]
    if sum(used) <= 5 * GIB:
        assert not verdicts.get(EvasionReason.MEMORY)
    if any(p.registered is False for p in seen):
        assert verdicts[EvasionReason.UNREGISTERED]


@pytest.mark.parametrize("reason", EvasionReason)
def test_a_container_is_named_after_enough_samples_in_a_row_and_no_earlier(reason: EvasionReason) -> None:
    state = Suspicion()
    for _ in range(NEEDED[reason] - 1):
        state = weigh(state, reason, shown=True)
        assert not state.named
    if NEEDED[reason] > 1:
        state = weigh(weigh(state, reason, shown=False), reason, shown=True)
        assert not state.named, "a quiet sample between begins anew"
    for _ in range(NEEDED[reason]):
        state = weigh(state, reason, shown=True)
    assert state.named


@pytest.mark.parametrize("reason", EvasionReason)
def test_a_named_container_is_cleared_after_enough_quiet_samples_in_a_row(reason: EvasionReason) -> None:
    state = Suspicion(NEEDED[reason], 0, named=True)
    for _ in range(CLEARED[reason] - 1):
        state = weigh(state, reason, shown=False)
        assert state.named
    again = weigh(state, reason, shown=True)
    assert again.named
    assert again.quiet == 0
    assert not weigh(state, reason, shown=False).named


@given(st.lists(st.booleans(), max_size=200), st.sampled_from(EvasionReason))
def test_suspicion_stays_bounded_however_long_it_lasts(course: list[bool], reason: EvasionReason) -> None:
    state = Suspicion()
    for shows in course:
        state = weigh(state, reason, shown=shows)
    assert state.seen <= NEEDED[reason]
    assert state.quiet <= CLEARED[reason]


def test_hidden_time_alone_never_costs_a_pod_its_life() -> None:
    assert EvasionReason.TIME not in EVICTABLE
    spared = {EvasionReason.TIME, EvasionReason.UNREADABLE, EvasionReason.SLICE}
    assert set(EvasionReason) - EVICTABLE == spared


def test_every_reason_is_named_within_five_seconds_of_samples_at_one_hertz() -> None:
    sampling, reading = 1.0, 0.5
    assert max(NEEDED.values()) * 1.0 + sampling + reading <= 5.0


def test_an_honest_container_beside_another_is_never_named_for_its_time() -> None:
    """As an H100's driver tells of two that alternate evenly: each of five looks a second is one's as a whole."""
    dice, time, suspicion = generator(1), SharedTime(), Suspicion()
    named = at_once = 0
    for _ in range(20_000):
        looks = sum(dice.random() < 0.5 for _ in range(5)) / 5
        seen, claimed = time.seen("place", looks, 0.42, shared=True)
        facts = replace(
            FAIR, processes=(replace(OWN, utilisation=looks * 100),), ceiling=0.5, claimed_busy=claimed
        )
        verdict = judge(replace(facts, seen_busy=seen)).get(EvasionReason.TIME)
        if verdict is not None:
            suspicion = weigh(suspicion, EvasionReason.TIME, shown=bool(verdict))
        named += suspicion.named
        at_once += bool(judge(replace(facts, claimed_busy=0.42)).get(EvasionReason.TIME))
    assert at_once > 1000
    assert not named


def test_who_hides_time_beside_another_is_named_when_enough_was_seen() -> None:
    dice, time, suspicion, seconds = generator(2), SharedTime(), Suspicion(), 0
    while not suspicion.named:
        seconds += 1
        looks = sum(dice.random() < 0.9 for _ in range(5)) / 5
        seen, claimed = time.seen("place", looks, 0.2, shared=True)
        facts = replace(FAIR, ceiling=0.5, claimed_busy=claimed, seen_busy=seen)
        verdict = judge(facts).get(EvasionReason.TIME)
        if verdict is not None:
            suspicion = weigh(suspicion, EvasionReason.TIME, shown=bool(verdict))
    assert seconds == SHARED_SAMPLES + NEEDED[EvasionReason.TIME] - 1
    assert time.seen("place", 1.0, 0.2, shared=False) == (1.0, 0.2)


def test_what_was_seen_of_a_container_that_is_gone_counts_for_no_other() -> None:
    time = SharedTime()
    for _ in range(SHARED_SAMPLES - 1):
        time.seen("place", 1.0, 0.2, shared=True)
    time.forget(["another"])
    assert time.seen("place", 1.0, 0.2, shared=True) == (None, None)

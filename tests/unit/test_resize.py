"""What a resize may ask, what fits, and the ids that it costs: pure functions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import CORE_LIMIT, RESIZE, RESIZED
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind, Pod, parse_pod
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.resize.judgement import (
    check_resize,
    choose_ids,
    ids_to_withdraw,
    judge_room,
    legal_sizes,
    resized,
)
from gpu_manager.domain.resize.sizes import (
    ResizeAnswer,
    WantedSize,
    answer_of,
    digest,
    encode_answer,
    read_wanted,
    with_size,
)
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from tests.fakes.node import container, pod
from tests.unit.test_ledger import CARDS, holding

quick = settings(max_examples=150)
UNIT = DEFAULT_UNIT
OPEN = {card.uuid: CardState(card) for card in CARDS}


def asking(wanted: Any, **annotations: str) -> Pod:
    """A pod with a fraction, a sidecar, an init container, whole cards and nothing."""
    text = wanted if isinstance(wanted, str) else json.dumps({"v": 1, "containers": wanted})
    return parse_pod(
        pod(
            "one",
            container("c", 30, 8),
            container("w", 100, 0),
            container("n", 0, 0),
            init=(container("i", 10, 4), container("s", 10, 4, sidecar=True)),
            annotations={RESIZE: text, **annotations},
        )
    )


def test_what_is_asked_is_the_spec_with_the_sizes_that_are_named() -> None:
    there = asking({"c": {"cores": 50, "memory": "8Gi"}, "s": {"memory": 5 * UNIT}})
    assert legal_sizes(there, UNIT) == {"c": Amount(50, 8 * GIB), "s": Amount(10, 5 * UNIT)}
    assert read_wanted(there.annotations[RESIZE])["s"] == WantedSize(None, 5 * UNIT)
    plain = replace(there, annotations={})
    assert legal_sizes(plain, UNIT) == {"c": Amount(30, 8 * UNIT), "s": Amount(10, 4 * UNIT)}
    assert digest(plain) == "" != digest(there)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("", "it is not JSON of version 1"),
        ("[" * 100_000, "it is not JSON of version 1"),
        ('{"v":2,"containers":{"c":{"cores":1}}}', "it is not JSON of version 1"),
        ('{"v":true,"containers":{"c":{"cores":1}}}', "it is not JSON of version 1"),
        ('{"v":1}', "it names no container"),
        ({}, "it names no container"),
        ({"c": 5}, 'container "c" is not cores, memory or both'),
        ({"c": {}}, 'container "c" is not cores, memory or both'),
        ({"c": {"core": 5}}, 'container "c" is not cores, memory or both'),
        ({"c": {"cores": "50"}}, 'cores is "50", not a whole number'),
        ({"c": {"cores": True}}, "cores is true, not a whole number"),
        ({"c": {"memory": "lots"}}, 'memory is "lots" is not a Kubernetes quantity'),
        ({"c": {"memory": "1.5"}}, 'memory is "1.5", not whole bytes'),
        ({"c": {"memory": "100Mi"}}, 'memory of container "c" is 100 MiB: use 256 MiB'),
        ({"c": {"memory": "300Mi"}}, 'memory of container "c" is 300 MiB: use 256 MiB or 512 MiB'),
        ({"c": {"memory": -1}}, "is -1 B: use 256 MiB"),
        ({"c": {"memory": 10**30}}, "use units of 256 MiB"),
        ({"c": {"memory": "9999999Ti"}}, "use units of 256 MiB"),
        ({"c": {"cores": 100}}, 'cores of container "c" is 100: use 99'),
        ({"c": {"cores": 0}}, 'cores of container "c" is 0: use 1'),
        ({"w": {"cores": 50}}, 'names container "w", which has whole cards; fractions of this pod: "s", "c"'),
        ({"n": {"cores": 50}}, 'names container "n", which asks for no card'),
        ({"i": {"cores": 50}}, 'names container "i", an ordinary init container'),
        ({"x": {"cores": 50}}, 'names container "x", and the pod has no such container'),
    ],
)
def test_what_is_illegal_is_said_with_what_works(wanted: Any, says: str) -> None:
    (fault,) = check_resize(asking(wanted), UNIT)
    assert says in fault.message
    assert fault.message.startswith(f"annotation {RESIZE}")
    assert legal_sizes(asking(wanted), UNIT) is None


def test_a_size_is_written_beside_those_of_other_containers() -> None:
    one = with_size(None, "c", {"cores": 50, "memory": "8Gi"})
    assert one == '{"v":1,"containers":{"c":{"cores":50,"memory":"8Gi"}}}'
    both = with_size(one, "s", {"cores": 5})
    assert both is not None
    assert json.loads(both)["containers"] == {"c": {"cores": 50, "memory": 8 * GIB}, "s": {"cores": 5}}
    assert with_size(both, "c", {}) == '{"v":1,"containers":{"s":{"cores":5}}}'
    assert with_size(one, "c", {}) is None
    assert with_size("what nobody follows", "c", {"cores": 5}) == '{"v":1,"containers":{"c":{"cores":5}}}'


def test_the_cores_stay_within_the_elastic_ceiling() -> None:
    (fault,) = check_resize(asking({"c": {"cores": 50}}, **{CORE_LIMIT: "40"}), UNIT)
    assert f"are 50, above its elastic ceiling 40: use at most 40, or set annotation {CORE_LIMIT} to 50" in (
        fault.message
    )
    assert check_resize(asking({"c": {"cores": 40}}, **{CORE_LIMIT: "40"}), UNIT) == ()


def test_the_clusters_smallest_part_counts() -> None:
    (fault,) = check_resize(asking({"c": {"cores": 4}}), UNIT, 5)
    assert (fault.field, fault.nearest) == (RESIZE, (5,))


def test_a_pod_without_a_fraction_has_nothing_to_resize() -> None:
    whole = parse_pod(
        pod(
            "w", container("w", 100, 0), annotations={RESIZE: asking({"w": {"cores": 5}}).annotations[RESIZE]}
        )
    )
    (fault,) = check_resize(whole, UNIT)
    assert fault.message.endswith("which has whole cards; the pod has no fraction of a card")


def test_a_refusal_of_hundreds_of_wrong_containers_stays_short() -> None:
    """A tenant writes the annotation, and every change of its pod is judged anew."""
    names = [f"c{n}" for n in range(150)]
    asked = json.dumps({"v": 1, "containers": {f"x{n}": {"cores": 5} for n in range(500)}})
    many = parse_pod(pod("m", *(container(n, 1, 1) for n in names), annotations={RESIZE: asked}))
    faults = check_resize(many, UNIT)
    assert len(faults) == 500
    assert faults[0].message.endswith('"c6", "c7" and 142 more')


@quick
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["v", "containers", "c", "cores", "memory"]) | st.text(max_size=3),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
    st.booleans(),
)
def test_whatever_is_written_is_judged_and_never_raises(written: Any, nested: bool) -> None:
    text = json.dumps({"v": 1, "containers": written} if nested else written)
    there = asking(text)
    legal = legal_sizes(there, UNIT)
    assert (legal is None) == bool(check_resize(there, UNIT))
    assert legal is None or all(
        0 < a.cores < 100 and a.memory > 0 and a.memory % UNIT == 0 for a in legal.values()
    )
    answer_of(replace(there, annotations={RESIZED: text}))


sizes = st.dictionaries(
    st.sampled_from("cs"),
    st.builds(Amount, st.integers(1, 99), st.integers(1, 99).map(lambda n: n * UNIT)),
)


@quick
@given(sizes, st.text(max_size=20))
def test_an_answer_is_read_as_it_was_written_by_its_own_pod_alone(
    given_sizes: dict[str, Amount], why: str
) -> None:
    there = asking({"c": {"cores": 50}})
    answer = ResizeAnswer(there.uid, digest(there), given_sizes, why)
    answered = replace(there, annotations={RESIZED: encode_answer(answer)})
    assert answer_of(answered) == answer
    assert answer_of(replace(answered, uid=parse_pod(pod("other")).uid)) is None
    assert answer_of(there) is None


@pytest.mark.parametrize(
    "size", [{}, {"cores": 1600, "memory": 1}, {"cores": 5}, {"cores": 5, "memory": 0}, 7]
)
def test_an_answer_with_what_is_no_fraction_is_none(size: Any) -> None:
    there = asking("")
    text = json.dumps({"v": 1, "pod": there.uid, "containers": {"c": size}})
    assert answer_of(replace(there, annotations={RESIZED: text})) is None


def test_text_that_is_no_json_or_too_long_is_not_read() -> None:
    assert answer_of(replace(asking(""), annotations={RESIZED: "{"})) is None
    long = json.dumps({"v": 1, "pod": "x" * (20 << 10), "containers": {"c": {"cores": 5}}})
    assert answer_of(replace(asking(""), annotations={RESIZED: long})) is None
    with pytest.raises(RequestInvalid):
        read_wanted(long)


# Room.


def test_what_another_phase_of_the_pod_takes_is_free_to_the_container_too() -> None:
    ledger = Ledger(CARDS, UNIT)
    ledger.commit((holding(pod="other", cores=40, units=4),))
    first = holding(pod="mine", name="first", kind=ContainerKind.INIT, cores=50, units=4)
    app = holding(pod="mine", name="app", order=1, cores=20, units=4)
    ledger.commit((first, app))
    refusal = judge_room(ledger, app, Amount(70, 4 * UNIT), OPEN)
    assert refusal is not None
    assert (refusal.free.cores, refusal.largest.cores) == (10, 60)
    assert judge_room(ledger, app, Amount(60, 4 * UNIT), OPEN) is None


held = st.lists(st.tuples(st.integers(1, 99), st.integers(1, 40)), min_size=1, max_size=5)


@quick
@given(held, st.integers(1, 99), st.integers(1, 64))
def test_the_largest_size_that_is_named_fits_and_nothing_beyond_it(
    others: list[tuple[int, int]], cores: int, units: int
) -> None:
    ledger = Ledger(CARDS, UNIT)
    for n, (c, u) in enumerate(others):
        try:
            ledger.commit((holding(pod=str(n), cores=c, units=u),))
        except DoesNotFit:
            continue
    mine = ledger.get(holding(pod="0").pod, "c")
    assert mine is not None
    refusal = judge_room(ledger, mine, Amount(cores, units * UNIT), OPEN)
    wanted = Amount(cores, units * UNIT).peak(mine.shares[0].amount)
    if refusal is None:
        ledger.commit((resized(mine, wanted),))
        return
    assert not wanted.fits_in(refusal.largest)
    assert f"so at most {refusal.largest}" in str(refusal)
    ledger.commit((resized(mine, refusal.largest),))


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"cordoned": True}, "cordoned"),
        ({"healthy": False}, "not healthy"),
        ({"healthy": False, "reason": "XID 79"}, "XID 79"),
    ],
)
def test_a_closed_card_gives_no_more_and_takes_back(state: dict[str, Any], why: str) -> None:
    mine = holding()
    ledger = Ledger(CARDS, UNIT, (mine,))
    closed = {CARDS[0].uuid: CardState(CARDS[0], **state)}
    refusal = judge_room(ledger, mine, Amount(31, 4 * UNIT), closed)
    assert f"31 cores, 1 GiB on card 0: the card takes nothing new ({why}); it keeps 30 cores, 1 GiB" in str(
        refusal
    )
    assert judge_room(ledger, mine, Amount(29, 4 * UNIT), closed) is None


# Withdrawal by number.


@quick
@given(st.data())
def test_what_is_withdrawn_is_what_is_free_beyond_the_room_and_the_plans(data: st.DataObject) -> None:
    total = data.draw(st.integers(0, 400))
    planned = data.draw(st.integers(0, total))
    grants = data.draw(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=6))  # ids, booked
    ids, booked = sum(i for i, _ in grants), sum(b for _, b in grants)
    if ids > total or booked + planned > total:
        return  # the ledger over-commits nothing
    free, room = total - ids, total - booked - planned
    assert ids_to_withdraw(booked - ids, free) == max(0, free - (room + planned))


cards_free = st.dictionaries(
    st.sampled_from([CardUuid(c) for c in "abc"]), st.lists(st.integers(0, 30), unique=True, max_size=12)
)


@quick
@given(
    cards_free,
    st.integers(0, 40),
    st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 30))),
    st.sampled_from("abcd"),
)
def test_withdrawn_ids_are_free_as_many_as_asked_and_change_as_little_as_they_can(
    numbers: dict[CardUuid, list[int]], number: int, earlier: set[tuple[str, int]], first: str
) -> None:
    free = {card: [f"{card}{n:02d}" for n in sorted(ids)] for card, ids in numbers.items()}
    there = {device for ids in free.values() for device in ids}
    before = {f"{card}{n:02d}" for card, n in earlier}
    chosen = choose_ids(number, free, (CardUuid(first),), before)
    assert chosen <= there
    assert len(chosen) == min(number, len(there))
    assert len(chosen & before) == min(number, len(before & there)), "no id is exchanged for another"
    own = set(free.get(CardUuid(first), ()))
    if not before & there:
        assert len(chosen & own) == min(number, len(own)), "of the grown card first"


def test_the_last_ids_of_a_card_go_first() -> None:
    """The kubelet is told to take the first ones."""
    free = {CardUuid("a"): ["a0", "a1", "a2"], CardUuid("b"): ["b0", "b1"]}
    assert choose_ids(4, free, (CardUuid("b"), CardUuid("gone"))) == {"b0", "b1", "a2", "a1"}

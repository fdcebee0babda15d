"""What may be asked for, judged against DESIGN's own sentence, and the nearest value against brute force."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, LARGEST_COUNT, MIB
from gpu_manager.domain.rules.legal_values import (
    MOST_ASKING,
    Rule,
    check_pod,
    is_legal_core,
    is_legal_memory,
    nearest_cores,
    nearest_memory,
    warn_pod,
)
from gpu_manager.domain.rules.pod_request import booked_request, container_request, judged_request
from gpu_manager.domain.rules.request import Request
from tests.fakes.written import broken, container, pod_of

ROOT = Path(__file__).parents[2]


# The seed: cards of a container, and what its users were told.


@pytest.mark.parametrize("cards", ["0.3", "0.56", "1", "6", "34"])
def test_the_card_counts_that_users_were_promised_pass(cards: str) -> None:
    core = Fraction(cards) * 100
    memory = 20 if core < 100 else None
    assert check_pod(pod_of(container("nginx", int(core), memory))) == ()


@pytest.mark.parametrize(
    ("cards", "nearest"), [("1.5", (100, 200)), ("2.7", (300, 200)), ("3.54", (400, 300))]
)
def test_one_card_and_a_half_is_refused_with_the_nearest(cards: str, nearest: tuple[int, ...]) -> None:
    (refusal,) = check_pod(pod_of(container("train", int(Fraction(cards) * 100))))
    assert (refusal.rule, refusal.container, refusal.field) == (Rule.CORE_NOT_MULTIPLE, "train", CORE)
    assert refusal.nearest == nearest


def test_the_denial_names_container_field_value_rule_and_nearest_legal_values() -> None:
    (refusal,) = check_pod(pod_of(container("train", 150)))
    assert refusal.message == (
        'container "train": tencent.com/vcuda-core is 150: use 1 to 100 for a part of one card, '
        "or a multiple of 100 for whole cards (100 or 200)"
    )
    assert refusal.refusal == f"cores are greater than 100, must be multiple of 100: {refusal.message}"


@pytest.mark.parametrize(
    ("core", "memory", "rule", "nearest", "says"),
    [
        ("0.3", 20, "core-not-whole", (1,), "if 0.3 cards were meant, use 30"),
        ("1500m", 20, "core-not-whole", (1, 2), "if 1.5 cards were meant, use 100 or 200"),
        ("100.5", None, "core-not-whole", (100, 200), "use 100 or 200"),
        (-30, 20, "core-negative", (1,), "use 1 to 100"),
        ("1e30", None, "core-too-large", (LARGEST_COUNT // 100 * 100,), "more than Kubernetes can count"),
        (None, 20, "memory-without-core", (1,), "add tencent.com/vcuda-core, 1 to 99"),
        (0, 20, "memory-without-core", (1,), "without tencent.com/vcuda-core"),
        (50, None, "fraction-without-memory", (1,), "add tencent.com/vcuda-memory, 1 or more units of 256 MiB"),
        (99, 0, "fraction-without-memory", (1,), "or ask for 100, a whole card"),
        (50, "20.5", "memory-not-whole", (20, 21), "units of 256 MiB in whole numbers: use 20 or 21"),
        (50, "100m", "memory-not-whole", (1,), "use 1"),
        (50, -1, "memory-negative", (1,), "use 1 or more units"),
        (50, "1E", "memory-too-large", (LARGEST_COUNT // DEFAULT_UNIT,), "more bytes than Kubernetes can count"),
    ],
)  # fmt: skip
def test_each_illegal_value_is_refused_with_its_cure(
    core: object, memory: object, rule: str, nearest: tuple[int, ...], says: str
) -> None:
    (refusal,) = check_pod(pod_of(container("train", core, memory)))
    assert refusal.rule.id == rule
    assert refusal.nearest == nearest
    assert says in refusal.message
    assert refusal.message.startswith('container "train": tencent.com/vcuda-')


@pytest.mark.parametrize(
    ("core", "memory"), [("3e1", "20"), ("30000m", "2e1"), ("+30", "20."), ("0.1k", None), (" 30", "1Ki")]
)
def test_any_quantity_form_that_is_a_whole_number_passes(core: str, memory: str | None) -> None:
    assert check_pod(pod_of(container("a", core, memory))) == ()


def test_every_fault_of_a_pod_is_told_at_once() -> None:
    pod = pod_of(container("a", 150, 1), container("b", 50), container("c", None, "0.5"), placement="random")
    assert broken(pod) == [
        "core-not-multiple", "fraction-without-memory", "memory-not-whole", "memory-without-core", "placement-unknown",
    ]  # fmt: skip
    with pytest.raises(RequestInvalid) as refusal:
        judged_request(pod)
    assert str(refusal.value).startswith('cores are greater than 100, must be multiple of 100: container "a"')
    assert str(refusal.value).count("; ") == 4


# Legal or not, against the contract's sentence.

fractions = st.integers(-400, 1300).map(lambda n: Fraction(n, 4)) | st.integers(-5, 1205).map(Fraction)
maybe = st.none() | fractions


def written(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def sentence(core: Fraction | None, memory: Fraction | None, *, privileged: bool = False) -> bool:
    """A container has cores >= 100 alone or cores < 100 with memory >= 1 unit; memory without cores is illegal."""
    c, m = core or Fraction(0), memory or Fraction(0)
    if m < 0 or m.denominator != 1:
        return False
    whole, part = c >= 100 and c % 100 == 0, c in set(range(1, 100))
    return whole or (part and m >= 1 and not privileged) or (c == 0 and m == 0)


@given(maybe, maybe, st.booleans())
def test_a_container_is_legal_exactly_as_the_contract_says(
    core: Fraction | None, memory: Fraction | None, privileged: bool
) -> None:
    raw = container("a", written(core), written(memory), securityContext={"privileged": privileged})
    pod = pod_of(raw)
    legal = sentence(core, memory, privileged=privileged)
    assert (check_pod(pod) == ()) is legal
    if legal:
        request = container_request(pod.containers[0])
        expected = (int(core), int(memory or 0) * DEFAULT_UNIT if core < 100 else 0) if core else None
        assert (request and (request.cores, request.memory)) == expected
    else:
        with pytest.raises(RequestInvalid):
            container_request(pod.containers[0])


@given(
    st.integers(-(10**20), 10**20).map(Fraction) | st.fractions(-2000, 2000, max_denominator=8),
    st.integers(1, 100),
)
def test_the_nearest_cores_are_legal_and_nothing_legal_is_nearer(value: Fraction, minimum: int) -> None:
    nearest = nearest_cores(value, minimum)
    distance = abs(nearest[0] - value)
    legal = set(range(minimum, 101)) | {
        n // 100 * 100 for n in (int(value) - 100, int(value), int(value) + 100)
    }
    legal = {n for n in legal if minimum <= n <= LARGEST_COUNT}
    assert all(is_legal_core(Fraction(n), minimum) for n in nearest)
    assert all(abs(n - value) >= distance for n in legal if n <= 100 or n % 100 == 0)
    assert list(nearest) == sorted(nearest, key=lambda n: (abs(n - value), n))
    assert is_legal_core(value, minimum) == (value == 0 or nearest == (value,))
    if len(nearest) == 2:
        low, high = sorted(nearest)
        assert low < value < high
        assert not any(is_legal_core(Fraction(n), minimum) for n in range(low + 1, high))


@given(
    st.integers(-(10**20), 10**20).map(Fraction) | st.fractions(-50, 50, max_denominator=8),
    st.sampled_from([1, MIB, DEFAULT_UNIT]),
)
def test_the_nearest_memory_is_legal_and_nothing_legal_is_nearer(value: Fraction, unit: int) -> None:
    nearest = nearest_memory(value, unit)
    assert all(is_legal_memory(Fraction(n), unit) for n in nearest)
    assert nearest[0] in (1, LARGEST_COUNT // unit) or abs(nearest[0] - value) <= Fraction(1, 2)
    assert is_legal_memory(value, unit) == (value == 0 or nearest == (value,))


@given(maybe, maybe)
def test_doing_what_the_refusal_says_makes_the_container_legal(
    core: Fraction | None, memory: Fraction | None
) -> None:
    limits = {CORE: core, MEMORY: memory}
    for _ in range(3):
        found = check_pod(pod_of(container("a", *map(written, limits.values()))))
        if not found:
            return
        limits[found[0].field] = Fraction(found[0].nearest[0])
    pytest.fail(f"{limits} is still refused")


def test_a_cluster_may_set_a_smallest_part() -> None:
    pod = pod_of(container("a", 3, 1))
    assert broken(pod) == []
    (refusal,) = check_pod(pod, minimum_cores=5)
    assert (refusal.rule, refusal.nearest) == (Rule.CORE_BELOW_MINIMUM, (5,))
    assert "this cluster gives no less than 5" in refusal.message
    assert broken(pod_of(container("a", 5, 1)), minimum_cores=5) == []


@pytest.mark.parametrize(
    ("limits", "requests", "refused", "nearest"),
    [
        ({CORE: 30, MEMORY: 20}, {CORE: "30", MEMORY: "20000m"}, [], []),
        ({CORE: 30, MEMORY: 20}, {}, [], []),
        ({CORE: 30, MEMORY: 20}, {CORE: 20}, ["30"], [(30,)]),
        ({CORE: 30, MEMORY: 20}, {CORE: 20, MEMORY: 10}, ["30", "20"], [(30,), (20,)]),
        ({}, {CORE: 30, MEMORY: 20}, ["nothing", "nothing"], [(30,), (20,)]),
        ({CORE: 200}, {MEMORY: 1}, ["nothing"], [(1,)]),
    ],
)
def test_requests_are_equal_to_limits_or_absent(
    limits: dict[str, object],
    requests: dict[str, object],
    refused: list[str],
    nearest: list[tuple[int, ...]],
) -> None:
    pod = pod_of({"name": "a", "resources": {"limits": limits, "requests": requests}})
    found = check_pod(pod)
    assert [v.rule for v in found] == [Rule.REQUESTS_DIFFER] * len(refused)
    assert [v.nearest for v in found] == nearest, "what the limit says, if there is one"
    assert all(f"and {limit} in limits" in v.message for v, limit in zip(found, refused, strict=True))


def test_a_privileged_container_cannot_have_a_part_of_a_card() -> None:
    privileged = {"securityContext": {"privileged": True}}
    assert broken(pod_of(container("a", 30, 1, **privileged))) == ["privileged-fraction"]
    assert broken(pod_of(container("a", 100, **privileged))) == []
    assert broken(pod_of(container("a", **privileged))) == []


@pytest.mark.parametrize(
    ("variable", "legal"),
    [
        ({"value": "all"}, False),
        ({"value": "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"}, False),
        ({"valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}, False),
        ({"value": "void"}, True),
        ({"value": "none"}, True),
        ({"value": ""}, True),
        ({}, True),
    ],
)
def test_no_container_of_a_pod_with_cards_chooses_cards_past_the_agent(
    variable: dict[str, object], legal: bool
) -> None:
    chosen = container("side", env=[{"name": "NVIDIA_VISIBLE_DEVICES", **variable}])
    assert (broken(pod_of(container("a", 30, 1), chosen)) == []) == legal
    assert broken(pod_of(chosen)) == [], "a pod without cards is none of ours"
    bound = booked_request(pod_of(container("a", 30, 1), chosen))
    assert bound is not None, "one that runs already keeps what it holds"


@pytest.mark.parametrize(
    ("init", "apps", "legal"),
    [
        ([(30, 1)], [(30, 1)], True),
        ([(30, 1), (90, 1)], [(60, 1), (40, 1)], True),  # never more than 100 at a time: one card will do
        ([(30, 1)], [(60, 1), (50, 1)], False),  # the apps alone need two cards
        ([(100, None)], [(30, 1), (70, 1)], True),
        ([(30, 1)], [(200, None)], False),
        ([(200, None)], [(200, None)], True),
        ([(200, None), (200, None)], [(200, None), (200, None)], True),
        ([(200, None)], [(100, None)], False),
        ([(200, None)], [(30, 1)], False),
        ([(100, None)], [(100, None), (100, None)], True),
        ([(None, None)], [(60, 1), (50, 1)], True),  # an init container that asks for nothing binds nobody
        ([(0, 0)], [(200, None), (30, 1)], True),
    ],
)
def test_a_pod_whose_init_container_asks_lies_on_one_card_or_on_equal_whole_cards(
    init: list[tuple[int | None, int | None]], apps: list[tuple[int | None, int | None]], legal: bool
) -> None:
    pod = pod_of(
        *(container(f"app{i}", *amount) for i, amount in enumerate(apps)),
        init=tuple(container(f"init{i}", *amount) for i, amount in enumerate(init)),
    )
    found = check_pod(pod)
    assert [v.rule for v in found] == ([] if legal else [Rule.INIT_CONTAINER_CARDS])
    assert all(v.container == "init0" for v in found)


def test_the_number_of_containers_that_ask_is_bounded_and_of_others_it_is_not() -> None:
    asking = [container(f"c{i}", 1, 1) for i in range(MOST_ASKING)]
    silent = [container(f"s{i}", None, None) for i in range(MOST_ASKING)]
    assert check_pod(pod_of(*asking, *silent)) == ()
    assert "containers-too-many" in broken(pod_of(*asking, init=(container("before", 1, 1),)))
    (found,) = check_pod(pod_of(*asking, container("more", 100)))
    assert found.refusal == (
        "spec.containers has 65 containers that ask for tencent.com/vcuda-core, init containers counted: "
        "a pod may have 64"
    )
    with pytest.raises(RequestInvalid, match="a pod may have 64"):
        judged_request(pod_of(*asking, container("more", 100)))
    assert booked_request(pod_of(*asking, container("more", 100))) is None


def affine(size: int, app: dict[str, Any]) -> Pod:
    """A pod whose node affinity has so many bytes."""
    expression = {"key": "k", "operator": "In", "values": [""]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    node = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    expression["values"] = ["x" * (size - len(json.dumps(node, separators=(",", ":"))))]
    return parse_pod({"spec": {"containers": [app], "affinity": {"nodeAffinity": node}}})


def test_the_node_affinity_of_a_pod_that_asks_is_bounded_and_of_others_it_is_not() -> None:
    largest = 64 << 10
    assert check_pod(affine(largest, container("c", 30, 1))) == ()
    (found,) = check_pod(affine(largest + 1, container("c", 30, 1)))
    assert found.refusal == (
        "spec.affinity.nodeAffinity has 65537 bytes in a pod that asks for tencent.com/vcuda-core: "
        "use 65536 at most"
    )
    assert check_pod(affine(largest + 1, container("c", None, None))) == ()


def test_sidecars_are_free_of_the_init_containers_rule_but_count_in_its_sum() -> None:
    sidecar = container("proxy", 60, 1, restartPolicy="Always")
    assert broken(pod_of(container("a", 60, 1), container("b", 200), init=(sidecar,))) == []
    assert broken(pod_of(container("a", 60, 1), init=(sidecar, container("prep", 10, 1)))) == [
        "init-container-cards"
    ]
    beside = container("prep", 60, 1)  # 120 cores while it prepares, though no app asks for any
    assert broken(pod_of(container("a"), init=(sidecar, beside))) == ["init-container-cards"]
    assert broken(pod_of(container("a"), init=(beside, sidecar))) == []
    many = tuple(container(f"a{i}", 30, 1) for i in range(6))
    (refusal,) = check_pod(pod_of(*many, init=(container("prep", 10, 1),)))
    assert '10 ("prep"), 30 ("a0"), 30 ("a1"), 30 ("a2") and 3 more' in refusal.message


# Requests.


def test_the_first_pod_everyone_writes_asks_for_30_cores_and_5_gib() -> None:
    request = judged_request(pod_of(container("nginx", 30, 20), container("log")))
    (only,) = request.containers
    assert (only.name, only.order, only.request) == ("nginx", 0, Request(30, 5 * GIB))


def test_containers_keep_their_place_in_the_kubelets_order() -> None:
    request = judged_request(pod_of(container("log"), container("a", 200, 5), init=(container("prep", 200),)))
    assert [(c.name, c.order, c.request) for c in request.containers] == [
        ("prep", 0, Request(200, 0)),
        ("a", 2, Request(200, 0)),
    ]


def test_a_pod_that_asks_for_nothing_has_no_request() -> None:
    assert judged_request(pod_of(container("a"), container("b", 0, 0))).containers == ()


def test_the_unit_is_the_clusters() -> None:
    assert container_request(pod_of(container("a", 30, 2)).containers[0], unit=GIB) == Request(30, 2 * GIB)


# What a pod on a node is booked with.


@pytest.mark.parametrize(
    "annotations",
    [
        {"vcuda_core_limit": "150"},
        {"placement": "foo"},
        {"vcuda_core_limit": "20"},
        {"gpu_uuid": "all of them"},
    ],
    ids=["ceiling", "policy", "ceiling-below-its-share", "uuids"],
)
def test_a_pod_on_a_node_holds_its_amounts_whatever_is_annotated_later(annotations: dict[str, str]) -> None:
    odd = pod_of(container("a", 60, 20), **{"gpu_model": "V100", **annotations})
    with pytest.raises(RequestInvalid):
        judged_request(odd)
    booked = booked_request(odd)
    assert booked is not None
    assert [c.request for c in booked.containers] == [Request(60, 5 * GIB)]
    assert (booked.models, booked.uuids, booked.ceiling) == ((), frozenset(), None)


def test_a_legal_pod_is_booked_as_it_was_judged() -> None:
    legal = pod_of(container("a", 60, 20), gpu_model="V100", vcuda_core_limit="80", placement="spread")
    assert booked_request(legal) == judged_request(legal)


@pytest.mark.parametrize("amounts", [(150, None), (30, None), (None, 4)])
def test_amounts_that_no_node_grants_are_booked_nowhere(amounts: tuple[int | None, int | None]) -> None:
    assert booked_request(pod_of(container("a", *amounts))) is None


# Warnings.


@pytest.mark.parametrize(
    ("core", "memory", "rule", "says"),
    [
        (200, 5, "memory-beside-whole-cards", "beside 2 whole cards: it is ignored"),
        (100, 1, "memory-beside-whole-cards", "beside 1 whole card"),
        (50, "5Gi", "memory-beyond-cards", "if 5 GiB was meant, use 20"),
        (50, 5120, "memory-beyond-cards", "if 5 GiB was meant, use 20"),
        (50, "30G", "memory-beyond-cards", "if 27.94 GiB was meant, use 112"),
        (50, 20_000_000, "memory-beyond-cards", "more than a card holds"),
    ],
)
def test_what_was_surely_not_meant_is_a_warning(core: int, memory: object, rule: str, says: str) -> None:
    pod = pod_of(container("a", core, memory))
    (warning,) = warn_pod(pod)
    assert (warning.rule.id, warning.rule.is_warning) == (rule, True)
    assert says in warning.message
    assert check_pod(pod) == ()


@pytest.mark.parametrize(
    ("init", "app"), [((30, 20), (30, 20)), ((10, 4), (50, 20)), ((200, None), (200, None))]
)
def test_an_init_container_that_asks_too_is_warned_of(
    init: tuple[int, int | None], app: tuple[int, int | None]
) -> None:
    """A kubelet that restarts judges it anew while its pod runs."""
    pod = pod_of(container("c", *app), init=(container("check", *init), container("again", *init)))
    (warning,) = warn_pod(pod)
    assert (warning.rule.id, warning.container) == ("init-container-asks", "check")
    assert f"asks for {init[0]} cores: a restart of the kubelet may fail the pod" in warning.message
    assert check_pod(pod) == ()


def test_of_sidecars_and_of_pods_that_are_refused_anyway_nothing_is_warned() -> None:
    sidecar = container("side", 30, 20, restartPolicy="Always")
    assert warn_pod(pod_of(container("c", 30, 20), init=(sidecar, container("plain")))) == ()
    refused = pod_of(container("c", 200), init=(container("check", 30, 20),))
    assert broken(refused) == ["init-container-cards"]
    assert warn_pod(refused) == ()


def test_an_ordinary_pod_has_no_warning() -> None:
    assert warn_pod(pod_of(container("a", 30, 20), container("b", 200), container("c", 150, 2))) == ()


# The table.


def test_each_rule_has_an_id_words_and_a_cure_of_its_own() -> None:
    ids = [rule.id for rule in Rule]
    assert len(set(ids)) == len(ids)
    for rule in Rule:
        assert rule.id.upper().replace("-", "_") == rule.name
        assert rule.value.why
        assert rule.value.cure

"""Extended resources as a claim: the same limits for every container, or a reason why a claim cannot say it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import (
    CORE_LIMIT,
    DRA_DRIVER,
    GPU_MODEL,
    GPU_UUID,
    PLACEMENT,
    PRELOAD,
    PRIORITY,
)
from gpu_manager.domain.dra.allocation import allocate, parse_allocated_claim
from gpu_manager.domain.dra.claim import parse_claim_spec
from gpu_manager.domain.dra.device import published_devices
from gpu_manager.domain.dra.selectors import card_of_model, model_selector, selected_card, takes
from gpu_manager.domain.dra.translation import (
    TurnedPod,
    is_turned_template,
    turned_into_claim,
    turned_warnings,
)
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Ledger
from gpu_manager.domain.placement.place import place
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, ZERO, Amount
from gpu_manager.domain.rules.legal_values import check_pod
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of, preload_of
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PlacementPolicy, PodRequest, matches_model
from gpu_manager.domain.rules.rulebook import Rule
from gpu_manager.domain.topology import Link, Topology
from gpu_manager.services.allocation.books import Books, Grant
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.claims.prepare import ClaimJudge
from tests.fakes.claims import claim_object, result
from tests.fakes.extender import container, pod
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakePods, FakeStore, cards
from tests.fakes.state import node_of

STATES = cards(8)
TOPOLOGY = Topology.uniform(len(STATES), Link.parse("PHB"))


def init(name: str, core: int, memory: int, *, sidecar: bool = False) -> dict[str, Any]:
    return container(name, core, memory, **({"restartPolicy": "Always"} if sidecar else {}))


def turned(obj: dict[str, Any]) -> TurnedPod:
    read = parse_pod(obj)
    return turned_into_claim(read, judged_request(read))


def asked(spec: Any) -> list[tuple[str, Any]]:
    found = []
    for one in spec["devices"]["requests"]:
        exactly = one["exactly"]
        assert exactly["deviceClassName"] == DRA_DRIVER
        found.append((one["name"], exactly.get("capacity", {}).get("requests", exactly.get("count"))))
    return found


def test_each_container_has_a_request_of_its_own_and_the_largest_comes_first() -> None:
    made = turned(
        pod(
            "p",
            containers=[container("a", 30, 20), container("b"), container("c", 200), container("d", 50, 3)],
        )
    )
    assert asked(made.spec) == [
        ("c", 2),
        ("d", {"cores": "50", "memory": "768Mi"}),
        ("a", {"cores": "30", "memory": "5Gi"}),
    ]
    assert [made.request_of(name) for name in "abcd"] == ["a", "", "c", "d"]


def test_a_template_has_the_same_name_for_the_same_claim_alone() -> None:
    one, same, other = (turned(pod(name, core)) for name, core in (("p", 30), ("q", 30), ("p", 31)))
    assert one.template == same.template != other.template
    assert one.template.startswith("vcuda-")


def test_an_odd_unit_of_memory_is_written_in_bytes() -> None:
    read = parse_pod(pod("p", 30, 3))
    spec = turned_into_claim(read, judged_request(read, 1000)).spec
    assert asked(spec) == [("main", {"cores": "30", "memory": "3000"})]


def test_an_init_container_uses_the_request_of_an_equal_app_container() -> None:
    obj = pod(
        "p",
        containers=[container("a", 30, 4), container("b", 20, 4)],
        init=[init("i", 20, 4), init("s", 30, 4, sidecar=True), init("j", 20, 4)],
    )
    made = turned(obj)
    assert [(one.name, one.containers) for one in made.requests] == [
        ("s", ("s",)),
        ("a", ("a",)),
        ("b", ("b", "i", "j")),
    ]


@pytest.mark.parametrize(
    ("obj", "says"),
    [
        (
            pod("p", 30, 4, init=[init("i", 20, 4)]),
            r'"i" asks for 20 cores, 1 GiB, and no app container asks',
        ),
        (pod("p", containers=[container("a")], init=[init("i", 20, 4)]), 'init container "i" asks'),
        (
            pod("p", containers=[container("a")], init=[init("s", 20, 4, sidecar=True), init("i", 20, 4)]),
            'init container "i" asks',
        ),
        (pod("p", on="n1"), 'spec.nodeName is "n1", and only a scheduler allocates claims'),
        (pod("p", annotations={GPU_MODEL: "V100,it's"}), 'can name its models: "it\'s" has a character'),
        (pod("p", 30, 1 << 34), 'container "main" asks for more memory than any card has'),
        (pod("p", 3300), "asks for 33 cards and parts of cards, and Kubernetes gives a claim 32"),
        (pod("p", containers=[container(f"c{n}", 1, 1) for n in range(33)]), "33 cards and parts"),
        (
            pod(
                "p",
                containers=[
                    container(
                        "a", 1, 1, env=[{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,graphics"}]
                    )
                ],
            ),
            "graphics libraries",
        ),
    ],
)
def test_what_a_claim_cannot_say_is_named(obj: dict[str, Any], says: str) -> None:
    assert not check_pod(parse_pod(obj))
    with pytest.raises(RequestInvalid, match=says):
        turned(obj)


def test_the_ceiling_is_said_of_parts_of_cards_alone() -> None:
    notes = {CORE_LIMIT: "80"}
    made = turned(pod("p", containers=[container("a", 30, 4), container("b", 100)], annotations=notes))
    [config] = made.spec["devices"]["config"]
    assert config == {
        "requests": ["a"],
        "opaque": {
            "driver": DRA_DRIVER,
            "parameters": {"apiVersion": f"{DRA_DRIVER}/v1", "kind": "ShareParameters", "coreLimit": 80},
        },
    }
    assert "config" not in turned(pod("p", 100, None, annotations=notes)).spec["devices"]


def test_the_author_is_told_the_parameters() -> None:
    notes = {PRIORITY: "best-effort", PRELOAD: "false", CORE_LIMIT: "80"}
    read = parse_pod(pod("p", annotations=notes))
    request = judged_request(read)
    [told] = turned_warnings(request, turned_into_claim(read, request))
    assert told.message.endswith("; parameters coreLimit 80, priority best-effort, preload false")


def test_priority_and_preload_are_parameters_too_and_make_another_template() -> None:
    notes = {PRIORITY: "best-effort", PRELOAD: "false", CORE_LIMIT: "80"}
    made = turned(pod("p", annotations=notes))
    [config] = made.spec["devices"]["config"]
    said = config["opaque"]["parameters"]
    assert {key: said[key] for key in ("coreLimit", "priority", "preload")} == {
        "coreLimit": 80,
        "priority": "best-effort",
        "preload": False,
    }
    plain = turned(pod("p"))
    assert "config" not in plain.spec["devices"]
    assert turned(pod("p", annotations={PRIORITY: "normal", PRELOAD: "true"})).template == plain.template
    others = [{PRIORITY: "protected"}, {PRIORITY: "best-effort"}, {PRELOAD: "false"}, {CORE_LIMIT: "80"}]
    names = {turned(pod("p", annotations=one)).template for one in others}
    assert len(names | {made.template, plain.template}) == 6
    assert all(map(is_turned_template, names))
    assert not is_turned_template("vcuda-30-cores")


def selectors(obj: dict[str, Any]) -> list[str]:
    [request] = turned(obj).spec["devices"]["requests"]
    return [one["cel"]["expression"] for one in request["exactly"]["selectors"]]


def test_allow_lists_are_selectors_of_the_cards_that_they_allow() -> None:
    wanted = ",".join(STATES[n].card.uuid for n in (1, 5))
    found = selectors(pod("p", annotations={GPU_UUID: wanted}))
    assert [s.card.index for s in STATES if takes(found, selected_card(s.card))] == [1, 5]
    both = selectors(pod("p", annotations={GPU_UUID: wanted, GPU_MODEL: "V100"}))
    assert [s.card.index for s in STATES if takes(both, selected_card(s.card))] == []


MODELS = [
    "Tesla-V100-SXM2-32GB",
    "Tesla V100",
    "V10",
    "A10",
    "A100-PCIE-40GB",
    "NVIDIA A10 (x.y)",
    "RTX_6000+",
    "T4",
]
words = st.sampled_from(
    ["v100", "V100", "tesla", "A10", "(x.y)", "6000+", "T4", "10", "NVIDIA", "$", "{2}", "."]
)


@given(st.lists(st.lists(words, min_size=1, max_size=3), min_size=1, max_size=3), st.sampled_from(" -_/"))
def test_a_selector_takes_the_models_that_the_annotation_matches(
    entries: list[list[str]], separator: str
) -> None:
    wanted = [separator.join(tokens) for tokens in entries]
    written = model_selector(wanted)
    assert "\\" not in written
    for model in MODELS:
        matched = any(matches_model(one, model) for one in wanted)
        assert takes([written], card_of_model(model)) is matched, (written, model)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(^|[ _/-])(a+)+($|[ _/-])", "(^|[ _/-])($|[ _/-])", "v100"])
def test_a_pattern_of_somebody_else_is_left_open(pattern: str) -> None:
    expression = f"device.attributes['vcuda.tencent.com'].productName.matches('{pattern}')"
    assert takes([expression], card_of_model("a" * 40 + "!")) is None


def test_the_author_is_told_what_is_asked_now_what_is_passed_over_and_what_is_slow() -> None:
    notes = {PLACEMENT: "spread"}
    obj = pod("p", containers=[container(f"c{n}", 10 + n, 1) for n in range(5)], annotations=notes)
    read = parse_pod(obj)
    request = judged_request(read)
    told = turned_warnings(request, turned_into_claim(read, request))
    assert [one.rule for one in told] == [Rule.TURNED_INTO_CLAIM, Rule.PLACEMENT_OF_CLAIM, Rule.UNLIKE_SHARES]
    assert "request c4: 14 cores, 256 MiB; request c3: 13 cores" in told[0].message
    assert "its claim has 5 unlike shares" in told[2].message
    four = pod("p", containers=[container(f"c{n}", 10 + n % 4, 1) for n in range(8)])
    request = judged_request(parse_pod(four))
    assert [one.rule for one in turned_warnings(request, turned(four))] == [Rule.TURNED_INTO_CLAIM]


# The same limits.

amounts = st.tuples(st.integers(1, 60), st.integers(1, 24)) | st.sampled_from([(100, None), (200, None)])


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    apps = draw(st.lists(amounts, min_size=1, max_size=4))
    made = [container(f"app{n}", *amount) for n, amount in enumerate(apps)]
    sidecars = draw(st.lists(amounts, max_size=2))
    started = [container(f"side{n}", *one, restartPolicy="Always") for n, one in enumerate(sidecars)]
    equal = draw(st.lists(st.sampled_from(apps), max_size=2))
    before = [container(f"init{n}", *one) for n, one in enumerate(equal)]
    notes: dict[str, str] = {}
    if draw(st.booleans()):
        notes[CORE_LIMIT] = str(draw(st.integers(60, 100)))
    if draw(st.booleans()):
        notes[GPU_UUID] = ",".join(STATES[n].card.uuid for n in draw(st.sets(st.integers(0, 7), min_size=3)))
    if draw(st.booleans()):
        notes[PRIORITY] = draw(st.sampled_from(["protected", "normal", "best-effort"]))
    if draw(st.booleans()):
        notes[PRELOAD] = draw(st.sampled_from(["true", "false"]))
    obj = pod("p", containers=made, init=draw(st.permutations(started + before)), annotations=notes)
    read = parse_pod(obj)
    assume(not check_pod(read))
    return read


Limits = dict[str, tuple[tuple[object, ...], ...]]


def by_extended_resources(read: Pod, request: PodRequest) -> tuple[Limits, Amount]:
    """What each container's page says and how many whole cards it has; and the pod's peak."""
    ledger = Ledger([state.card for state in STATES], DEFAULT_UNIT)
    shares = place(request, STATES, TOPOLOGY, ledger)
    limits: Limits = {}
    for one in request.containers:
        allocation = Allocation(
            read.uid, one.name, one.kind, one.order, shares[one.name], priority=request.priority
        )
        ledger.commit([allocation])
        limits[one.name] = seen(Grant(allocation, one.name, legal_ceiling_of(read) or 0), preload_of(read))
    return limits, sum((ledger.booked(state.card.uuid) for state in STATES), ZERO)


def seen(grant: Grant, preload: bool) -> tuple[tuple[object, ...], ...]:
    """What the pages say of each share, and whether the library is preloaded there."""
    enforced = {limit.card: limit for limit in limits_of(grant)}
    return tuple(
        (limit.cores, limit.memory, limit.ceiling, limit.priority, preload)
        if (limit := enforced.get(share.card))
        else ("whole", share.amount)
        for share in grant.allocation.shares
    )


def preload_by(grant: Grant) -> bool:
    assert grant.allocation.claim is not None
    return grant.allocation.claim.preload


def by_claim(read: Pod, made: TurnedPod, minor: int) -> tuple[Limits, Amount]:
    """The same by the scheduler's first fit, and by what is prepared of its answer."""
    spec = parse_claim_spec(made.spec)
    devices = published_devices(STATES, {}, PlacementPolicy.BINPACK, DEFAULT_UNIT, 1)
    states: dict[str, CardState] = {f"gpu-{state.card.index:08x}": state for state in STATES}

    def is_eligible(asked: Any, device: Any) -> bool:
        return takes(asked.selectors, selected_card(states[device.name].card)) is True

    found = allocate(devices, {}, [spec], minor, is_eligible)
    if found is None:
        raise DoesNotFit("no devices")
    results = [
        result(
            one.device, one.consumed["cores"], one.consumed["memory"], request=one.request, shareID=f"s{n}"
        )
        for n, one in enumerate(found[0])
    ]
    claim = claim_object("c", *results)
    config = [{**one, "source": "FromClaim"} for one in made.spec["devices"].get("config", [])]
    claim["status"]["allocation"]["devices"]["config"] = config
    state = NodeState(Books(node_of(STATES)), FakeStore(), service_metrics())
    judge = ClaimJudge(state, FakePods())
    grants = state.prepare(judge.grants(parse_allocated_claim(claim, DEFAULT_UNIT)))
    by_request = {grant.allocation.claim.request: grant for grant in grants if grant.allocation.claim}
    limits = {
        one.name: seen(by_request[request], preload_by(by_request[request]))
        for one in read.containers
        if (request := made.request_of(one.name))
    }
    return limits, sum((state.view.ledger.booked(one.card.uuid) for one in STATES), ZERO)


@given(pods(), st.sampled_from([36, 37]))
def test_a_claim_gives_every_container_the_limits_that_its_extended_resources_gave(
    read: Pod, minor: int
) -> None:
    request = judged_request(read)
    made = turned_into_claim(read, request)
    try:
        plugin = by_extended_resources(read, request)
        claim = by_claim(read, made, minor)
    except DoesNotFit:
        assume(False)
    assert claim == plugin


def test_the_case_that_is_judged_above_has_what_it_is_about() -> None:
    notes = {
        CORE_LIMIT: "70",
        GPU_UUID: STATES[3].card.uuid,
        PRIORITY: "best-effort",
        PRELOAD: "false",
    }
    read = parse_pod(
        pod("p", containers=[container("a", 30, 8)], init=[container("i", 30, 8)], annotations=notes)
    )
    request = judged_request(read)
    both = by_claim(read, turned_into_claim(read, request), 36)
    assert request.priority is Priority.BEST_EFFORT
    part = (30, 2 * GIB, 70, Priority.BEST_EFFORT, False)
    assert both == ({"i": (part,), "a": (part,)}, Amount(30, 2 * GIB))
    assert both == by_extended_resources(read, request)

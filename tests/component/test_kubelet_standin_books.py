"""The stand-in's books under any order of events, without sockets: what holds as long as nobody lists in Allocate."""

import tempfile
from collections import deque
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.errors import DoesNotFit, RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2
from sandbox.kubelet.books import DeviceBooks
from sandbox.kubelet.checkpoint import read
from sandbox.kubelet.granting import Granter
from sandbox.kubelet.topology import Hint, affinity, hints
from sandbox.kubelet.values import (
    Asked,
    Device,
    Hooks,
    WallClock,
    containers_of,
    effective_limits,
    is_extended,
)

R = "x.io/r"


class Anything:
    """A plugin that prefers a random part and, where it may, has the kubelet listed meanwhile."""

    def __init__(self, books: DeviceBooks, rng: Random) -> None:
        self.options = api_pb2.DevicePluginOptions(get_preferred_allocation_available=True)
        self._books, self._rng = books, rng

    def preferred(self, available, must_include, size):
        self._books.collect()
        assert set(must_include) <= set(available)
        return frozenset(self._rng.sample(sorted(available), min(size, len(available))))

    def allocate(self, ids):
        assert len(ids) == len(set(ids))
        return api_pb2.AllocateResponse(container_responses=[api_pb2.ContainerAllocateResponse()])

    def pre_start(self, ids):
        raise AssertionError("not wanted")


events = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 6), st.integers(1, 6)),
        st.tuples(st.just("end"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("list"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(events, st.integers(0, 1000))
def test_no_two_active_pods_ever_hold_the_same_id_and_nothing_is_lost(steps, seed):
    rng = Random(seed)
    active: set[str] = set()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "checkpoint"

        def process() -> tuple[DeviceBooks, Granter]:
            books = DeviceBooks(path, WallClock(), lambda: active)
            books.connected(R, Anything(books, rng))
            books.update(R, [Device(f"d{i:02}", healthy=True) for i in range(20)])
            return books, Granter(books, rng, Hooks(), deque(), lambda _pod, _container: False)

        books, granter = process()
        for number, (what, first, count) in enumerate(steps):
            if what == "admit":
                uid = f"u{number}"
                active.add(uid)
                try:
                    granter.allocate(uid, "init", {R: first}, {}, None) if first else None
                    reusable = {R: frozenset(books.held(uid, "init")[R].ids)} if first else {}
                    granter.allocate(uid, "app", {R: count}, reusable, None)
                except DoesNotFit:
                    active.discard(uid)
            elif what == "end" and active:
                active.discard(sorted(active)[first % len(active)])
            elif what == "list":
                books.collect()
            elif what == "restart":
                before = books.holders()
                books, granter = process()
                assert {g.pod for g in books.holders() if g.pod in active} == {
                    g.pod for g in before if g.pod in active
                }
            held: dict[str, str] = {}
            for grant in books.holders():
                for one in grant.ids if grant.pod in active else ():
                    assert held.setdefault(one, grant.pod) == grant.pod
            assert set(held) <= books.allocated.get(R, set())
        active.clear()
        books.collect()
        assert books.holders() == ()
        assert books.given(R) == 0
        books.write()
        assert read(path).grants == ()


def test_hints_name_the_narrowest_nodes_and_who_is_reused():
    places = {"a": frozenset({0}), "b": frozenset({0}), "c": frozenset({1}), "x": frozenset()}
    assert hints(places, ["a", "b", "c", "x"], [], 2) == [
        Hint(frozenset({0}), preferred=True),
        Hint(frozenset({0, 1}), preferred=False),
    ]
    assert hints(places, ["a", "b"], ["c"], 1) == [
        Hint(frozenset({1}), preferred=True),
        Hint(frozenset({0, 1}), preferred=False),
    ]
    assert hints(places, ["a", "b", "c", "x"], [], 4) == []


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (NumaPolicy.NONE, (None, True)),
        (NumaPolicy.BEST_EFFORT, (frozenset({0}), True)),
        (NumaPolicy.RESTRICTED, (frozenset({0}), True)),
        (NumaPolicy.SINGLE, (frozenset({0}), True)),
    ],
)
def test_the_narrowest_set_that_all_prefer_wins(policy, expected):
    wide, left = Hint(frozenset({0, 1}), preferred=False), Hint(frozenset({0}), preferred=True)
    right = Hint(frozenset({1}), preferred=True)
    assert affinity(policy, [0, 1], [[left, wide], [left, right, wide]]) == expected


def test_a_resource_that_fits_nowhere_is_refused_but_by_best_effort():
    assert affinity(NumaPolicy.RESTRICTED, [0, 1], [[]]) == (frozenset({0, 1}), False)
    assert affinity(NumaPolicy.BEST_EFFORT, [0, 1], [[]]) == (frozenset({0, 1}), True)
    assert affinity(NumaPolicy.SINGLE, [0, 1], [[]]) == (None, False)


def test_1_8_a_pod_counts_for_its_largest_step():
    def asked(kind: ContainerKind, count: int) -> Asked:
        return Asked(f"c{count}", kind, {R: count})

    init, sidecar, app = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
    assert effective_limits([asked(init, 9), asked(sidecar, 2), asked(app, 3)]) == {R: 9}
    assert effective_limits([asked(sidecar, 2), asked(init, 9), asked(app, 3)]) == {R: 11}
    assert effective_limits([asked(init, 4), asked(sidecar, 2), asked(app, 3)]) == {R: 5}


@pytest.mark.parametrize(
    ("name", "extended"),
    [
        ("tencent.com/vcuda-core", True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("kubernetes.io/x", False),
        ("a.kubernetes.io/x", False),
        ("requests.x.io/y", False),
        ("a/b/c", False),
        ("/b", False),
        ("a/", False),
    ],
)
def test_only_names_of_a_foreign_domain_are_extended_resources(name, extended):
    assert is_extended(name) is extended


def test_a_limit_that_is_no_quantity_is_refused():
    with pytest.raises(RequestInvalid, match="is not a Kubernetes quantity"):
        containers_of({"spec": {"containers": [{"name": "a", "resources": {"limits": {R: "many"}}}]}})

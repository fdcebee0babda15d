"""Which nodes a pod may go to by cordon, taints and labels: as kube-scheduler reads them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.kube.constraints import (
    ANYWHERE,
    DAEMONS,
    NodeConstraints,
    PodConstraints,
    meets,
    node_constraints,
    pod_constraints,
)


def constraints(labels=None, taints=(), **spec):
    written = [dict(zip(("key", "value", "effect"), taint, strict=True)) for taint in taints]
    return node_constraints(
        {"metadata": {"name": "n1", "labels": labels or {}}, "spec": {"taints": written, **spec}}
    )


def tolerating(**toleration):
    return pod_constraints({"tolerations": [toleration]})


def in_terms(*terms):
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return pod_constraints({"affinity": {"nodeAffinity": required}})


def expression(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values)}


ML = ("dedicated", "ml", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "passes"),
    [
        ({"key": "dedicated", "value": "ml"}, True),  # Equal is the default
        ({"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "dedicated", "value": "web"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "ml"}, False),  # without a key only Exists means all
        ({"key": "dedicated", "operator": "Unknown", "value": "ml"}, False),
    ],
)
def test_a_taint_bars_whoever_does_not_tolerate_it(toleration, passes):
    assert bool(constraints(taints=[ML]).bars(tolerating(**toleration))) is not passes


def test_the_taint_is_named():
    assert constraints(taints=[ML]).bars(ANYWHERE) == (
        'has the taint "dedicated=ml:NoSchedule", which the pod does not tolerate'
    )
    assert '"gone:NoExecute"' in constraints(taints=[("gone", "", "NoExecute")]).bars(ANYWHERE)
    assert constraints(taints=[("x", "", "PreferNoSchedule")]).bars(ANYWHERE) == ""


@pytest.mark.parametrize("how", ["field", "taint", "both"])
def test_a_cordoned_node_is_said_to_be_cordoned(how):
    taint = ("node.kubernetes.io/unschedulable", "", "NoSchedule")
    spec = {"unschedulable": True} if how != "taint" else {}
    shut = constraints(taints=[taint] if how != "field" else [], **spec)
    assert shut.bars(ANYWHERE) == "is cordoned"
    assert shut.bars(tolerating(key=taint[0], operator="Exists")) == ""
    assert shut.bars(PodConstraints(tolerations=DAEMONS)) == ""
    assert shut.fresh("n2").bars(ANYWHERE) == ""


def test_a_selector_wants_every_label():
    asked = pod_constraints({"nodeSelector": {"pool": "gpu", "zone": "a"}})
    assert constraints({"pool": "gpu", "zone": "a", "more": "x"}).bars(asked) == ""
    assert constraints({"pool": "gpu"}).bars(asked) == 'lacks what the pod selects: "zone=a"'


@pytest.mark.parametrize(
    ("terms", "passes"),
    [
        ([{"matchExpressions": [expression("pool", "In", "gpu", "big")]}], True),
        ([{"matchExpressions": [expression("pool", "NotIn", "gpu")]}], False),
        (
            [
                {"matchExpressions": [expression("pool", "NotIn", "gpu")]},
                {"matchExpressions": [expression("pool", "Exists")]},
            ],
            True,
        ),
        ([{"matchExpressions": [expression("pool", "Exists"), expression("no", "Exists")]}], False),
        ([{"matchFields": [expression("metadata.name", "In", "n1")]}], True),
        ([{"matchFields": [expression("metadata.name", "In", "n2")]}], False),
        ([{}], False),  # an empty term selects nothing
        ([], False),
        ([{}, {"matchExpressions": [expression("cards", "Gt", "3")]}], True),
    ],
)
def test_one_term_of_an_affinity_is_enough_and_all_of_it_must_hold(terms, passes):
    there = constraints({"pool": "gpu", "cards": "8"})
    assert bool(there.bars(in_terms(*terms))) is not passes


def test_a_daemons_pod_goes_to_its_node_alone():
    assert NodeConstraints("n1").bars(ANYWHERE.only("n1")) == ""
    assert "metadata.name=n1" in NodeConstraints("n2").bars(ANYWHERE.only("n1"))


def test_a_new_node_of_a_kind_has_its_labels_and_taints_and_none_of_its_troubles():
    old = constraints(
        {"pool": "gpu", "kubernetes.io/hostname": "n1"},
        taints=[ML, ("node.kubernetes.io/not-ready", "", "NoExecute")],
        unschedulable=True,
    )
    new = old.fresh("new-1")
    assert new.labels == {"pool": "gpu", "kubernetes.io/hostname": "new-1"}
    assert new.taints == (ML,)
    assert not new.cordoned


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "spec",
                    "metadata",
                    "labels",
                    "taints",
                    "tolerations",
                    "key",
                    "effect",
                    "affinity",
                    "nodeAffinity",
                    "nodeSelector",
                    "nodeSelectorTerms",
                    "requiredDuringSchedulingIgnoredDuringExecution",
                    "matchExpressions",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=200)
@given(st.dictionaries(st.text(max_size=3), anything, max_size=2), anything)
def test_whatever_objects_say_the_answer_is_a_sentence_or_nothing(node, spec):
    assert isinstance(node_constraints(node).bars(pod_constraints(spec)), str)
    assert isinstance(node_constraints({"metadata": node, "spec": spec}).bars(pod_constraints(spec)), str)


def test_a_closed_node_says_so_before_anything_else():
    assert NodeConstraints(closed="is being deleted", cordoned=True).bars(ANYWHERE) == "is being deleted"


@pytest.mark.parametrize(
    ("value", "bound", "holds"),
    [("5", "4", True), ("4", "4", False), ("x", "4", False), (None, "4", False), ("5", "four", False)],
)
def test_more_than_a_number_holds_for_numbers_alone(value, bound, holds):
    labels = {} if value is None else {"key": value}
    assert meets(labels, (("key", "Gt", frozenset({bound})),)) is holds
    assert not meets({"key": "5"}, (("key", "Gt", frozenset({"1", "2"})),))

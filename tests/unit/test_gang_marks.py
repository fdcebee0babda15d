"""Which gang a pod is of, and how large a gang is, by the marks of each system."""

import pytest

from admission.gangs.members import COSCHEDULING, KUBERNETES, KUEUE, VOLCANO, GangKey, mark_of, minimum_of


@pytest.mark.parametrize(
    ("labels", "annotations", "spec", "api"),
    [
        ({"scheduling.x-k8s.io/pod-group": "a"}, {}, {}, COSCHEDULING),
        ({}, {"scheduling.k8s.io/group-name": "a"}, {}, VOLCANO),
        ({"kueue.x-k8s.io/pod-group-name": "a"}, {}, {}, KUEUE),
        ({}, {}, {"schedulingGroup": {"podGroupName": "a"}}, KUBERNETES),
        ({"scheduling.x-k8s.io/pod-group": "b"}, {}, {"schedulingGroup": {"podGroupName": "a"}}, KUBERNETES),
    ],
)
def test_each_system_marks_a_gang_in_its_own_way(labels, annotations, spec, api):
    obj = {"metadata": {"namespace": "ml", "labels": labels, "annotations": annotations}, "spec": spec}
    found = mark_of(obj)
    assert found is not None
    assert (found.gang, found.total) == (GangKey(api, "ml", "a"), None)


@pytest.mark.parametrize("value", ["0", "-1", "3.5", "", "٣", "99999999999", 3.5, True, None, [], {}])
def test_a_size_that_is_no_number_is_not_known(value):
    labels = {"kueue.x-k8s.io/pod-group-name": "a"}
    annotations = {"kueue.x-k8s.io/pod-group-total-count": value}
    found = mark_of({"metadata": {"labels": labels, "annotations": annotations}})
    assert found is not None
    assert found.total is None
    assert minimum_of(COSCHEDULING, {"spec": {"minMember": value}}) is None
    assert minimum_of(KUBERNETES, {"spec": {"schedulingPolicy": {"gang": {"minCount": value}}}}) is None


@pytest.mark.parametrize(
    "obj", [{}, {"metadata": 3, "spec": []}, {"metadata": {"labels": [1]}, "spec": {"schedulingGroup": 7}}]
)
def test_hostile_pods_are_of_no_gang(obj):
    assert mark_of(obj) is None
    assert minimum_of(KUBERNETES, obj) is None


def test_in_tree_groups_state_their_size_by_policy():
    assert minimum_of(KUBERNETES, {"spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}) == 4
    assert minimum_of(KUBERNETES, {"spec": {"schedulingPolicy": {"basic": {}}}}) is None

"""The agent's `/usage` as others read it: figures that are not there are not known, and nonsense is refused."""

import pytest

from gpu_manager.domain.cluster.usage_json import NOT_USED, UsedShare, named_usage, read_usage, used_share
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.names import container_digest


def said(**device):
    return {"usage": {"uid": {"stat": {"main": {"dev": [{"uuid": "GPU-1", **device}]}}}}}


@pytest.mark.parametrize(
    ("device", "used"),
    [
        ({"gpu": 12.5, "mem": 512.0}, UsedShare(12.5, 512 << 20)),
        ({"gpu": 0, "mem": 0}, UsedShare(0.0, 0)),
        ({}, UsedShare(None, None)),
        ({"gpu": "much", "mem": -1}, UsedShare(None, None)),
        ({"gpu": 1.0, "account_difference": -12.5}, UsedShare(1.0, None, difference=-12.5)),
        ({"gpu": 1.0, "account_difference": "much"}, UsedShare(1.0, None)),
        ({"gpu": 1.0, "account_difference": 1e9}, UsedShare(1.0, None)),
        ({"gpu": 1e300, "mem": None}, UsedShare(None, None)),
    ],
)
def test_a_share_is_what_the_agent_says_of_it(device, used):
    assert read_usage(said(**device)) == {("uid", "main", "GPU-1"): used}


@pytest.mark.parametrize(
    "answer", [None, "", [], {}, {"usage": []}, {"usage": {"u": {"stat": {"c": {"dev": [{}]}}}}}]
)
def test_an_answer_that_is_something_else_is_refused(answer):
    with pytest.raises(NodeUnready, match="something else"):
        read_usage(answer)


@pytest.mark.parametrize("pod", [None, [], {}, {"stat": 1}, {"stat": {"c": 1}}, {"stat": {"c": {"dev": 1}}}])
def test_a_pod_of_another_shape_uses_nothing_that_is_known(pod):
    assert read_usage({"usage": {"u": pod}}) == {}


def test_what_an_agent_told_of_a_pod_that_nobody_knows_stays_as_it_is():
    told = read_usage(said(gpu=1))
    assert named_usage(told, {}) == told


def test_a_container_is_found_by_its_name_and_by_its_digest():
    plain = {("uid", "main", "GPU-1"): UsedShare(1.0, 2)}
    unnamed = {("uid", container_digest("uid", "main"), "GPU-1"): UsedShare(3.0, 4)}
    assert used_share(plain, "uid", "main", "GPU-1") == UsedShare(1.0, 2)
    assert used_share(unnamed, "uid", "main", "GPU-1") == UsedShare(3.0, 4)
    for usage in ({}, plain, unnamed):
        assert used_share(usage, "other", "main", "GPU-1") == NOT_USED

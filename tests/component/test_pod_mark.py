"""The term that a pod names for its next process: believed by that pod's only process alone."""

from __future__ import annotations

import pytest

from gpu_manager.adapters.kube.connection import connect
from gpu_manager.adapters.kube.leases import PodMark
from gpu_manager.domain.contract import LEADER_SINCE
from sandbox.api import StandInApi
from tests.fakes.ports import FakeClock


@pytest.fixture
def api():
    with StandInApi() as api:
        yield api


def pod(api: StandInApi) -> str:
    """A replica's pod; its UID."""
    spec = {"containers": [{"name": "c", "image": "i"}]}
    meta = {"name": "one", "namespace": "kube-system"}
    made = api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    return str(made["metadata"]["uid"])


def mark(api: StandInApi, uid: str) -> PodMark:
    return PodMark(connect(url=api.url), FakeClock(), "kube-system", "one", uid)


def ends(process: PodMark) -> None:
    """What the kernel does with a process that is killed."""
    assert process._socket is not None
    process._socket.close()


def test_the_next_process_of_a_pod_reads_the_term_of_the_one_that_was_killed(api: StandInApi) -> None:
    uid = pod(api)
    killed = mark(api, uid)
    assert killed.term() == ""
    killed.set("one_1/4")
    ends(killed)
    after = mark(api, uid)
    assert after.term() == "one_1/4"
    ends(after)


def test_beside_a_living_process_of_the_pod_no_term_is_read_or_written(api: StandInApi) -> None:
    uid = pod(api)
    first, second = mark(api, uid), mark(api, uid)
    first.set("one_1/4")
    assert second.term() == ""
    second.set("one_2/5")
    assert "one_2" not in api.get("pods", "one", "kube-system")["metadata"]["annotations"][LEADER_SINCE]
    ends(first)


@pytest.mark.parametrize("known", ["", "another"])
def test_a_process_that_is_not_of_this_pod_reads_nothing(api: StandInApi, known: str) -> None:
    before = mark(api, pod(api))
    before.set("one_1/4")
    ends(before)
    other = mark(api, known)
    assert other.term() == ""
    if known:
        ends(other)

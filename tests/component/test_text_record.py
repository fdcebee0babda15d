"""The text that replicas of the admission service share: each writes only over what it has read."""

from __future__ import annotations

import pytest

from gpu_manager.adapters.kube.connection import connect
from gpu_manager.adapters.kube.leases import KubeTextRecord
from gpu_manager.domain.contract import ADMITTED_CLAIMS, CLAIM_RECORD
from gpu_manager.domain.errors import NodeUnready
from sandbox.api import StandInApi


def record(api: StandInApi) -> KubeTextRecord:
    return KubeTextRecord(connect(url=api.url), "kube-system", CLAIM_RECORD, ADMITTED_CLAIMS)


@pytest.fixture
def api():
    with StandInApi() as api:
        yield api


def test_a_record_is_made_read_and_taken_over(api: StandInApi) -> None:
    one, two = record(api), record(api)
    assert one.read() is None
    assert two.read() is None
    assert one.write("a")
    assert not two.write("b"), "another made it meanwhile"
    assert two.read() == "a"
    assert two.write("b")
    assert two.write("c"), "what was written last need not be read again"
    assert not one.write("d")
    assert one.read() == "c"


def test_what_others_write_beside_the_text_stays_and_counts_as_a_change(api: StandInApi) -> None:
    one = record(api)
    assert one.read() is None
    assert one.write("a")
    api.patch("leases", CLAIM_RECORD, {"metadata": {"annotations": {"x": "y"}}}, "kube-system")
    assert not one.write("b")
    assert one.read() == "a"
    assert one.write("b")
    lease = api.get("leases", CLAIM_RECORD, "kube-system")
    assert lease is not None
    assert lease["metadata"]["annotations"] == {"x": "y", ADMITTED_CLAIMS: "b"}
    api.delete("leases", CLAIM_RECORD, "kube-system")
    assert not one.write("c")
    assert one.read() is None


def test_an_api_server_that_does_not_answer_is_said_so(api: StandInApi) -> None:
    one = record(api)
    assert one.read() is None
    api.stop()
    with pytest.raises(NodeUnready):
        one.read()
    with pytest.raises(NodeUnready):
        one.write("a")

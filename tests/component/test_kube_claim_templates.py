"""Templates of turned pods at the API server: each answer that is no error says what was found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from admission.cluster.claim_templates import IDLE_SECONDS, ClaimTemplates, read_turned_template
from gpu_manager.adapters.kube.claims import KubeClaimTemplates
from gpu_manager.adapters.kube.connection import Connection, connect
from gpu_manager.domain.contract import TEMPLATE_NEEDED
from gpu_manager.domain.errors import NodeUnready
from sandbox.api import StandInApi
from tests.fakes.extender import container, pod
from tests.fakes.ports import FakeClock

SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vcuda.tencent.com"}}]}}


@pytest.fixture
def api() -> Iterator[StandInApi]:
    made = StandInApi()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def connection(api: StandInApi) -> Iterator[Connection]:
    made = connect(url=api.url)
    yield made
    made.close()


def test_a_template_is_made_needed_again_kept_while_pods_name_it_and_deleted(
    api: StandInApi, connection: Connection
) -> None:
    clock = FakeClock()
    templates = ClaimTemplates(KubeClaimTemplates(connection), clock)
    for name in ("used", "idle"):
        assert templates.ensure("default", name, SPEC) == ""
    using = pod("p", containers=[container("c")])
    using["spec"]["resourceClaims"] = [{"name": "vcuda", "resourceClaimTemplateName": "used"}]
    api.create(using)
    clock.pass_(IDLE_SECONDS)
    stored = [read_turned_template(one) for one in api.list("resourceclaimtemplates")]
    assert templates.sweep([one for one in stored if one]) == 1
    [left] = api.list("resourceclaimtemplates")
    assert left["metadata"]["name"] == "used"
    assert left["spec"] == {"spec": SPEC}


def test_what_is_there_already_is_not_made_and_what_is_gone_is_not_annotated(
    api: StandInApi, connection: Connection
) -> None:
    templates = KubeClaimTemplates(connection)
    body = {"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": SPEC}}
    assert not templates.annotate("default", "t", {TEMPLATE_NEEDED: "1"})
    assert templates.create("default", body)
    assert not templates.create("default", body)
    assert templates.annotate("default", "t", {TEMPLATE_NEEDED: "7"})
    [stored] = api.list("resourceclaimtemplates")
    assert stored["metadata"]["annotations"] == {TEMPLATE_NEEDED: "7"}


def test_just_the_template_that_was_read_is_deleted(api: StandInApi, connection: Connection) -> None:
    templates = KubeClaimTemplates(connection)
    templates.create("default", {"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": SPEC}})
    meta = api.list("resourceclaimtemplates")[0]["metadata"]
    uid, version = meta["uid"], meta["resourceVersion"]
    assert templates.annotate("default", "t", {TEMPLATE_NEEDED: "7"})
    assert not templates.delete("default", "t", uid, version)
    now = api.list("resourceclaimtemplates")[0]["metadata"]["resourceVersion"]
    assert templates.delete("default", "t", uid, now)
    assert not templates.delete("default", "t", uid, now)


@pytest.mark.parametrize("verb", ["create", "patch", "delete", "list"])
def test_a_refusal_is_an_error_with_the_answer(api: StandInApi, connection: Connection, verb: str) -> None:
    templates = KubeClaimTemplates(connection)
    body = {"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": SPEC}}
    acts = {
        "create": lambda: templates.create("default", body),
        "patch": lambda: templates.annotate("default", "t", {}),
        "delete": lambda: templates.delete("default", "t", "u", "1"),
        "list": lambda: templates.named_by_pods("default"),
    }
    api.fail(1, 403, match=f"{verb} {'pods' if verb == 'list' else 'resourceclaimtemplates'}")
    with pytest.raises(NodeUnready, match="403"):
        acts[verb]()

"""Certificates that the service signs for itself: in the Secret and the configurations of an API server."""

from __future__ import annotations

import base64
import ssl
import time
from typing import Any

import pytest

from admission.app import compose
from admission.config import AdmissionSettings, ExtenderEndpoint, OwnCertificates
from admission.program import AdmissionProgram
from admission.serving.authority import SelfSigned
from admission.serving.certs import Switch
from admission.serving.metrics import AdmissionMetrics
from gpu_manager.adapters.kube.connection import connect
from gpu_manager.adapters.kube.leases import KubeCertificates
from gpu_manager.domain.errors import NodeUnready
from sandbox.api import ADMIN_TOKEN, StandInApi
from tests.fakes.https import HOST, Caller, trusting, visit
from tests.fakes.reviews import review
from tests.fakes.sandbox import until
from tests.fakes.vault import DAY, NAME, Clock, trusts

ANY_PORT = ExtenderEndpoint(port=0)


@pytest.fixture
def kube(api: StandInApi):
    connection = connect(url=api.url, token=ADMIN_TOKEN)
    yield KubeCertificates(connection, "kube-system", "certs", ("admission", "absent"))
    connection.close()


def configuration(kind: str) -> dict[str, Any]:
    hooks = [
        {
            "name": name,
            "clientConfig": {"service": {"name": "s", "namespace": "kube-system"}},
            "sideEffects": "None",
        }
        for name in ("pods.x.io", "workloads.x.io")
    ]
    version = "admissionregistration.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "admission"}, "webhooks": hooks}


def test_the_secret_is_created_once_and_replaced_only_by_who_read_it_last(kube: KubeCertificates) -> None:
    assert kube.load() is None
    assert kube.save({"a": b"1", "b": b"2"}, None)
    assert not kube.save({"a": b"3"}, None)
    found = kube.load()
    assert found is not None
    assert found[0] == {"a": b"1", "b": b"2"}
    assert kube.save({"a": b"4"}, found[1])
    assert not kube.save({"a": b"5"}, found[1])
    assert kube.load()[0] == {"a": b"4"}  # type: ignore[index]


def test_each_webhook_is_told_and_a_stale_writer_is_refused(api: StandInApi, kube: KubeCertificates) -> None:
    assert kube.anchors() == []
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        api.create(configuration(kind))
    anchors = kube.anchors()
    assert [bundles for _, _, bundles in anchors] == [{"pods.x.io": b"", "workloads.x.io": b""}] * 2
    for path, version, bundles in anchors:
        assert kube.anchor(path, version, dict.fromkeys(bundles, b"PEM"))
        assert not kube.anchor(path, version, dict.fromkeys(bundles, b"other"))
    assert [bundles for _, _, bundles in kube.anchors()] == [
        {"pods.x.io": b"PEM", "workloads.x.io": b"PEM"}
    ] * 2


def test_the_whole_of_it_works_against_an_api_server(api: StandInApi, kube: KubeCertificates) -> None:
    api.create(configuration("MutatingWebhookConfiguration"))
    switch, time_ = Switch(), [time.time()]
    keeper = SelfSigned(kube, switch, Clock(time_), names=(NAME,))
    keeper.check()
    first = switch.pair
    ((_, _, bundles),) = kube.anchors()
    assert first is not None
    assert all(trusts(bundle, first.certificate) for bundle in bundles.values())
    time_[0] += 61 * DAY
    keeper.check()
    time_[0] += 61
    keeper.check()
    assert switch.pair not in (None, first)


def test_a_certificate_that_expires_in_the_running_service_is_replaced_at_once(
    api: StandInApi, kube: KubeCertificates
) -> None:
    """As on a node that was suspended for months: nobody is made to wait for what nobody accepts any more."""
    api.create(configuration("ValidatingWebhookConfiguration"))
    switch, time_ = Switch(), [time.time() - 100 * DAY]
    keeper = SelfSigned(kube, switch, Clock(time_), names=(HOST,), life_days=90, settle_seconds=3600)
    settings = AdmissionSettings(address="127.0.0.1", port=0)
    program = AdmissionProgram(settings, keeper, switch, AdmissionMetrics("0"), check_seconds=0.01)
    program.start()
    try:
        expired = switch.pair
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            visit(program.port, trusting(authority(api)))
        time_[0] = time.time()
        until(lambda: switch.pair != expired)
        assert visit(program.port, trusting(authority(api))).status == 200
    finally:
        program.stop()


def authority(api: StandInApi) -> bytes:
    """What the API server trusts: the same for all webhooks."""
    hooks = api.get("validatingwebhookconfigurations", "admission")["webhooks"]  # type: ignore[index]
    (bundle,) = {hook["clientConfig"].get("caBundle", "") for hook in hooks}
    return base64.b64decode(bundle)


def test_an_api_server_that_is_gone_is_unready(api: StandInApi, kube: KubeCertificates) -> None:
    api.stop()
    for call in (kube.load, kube.anchors, lambda: kube.save({}, None), lambda: kube.anchor("/x", "1", {})):
        with pytest.raises(NodeUnready):
            call()


def test_the_program_as_deployed_signs_for_itself_and_tells_the_api_server(api: StandInApi) -> None:
    api.create(configuration("ValidatingWebhookConfiguration"))
    own = OwnCertificates(names=("admission",))
    program = compose(
        AdmissionSettings(
            address="127.0.0.1", port=0, api_url=api.url, own_certificates=own, extender=ANY_PORT
        )
    )
    program.start()
    try:
        context = trusting(authority(api))
        context.check_hostname = False  # its name is the Service's
        with Caller(program.port, context) as caller:
            assert caller.post("/validate", review())[0] == 200
            until(lambda: caller.get("/readyz")[0] == 200)
        secret = api.get("secrets", own.secret, "kube-system")
        assert secret is not None
        assert set(secret["data"]) == {"tls.crt", "tls.key", "ca.crt"}
    finally:
        program.stop()


def test_a_bundle_that_someone_wiped_is_back_within_two_seconds_and_the_service_answers_on(
    api: StandInApi, kube: KubeCertificates
) -> None:
    api.create(configuration("ValidatingWebhookConfiguration"))
    own = OwnCertificates(names=("admission",))
    program = compose(
        AdmissionSettings(
            address="127.0.0.1", port=0, api_url=api.url, own_certificates=own, extender=ANY_PORT
        )
    )
    program.start()
    try:
        before = authority(api)
        assert before
        hooks = configuration("ValidatingWebhookConfiguration")["webhooks"]
        for hook, wiped in zip(hooks, (b"", b"nothing that anyone could read"), strict=True):
            hook["clientConfig"]["caBundle"] = base64.b64encode(wiped).decode()
        api.patch("validatingwebhookconfigurations", "admission", {"webhooks": hooks})
        until(lambda: all(bundle == before for bundle in kube.anchors()[0][2].values()))
        context = trusting(authority(api))
        context.check_hostname = False  # its name is the Service's
        with Caller(program.port, context) as caller:
            assert caller.post("/validate", review())[0] == 200
    finally:
        program.stop()


def test_the_program_starts_while_the_api_server_is_away_and_is_ready_once_it_is_back(
    api: StandInApi,
) -> None:
    api.fail(2, 503, match="secrets")
    program = compose(AdmissionSettings(address="127.0.0.1", port=0, api_url=api.url, extender=ANY_PORT))
    program.start()
    try:
        assert not program.ready()["certificate"]
        until(lambda: all(program.ready().values()))
    finally:
        program.stop()

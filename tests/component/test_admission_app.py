"""What the admission service answers over HTTPS: reviews, what is none, health, metrics; and nothing makes it fail."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.https import Caller, Webhooks, issued
from tests.fakes.reviews import container, pod, review
from tests.fakes.sandbox import until


@pytest.fixture(scope="module")
def shared() -> Iterator[Webhooks]:
    with Webhooks() as service:
        yield service


@pytest.fixture
def caller(shared: Webhooks) -> Iterator[Caller]:
    with shared.caller() as caller:
        yield caller


def test_reviews_are_answered_over_one_connection(caller: Caller) -> None:
    for path in ("/mutate", "/validate", "/validate?timeout=10s"):
        status, answer = caller.post(path, review())
        response = answer["response"]
        assert (status, response["uid"], response["allowed"]) == (200, review()["request"]["uid"], True)
    status, answer = caller.post("/validate", review(pod(container("train", "150"))))
    assert (status, answer["response"]["allowed"]) == (200, False)
    assert caller.headers["content-type"] == "application/json"


def test_a_name_that_nobody_has_judged_yet_fills_no_log(caller: Caller) -> None:
    """The API server asks before it looks at names, and a body has room for millions of characters."""
    long = "n" * 1_000_000
    obj = pod(container("train", "150"))
    obj["metadata"] = {"generateName": long}
    with structlog.testing.capture_logs() as logged:
        for sent in (review(obj, name=""), review(obj, name=long)):
            assert not caller.post("/validate", sent)[1]["response"]["allowed"]
    lines = [entry for entry in logged if entry["event"] == "judged"]
    assert [entry["result"] for entry in lines] == ["denied", "denied"]
    assert all(len(str(entry)) < 1000 for entry in lines)


@pytest.mark.parametrize(
    ("body", "kind", "status", "says"),
    [
        (b"{", "application/json", 400, "not JSON"),
        (b"", "application/json", 400, "not JSON"),
        (b'{"kind": "Pod"}', "application/json", 400, "reads AdmissionReview"),
        (review(), "text/plain", 415, "send application/json"),
        (review(), "", 415, "send application/json"),
        (review(), "application/json; charset=utf-8", 200, ""),
        (review(), "Application/JSON", 200, ""),
        (b" " * (3 << 20) + b"{", "application/json", 413, "more than 3145728 bytes"),
        (b"[" * (3 << 20), "application/json", 400, "nested too deeply"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_review_is_refused_with_status_and_sentence(
    caller: Caller, body: Any, kind: str, status: int, says: str
) -> None:
    found, answer = caller.post("/mutate", body, kind)
    assert found == status
    assert says in answer.get("error", "")


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
def test_a_review_through_an_api_servers_proxy_is_somebodys_and_no_api_servers(
    shared: Webhooks, path: str
) -> None:
    """Who may ask for explanations through services/proxy reaches these paths, too."""
    headers = {
        "Content-Type": "application/json",
        "X-Forwarded-Uri": f"/api/v1/namespaces/x/services/y/proxy{path}",
    }
    with shared.caller() as caller:
        caller._connection.request("POST", path, json.dumps(review()), headers)
        with caller._connection.getresponse() as answer:
            assert (answer.status, b"not through their proxy" in answer.read()) == (403, True)


def test_a_body_sent_in_pieces_is_bounded_too(shared: Webhooks) -> None:
    with shared.caller() as caller:
        pieces = (b" " * 65_536 for _ in range(64))
        caller._connection.request(
            "POST", "/validate", pieces, {"Content-Type": "application/json"}, encode_chunked=True
        )
        with caller._connection.getresponse() as answer:
            assert answer.status == 413
            answer.read()


def test_unknown_paths_and_methods_are_refused_and_counted_together(caller: Caller) -> None:
    assert caller.get("/nothing/here")[0] == 404
    assert caller.get("/mutate")[0] == 405
    assert caller.post("/healthz", {})[0] == 405
    figures = scrape(caller)
    assert figures["vcuda_admission_http_responses_total", ("404", "other")] >= 1
    assert not any("nothing" in str(labels) for _, labels in figures)


def test_health_version_and_readiness(caller: Caller) -> None:
    assert caller.get("/healthz") == (200, "ok\n")
    status, text = caller.get("/readyz")
    assert (status, json.loads(text)) == (200, {"serving": True, "certificate": True})
    assert re.match(r"\d+\.\d+", json.loads(caller.get("/version")[1])["version"])


def test_the_openapi_document_names_what_can_come_back(caller: Caller) -> None:
    document = json.loads(caller.get("/openapi.json")[1])
    assert set(document["paths"]) == {"/mutate", "/validate", "/metrics", "/healthz", "/readyz", "/version"}
    assert set(document["paths"]["/mutate"]["post"]["responses"]) == {
        "200",
        "400",
        "403",
        "408",
        "413",
        "415",
        "503",
    }


def scrape(caller: Caller) -> dict[tuple[str, tuple[str, ...]], float]:
    status, page = caller.get("/metrics")
    assert status == 200
    return {
        (s.name, tuple(v for _, v in sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
    }


def test_decisions_durations_and_the_certificates_end_are_metrics() -> None:
    with Webhooks() as service, service.caller() as caller:
        caller.post("/mutate", review(pod(container(core="200", memory="3"))))
        caller.post("/validate", review(pod(container(core="150"))))
        caller.post("/validate", review())
        figures = scrape(caller)
        assert "# EOF" in caller.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")[1]
        assert caller.get("/metrics", Accept="application/openmetrics-text; version=abc")[0] == 200
    decisions = {k: v for (name, k), v in figures.items() if name == "vcuda_admission_decisions_total"}
    assert decisions == {
        ("patched", "memory-beside-whole-cards", "mutate"): 1.0,
        ("denied", "core-not-multiple", "validate"): 1.0,
        ("allowed", "", "validate"): 1.0,
    }
    assert figures["vcuda_admission_duration_seconds_count", ("validate",)] == 2.0
    assert figures["vcuda_admission_certificate_expiry_timestamp_seconds", ()] == issued().pair.not_after


def test_before_the_first_certificate_it_is_unready_and_then_ready_by_itself() -> None:
    with Webhooks(certified=False) as service:
        assert service.program.ready() == {"serving": True, "certificate": False}
        with pytest.raises((ssl.SSLError, ConnectionError)), service.caller() as caller:
            caller.get("/readyz")
        service.certificates.issued = issued()
        until(lambda: service.program.ready()["certificate"])
        with service.caller() as caller:
            assert caller.get("/readyz")[0] == 200


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["/mutate", "/validate"]),
    st.binary(max_size=300)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    ).map(lambda value: {**review(), "request": {**review()["request"], "object": {"spec": value}}}),
)
def test_no_body_makes_the_service_fail(shared: Webhooks, path: str, body: Any) -> None:
    with shared.caller() as caller:
        assert caller.post(path, body)[0] in (200, 400)

"""Whatever is sent: legal means allowed, illegal means refused, mending twice is mending once, nothing crashes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.config import ClusterTerms
from admission.webhook.admission_review import Review, encode_answer, parse_review
from admission.webhook.admit import mutate, validate
from gpu_manager.domain.contract import (
    CARDS,
    CORE,
    GPU_MODEL,
    GPU_UUID,
    MEMORY,
    PLACEMENT,
    PREDICATE_NODE,
    PRELOAD,
)
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import parse_quantity
from gpu_manager.domain.rules.legal_values import check_pod
from tests.fakes.reviews import container, patched, pod, review, update, workload

TERMS = (
    ClusterTerms(),
    ClusterTerms(default_memory=4, scheduler_name="s", runtime_class="r", minimum_cores=5),
)

whole = st.integers(-3, 1210).map(str)
quantities = whole | st.sampled_from(
    ["0", "100", "0.5", "1500m", "1e2", "1Ki", "1E", "1e25", "-1", "+7", "100.0", "99.5", "0.3"]
)
amounts = st.none() | quantities
containers = st.builds(
    lambda core, memory, privileged, sidecar: container(
        "c", core, memory, securityContext={"privileged": privileged}, **({"restartPolicy": "Always"} if sidecar else {})
    ),
    amounts, amounts, st.booleans(), st.booleans(),
)  # fmt: skip
annotations = st.dictionaries(
    st.sampled_from(
        [
            PREDICATE_NODE,
            PLACEMENT,
            PRELOAD,
            GPU_MODEL,
            GPU_UUID,
            CARDS,
            "tencent.com/predicate-gpu-idx-0",
            "x",
        ]
    ),
    st.sampled_from(["", "binpack", "spread", "true", "n1", "V100,T4", "0,1", "2", "app0=3"]),
)


def unnamed(found: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    return [{**c, "name": f"{prefix}{i}"} for i, c in enumerate(found)]


pods = st.builds(
    lambda apps, init, notes: pod(*unnamed(apps, "app"), annotations=notes, initContainers=unnamed(init, "init")),
    st.lists(containers, min_size=1, max_size=3), st.lists(containers, max_size=2), annotations,
)  # fmt: skip


def read(sent: dict[str, Any]) -> Review:
    return parse_review(json.dumps(sent).encode())


def through(obj: dict[str, Any], terms: ClusterTerms) -> bool:
    """True if the pod gets in: mended, then checked by the API server, then judged."""
    first = mutate(read(review(obj)), terms)
    if not first.allowed:
        return False
    answer = json.loads(encode_answer("u", first))["response"]
    return validate(read(review(patched(obj, answer))), terms).allowed


@given(pods)
def test_every_illegal_pod_is_refused_and_every_legal_one_passes(obj: dict[str, Any]) -> None:
    kept = {k: v for k, v in obj["metadata"]["annotations"].items() if "predicate" not in k}
    legal = check_pod(parse_pod({**obj, "metadata": {"annotations": kept}})) == ()
    assert through(obj, ClusterTerms()) == legal


@given(quantities, st.integers(0, 4).map(str))
def test_one_container_passes_exactly_where_the_contracts_sentence_says(core: str, memory: str) -> None:
    c, m = parse_quantity(core), parse_quantity(memory)
    countable = c < 1 << 63
    legal = (
        (c >= 100 and c % 100 == 0 and countable)
        or (c in set(range(1, 100)) and m >= 1)
        or (c == 0 and m == 0)
    )
    assert through(pod(container("a", core, memory)), ClusterTerms()) == legal


@given(pods, st.sampled_from(TERMS))
def test_mending_twice_is_mending_once(obj: dict[str, Any], terms: ClusterTerms) -> None:
    first = mutate(read(review(obj)), terms)
    if not first.allowed:
        assert not first.patch
        return
    after = patched(obj, json.loads(encode_answer("u", first))["response"])
    second = mutate(read(review(after)), terms)
    assert (second.allowed, second.patch, second.warnings) == (True, (), ())


@given(pods, st.sampled_from(TERMS))
def test_a_refusal_says_what_and_a_template_of_the_pod_foretells_it(
    obj: dict[str, Any], terms: ClusterTerms
) -> None:
    foretold = validate(
        read(workload("Deployment", "apps", "deployments", {"spec": {"template": obj}})), terms
    )
    assert foretold.allowed
    refused = not through(obj, terms)
    assert any("will be refused" in w for w in foretold.warnings) == refused


@given(pods, pods, st.sampled_from(["", "status", "resize"]))
def test_no_change_of_a_stranger_touches_a_guarded_annotation(
    old: dict[str, Any], new: dict[str, Any], sub: str
) -> None:
    guarded = [
        {k: v for k, v in o["metadata"]["annotations"].items() if "predicate" in k} for o in (old, new)
    ]
    if validate(read(update(old, new, sub)), ClusterTerms()).allowed:
        assert guarded[0] == guarded[1]


# Fuzz: whatever JSON can hold, an answer or one sentence of refusal, in bounded size.

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
words = st.sampled_from(
    ["metadata", "annotations", "spec", "containers", "initContainers", "ephemeralContainers", "resources", "limits",
     "requests", CORE, MEMORY, PREDICATE_NODE, "name", "securityContext", "privileged", "status", "template"]
)  # fmt: skip
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
fields = st.dictionaries(
    st.sampled_from(["uid", "operation", "resource", "kind", "object", "oldObject", "userInfo", "subResource", "name", "namespace", "dryRun"]),
    json_values,
    max_size=4,
)  # fmt: skip


def spoil(obj: Any, path: list[int], value: Any) -> Any:
    """``obj`` with the field that ``path`` leads to replaced."""
    if not path or not isinstance(obj, dict | list) or not obj:
        return value
    key = list(obj)[path[0] % len(obj)] if isinstance(obj, dict) else path[0] % len(obj)
    changed = dict(obj) if isinstance(obj, dict) else list(obj)
    changed[key] = spoil(obj[key], path[1:], value)
    return changed


@given(fields)
def test_no_field_of_a_request_breaks_the_webhooks(changed: dict[str, Any]) -> None:
    sent = review()
    sent["request"] |= changed
    answer_or_refuse(sent)


@given(pods, st.lists(st.integers(0, 20), max_size=7), json_values, st.booleans())
def test_no_shape_of_a_pod_breaks_the_webhooks(
    obj: dict[str, Any], path: list[int], value: Any, changing: bool
) -> None:
    spoiled = spoil(obj, path, value)
    sent = update(obj, spoiled) if changing else review(spoiled if isinstance(spoiled, dict) else obj)
    answer_or_refuse(sent)
    answer_or_refuse(workload("Job", "batch", "jobs", {"spec": {"template": spoiled}}))


def answer_or_refuse(sent: Any) -> None:
    try:
        asked = parse_review(json.dumps(sent).encode())
    except RequestInvalid:
        return  # its words are proved below
    for terms in TERMS:
        for verdict in (mutate(asked, terms), validate(asked, terms)):
            response = json.loads(encode_answer(asked.uid, verdict))["response"]
            assert response["uid"] == asked.uid
            assert response["allowed"] or response["status"]["message"].isprintable()
            assert all(len(w) <= 256 and w.isprintable() for w in response.get("warnings", ()))


@given(st.binary(max_size=200) | json_values.map(lambda v: json.dumps(v).encode()))
def test_what_is_no_review_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(RequestInvalid) as refusal:
        parse_review(body)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b"[NaN]", "not JSON"),
        (b"[" + b"9" * 5000 + b"]", "not JSON"),
        (b"[]", "POST an AdmissionReview of admission.k8s.io/v1"),
        (b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}', '"admission.k8s.io/v1beta1"'),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "Pod"}', 'the body is "Pod"'),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}', "request is missing"),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"a": 1}}', "uid is missing"),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "x", "object": []}}', "request.object is a list"),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_read_is_named(body: bytes, says: str) -> None:
    with pytest.raises(RequestInvalid, match=says.replace("[", r"\[")):
        parse_review(body)


@pytest.mark.parametrize("judge", [mutate, validate])
def test_a_pod_of_tens_of_thousands_of_containers_is_refused_unread(judge: Any) -> None:
    many = [container(f"c{i}", "150", "1") for i in range(10_000)]
    for obj in (
        pod(*many),
        pod(container(), initContainers=many),
        pod(container(), ephemeralContainers=many),
    ):
        begun = time.process_time()
        verdict = judge(read(review(obj)), ClusterTerms())
        assert "10001 containers: use 200 at most" in verdict.message or "10000 containers" in verdict.message
        assert time.process_time() - begun < 10  # a quadratic way takes minutes
    assert judge(read(review(pod(*many[:200]))), ClusterTerms()).message.count("containers: use") == 0


@pytest.mark.parametrize("judge", [mutate, validate])
def test_tens_of_thousands_of_guarded_annotations_cost_no_more_than_their_bytes(judge: Any) -> None:
    flood = pod(container(), annotations={f"tencent.com/predicate-gpu-idx-{i}": "0" for i in range(50_000)})
    flood["metadata"]["annotations"]["mine"] = "kept"
    begun = time.process_time()
    answer = json.loads(encode_answer("u", judge(read(review(flood)), ClusterTerms())))["response"]
    assert time.process_time() - begun < 10  # a quadratic way takes minutes
    assert len(answer.get("warnings", ())) <= 16
    assert len(answer.get("status", {}).get("message", "")) < 8192
    assert len(json.dumps(answer)) < 10_000
    if answer["allowed"]:
        assert patched(flood, answer)["metadata"]["annotations"] == {"mine": "kept"}

"""The requests of claims that a pod's containers use: one of ours at most, and how they are shared."""

from __future__ import annotations

from typing import Any

from admission.cluster.claims import CLAIMS, CLASSES, TEMPLATES, slim_claim, slim_class, slim_template
from admission.config import ClusterTerms
from admission.quota.claims_quota import ClaimCreations
from admission.webhook.admission_review import Review, ReviewVerdict
from admission.webhook.admit import validate
from admission.webhook.create_time_checks import create_time_checks
from tests.fakes.extender import World, node
from tests.unit.test_claim_quota import CLASS, NVIDIA_S

OURS, THEIRS = "vcuda.tencent.com", "gpu.nvidia.com"


def template(name: str, **requests: str) -> dict[str, Any]:
    """A template with a request of a class for each name; an alternative of ``any`` is one of ours."""
    made: list[dict[str, Any]] = [
        {"name": one, "firstAvailable": [{"name": "a", "deviceClassName": c} for c in (THEIRS, OURS)]}
        if cls == "any"
        else {"name": one, "exactly": {"deviceClassName": cls, "adminAccess": cls == "admin"}}
        for one, cls in requests.items()
    ]
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"spec": {"devices": {"requests": made}}},
    }


def pod(claims: dict[str, str], init: dict[str, Any] | None = None, **containers: Any) -> dict[str, Any]:
    """Entries by template; containers by the (entry, request) pairs that they use."""

    def made(name: str, uses: Any) -> dict[str, Any]:
        wanted = [{"name": entry} | ({"request": request} if request else {}) for entry, request in uses]
        return {"name": name, "image": "i", "resources": {"claims": wanted}}

    entries = [{"name": entry, "resourceClaimTemplateName": name} for entry, name in claims.items()]
    spec = {
        "resourceClaims": entries,
        "initContainers": [made(name, uses) for name, uses in (init or {}).items()],
        "containers": [made(name, uses) for name, uses in containers.items()],
    }
    return {"metadata": {"name": "p", "namespace": "team", "uid": "u"}, "spec": spec}


def judged(obj: dict[str, Any], *templates: dict[str, Any], claims: tuple[Any, ...] = ()) -> ReviewVerdict:
    world = World([node("n1", claimed=[0, 1])])
    world.cluster.replace(CLASSES, [slim_class(CLASS), slim_class(NVIDIA_S)])
    world.cluster.replace(CLAIMS, [slim_claim(one) for one in claims])
    world.cluster.replace(TEMPLATES, [slim_template(one) for one in templates])
    creations = ClaimCreations(world.cluster, world.quota, world.clock, lambda: True, lambda: True)
    checks = create_time_checks(world.cluster, world.quota, world.judge, world.clock, creations)
    review = Review("r", "CREATE", "", "pods", "Pod", "team", obj=obj)
    return validate(review, ClusterTerms(), checks)


def test_two_requests_of_ours_in_one_container_are_refused_by_name() -> None:
    said = judged(pod({"g": "two"}, train=[("g", "a"), ("g", "b")]), template("two", a=OURS, b=OURS))
    assert (said.allowed, said.rules) == (False, ("claims-in-one-container",))
    assert said.message == (
        'container "train": uses request "a" of claim "g", request "b" of claim "g": it can use one, for the '
        "limits of a request are mounted at fixed paths. Use one request with count for parts of several "
        "cards, or name the request that each container uses"
    )


def test_a_container_that_names_no_request_uses_all_of_the_claim() -> None:
    assert not judged(pod({"g": "two"}, train=[("g", "")]), template("two", a=OURS, b="any")).allowed
    assert judged(pod({"g": "two"}, train=[("g", "")]), template("two", a=OURS, b=THEIRS)).allowed
    assert judged(pod({"g": "two"}, train=[("g", "a")]), template("two", a=OURS, b=OURS)).allowed


def test_requests_of_two_claims_count_too_and_init_containers_are_judged() -> None:
    one, other = template("one", a=OURS), template("other", a=OURS)
    both = [("g", ""), ("h", "a")]
    claims = {"g": "one", "h": "other"}
    assert not judged(pod(claims, train=both), one, other).allowed
    assert not judged(pod(claims, init={"fetch": both}, train=[]), one, other).allowed
    assert judged(pod(claims, train=both[:1], serve=both[1:]), one, other) == ReviewVerdict()


def test_a_request_of_ours_beside_a_part_of_a_card_in_the_limits_is_refused() -> None:
    """Both would mount their limits at the same path, and the container would never be made."""
    beside = pod({"g": "one"}, train=[("g", "")])
    limits = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}
    beside["spec"]["containers"][0]["resources"]["limits"] = limits
    said = judged(beside, template("one", a=OURS))
    assert (said.allowed, said.rules) == (False, ("claims-in-one-container",))
    assert (
        'uses request "a" of claim "g" and tencent.com/vcuda-core in its limits: it can use one'
        in said.message
    )
    assert judged(beside, template("one", a=THEIRS)).allowed


def test_parts_of_several_cards_beside_a_claim_that_a_template_will_make_are_refused() -> None:
    beside = pod({"g": "one"}, train=[("g", "")])
    limits = {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "8"}
    beside["spec"]["containers"][0]["resources"]["limits"] = limits
    beside["metadata"]["annotations"] = {"tencent.com/vcuda-cards": "2"}
    said = judged(beside, template("one", a=THEIRS))
    assert said.rules == ("cards-beside-claim",)
    assert 'it uses ResourceClaim "g" too: use one of both' in said.message


def test_containers_that_share_a_request_are_told_once() -> None:
    said = judged(pod({"g": "one"}, train=[("g", "")], serve=[("g", "a")]), template("one", a=OURS))
    assert said.allowed
    assert said.rules == ("claim-shared",)
    [warning] = said.warnings
    assert warning == (
        'containers "train", "serve" share request "a" of claim "g": they have one part of a card, and one '
        "limit, together"
    )


def test_a_named_claim_is_judged_and_what_is_not_known_is_let_pass() -> None:
    named = {
        "metadata": {"name": "c", "namespace": "team", "uid": "claim-c"},
        "spec": template("x", a=OURS, b=OURS)["spec"]["spec"],
    }
    obj = pod({"g": "one"}, train=[("g", "")])
    obj["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": "c"}]
    assert not judged(obj, claims=(named,)).allowed
    assert judged(obj).allowed
    assert judged(pod({"g": "gone"}, train=[("g", ""), ("h", "a")])).allowed
    assert judged(pod({"g": "bad"}, train=[("g", "")]), {**template("bad"), "spec": {"spec": 3}}).allowed


def test_a_template_that_goes_is_forgotten() -> None:
    world = World([node("n1")])
    entry = {"resourceClaimTemplateName": "t"}
    world.cluster.apply(TEMPLATES, "ADDED", slim_template(template("t", a=OURS)))
    assert world.cluster.claims.spec_of("team", entry) is not None
    assert world.cluster.copy().claims.spec_of("team", entry) is not None
    odd = {"metadata": {"name": "t", "namespace": "team"}, "spec": {"spec": {"devices": {"requests": [{}]}}}}
    world.cluster.apply(TEMPLATES, "MODIFIED", odd)
    assert world.cluster.claims.spec_of("team", entry) is None
    world.cluster.apply(TEMPLATES, "DELETED", slim_template(template("t", a=OURS)))
    assert world.cluster.claims.spec_of("team", entry) is None


def test_of_requests_that_do_not_name_our_driver_nothing_is_said() -> None:
    assert judged(pod({"g": "two"}, train=[("g", "")]), template("two", a="unknown", b="unknown")).allowed


def test_without_claims_nothing_is_judged() -> None:
    world = World([node("n1")])
    checks = create_time_checks(world.cluster, world.quota, world.judge, world.clock)
    assert checks.pod_claims(pod({"g": "t"}, train=[("g", "")]), "team") == ()

"""A node that gives its cards by claims: real scheduler, kubelet and runtime allocate, prepare, inject and release."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_manager.domain.contract import GATES_DIR
from tests.agreement.claim_cases import ILLEGAL, ranked
from tests.cluster import auditor, claim_churn, claims, images, product
from tests.cluster.api import ApiError
from tests.cluster.cdi_off import back_to_simulated
from tests.cluster.claims import BY_CLAIM, CLAIMS, Claims, part, whole
from tests.cluster.cluster import Cluster
from tests.cluster.parts import PRODUCT, minor
from tests.cluster.pods import container, pod, run_client
from tests.cluster.reboot import reboot

pytestmark = pytest.mark.skipif(
    minor() < 36, reason="claims share a card from Kubernetes 1.36 on (gate DRAConsumableCapacity)"
)

# A label of namespaces: Kubernetes takes adminAccess in these alone.
MAY_LOOK = {"resource.kubernetes.io/admin-access": "true"}


@pytest.fixture(scope="module")
def by_claims(cluster: Cluster) -> Iterator[Cluster]:
    """The node has this front for the tests of this module."""
    product.install(cluster, admission=True, **BY_CLAIM, **{"terms.minimumCores": "5"})
    cluster.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": MAY_LOOK}})
    yield cluster
    back_to_simulated(cluster)


@pytest.fixture
def made(by_claims: Cluster) -> Iterator[Claims]:
    """Claims and pods of one test, all taken away after it."""
    made = Claims(by_claims)
    yield made
    made.clear()


def test_the_node_offers_its_cards_as_devices_alone(by_claims: Cluster, made: Claims) -> None:
    assert len(product.devices(by_claims)) == 8
    by_claims.wait(
        lambda: product.allocatable(by_claims) == (0, 0), 30, "extended resources are still offered"
    )


def test_a_pod_by_template_has_its_limits(by_claims: Cluster, made: Claims) -> None:
    """Read by the program inside: the stand-in driver's client sees a card of its share."""
    made.pods.run(made.by_template("one", part(30, 20)))
    claims.settled(by_claims)
    [(_, cores, size)] = claims.shares_in_force(by_claims, "one")
    assert (cores, size) == claims.size(30, 20)
    assert "5120" in made.pods.execute("one", "vcuda-client", "info")
    assert "libvcuda.so" in made.pods.execute("one", "sh", "-c", "echo /usr/local/vcuda/*")


def test_a_share_comes_back_with_its_pod(by_claims: Cluster, made: Claims) -> None:
    """Eight whole cards, twice: the second set finds what the first one held."""
    for turn in ("first", "second"):
        names = [f"{turn}-{at}" for at in range(8)]
        made.pods.run(*(made.by_template(name, whole()) for name in names), seconds=120)
        claims.settled(by_claims)
        assert len({uuid for one in claims.containers(by_claims) for uuid, _, _ in one.shares}) == 8
        made.pods.delete(*names)


def test_two_pods_share_a_claim_and_its_limit(by_claims: Cluster, made: Claims) -> None:
    """One share, one page: the memory of both counts together; it is released with the last of them."""
    made.claim("shared", part(40, 8))
    made.pods.run(made.by_claim("left", "shared"), made.by_claim("right", "shared"))
    claims.settled(by_claims)
    pages = {auditor.page_file(one.process()) for one in claims.containers(by_claims)}
    assert len(pages) == 1
    made.pods.delete("left")
    claims.settled(by_claims)
    assert claims.booked(by_claims).keys() == {"shared/gpu"}
    assert len(claims.shares_in_force(by_claims, "right")) == 1
    made.pods.delete("right")
    by_claims.wait(lambda: not claims.booked(by_claims), 60, "what nobody uses stays booked")


def test_a_count_gives_the_same_part_of_two_cards(by_claims: Cluster, made: Claims) -> None:
    made.pods.run(made.by_template("two", part(25, 12, count=2)))
    claims.settled(by_claims)
    shares = claims.shares_in_force(by_claims, "two")
    assert [share[1:] for share in shares] == [claims.size(25, 12)] * 2
    assert len({uuid for uuid, _, _ in shares}) == 2


def test_whole_cards_by_a_name_in_limits(by_claims: Cluster, made: Claims) -> None:
    user = container("c")
    user["resources"]["limits"] = {claims.WHOLE: "2"}
    made.pods.run(pod("cards", user))
    claims.settled(by_claims)
    [one] = claims.containers(by_claims)
    assert len(one.shares) == 2
    assert {cores for _, cores, _ in one.shares} == {100}


def test_a_pod_beside_with_extended_resources_waits_and_is_told_why(by_claims: Cluster, made: Claims) -> None:
    """The node's cards are given by claims alone; the scheduler's words say so."""
    made.pods.create(pod("old", container("c", 30, 10)))
    made.pods.run(made.by_template("new", part(30, 10)))
    by_claims.wait(
        lambda: any("ResourceClaims alone" in text for text in made.pods.events("old")), 30, "nobody says why"
    )
    assert made.pods.phase("old") == "Pending"


def test_illegal_shapes_are_refused_when_they_are_created(by_claims: Cluster, made: Claims) -> None:
    assert len(ILLEGAL) >= 25
    assert not {name: text for name, spec in ILLEGAL.items() if (text := _taken(by_claims, *spec))}


def test_a_look_at_cards_shows_all_of_them_holds_nothing_and_computes_nothing(
    by_claims: Cluster, made: Claims
) -> None:
    """Beside eight pods with a whole card each, which come after it."""
    every = {"allocationMode": "All", "adminAccess": True, "tolerations": [{"operator": "Exists"}]}
    made.pods.run(made.by_template("monitor", part(5, 1, **every)))
    made.pods.run(*(made.by_template(f"whole-{at}", whole()) for at in range(8)), seconds=120)
    claims.settled(by_claims)
    said = run_client(made.pods, "monitor", "info")
    assert "8 cards" in said
    for card in by_claims.cards:
        [line] = [line for line in said.splitlines() if line.endswith(str(card.uuid))]
        assert f"{card.memory >> 20}MiB" in line
    assert "CUDA error 2" in said, "a context is refused: out of memory"
    by_claims.wait(
        lambda: any("admin access" in text for text in made.pods.events("monitor")), 30, "nobody says why"
    )


def test_a_claims_priority_is_that_of_its_container(by_claims: Cluster, made: Claims) -> None:
    """A best-effort part has the card's gate; nobody granted the namespace protected ones."""
    made.pods.run(made.by_template("job", ranked(part(30, 10), priority="best-effort")))
    claims.settled(by_claims)
    assert made.pods.execute("job", "ls", GATES_DIR).strip(), "no card has a gate"
    service = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "service"},
        "spec": ranked(part(30, 10)),
    }
    # A new installation has no record of claims that were let pass: for a minute it asks to come again.
    by_claims.wait(lambda: "are not granted to it" in _refusal(by_claims, service), 90, "it is taken")


def _taken(cluster: Cluster, spec: dict[str, Any], says: str) -> str:
    """Empty where it is refused in these words."""
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "x"},
        "spec": spec,
    }
    refusal = _refusal(cluster, body)
    return "" if re.search(says, refusal) else refusal or "it was taken"


def _refusal(cluster: Cluster, claim: dict[str, Any]) -> str:
    """Why the API server would not create it; empty if it would."""
    try:
        cluster.api.post(f"{CLAIMS}?dryRun=All", claim)
    except ApiError as error:
        return str(error).replace('\\"', '"')
    return ""


def test_a_killed_agent_comes_back_and_keeps_what_runs(by_claims: Cluster, made: Claims) -> None:
    """Pods that are created meanwhile wait, and run once it is back."""
    made.pods.run(made.by_template("kept", part(30, 10)), made.by_template("whole", whole()))
    claims.settled(by_claims)
    before, ran = claims.booked(by_claims), _numbers(by_claims)
    product.kill(by_claims, product.AGENT)
    names = made.pods.create(*(made.by_template(f"late-{at}", part(20, 4)) for at in range(4)))
    for name in names:
        made.pods.wait_running(name, 90)
    claims.settled(by_claims)
    assert claims.booked(by_claims).items() >= before.items()
    assert _numbers(by_claims) >= ran, "what ran was started anew"


def test_a_restarted_kubelet_keeps_what_runs_and_prepares_what_waits(
    by_claims: Cluster, made: Claims
) -> None:
    made.pods.run(made.by_template("kept", part(30, 10)))
    claims.settled(by_claims)
    before, ran = claims.booked(by_claims), _numbers(by_claims)
    by_claims.kill("kubelet")
    try:
        manifests = [made.by_template(f"late-{at}", part(20, 4)) for at in range(4)]
        names = made.pods.create(*manifests)
        by_claims.api.delete("/api/v1/namespaces/default/pods/kept", 0)
    finally:
        by_claims.start("kubelet")
    for name in names:
        made.pods.wait_running(name, 90)
    by_claims.wait(
        lambda: not before.keys() & claims.booked(by_claims).keys(), 60, "the dead pod's share stays"
    )
    claims.settled(by_claims)
    assert not ran & _numbers(by_claims)


def test_a_card_that_is_closed_takes_no_new_claim(by_claims: Cluster, made: Claims) -> None:
    """What has a share of it keeps it."""
    made.pods.run(made.by_template("kept", part(30, 10)))
    [(uuid, _, _)] = claims.shares_in_force(by_claims, "kept")
    [index] = [card.index for card in by_claims.cards if card.uuid == uuid]
    product.order_cards(by_claims, {index: {"healthy": False, "reason": "XID 79"}})
    try:
        by_claims.wait(
            lambda: any(d.get("taints") for d in product.devices(by_claims)), 30, "no taint is told"
        )
        made.pods.run(*(made.by_template(f"other-{at}", whole()) for at in range(7)), seconds=90)
        claims.settled(by_claims)
        assert all(
            uuid not in {share[0] for share in one.shares}
            for one in claims.containers(by_claims)
            if one.held.pod != "kept"
        )
    finally:
        product.order_cards(by_claims, {})
    by_claims.wait(
        lambda: not any(d.get("taints") for d in product.devices(by_claims)), 30, "the taint stays"
    )


def test_claims_keep_their_shares_over_an_upgrade_and_back_under_load(
    by_claims: Cluster, made: Claims
) -> None:
    """The books are compared each second; no pod that comes meanwhile fails or waits for a minute."""
    by_claims.load(images.with_other_library(PRODUCT, by_claims.scratch / "images", "next"))
    here = {**BY_CLAIM, "terms.minimumCores": "5"}
    assert claim_churn.upgrade_and_back(by_claims, made, here, {**here, "image.tag": "next"}) == []


def test_a_rebooted_node_prepares_again_what_its_pods_held(by_claims: Cluster, made: Claims) -> None:
    """Runtime, kubelet and agent stopped, every container killed, /run wiped, all started."""
    made.claim("shared", part(20, 4))
    again = {"restartPolicy": "Always"}
    wanted = [made.by_template(f"old-{at}", part(35, 10), **again) for at in range(4)]
    wanted += [made.by_claim(f"pair-{at}", "shared", **again) for at in range(2)]
    wanted += [made.by_template("cards", whole(count=2), **again)]
    names = [found["metadata"]["name"] for found in made.pods.run(*wanted, seconds=90)]
    claims.settled(by_claims)
    before = claims.booked(by_claims)
    reboot(by_claims)
    for name in names:
        made.pods.wait_running(name, 120)
    claims.settled(by_claims)
    assert claims.booked(by_claims) == before
    assert claims.together(by_claims) == []
    made.pods.run(made.by_template("new", part(30, 10)), seconds=90)
    claims.settled(by_claims)


def _numbers(cluster: Cluster) -> set[str]:
    return {one.held.container_id for one in claims.containers(cluster)}

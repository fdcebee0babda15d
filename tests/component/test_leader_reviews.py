"""A review of a claim that the leader alone can answer, over TLS from one replica to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from admission.app import leader_client
from admission.serving.certs import Switch, issue
from admission.serving.webhook_app import LeaderReviews
from admission.webhook.admit import CreateTimeChecks
from tests.fakes.https import HOST, Webhooks, issued
from tests.fakes.reviews import review

KIND = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
PLURAL = {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaims"}
AGAIN = "this replica does not lead: create the claim again", True
Judge = Callable[[Mapping[str, Any], str, bool], tuple[str, bool]]


class Replica:
    """A replica whose quota of claims says so; ``asked`` are the claims that it was asked about."""

    def __init__(self, says: tuple[str, bool]) -> None:
        self.asked: list[str] = []
        self._says = says

    def checks(self) -> CreateTimeChecks:
        return CreateTimeChecks(claim=self._judge)

    def _judge(self, claim: Mapping[str, Any], _namespace: str, _dry_run: bool) -> tuple[str, bool]:
        self.asked.append(claim["metadata"]["name"])
        return self._says


def claim(name: str = "c", **changes: Any) -> dict[str, Any]:
    obj = {"metadata": {"name": name, "namespace": "team"}, "spec": {}}
    return review(obj, kind=KIND, resource=PLURAL, namespace="team", name=name, **changes)


def asking(port: int, pair: Any = None) -> Callable[[bytes], bytes | None]:
    switch = Switch()
    switch.take(pair or issued().pair)
    return LeaderReviews(switch, lambda tls: leader_client(f"https://127.0.0.1:{port}", tls)).ask


@pytest.mark.parametrize(
    ("says", "allowed", "code"),
    [(("", False), True, None), (("ExceedsGPUQuota: too much", False), False, 403), (AGAIN, False, 503)],
)
def test_what_the_leader_alone_can_answer_is_answered_by_it_once(
    says: tuple[str, bool], allowed: bool, code: int | None
) -> None:
    leads, follows = Replica(says), Replica(AGAIN)
    with (
        Webhooks(checks=leads.checks()) as leader,
        Webhooks(checks=follows.checks(), ask_leader=asking(leader.port)) as follower,
        follower.caller() as caller,
    ):
        status, answer = caller.post("/validate", claim())
        response = answer["response"]
    assert (status, response["uid"], response["allowed"]) == (200, claim()["request"]["uid"], allowed)
    assert response.get("status", {}).get("code") == code
    assert (leads.asked, follows.asked) == (["c"], ["c"])


def test_a_leader_that_follows_meanwhile_passes_nothing_on_again() -> None:
    """Its own answer is given: whoever creates the claim asks again."""
    first, second = Replica(AGAIN), Replica(AGAIN)
    with Webhooks(checks=second.checks()) as other:
        ask = asking(other.port)
        with (
            Webhooks(checks=first.checks(), ask_leader=ask) as follower,
            Webhooks(checks=first.checks(), ask_leader=asking(follower.port)) as asked,
            asked.caller() as caller,
        ):
            _, answer = caller.post("/validate", claim())
    assert "create the claim again" in answer["response"]["status"]["message"]
    assert second.asked == []


def test_a_claim_that_needs_no_leader_asks_none() -> None:
    leads, follows = Replica(("", False)), Replica(("", False))
    with (
        Webhooks(checks=leads.checks()) as leader,
        Webhooks(checks=follows.checks(), ask_leader=asking(leader.port)) as follower,
        follower.caller() as caller,
    ):
        assert caller.post("/validate", claim())[1]["response"]["allowed"]
    assert leads.asked == []


def test_without_an_answer_of_the_leader_the_claim_is_to_be_created_again() -> None:
    """Nobody listens there, or somebody who is no replica of ours."""
    stranger = issue((HOST,), time.time(), 90, "another authority")
    leads, follows = Replica(("", False)), Replica(AGAIN)
    with Webhooks(checks=leads.checks()) as leader:
        for ask in (asking(1), asking(leader.port, stranger.pair)):
            with (
                Webhooks(checks=follows.checks(), ask_leader=ask) as follower,
                follower.caller() as caller,
            ):
                _, answer = caller.post("/validate", claim())
            assert answer["response"]["status"]["code"] == 503
            assert "create the claim again" in answer["response"]["status"]["message"]
    assert leads.asked == []

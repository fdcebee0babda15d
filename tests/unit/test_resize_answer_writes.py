"""The scheduler writes its answer to a resize: outcomes that are not known, other replicas, no write too many."""

from __future__ import annotations

import json
import threading

import pytest

from admission.extender.binding import BIND_SECONDS, BindRules
from admission.extender.resizing import PAUSE_SECONDS, RETRY_SECONDS, ResizeAnswers
from gpu_manager.domain.contract import ALLOCATION, ASSIGNED, RESIZE, RESIZED, Assignment, encode_assignment
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resize.sizes import ResizeAnswer, encode_answer
from gpu_manager.domain.resources import Amount
from tests.fakes import resize_answers
from tests.fakes.extender import node, pod, uuid
from tests.fakes.resize_answers import UNIT, Cluster
from tests.fakes.waiting import PATIENCE, until

world = resize_answers.world


@pytest.mark.parametrize("how", ["lost", "late"])
def test_an_answer_of_unknown_outcome_stays_reserved_until_the_api_server_says(
    world: Cluster, how: str
) -> None:
    world.run("one")
    world.api.plan = [how]
    world.ask("one", cores=80)
    for down in (True, False):
        world.api.down = down
        world.answers.tick()
        assert world.booked("n1") == [(80, 4)]
    world.clock.pass_(2 * BIND_SECONDS)
    world.answers.tick()
    assert world.answered("one") is not None
    assert world.booked("n1") == [(80, 4)]


def test_an_answer_of_unknown_outcome_is_not_sent_again_over_what_another_replica_did(
    world: Cluster,
) -> None:
    """It was lost; another replica led, gave the room to a pod, and lost the lead again."""
    world.run("one")
    world.api.plan = ["lost"]
    world.ask("one", cores=80)
    world.leads = False
    world.create(pod("two", 60, 4, on="n1"))
    named = {"main": ((uuid("n1", 0), Amount(60, 4 * UNIT)),)}
    text = encode_assignment(Assignment("n1", PodUid("uid-default-two"), named))
    world.annotate("two", {ALLOCATION: text, ASSIGNED: "true"})
    world.clock.pass_(60.0)
    world.leads = True
    world.answers.tick()
    answer = world.answered("one")
    assert answer is not None
    assert "does not fit" in answer.refused
    assert world.booked("n1") == [(90, 8)]


def test_another_replicas_answer_takes_the_place_of_one_that_was_not_seen(world: Cluster) -> None:
    """A list that is taken anew does not show what was written in between."""
    world.run("one")
    world.api.shown = lambda _obj: None
    world.ask("one", cores=80)
    other = ResizeAnswer("uid-default-one", "", {"main": Amount(40, 4 * UNIT)})
    world.annotate("one", {RESIZE: None, RESIZED: encode_answer(other)})
    assert world.booked("n1") == [(40, 4)]


@pytest.mark.parametrize("leads", [True, False])
def test_an_answer_that_was_refused_or_not_sent_is_taken_back(world: Cluster, *, leads: bool) -> None:
    world.run("one")
    world.api.plan = ["refuse"]
    if not leads:  # from the judgement on
        judged = iter([True])
        rules = BindRules(leads=lambda _seconds: next(judged, False))
        world.answers = ResizeAnswers(
            world.cluster, world.quota, world.api, world.clock, rules, lambda *_: None
        )
    world.ask("one", cores=80)
    assert world.booked("n1") == [(30, 4)]


def test_an_owner_who_writes_without_end_costs_an_answer_a_second(world: Cluster) -> None:
    """Each answer is a write to the API server, to the node's disk and to its list of devices."""
    world.run("one")
    written = []
    world.api.before = lambda: written.append(1)
    for n in range(500):
        world.annotate("one", {RESIZE: json.dumps({"v": 1, "containers": {"main": {"cores": 20 + n % 2}}})})
        world.clock.pass_(0.01)
        world.answers.tick()
    assert len(written) <= 5 * PAUSE_SECONDS + 1


def test_an_answer_that_the_api_server_refuses_is_not_sent_each_second(world: Cluster) -> None:
    world.run("one")
    written = []
    world.api.before = lambda: written.append(1)
    world.api.plan = ["refuse"] * 5
    world.ask("one", cores=80)
    for _ in range(5):
        world.clock.pass_(1.0)
        world.answers.tick()
    assert len(written) == 1
    assert world.results == ["reserved", "not_written"]
    world.clock.pass_(RETRY_SECONDS)
    world.answers.tick()
    assert len(written) == 2


def test_each_decision_is_counted_once(world: Cluster) -> None:
    world.run("one")
    world.ask("one", cores=50)
    world.agent("one", 50, 4)
    world.ask("one", memory=1 << 50)
    world.clock.pass_(RETRY_SECONDS)
    world.answers.tick()
    assert world.results == ["reserved", "refused"], "not the same words again each ten seconds"


def test_who_does_not_lead_answers_nothing(world: Cluster) -> None:
    world.run("one")
    world.leads = False
    assert world.ask("one", cores=80) is None
    assert world.booked("n1") == [(30, 4)]


def test_an_answer_for_another_pod_charges_nothing() -> None:
    world = Cluster(node=node("n1"))
    world.run("one")
    text = json.dumps({"v": 1, "pod": "someone", "containers": {"main": {"cores": 99, "memory": UNIT}}})
    world.annotate("one", {RESIZED: text})
    assert sum(cores for cores, _ in world.booked("n1")) == 30


def test_a_request_that_the_watch_shows_is_answered_at_once(world: Cluster) -> None:
    """Not at the next round."""
    world.run("one")
    ended = threading.Event()
    answering = threading.Thread(target=world.answers.run, args=(ended, None))
    answering.start()
    world.annotate("one", {RESIZE: '{"v":1,"containers":{"main":{"cores":50}}}'})
    occupant = world.cluster.named("default", "one")
    assert occupant is not None
    world.answers.look(occupant)
    until(lambda: world.answered("one"))
    ended.set()
    world.clock.pass_(PAUSE_SECONDS)
    world.annotate("one", {RESIZE: '{"v":1,"containers":{"main":{"cores":60}}}'})
    occupant = world.cluster.named("default", "one")
    assert occupant is not None
    world.answers.look(occupant)
    answering.join(PATIENCE)
    assert not answering.is_alive()

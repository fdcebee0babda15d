"""The scheduler answers requests for another size: room and quota, reserved before the answer is written."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from admission.cluster.snapshot import NODES, PODS
from admission.extender.binding import BIND_SECONDS, BindRules
from admission.extender.resizing import PAUSE_SECONDS, RETRY_SECONDS, ResizeAnswers
from gpu_manager.domain.contract import (
    ALLOCATION,
    ASSIGNED,
    EVENT_RESIZE_REFUSED,
    INVENTORY,
    PRIORITY,
    RESIZE,
    RESIZED,
    Assignment,
    encode_assignment,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resize.judgement import NamespaceLimits
from gpu_manager.domain.resize.sizes import ResizeAnswer, answer_of, encode_answer
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from tests.fakes.extender import World, node, pod, uuid
from tests.fakes.waiting import PATIENCE, until

UNIT = DEFAULT_UNIT
Obj = dict[str, Any]


class Cluster(World):
    """A node with two cards, and the leader's answers. ``agent`` is the node's agent: it follows at once."""

    def __init__(self, **given: Any) -> None:
        super().__init__([given.pop("node", node("n1"))], **given)
        self.events: list[tuple[str, str]] = []

        def event(_pod: Pod, reason: str, text: str) -> None:
            self.events.append((reason, text))

        rules = BindRules(leads=lambda _seconds: self.leads)
        self.limits: NamespaceLimits | None = None
        self.answers = ResizeAnswers(
            self.cluster,
            self.quota,
            self.api,
            self.clock,
            rules,
            event,
            self.counted,
            self._limits,
            self.recorded,
        )
        self.results: list[str] = []

    def _limits(self, _namespace: str) -> NamespaceLimits:
        if self.limits is None:
            return NamespaceLimits()
        if not self.limits.quotas:
            raise NodeUnready("the API server is away")
        return self.limits

    def counted(self, step: str, result: str) -> None:
        assert step == "resize"
        self.results.append(result)

    def run(self, name: str, core: int = 30, memory: int = 4, **given: Any) -> Obj:
        """A pod that is scheduled and started."""
        obj = pod(name, core, memory, **given)
        self.create(obj)
        where = self.schedule(obj)
        assert where
        return self.agent(name, core, memory)

    def there(self, name: str) -> Obj:
        return self.api.pods["default", name]

    def annotate(self, name: str, annotations: Mapping[str, str | None]) -> Obj:
        """The pod's annotations are changed, and the watch shows it."""
        obj = self.there(name)
        meta = obj["metadata"]
        merged = {**meta["annotations"], **annotations}
        done = {
            **obj,
            "metadata": {**meta, "annotations": {k: v for k, v in merged.items() if v is not None}},
        }
        self.api.put(done)
        self.cluster.apply(PODS, "MODIFIED", done)
        return done

    def agent(self, name: str, core: int, memory: int) -> Obj:
        """The agent has booked this much, on the card of the pod's annotation."""
        obj = self.there(name)
        said = json.loads(obj["metadata"]["annotations"][ALLOCATION])
        share = said["containers"]["main"][0]
        held = {"main": ((share["uuid"], Amount(core, memory * UNIT)),)}
        text = encode_assignment(Assignment(said["node"], said["pod"], held))
        return self.annotate(name, {ALLOCATION: text, ASSIGNED: "true"})

    def ask(self, name: str, **size: Any) -> ResizeAnswer | None:
        """Ask for a size, and let a second pass; the answer on the pod."""
        wanted = json.dumps({"v": 1, "containers": {"main": size}}) if size else None
        self.annotate(name, {RESIZE: wanted})
        self.clock.pass_(PAUSE_SECONDS)
        self.answers.tick()
        return self.answered(name)

    def answered(self, name: str) -> ResizeAnswer | None:
        return answer_of(parse_pod(self.there(name)))


@pytest.fixture
def world() -> Cluster:
    return Cluster(node=node("n1", cards=1))


def test_what_fits_is_reserved_and_written(world: Cluster) -> None:
    world.run("one")
    answer = world.ask("one", cores=50, memory="2Gi")
    assert answer is not None
    assert (answer.sizes, answer.refused) == ({"main": Amount(50, 8 * UNIT)}, "")
    assert world.booked("n1") == [(50, 8)]
    world.agent("one", 50, 8)
    assert world.booked("n1") == [(50, 8)]
    before = world.there("one")
    world.answers.tick()
    assert world.there("one") is before, "it is answered once"


def test_what_is_more_is_nobody_elses_from_the_judgement_on(world: Cluster) -> None:
    """Before the API server has the answer, and before the watch shows it."""
    world.run("one")
    world.annotate("one", {RESIZE: '{"v":1,"containers":{"main":{"cores":80}}}'})
    seen: list[list[tuple[int, int]]] = []
    world.api.before = lambda: seen.append(world.booked("n1"))
    world.api.shown = lambda _obj: None
    world.answers.tick()
    assert seen == [[(80, 4)]]
    assert world.booked("n1") == [(80, 4)]
    late = pod("late", 30, 4)
    world.create(late)
    assert world.schedule(late) == ""
    world.show(world.there("one"))
    assert world.booked("n1") == [(80, 4)]


def test_what_does_not_fit_is_refused_with_the_largest_that_does(world: Cluster) -> None:
    world.run("one")
    world.run("two", 60, 8)
    answer = world.ask("one", cores=50)
    assert answer is not None
    assert answer.refused == (
        'container "main": 50 cores, 1 GiB on card 0 does not fit: it holds 30 cores, 1 GiB and the card has '
        "10 cores, 13 GiB free, so at most 40 cores, 14 GiB"
    )
    assert (answer.sizes, world.booked("n1")) == ({}, [(90, 12)])
    assert world.events == [(EVENT_RESIZE_REFUSED, answer.refused)]


def test_a_refused_request_is_granted_once_there_is_room(world: Cluster) -> None:
    world.run("one")
    two = world.run("two", 60, 8)
    world.ask("one", cores=50)
    world.delete(two)
    world.answers.tick()
    world.clock.pass_(RETRY_SECONDS)
    world.answers.tick()
    answer = world.answered("one")
    assert answer is not None
    assert answer.refused == ""
    assert len(world.events) == 1


def test_a_refusal_that_stays_the_same_is_written_once(world: Cluster) -> None:
    world.run("one")
    world.run("two", 60, 8)
    world.ask("one", cores=50)
    before = world.there("one")
    for _ in range(3):
        world.clock.pass_(RETRY_SECONDS)
        world.answers.tick()
    assert world.there("one") is before
    assert len(world.events) == 1


def test_the_quota_counts_what_is_more(world: Cluster) -> None:
    world.limit({"default": {"quota": {"Tesla-T4": 0.5}}})
    world.run("one")
    assert world.ask("one", cores=50) == ResizeAnswer(
        "uid-default-one", answer_digest(world), {"main": Amount(50, 4 * UNIT)}
    )
    world.agent("one", 50, 4)
    answer = world.ask("one", cores=51)
    assert answer is not None
    assert "ExceedsGPUQuota" in answer.refused
    assert "0.5 cards of Tesla-T4, 0.5 used or being bound, 0.01 asked: 0 would still fit" in answer.refused
    assert answer.sizes == {"main": Amount(50, 4 * UNIT)}, "what it has it keeps"


def test_no_container_grows_past_what_one_may_have_and_any_may_shrink(world: Cluster) -> None:
    world.run("one", 60, 8)
    world.limit({"default": {"containerMax": {"cores": 50, "memory": 1024}}})
    answer = world.ask("one", cores=70)
    assert answer is not None
    assert 'container "main" asks for 70 cores, and one container may have 50' in answer.refused
    assert "memory" not in answer.refused
    smaller = world.ask("one", cores=55, memory="1536Mi")
    assert smaller is not None
    assert (smaller.refused, smaller.sizes) == ("", {"main": Amount(55, 6 * UNIT)})


def test_where_card_and_quota_both_refuse_both_are_said(world: Cluster) -> None:
    world.limit({"default": {"quota": {"Tesla-T4": 0.95}}})
    world.run("one")
    world.run("two", 60, 8)
    answer = world.ask("one", cores=50)
    assert answer is not None
    assert answer.refused.endswith(
        'free, so at most 40 cores, 14 GiB. ExceedsGPUQuota: namespace "default": 0.95 cards of Tesla-T4, '
        "0.9 used or being bound, 0.2 asked: 0.05 would still fit"
    )


def test_what_a_protected_pod_has_more_is_within_its_namespaces_right(world: Cluster) -> None:
    world.limit({"default": {"protected": {"Tesla-T4": 0.5}}})
    world.run("one", annotations={PRIORITY: Priority.PROTECTED.value})
    answer = world.ask("one", cores=51)
    assert answer is not None
    assert "protected, 0.3 used or being bound, 0.21 asked: 0.2 would still fit" in answer.refused
    answer = world.ask("one", cores=50)
    assert answer is not None
    assert (answer.refused, answer.sizes) == ("", {"main": Amount(50, 4 * UNIT)})
    world.run("other")
    other = world.ask("other", cores=40)
    assert other is not None
    assert other.refused == "", "a normal pod needs no right"


def answer_digest(world: Cluster) -> str:
    answer = world.answered("one")
    assert answer is not None
    return answer.asked


def test_what_is_less_counts_until_the_agent_has_given_it_back(world: Cluster) -> None:
    world.run("one", 80, 20)
    world.ask("one", cores=90)
    world.agent("one", 90, 20)
    answer = world.ask("one", cores=85, memory=30 * UNIT)
    assert answer is not None
    assert world.booked("n1") == [(90, 30)]
    world.agent("one", 85, 30)
    assert world.booked("n1") == [(85, 30)]
    world.ask("one")
    assert world.booked("n1") == [(85, 30)]
    world.agent("one", 80, 20)
    assert world.booked("n1") == [(80, 20)]


def test_below_its_spec_a_pod_is_charged_its_spec_until_the_agent_has_booked_less(world: Cluster) -> None:
    world.run("one", 80, 20)
    world.ask("one", cores=10)
    assert world.booked("n1") == [(80, 20)]
    world.agent("one", 10, 20)
    assert world.booked("n1") == [(10, 20)]


def test_the_next_request_waits_until_the_agent_has_followed_the_last(world: Cluster) -> None:
    """A smaller answer would free what the agent may be booking at that moment."""
    world.run("one")
    first = world.ask("one", cores=80)
    assert world.ask("one", cores=30) == first
    assert world.booked("n1") == [(80, 4)]
    world.agent("one", 80, 4)
    world.answers.tick()
    answer = world.answered("one")
    assert answer is not None
    assert answer.sizes == {"main": Amount(30, 4 * UNIT)}


def test_on_a_node_with_an_older_agent_nothing_is_reserved_until_it_is_upgraded() -> None:
    newer = node("n1", cards=1)
    said = json.loads(newer["metadata"]["annotations"][INVENTORY])
    assert said.pop("resizes") is True
    annotations = {**newer["metadata"]["annotations"], INVENTORY: json.dumps(said)}
    world = Cluster(node={**newer, "metadata": {**newer["metadata"], "annotations": annotations}})
    world.run("one")
    answer = world.ask("one", cores=80)
    assert answer is not None
    assert answer.refused == (
        "the agent of node n1 is of an earlier release and changes no sizes: upgrade it, and the request is "
        "judged again"
    )
    assert world.booked("n1") == [(30, 4)]
    world.cluster.apply(NODES, "MODIFIED", newer)
    world.clock.pass_(RETRY_SECONDS)
    world.answers.tick()
    answer = world.answered("one")
    assert answer is not None
    assert answer.sizes == {"main": Amount(80, 4 * UNIT)}


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


@pytest.mark.parametrize(
    "wanted",
    ["nonsense", '{"v":1,"containers":{"main":{"cores":100}}}', '{"v":1,"containers":{"x":{"cores":5}}}'],
)
def test_what_is_illegal_is_not_answered(world: Cluster, wanted: str) -> None:
    """The webhook refuses it; where that was down, nothing happens."""
    world.run("one")
    world.annotate("one", {RESIZE: wanted})
    world.answers.tick()
    assert world.answered("one") is None


def test_pods_that_wait_or_end_are_not_answered(world: Cluster) -> None:
    waits = pod("waits", annotations={RESIZE: '{"v":1,"containers":{"main":{"cores":5}}}'})
    world.create(waits)
    world.answers.tick()
    assert answer_of(parse_pod(world.there("waits"))) is None
    world.delete(waits)
    world.answers.tick()
    assert world.cluster.resizing() == ()


def test_a_card_that_is_closed_gives_no_more() -> None:
    world = Cluster(node=node("n1", cards=1))
    world.run("one")
    world.cluster.apply("nodes", "MODIFIED", node("n1", cards=1, closed=[0]))
    answer = world.ask("one", cores=50)
    assert answer is not None
    assert "the card takes nothing new (cordoned); it keeps 30 cores" in answer.refused


def test_a_pod_whose_cards_are_guessed_waits_for_its_annotation(world: Cluster) -> None:
    obj = pod("one", on="n1", annotations={RESIZE: '{"v":1,"containers":{"main":{"cores":50}}}'})
    world.create(obj)
    world.answers.tick()
    assert world.answered("one") is None


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


def test_of_a_deleted_node_a_pod_is_charged_what_its_agent_booked_last(world: Cluster) -> None:
    world.run("one", 30, 4)
    world.ask("one", cores=10, memory="512Mi")
    world.agent("one", 10, 2)
    world.cluster.apply(NODES, "DELETED", node("n1", cards=1))
    assert world.cluster.snapshot().used["default"] == {"": Amount(10, 2 * UNIT)}


def test_a_resize_is_held_to_kubernetes_own_quota_where_that_is_asked_for(world: Cluster) -> None:
    counted = "requests.tencent.com/vcuda-core"
    world.run("one")
    world.run("two")
    world.limits = NamespaceLimits()
    world.ask("one", cores=40)
    assert world.results == [], "no answer while the quotas are not known"
    quota = {
        "metadata": {"name": "q"},
        "spec": {"hard": {counted: "70"}},
        "status": {"used": {counted: "60"}},
    }
    world.limits = NamespaceLimits([quota])
    world.clock.pass_(RETRY_SECONDS)
    world.answers.tick()
    assert world.results == ["reserved"]
    world.ask("two", cores=40)
    assert world.results == ["reserved", "refused"]
    assert (
        'ResourceQuota "q" grants 70 of requests.tencent.com/vcuda-core, and pods come to 80'
        in world.events[-1][1]
    )
    world.ask("two", cores=20)
    assert world.results[-1] == "reserved", "less passes"

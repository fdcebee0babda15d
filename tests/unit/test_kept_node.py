"""A node closed to smaller pods in the extender: who is refused, who is not, what is said of it, and what opens it."""

import pytest
from prometheus_client import CollectorRegistry

from admission.cluster.node_view import KeptFor
from admission.cluster.pod_view import read_pod_view
from admission.cluster.snapshot import NODES, PODS
from admission.console.cluster_page import graph
from admission.explain.explain_api import as_text, closed_nodes
from admission.explain.explanation import explain
from admission.extender.cluster_metrics import ClusterFigures, ClusterMetrics
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.node_choice import ExtenderSimulation
from admission.extender.refusal_lines import until_open
from admission.extender.verbs import Extender
from gpu_manager.domain.score.closing import CLOSED_FOR, ROOM_TENANT_SECONDS, WAITED
from tests.fakes.extender import World, node, pod

SINCE = "2026-01-01T00:00:00Z"


def unschedulable(obj):
    obj["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    return obj


class Busy:
    """Two nodes of four cards with ten pods; n1 has the least to end. Others come and go on n2."""

    def __init__(self, quota=None, nodes=(), **more):
        self.held = [pod(f"x{i}", 10, 1, on="n1", namespace="others") for i in range(5)]
        self.held += [pod(f"y{i}", 20, 1, on="n2", namespace="others") for i in range(5)]
        self.world = World([node("n1", cards=4), node("n2", cards=4), *nodes], self.held, quota=quota, **more)
        world = self.world
        self.policy = world.policy = LeastFragmentation(
            world.cluster, aside=lambda job: job(), quota=world.quota
        )
        self.refused = []
        world.extender = Extender(
            world.cluster,
            world.quota,
            world.judge,
            self.policy,
            world.binder,
            refused=lambda uid, turn: self.refused.append((uid, turn)),
        )
        self.gone = 0
        self.now = 0.0
        self.tick()

    @property
    def running(self):
        return sum(len(view.bound) for view in self.world.cluster.snapshot().nodes.values())

    def tick(self):
        self.policy.close(self.now)

    def pass_(self, seconds):
        """Time goes by, looked at each second."""
        for _ in range(seconds):
            self.now += 1
            self.tick()

    def leave(self, count, whose="others"):
        """So many pods of a namespace come to n2 and leave it again."""
        for _ in range(count):
            self.gone += 1
            passing = pod(f"gone{self.gone}", 1, 0, on="n2", namespace=whose)
            self.world.create(passing)
            self.world.delete(passing)
        self.tick()

    def wait_for_long(self, *pods):
        self.world.create(*pods)
        self.tick()
        self.leave(int(WAITED * self.running) + 1)

    @property
    def kept(self):
        """Node, pod, cards and departures left of the one that is closed."""
        views = self.world.cluster.snapshot().nodes.values()
        return [(v.name, v.kept.pod.name, v.kept.cards, v.kept.left) for v in views if v.kept]


BIG = unschedulable(pod("big", 400, None, created=SINCE))


@pytest.fixture
def busy():
    made = Busy()
    made.wait_for_long(BIG)
    return made


def test_smaller_pods_are_refused_where_a_larger_one_has_waited_for_long_and_told_why(busy):
    assert busy.kept == [("n1", "big", 4, CLOSED_FOR * 10)]
    small = pod("small", 30, 4)
    busy.world.create(small)
    found = busy.world.filter(small)
    assert found["NodeNames"] == ["n2"]
    assert found["FailedAndUnresolvableNodes"] == {
        "n1": f"kept for default/big, which asks for 4 cards and has waited since {SINCE}: closed to pods that"
        " ask for fewer and have no higher priority until it has its place, or 30 more pods with cards have left"
        " their nodes"
    }
    assert not found["FailedNodes"], "no preemption there would help"
    other = pod("other", 30, 4, namespace="team")
    assert (
        "kept for a pod of another namespace," in busy.world.filter(other)["FailedAndUnresolvableNodes"]["n1"]
    )
    busy.leave(29)
    assert (
        "or 1 more pod with cards has left its node"
        in busy.world.filter(small)["FailedAndUnresolvableNodes"]["n1"]
    )


@pytest.mark.parametrize(("cards", "refused"), [(100, True), (200, True), (300, True), (400, False)])
def test_only_who_asks_for_fewer_cards_is_refused(cards, refused):
    made = Busy(nodes=[])
    made.wait_for_long(BIG)
    made.world.cluster.replace(PODS, [BIG])  # all others are gone: there is room for each
    asks = pod("asks", cards, None)
    assert ("n1" not in made.world.filter(asks)["NodeNames"]) is refused


def test_higher_priority_passes_and_equal_does_not(busy):
    assert busy.world.filter(pod("urgent", 30, 4, priority=1))["NodeNames"] == ["n1", "n2"]
    assert busy.world.filter(pod("equal", 30, 4))["NodeNames"] == ["n2"]
    assert busy.world.filter(pod("urgent2", 30, 4, priority=1))["NodeNames"] == ["n1", "n2"]


def test_a_pod_that_others_make_room_for_there_comes_and_one_that_asks_for_no_cards_is_not_asked_about(busy):
    assert busy.world.filter(pod("preempts", 30, 4, nominated="n1"))["NodeNames"] == ["n1", "n2"]
    assert busy.world.filter(pod("plain", 0, 0))["NodeNames"] == ["n1", "n2"]


def test_bind_goes_where_filter_sent_the_pod_though_the_node_was_closed_meanwhile():
    made = Busy()
    small = pod("small", 30, 4)
    made.world.create(BIG, small)
    made.tick()
    assert made.world.filter(small)["NodeNames"] == ["n1", "n2"]
    made.leave(int(WAITED * 10) + 1)
    assert made.kept
    assert made.world.bind(small, "n1") == ""


def test_the_same_answers_are_given_from_what_is_remembered(busy):
    """Filter's last answer for the same request is used again, whatever the priority of who asks."""
    low, high = pod("low", 30, 4), pod("high", 30, 4, priority=9)
    for _ in range(2):
        assert busy.world.filter(low)["NodeNames"] == ["n2"]
        assert busy.world.filter(high)["NodeNames"] == ["n1", "n2"]
    busy.world.delete(BIG)
    busy.tick()
    assert busy.world.filter(low)["NodeNames"] == ["n1", "n2"]


@pytest.mark.parametrize("how", ["gone", "here", "elsewhere", "no node", "bound passed", "not unschedulable"])
def test_it_opens_whatever_becomes_of_the_pod_and_who_was_refused_is_looked_at_again(how):
    made = Busy(nodes=[node("n3", cards=4)])
    made.world.create(pod("z", 300, None, on="n3"), pod("z2", 20, 4, on="n3"))
    made.wait_for_long(BIG)
    assert made.kept[0][:2] == ("n1", "big")
    cluster = made.world.cluster
    made.world.create(small := pod("small", 90, 4))
    assert made.world.filter(small, ["n1"])["NodeNames"] == []
    ((uid, turn),) = made.refused
    for name in ("n2", "n3"):  # then only n1 has room for it
        made.world.create(*(pod(f"full{name}{i}", 81, 4, on=name) for i in range(4)))
    assert not made.world.extender.has_room(cluster.pod(uid), turn)
    if how == "gone":
        made.world.delete(BIG)
    elif how in ("here", "elsewhere"):
        made.world.show({**BIG, "spec": {**BIG["spec"], "nodeName": "n1" if how == "here" else "n3"}})
    elif how == "no node":
        for name in ("n1", "n2", "n3"):
            cluster.apply(NODES, "DELETED", node(name, cards=4))
    elif how == "bound passed":
        made.leave(CLOSED_FOR * made.running)
    else:
        made.world.show(pod("big", 400, None))
    made.tick()
    assert made.kept == []
    if how not in ("here", "no node"):
        assert made.world.extender.has_room(cluster.pod(uid), turn)


def test_a_new_extender_begins_with_all_nodes_open_and_the_wait_begins_anew(busy):
    busy.policy = LeastFragmentation(busy.world.cluster, aside=lambda job: job(), quota=busy.world.quota)
    again = Busy()
    again.world.create(BIG)
    again.tick()
    assert again.kept == []
    again.leave(int(WAITED * 10) - 1)
    assert again.kept == []
    again.leave(2)
    assert again.kept


def freed():
    """n1 is closed, and then idle."""
    made = Busy()
    made.wait_for_long(BIG)
    for held in made.held[:5]:
        made.world.delete(held)
    made.tick()
    assert made.kept[0][:2] == ("n1", "big")
    return made


def test_where_its_cards_are_free_and_it_does_not_come_the_clock_opens_the_node():
    """A volume, a taint of which nobody here knows."""
    made = freed()
    small = pod("small", 30, 4)
    (told,) = made.world.filter(small)["FailedAndUnresolvableNodes"].values()
    assert told.endswith("until it has its place, or its cards have been free for 6 minutes")
    view = made.world.cluster.snapshot().nodes["n1"]
    assert graph(view)["kept"]["seconds"] == ROOM_TENANT_SECONDS
    made.leave(20)
    made.pass_(int(ROOM_TENANT_SECONDS) - 1)
    assert made.kept[0][:2] == ("n1", "big"), "however many leave"
    made.pass_(1)
    assert made.kept == []
    made.wait_for_long()
    made.leave(100)
    assert made.kept == [], "not before a week is over"


def test_where_only_pods_of_its_own_namespace_are_in_the_way_the_clock_decides_too():
    made = freed()
    made.pass_(100)
    made.world.create(pod("own", 1, 1, on="n1"))
    made.tick()
    assert made.kept[0][:2] == ("n1", "big")
    made.pass_(int(ROOM_TENANT_SECONDS) - 100)
    assert made.kept == []


def test_departures_of_its_own_namespace_close_no_node():
    made = Busy()
    made.world.create(BIG)
    made.tick()
    made.leave(500, whose="default")
    assert made.kept == []
    made.leave(int(WAITED * made.running) + 1)
    assert made.kept


def test_while_a_place_is_kept_for_the_pod_the_rest_of_the_node_is_open():
    made = freed()
    made.world.cluster.expect(read_pod_view(BIG), "n1", {}, 0.0)
    made.tick()
    assert made.kept == []
    made.pass_(int(ROOM_TENANT_SECONDS) + 1)
    made.world.cluster.give_up(BIG["metadata"]["uid"])
    made.tick()
    assert made.kept[0][:2] == ("n1", "big"), "that time does not count"
    made.world.cluster.expect(read_pod_view(BIG), "n1", {}, 0.0)
    made.leave(CLOSED_FOR * 10)
    assert made.kept == [], "its bound is over, whatever becomes of the place"


@pytest.mark.parametrize("text", ["1 minute", "5 minutes"])
def test_the_time_is_told_in_whole_minutes(text):
    kept = KeptFor(read_pod_view(BIG).pod, 4, 9, int(text[0]) * 60 - 20)
    assert until_open(kept) == f"it has its place, or its cards have been free for {text}"


@pytest.mark.parametrize(
    "never",
    [
        {"quota": {"default": {"quota": {"*": 3}}}},
        {"quota": {"default": {"quota": {"*": 8}, "pool": ["elsewhere"]}}},
        {"selector": {"disk": "none-such"}},
        {"cards": 800},
        {"schedulable": True},
    ],
    ids=["over quota", "pool", "selector", "too large", "not looked at"],
)
def test_nothing_is_closed_for_pods_that_could_not_come(never):
    made = Busy(quota=never.get("quota"))
    several = []
    for number in range(30):
        obj = pod(f"never{number}", never.get("cards", 400), None)
        obj["spec"]["nodeSelector"] = never.get("selector", {})
        several.append(obj if never.get("schedulable") else unschedulable(obj))
    made.wait_for_long(*several)
    made.leave(30)
    made.tick()
    assert made.kept == []


def test_any_number_of_pods_that_no_node_could_take_keep_no_node_from_being_closed_for_another():
    made = Busy()
    never = [unschedulable(pod(f"never-{at}", 500 + 100 * at, None, created=SINCE)) for at in range(100)]
    made.wait_for_long(*never, BIG)
    for _ in range(len(never)):  # one kind a second
        made.tick()
    assert made.kept == [("n1", "big", 4, CLOSED_FOR * 10)]


def test_the_node_stays_closed_though_none_could_take_the_pod_for_a_moment_between_two_looks(busy):
    cluster, small = busy.world.cluster, pod("small", 30, 4)
    busy.world.create(small, unschedulable(pod("never", 800, None)))
    for _ in range(2):
        busy.world.prioritize(small)
    for cards in (2, 4):
        for name in ("n1", "n2"):
            cluster.apply(NODES, "MODIFIED", node(name, cards=cards))
        if cards == 2:
            busy.world.prioritize(small)
    busy.tick()
    assert [name for name, *_ in busy.kept] == ["n1"]


def test_a_hundred_pods_that_never_come_made_again_and_again_close_nodes_for_less_and_less():
    made, closed, seen = Busy(), [], 0
    for round_ in range(40):
        several = [unschedulable(pod(f"never{i}", 400, None, uid=f"{round_}-{i}")) for i in range(100)]
        made.wait_for_long(*several)
        for _ in range(20):
            seen += bool(made.kept)
            made.leave(1)
        closed.append(seen / (20 * (round_ + 1)))
        for obj in several:
            made.world.delete(obj)
        made.tick()
        assert made.kept == []
    assert closed[-1] < 0.2


def test_its_namespace_running_into_its_quota_opens_the_node():
    made = Busy(quota={"team": {"quota": {"*": 4}}})
    big = unschedulable(pod("big", 400, None, namespace="team"))
    made.wait_for_long(big)
    assert made.kept
    made.world.create(pod("took", 20, 4, on="n2", namespace="team"))
    made.tick()
    assert made.kept == []


def explained(made, obj):
    world = made.world
    return explain(
        world.cluster.named("default", obj["metadata"]["name"]), world.cluster.snapshot(), None, world.judge
    )


def test_explain_counts_the_node_and_says_for_whom_it_is_kept():
    made = Busy()
    made.wait_for_long(BIG)
    made.world.cluster.apply(NODES, "DELETED", node("n2", cards=4))
    small = pod("small", 30, 4)
    made.world.create(small)
    made.tick()
    found = explained(made, small)
    assert found.counts.get("kept") == 1
    assert (
        "1 is kept for a larger pod (kept for default/big, which asks for 4 cards and has waited since"
        in found.line
    )
    assert [one.outcome for one in found.nodes if one.node == "n1"] == ["kept"]
    assert "n1: kept for default/big, which asks for 4 cards" in as_text(found)


def test_explain_tells_the_pod_that_waits_which_node_is_kept_for_it(busy):
    assert (
        "Node n1 is closed to smaller pods for it until it has its place, or 30 more pods with cards have left"
        in explained(busy, BIG).line
    )


def test_a_pod_that_could_never_come_is_not_told_that_the_node_is_kept_for_another():
    made = Busy()
    made.wait_for_long(BIG)
    made.world.cluster.apply(NODES, "DELETED", node("n2", cards=4))
    never = pod("never", 30, 4000)
    made.world.create(never)
    found = explained(made, never)
    assert (found.counts["never"], found.counts.get("kept")) == (1, None)
    assert "kept" not in found.line
    assert next(one.cards for one in found.nodes if one.node == "n1"), "the cards say why"


def test_who_waits_for_a_kept_node_is_told_to_wait(busy):
    small = pod("small", 30, 4)
    busy.world.create(small)
    for_all = explained(busy, small)
    busy.world.cluster.apply(NODES, "DELETED", node("n2", cards=4))
    assert explained(busy, small).change == (
        "wait for pods to end: every node that could hold it is kept for a larger pod"
    )
    assert for_all.counts["fits"] == 1


def test_who_may_get_pods_everywhere_is_told_whom_a_node_is_kept_for(busy):
    small = pod("small", 30, 4, namespace="team")
    busy.world.create(small)
    world = busy.world
    lines = [
        next(one.line for one in found.nodes if one.node == "n1")
        for found in (
            explain(
                world.cluster.named("team", "small"),
                world.cluster.snapshot(),
                None,
                world.judge,
                everywhere=all_of_them,
            )
            for all_of_them in (False, True)
        )
    ]
    assert [line.split(",")[0] for line in lines] == [
        "kept for a pod of another namespace",
        "kept for default/big",
    ]


def test_a_long_name_leaves_room_for_when_the_node_is_open_again():
    made = Busy()
    made.wait_for_long(unschedulable(pod("x" * 253, 400, None, created=SINCE)))
    small = pod("small", 30, 4)
    made.world.create(small)
    (told,) = made.world.filter(small)["FailedAndUnresolvableNodes"].values()
    assert told.endswith("or 30 more pods with cards have left their nodes")


def test_the_console_says_for_whom_a_node_is_closed(busy):
    view = busy.world.cluster.snapshot().nodes["n1"]
    assert graph(view)["kept"] == {"pod": "default/big", "since": SINCE, "cards": 4, "left": 30}
    assert graph(view, "team")["kept"]["pod"] == ""
    assert "kept" not in graph(busy.world.cluster.snapshot().nodes["n2"])
    told = {"node": "n1", "pod": "default/big", "since": SINCE, "cards": 4, "left": 30}
    assert closed_nodes(busy.world.cluster.snapshot()) == [told], "and to kubectl vcuda graph"
    assert closed_nodes(busy.world.cluster.snapshot(), "team") == [{**told, "pod": ""}]


def test_what_if_answers_as_filter_does(busy):
    trial = ExtenderSimulation(busy.policy, None, 1)
    found = trial.place(read_pod_view(pod("what-if", 30, 4)), ["n1", "n2"])
    assert found.node == "n2"
    assert trial.place(read_pod_view(pod("what-if-2", 30, 4)), ["n1"]) is None


def test_the_scrape_has_the_node_and_how_long_it_stays_closed(busy):
    registry = CollectorRegistry()
    world = busy.world
    ClusterMetrics(registry).show(ClusterFigures(world.cluster, world.quota, lambda: True, dict, dict))
    value = registry.get_sample_value
    assert value("vcuda_admission_kept_nodes") == 1
    assert value("vcuda_admission_kept_departures_left") == 30
    world.delete(BIG)
    busy.tick()
    assert value("vcuda_admission_kept_nodes") == 0
    assert value("vcuda_admission_kept_departures_left") == 0


def test_looking_each_second_begins_no_new_draw_of_the_mix(busy):
    """Epochs go by questions, so that the same pods, asked about in order, always get the same nodes."""
    scorer = busy.policy.scorer
    busy.leave(200)
    assert busy.policy._epoch.scorer is scorer

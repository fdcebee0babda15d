"""Decisions recorded and judged again: no difference where nothing changed, and one where something did."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.app import _records
from admission.cluster.snapshot import BUDGETS
from admission.config import TRUSTED_USERS, AdmissionSettings, ClusterTerms
from admission.extender.resizing import RETRY_SECONDS
from admission.replay.judges import Judged, Judges, Player
from admission.replay.recorder import DecisionRecorder
from admission.replay.reviews import VERBS, ReviewDecision
from admission.replay.reviews import judged as judged_review
from admission.webhook.admission_review import parse_review
from admission.webhook.admit import SILENT, CreateTimeChecks, InjectionWays
from bench.gang_load import SCHEDULERS, Load
from bench.gang_scheduler import Model
from gpu_manager.adapters.record_ring import RecordRing, segments
from gpu_manager.cli.kubectl import report
from gpu_manager.domain.contract import (
    CAPABILITIES_ENV,
    NAMESPACE,
    PREDICATE_NODE,
    QUOTA_KEY,
    QUOTA_MAP,
    VISIBLE_ENV,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.records import encode
from tests.fakes.extender import UNIT, World, args, node, pod
from tests.fakes.ports import FakeClock
from tests.fakes.resize_answers import Cluster as Resizing
from tests.fakes.reviews import review, update, workload
from tests.seeds import seeds
from tests.unit.test_extender_histories import History
from tests.unit.test_extender_preempt import ask as ask_for_victims
from tests.unit.test_extender_preempt import budget
from tests.unit.test_webhook_properties import TERMS
from tests.unit.test_webhook_properties import pods as drawn_pods

STEPS = 60
MIB = 1 << 20


def recorder_in(directory: Path, limit: int = 16 * MIB) -> DecisionRecorder:
    ring = RecordRing(directory, limit)
    return DecisionRecorder(ring, FakeClock(), {"unit": UNIT, "minimum_cores": 1})


def lines_in(directory: Path) -> list[bytes]:
    return [line for path in segments(directory) for line in path.read_bytes().splitlines()]


def entries_in(directory: Path) -> list[dict[str, Any]]:
    return [entry for line in lines_in(directory) for entry in json.loads(line)]


def replayed(directory: Path) -> tuple[list[Judged], Player]:
    player = Player(Judges().judge)
    return list(player.play(lines_in(directory))), player


class Asked(History):
    """A history whose questions are recorded, and compared with nothing meanwhile."""

    def _ask(self, verb: str, asking: dict[str, Any], names: list[str]) -> bytes:
        reply = getattr(self.world.extender, verb)(args(asking, names))
        if self.world.policy is not None and self._chance(0.3):
            self.world.policy.close(self.world.clock.monotonic())
        if reply.after is not None and self._chance(0.7):
            reply.after()
        return reply.body

    def go_on(self) -> None:
        super().go_on()
        if self._chance(0.3):
            self._preempt()

    def _pod(self, name: str) -> dict[str, Any]:
        found = super()._pod(name)
        found["metadata"]["labels"] = {"app": self._dice.choice("ab")}
        return found

    def _preempt(self) -> None:
        """The scheduler asks whom to evict, on some nodes with victims of its own."""
        dice, name = self._dice, f"big-{self._pods}"
        self._pods += 1
        for app in "ab":
            covers = budget(
                app, dice.choice((0, 1)), labels={"app": app}, disrupted=[dice.choice(("p1", "p2"))]
            )
            self.world.cluster.apply(BUDGETS, "MODIFIED", covers)
        asking = pod(name, dice.choice((30, 100, 200)), 4, priority=5, nominated=dice.choice(("", "n1")))
        self.world.create(asking)
        bound = [one for one in self.world.api.pods.values() if "nodeName" in one["spec"]]
        ask_for_victims(
            self.world,
            asking,
            {
                node: [one for one in bound if one["spec"]["nodeName"] == node and self._chance(0.2)]
                for node in sorted(self._nodes)
            },
        )


@pytest.mark.parametrize(("deployed", "best_nodes"), [(False, 0), (True, 0), (True, 2)])
@pytest.mark.parametrize(("seed", "nodes"), [*zip(seeds(6), (3, 6, 9, 40, 9, 6), strict=True)])
def test_decisions_of_a_random_history_are_the_same_again(
    tmp_path: Path, seed: int, nodes: int, deployed: bool, best_nodes: int
) -> None:
    recorder = recorder_in(tmp_path)
    how = {"deployed": deployed, "best_nodes": best_nodes}
    history = Asked(seed, nodes=nodes, expecting=True, recorder=recorder, **how)
    for _ in range(STEPS):
        history.go_on()
    recorder.write()
    judged, player = replayed(tmp_path)
    assert [(one.line["k"], one.pod, one.recorded, one.now) for one in judged if not one.same] == []
    assert not player.passed
    assert {one.line["k"] for one in judged} == {"filter", "rank", "bind", "preempt"}
    assert any(one.recorded.get("evicts") for one in judged)
    assert len(judged) > STEPS // 2


@pytest.mark.parametrize("seed", seeds(8))
def test_answers_to_requests_for_other_sizes_are_the_same_again(tmp_path: Path, seed: int) -> None:
    dice, recorder = Random(seed), recorder_in(tmp_path)
    quotas = (None, {"default": {"quota": {"*": 1}}}, {"*": {"containerMax": {"cores": 60}}})
    cluster = Resizing(recorder=recorder, quota=dice.choice(quotas))
    sizes = {}
    for name in ("a", "b", "c"):
        sizes[name] = dice.choice((10, 20, 30)), dice.choice((2, 4))
        cluster.run(name, *sizes[name])
    for _ in range(30):
        name = dice.choice("abc")
        wanted = {"cores": dice.randrange(5, 120, 5), "memory": f"{dice.choice((1, 2, 20))}Gi"}
        cluster.ask(name, **dict(dice.sample(sorted(wanted.items()), dice.choice((1, 2)))))
        if dice.random() < 0.5:
            cluster.agent(name, *sizes[name])
        cluster.clock.pass_(RETRY_SECONDS)
    recorder.write()
    judged, player = replayed(tmp_path)
    assert [(one.line["k"], one.pod, one.recorded, one.now) for one in judged if not one.same] == []
    assert not player.passed
    answers = [one.recorded for one in judged if one.line["k"] == "resize"]
    assert any("refusal" in one for one in answers)
    assert any("refusal" not in one for one in answers)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_places_of_gangs_are_the_same_again_also_under_pseudonyms(tmp_path: Path, scheduler: str) -> None:
    leaders: list[DecisionRecorder] = []

    def recorder() -> DecisionRecorder:
        leaders.append(recorder_in(tmp_path / str(len(leaders))))
        return leaders[-1]

    model = Model(SCHEDULERS[scheduler], Load(gangs=5, nodes=2), *seeds(1), recorder)
    model.run(30.0)
    found = Counter[str]()
    for at, each in enumerate(leaders):
        each.write()
        lines = lines_in(tmp_path / str(at))
        for played in (lines, written(tmp_path / str(at), lines)):
            player = Player(Judges().judge)
            judged = list(player.play(played))
            assert [(one.line["k"], one.recorded, one.now) for one in judged if not one.same] == []
            assert not player.passed
            gangs = [one for one in judged if one.line["k"] == "gang"]
            found += Counter(f"{'trial' in one.line} {sorted(one.recorded)}" for one in gangs)
    assert found["False ['places']"], found


def on_a_node(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod; an annotation that names a node names one. What is no name is another word in a sentence."""
    annotations = pod["metadata"]["annotations"]
    return {
        **pod,
        "metadata": {
            **pod["metadata"],
            "annotations": annotations | ({PREDICATE_NODE: "n1"} if PREDICATE_NODE in annotations else {}),
        },
    }


webhook_pods = drawn_pods.map(on_a_node)
reviews = st.one_of(
    st.builds(review, webhook_pods, user=st.sampled_from(["team", *TRUSTED_USERS])),
    st.builds(update, webhook_pods, webhook_pods, st.sampled_from(["", "status", "resize"])),
    st.builds(
        lambda pod: workload("Deployment", "apps", "deployments", {"spec": {"template": pod}}), webhook_pods
    ),
)
state = st.builds(
    lambda refuse, warn, size, parts, best, shown: CreateTimeChecks(
        refuse=lambda *_: refuse,
        warn=lambda *_: warn,
        size=lambda _: size,
        injection=lambda _: InjectionWays("n1" if shown else "", known=True),
        best_effort=lambda _: best,
        no_parts=lambda: parts,
    ),
    st.sampled_from([(), ("ExceedsGPUQuota: namespace team: 1 card asked",)]),
    st.sampled_from([(), ("no node of this cluster can hold 30 cores",)]),
    st.sampled_from(["", '{"v":1,"containers":{"app0":{"cores":20}}}']),
    st.sampled_from(["", "replica x is of an earlier release"]),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(reviews, state), min_size=1, max_size=4),
    st.sampled_from(TERMS),
    st.sampled_from(["none", "all", "0,GPU-8f3c", "kept-private", 'kept-private "all"']),
)
def test_answers_of_the_webhooks_are_the_same_again_also_under_pseudonyms(
    asked: list[tuple[dict[str, Any], CreateTimeChecks]], terms: ClusterTerms, shown: str
) -> None:
    with TemporaryDirectory() as place:
        ring = RecordRing(Path(place), 16 * MIB)
        recorder = DecisionRecorder(ring, FakeClock(), {"unit": UNIT, "terms": encode(ClusterTerms, terms)})
        recorded = []

        def note(decided: ReviewDecision) -> None:
            recorded.append(decided)
            recorder.decided(decided)

        for sent, checks in asked:
            values = {"PASSWORD": "kept-private", VISIBLE_ENV: shown, CAPABILITIES_ENV: "kept-private,all"}
            secret = [{"name": name, "value": value} for name, value in values.items()]
            for one in sent["request"]["object"].get("spec", {}).get("containers", ()):
                one |= {"env": secret, "args": ["kept-private"]}
            sent["request"]["object"].setdefault("metadata", {})["labels"] = {"team": "kept-private"}
            for verb in VERBS:
                judged_review(verb, parse_review(json.dumps(sent).encode()), terms, checks, note)
        recorder.write()
        lines = lines_in(Path(place))
        assert b"kept-private" not in b"".join(lines)
        given_out = written(Path(place), lines)
        for played in (lines, given_out):
            player = Player(Judges().judge)
            judged = list(player.play(played))
            assert [(one.pod, one.recorded, one.now) for one in judged if not one.same] == []
            assert not player.passed
            assert len(judged) == len(recorded)


def test_answers_about_claims_and_the_quota_are_the_same_again(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    claim = {"metadata": {"name": "c", "labels": {"a": "kept-private"}}, "spec": {"devices": "kept-private"}}
    for found in (("", False), ("ExceedsGPUQuota: namespace team: 1 card asked", False), ("not yet", True)):
        of_claims = {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaims"}
        sent = review(claim, resource=of_claims, namespace="team")
        checks = CreateTimeChecks(claim=lambda *_, found=found: found)
        judged_review(
            "validate", parse_review(json.dumps(sent).encode()), ClusterTerms(), checks, recorder.decided
        )
    for text in ("{}", '{"team": {"quota": {"*": -1}}}', "{"):
        before = {"metadata": {"name": QUOTA_MAP}, "data": {"note": "kept-private"}}
        now = {"metadata": {"name": QUOTA_MAP}, "data": {QUOTA_KEY: text}}
        of_quota = {"group": "", "version": "v1", "resource": "configmaps"}
        names = {"namespace": NAMESPACE, "name": QUOTA_MAP}
        sent = review(now, resource=of_quota, operation="UPDATE", oldObject=before, **names)
        judged_review(
            "validate", parse_review(json.dumps(sent).encode()), ClusterTerms(), SILENT, recorder.decided
        )
    recorder.write()
    lines = lines_in(tmp_path)
    assert b"kept-private" not in b"".join(lines)
    judged, player = replayed(tmp_path)
    assert [(one.recorded, one.now) for one in judged if not one.same] == []
    assert [one.recorded.get("code") for one in judged] == [403, 503, 422, 422]
    assert not player.passed
    player = Player(Judges().judge)
    assert [one.same for one in player.play(written(tmp_path, lines))] == [True, True]
    assert player.passed == {"the text of a quota is another one under pseudonyms": 2}


def written(place: Path, lines: list[bytes]) -> list[bytes]:
    """The record as a report has it."""
    target = place / "report.tar.gz"
    report.write(target, {"records/0/it": lambda: map(json.loads, lines)}, plain=False)
    with tarfile.open(target) as archive:
        stream = archive.extractfile("records/0/it")
        assert stream is not None
        return stream.read().splitlines()


def scheduled(directory: Path, *, limit: int = 16 * MIB, pods: int = 6) -> World:
    """A recorded cluster of three nodes on which some pods came to lie."""
    recorder = recorder_in(directory, limit)
    world = World([node(f"n{at}", 2) for at in range(3)], expecting=True, recorder=recorder, deployed=True)
    for at in range(pods):
        asking = pod(f"p{at}", 40 + 10 * (at % 3), 4, annotations={"example.com/note": "kept-private"})
        asking["metadata"]["labels"] = {"team": "kept-private"}
        asking["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "kept-private"}]
        world.create(asking)
        world.schedule(asking)
        recorder.write()
    return world


def test_labels_other_annotations_and_environment_are_not_recorded(tmp_path: Path) -> None:
    scheduled(tmp_path)
    assert b"kept-private" not in b"".join(lines_in(tmp_path))


class Full:
    """A disk without room."""

    full = True

    def begin(self, lines: Iterable[bytes]) -> None:
        raise NodeUnready("no room")

    def append(self, lines: Iterable[bytes]) -> None: ...


def test_a_disk_without_room_ends_the_recording_and_nothing_else() -> None:
    recorder = DecisionRecorder(Full(), FakeClock(), {})
    world = World([node("n0"), node("n1")], recorder=recorder)
    world.cluster.snapshot()
    recorder.write()
    world.create(asking := pod("p"))
    assert world.schedule(asking)
    assert not recorder.waiting


def test_decisions_that_come_too_fast_are_left_out_and_states_are_not(tmp_path: Path) -> None:
    ring = RecordRing(tmp_path, 16 * MIB)
    recorder = DecisionRecorder(ring, FakeClock(), {"unit": UNIT, "minimum_cores": 1}, most=8)
    world = World([node("n0"), node("n1")], recorder=recorder)
    for at in range(6):
        world.create(asking := pod(f"p{at}", 10, 1))
        world.schedule(asking)
    recorder.write()
    world.create(asking := pod("last", 10, 1))
    world.schedule(asking)
    recorder.write()
    judged, player = replayed(tmp_path)
    assert {one.pod for one in judged} == {"default/last"}
    assert all(one.same for one in judged)
    assert not player.passed


def test_a_service_decides_also_where_nothing_can_be_recorded(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    assert _records(AdmissionSettings(records=place)) is None
    assert _records(AdmissionSettings(records=tmp_path / "records", records_mib=8)) is not None
    assert _records(AdmissionSettings()) is None

"""The openb replay: the protocol kept to the letter, nothing placed where it does not fit, yardsticks true."""

import math
import random
import statistics
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import placement as group
from bench.placement import compiled, data, memory_mix, online
from bench.placement.bars import BARS
from bench.placement.departures import (
    Coming,
    waiting_demand,
)
from bench.placement.ours import Ours
from bench.placement.policies import BestFit, DotProd, Fgd, Fragments, GpuClustering, GpuPacking, fits
from bench.placement.replay import World, replay, stock_of
from bench.placement.study import (
    ABLATION,
    BASELINES,
    RESULTS,
    SECOND,
    Job,
    Study,
    compiled_stands,
    fingerprint,
    full_plan,
    load,
    repeated,
    repeats,
    sample,
    save,
    standing,
    valid,
)
from bench.placement.topology import (
    Plain,
    Product,
    achieved,
    best,
    exact,
    first_fit,
    greedy,
    hindsight,
    irregular,
    machines,
    random_machine,
    sequence,
    tree,
)
from bench.placement.trace import DEMAND, Node, Pod, Trace, arrivals, kin, permuted, read, typical
from gpu_manager.domain.placement.card_sets import best_set, fragment
from gpu_manager.domain.score.request_mix import FreeShape, RequestShape
from gpu_manager.domain.topology import Link, Topology
from tests.fakes.machines import SIX, nvswitch
from tests.fakes.small_trace import NODES, TRACE, allowed, pods_of
from tests.seeds import generator, seeds

ROOT = Path(__file__).resolve().parents[2]
needs_compiler = pytest.mark.skipif(not compiled.available(), reason="the compiled replay needs g++")


def policies(trace):
    return [
        Ours(stock_of(trace.nodes)),
        Fgd(Fragments(trace.pods)),
        BestFit(),
        GpuPacking(),
        GpuClustering(),
        DotProd(),
    ]


def test_pods_come_shuffled_and_then_as_clones_until_130_percent_are_asked_for():
    order = arrivals(TRACE, 42)
    assert sorted(p.name for p in order[:30]) == [p.name for p in TRACE.pods]
    assert order == arrivals(TRACE, 42) != arrivals(TRACE, 43)
    asked = sum(p.cores for p in order)
    # The test for the end looks at one card of the pod: so the last may go past by its other cards.
    assert DEMAND * TRACE.capacity - 100 < asked <= DEMAND * TRACE.capacity + 100


def test_a_trace_that_asks_for_too_much_is_cut():
    large = Trace(NODES, pods_of(200))
    assert sum(p.cores for p in arrivals(large, 1)) <= DEMAND * large.capacity
    assert len(arrivals(large, 1)) < 200


@pytest.mark.parametrize("policy", range(6))
def test_every_policy_places_only_what_fits_and_refuses_only_what_does_not(policy):
    chosen, nodes = policies(TRACE)[policy], list(NODES)
    world = World(nodes, chosen)
    held = [Counter() for _ in nodes]
    for pod in arrivals(TRACE, 5):
        world.arrived(pod.shape)
        choice = world.choose(pod)
        able = [
            at
            for at in range(len(nodes))
            if fits(pod.shape, world.room(at)) and world.host_memory[at] >= pod.host_memory
        ]
        assert (choice is not None) == bool(able)
        if choice is None:
            continue
        at, after = choice
        assert at in able
        before = world.room(at)
        assert before.cores - after.cores == pod.cores
        assert after.cpu == before.cpu - pod.shape.cpu >= 0
        assert all(cores >= 0 for cores, _ in after.free)
        world.put(pod, at, after)
        held[at].update(cores=pod.cores, cpu=pod.shape.cpu, memory=pod.host_memory)
    for node, used in zip(nodes, held, strict=True):
        assert used["cores"] <= 100 * node.cards
        assert used["cpu"] <= node.cpu
        assert used["memory"] <= node.memory


def test_the_order_of_the_nodes_changes_nothing_for_ours():
    fragments = Fragments(TRACE.pods)
    found = [
        replay(permuted(NODES, order), arrivals(TRACE, 3), Ours(stock_of(NODES)), fragments).allocation
        for order in range(3)
    ]
    assert found[0] == found[1] == found[2]


def test_typical_pods_cover_95_percent_the_commonest_first():
    pods = [Pod(f"a{i}", RequestShape(50), 0) for i in range(94)]
    pods += [Pod(f"b{i}", RequestShape(100), 0) for i in range(4)] + [
        Pod(f"c{i}", RequestShape(20), 0) for i in range(2)
    ]
    assert typical(pods) == [(RequestShape(50), 94 / 98), (RequestShape(100), 4 / 98)]


def test_fgd_counts_what_each_typical_pod_cannot_use():
    """Half the pods want 50 cores, half a whole card; 30 + 60 + 100 are free."""
    fragments = Fragments([Pod("a", RequestShape(50, 0, 1000), 0), Pod("b", RequestShape(100, 0, 1000), 0)])
    room = FreeShape("A", 0, 4000, ((30, 0), (60, 0), (100, 0)))
    assert fragments.of([room]) == [10 * (30 + 90) / 2]
    assert fragments.of([room._replace(cpu=500)]) == [10 * 190]


def test_kin_have_the_ratios_that_they_state():
    base = Trace(NODES, pods_of(400))
    share = kin(base, "share").pods
    assert all(p.cores < 100 for p in share)
    assert sum(p.cores for p in share) >= base.demand

    def cpu(trace):
        return sum(p.shape.cpu for p in trace.pods if not p.cores)

    assert 2.5 * cpu(base) <= cpu(kin(base, "cpu")) <= 2.5 * cpu(base) + 4000
    multi = kin(base, "multi")
    several = sum(p.cores for p in multi.pods if p.cores > 100)
    assert 0.48 < several / multi.demand < 0.52
    named = [p for p in kin(base, "spec").pods if p.cores and p.shape.models]
    assert {model for pod in named for model in pod.shape.models} == {"A", "B", "C"}
    assert {len(pod.shape.models) for pod in named} == {1, 2, 3}
    assert kin(base, "spec") == kin(base, "spec")


@pytest.mark.parametrize("mix", memory_mix.MIXES)
def test_fractions_ask_for_memory_that_some_card_has_and_none_gets_it_twice(mix):
    models = ("T4", "V100M32", "G2")
    nodes = tuple(replace(node, model=models[at % 3]) for at, node in enumerate(NODES))
    pods = (replace(pod, shape=pod.shape._replace(models=())) for pod in pods_of(60))
    given = memory_mix.with_memory(Trace(nodes, tuple(pods)), mix, part=1)
    assert given == memory_mix.with_memory(given, mix, part=1)
    most = max(memory_mix.MEMORY.values())
    for pod in given.pods:
        assert (0 < pod.shape.memory <= most) is (0 < pod.cores < 100)
    left = []

    class Watched(Ours):
        def offers(self, shape, rooms, tags):
            found = super().offers(shape, rooms, tags)
            left.extend(card for offer in found if offer for card in offer[1].free)
            return found

    ours = memory_mix.replay(given, 1, Watched(memory_mix.stock_of(given.nodes)))
    assert min(map(min, left)) >= 0
    fgd = memory_mix.replay(given, 1, Fgd(Fragments(given.pods)))
    assert all(0 < each.cores <= 100 and 0 <= each.refused < 100 for each in (ours, fgd))


def test_who_waits_is_counted_for_as_long_as_it_waits():
    nodes = [Node("a", 96_000, 10**6, 1, "A")]
    whole = Pod("p", RequestShape(100, 0, 1000), 0)
    late = Pod("q", RequestShape(100, 0, 1000), 0)
    coming = [
        Coming(whole, 0.0, 100.0),
        Coming(late, 20.0, 10.0),
        Coming(Pod("r", RequestShape(0, 0, 1), 0), 200.0, 1.0),
    ]
    # q waits from 20 to 100, and what is averaged is the time from its arrival to the last one.
    assert waiting_demand(nodes, coming, BestFit()) == pytest.approx(100 * 80 / 180)


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_no_choice_of_cards_is_better_than_hindsight(seed):
    chance = random.Random(seed)
    links = [Link.parse(kind) for kind in ("NV2", "NV1", "PIX", "SYS")]
    rows = [[Link.parse("X")] * 6 for _ in range(6)]
    for i, j in combinations(range(6), 2):
        rows[i][j] = rows[j][i] = chance.choice(links)
    topology = Topology(tuple(map(tuple, rows)))
    events = sequence(6, seed)
    most = hindsight(topology, events)
    for policy in (Product(topology), Plain(topology, greedy), Plain(topology, first_fit)):
        assert 0 < achieved(topology, events, policy) <= most
    free = frozenset(chance.sample(range(6), 4))
    assert topology.sum(exact(topology, free, 2)) == best(topology, free, 2)


def test_irregular_machines_are_the_same_each_time_and_of_both_kinds():
    made = irregular(12)
    assert made == irregular(12)
    assert {machine.size for machine in made.values()} == {4, 6, 8}
    slow = {name: min(min(w for w in row if w) for row in each.weights) for name, each in made.items()}
    assert {low >= 100 for name, low in slow.items() if name.endswith("NV1 and NV2")} == {True}
    assert min(slow.values()) < 100, "any links: some without NVLink"


@pytest.mark.parametrize(("size", "kinds"), [(4, ("NV1", "NV2")), (5, ("NV2", "PIX", "SYS"))])
def test_nobody_who_chooses_in_time_is_expected_to_do_better_than_the_best(size, kinds):
    machine = random_machine(size, generator(3), kinds)
    best = online.Best(machine)
    everyone = (online.product(machine), lambda free, count: tuple(sorted(free)[:count]))
    ours, first = map(best.expected_of, everyone)
    assert first < ours <= best.expected_of_best_now <= best.expected
    each = [sequence(size, seed) for seed in seeds(300)]
    assert statistics.mean(reached := [*map(best.achieved, each)]) == near(best.expected, reached)
    got = [achieved(machine, events, Product(machine)) for events in each]
    assert statistics.mean(got) == near(ours, got)
    assert all(best.achieved(events) <= hindsight(machine, events) for events in each[:20])


def near(expected, sample):
    """What the mean of the sample may be, within four of its standard errors."""
    return pytest.approx(expected, abs=4 * statistics.stdev(sample) / math.sqrt(len(sample)))


def test_the_predecessors_tree_makes_the_choices_that_its_own_tests_ask_for():
    if (folder := data("topologies")) is None:
        pytest.skip("no recorded topologies beside the project")
    parsed = machines(folder)["made up: six cards"]
    choose = tree(parsed)
    everything = frozenset(range(6))
    assert choose(parsed.topology, everything, 1) == (4,)
    assert choose(parsed.topology, everything, 3) == (0, 1, 2)
    assert choose(parsed.topology, everything - {0}, 2) in {(2, 3), (4, 5)}
    assert choose(parsed.topology, everything - {0, 2}, 1) == (1,)


def test_each_part_of_the_group_has_rows_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(group, "data", lambda _folder: None)
    monkeypatch.setattr(group.fractions, "NODES", 2)
    monkeypatch.setattr(group.fractions, "PODS", 2)
    monkeypatch.setattr(group.whole_nodes, "NODES", 2)
    monkeypatch.setattr(group.whole_nodes, "DEMANDS", dict(list(group.whole_nodes.DEMANDS.items())[4:6]))
    every = [row.name for row in group.rows(full=True)]
    assert sorted(every) == sorted(BARS)
    assert [row.name for part in group.PARTS for row in group.rows(full=True, only=part)] == every
    measured = [row.name for row in group.rows(full=False) if row.figure is not None or not row.note]
    whole = [name for name in BARS if name.startswith("nodes_")]
    alone = ["fractions_nodes_ratio", "fractions_nodes_spread", *sorted(whole), "best_set_ms"]
    assert sorted(measured) == sorted(alone), "needs no data"


FIVE = [
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli",
    "p0,4000,8192,1,460",
    "p1,8000,8192,3,",
    "p2,2000,1024,0,0",
]


@pytest.mark.parametrize(
    "pods",
    [FIVE, [FIVE[0] + ",gpu_spec", "p0,4000,8192,1,460,", "p1,8000,8192,3,1000,", "p2,2000,1024,0,,"]],
    ids=["five columns", "six columns"],
)
def test_traces_are_read_in_every_form_of_openb_with_machines_of_any_number_of_cards(pods, tmp_path):
    hosts = [
        "sn,cpu_milli,memory_mib,gpu,model",
        "n0,64000,65536,3,T4",
        "n1,8000,65536,0,",
        "n2,8000,65536,1,A10",
    ]
    for name, lines in (("nodes", hosts), ("pods", pods)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    trace = read(tmp_path / "nodes", tmp_path / "pods")
    assert [(node.name, node.cards) for node in trace.nodes] == [("n0", 3), ("n2", 1)]
    shapes = [RequestShape(46, 0, 4000), RequestShape(300, 0, 8000), RequestShape(0, 0, 2000)]
    assert [pod.shape for pod in trace.pods] == shapes
    for policy in policies(trace):
        world = World(trace.nodes, policy)
        at, after = world.choose(trace.pods[1])
        assert (at, after.free) == (0, ((0, 0),) * 3), "the one machine of three cards"


@needs_compiler
@pytest.mark.parametrize("policy", ["ours", "FGD", "BestFit", "without roll-out", "without places"])
@settings(max_examples=4)
@given(st.integers(0, 1 << 20))
def test_the_compiled_replay_of_arrivals_is_the_one_in_python_to_the_last_digit(policy, seed):
    chance = random.Random(seed)
    pods = tuple(replace(pod, shape=allowed(pod.shape, chance)) for pod in pods_of(120, seed))
    trace, job = Trace(NODES, pods), Job("default", policy, seed)
    study = Study(trace)
    nodes, coming = permuted(NODES, seed), arrivals(trace, seed)
    python = replay(nodes, coming, study.policy(job), study.fragments("default"))
    found = study.run(job)
    assert found["allocation"]
    assert found["compiled"] == compiled.digest()
    for what in ("allocation", "fragmentation"):
        curve = getattr(python, what)
        assert found[what] == {at: round(curve[int(at)], 4) for at in found[what]}
    assert (found["rejected"], found["rejected_without_gpu"]) == (python.rejected, python.rejected_cpu)


def test_the_second_trace_is_run_only_where_it_was_given():
    jobs = full_plan()
    assert len({job.key for job in jobs}) == len(jobs)
    second = [job for job in jobs if job.trace == SECOND]
    assert {(job.policy, job.seed) for job in second} == {
        (policy, seed) for policy in ("ours", "FGD", "BestFit") for seed in range(42, 52)
    }
    assert not Study(TRACE).has(SECOND)
    other = Trace(NODES, pods_of(10, seed=2))
    assert Study(TRACE, {SECOND: other}).trace(SECOND) is other
    assert Study(TRACE, {SECOND: other}).run(Job(SECOND, "BestFit", 42))["trace"] == SECOND


@pytest.mark.skipif(not compiled.available(), reason="the compiled replay needs g++")
def test_runs_of_another_compiled_replay_stand_once_a_sample_came_out_the_same_but_none_of_pods_that_leave():
    study = Study(TRACE)
    runs = [
        {**study.run(Job("default", "ours", seed)), "code": "x", "compiled": "older"} for seed in (42, 43)
    ]
    assert valid(runs, {}) == []
    known, differ = repeats(study, sample(runs), {})
    assert not differ
    assert valid(runs, known) == runs
    assert not compiled_stands({"policy": "ours", "compiled": "older"}, known)
    wrong = {**runs[0], "rejected": -1}
    known, differ = repeats(study, [wrong], known)
    assert differ == [wrong]
    assert valid(runs, known) == []


def test_runs_of_other_code_stand_only_where_a_sample_of_them_came_out_the_same(tmp_path):
    study = Study(TRACE)
    ours = [{**study.run(Job("default", "BestFit", seed)), "code": "older"} for seed in (42, 43)]
    assert [run["seed"] for run in sample(ours)] == [42]
    assert valid(ours, {}) == []
    known, differ = repeats(study, sample(ours), {})
    assert not differ
    assert known == {fingerprint("BestFit"): {"older": ["default BestFit 42 42"]}}
    assert valid(ours, known) == ours
    save(ours, kept := tmp_path / "runs.json", known)
    assert repeated(kept) == known
    save(load(kept), kept)  # and saving more runs later leaves it
    assert repeated(kept) == known

    same = {"newest": {"newer": ["a run"]}, "newer": {"older": ["another"]}}
    assert all(standing(code, same) == {"newest", "newer", "older"} for code in ("newest", "newer", "older"))
    assert standing("strange", same) == {"strange"}
    ours[0]["allocation"] = {**ours[0]["allocation"], "100": 1.0}
    known, differ = repeats(study, ours, known)
    assert differ == ours[:1]
    assert valid(ours, known) == []


def test_best_fit_of_the_replay_is_the_published_one():
    if (folder := data("openb")) is None:
        pytest.skip("no openb trace beside the project")
    trace = read(folder / "openb_node_list_gpu_node.csv", folder / "openb_pod_list_default.csv")
    run = replay(permuted(trace.nodes, 42), arrivals(trace, 42), BestFit(), Fragments(trace.pods))
    assert run.allocation[100] == pytest.approx(92.86, abs=0.5)
    assert run.allocation[130] == pytest.approx(93.08, abs=0.5)


def test_the_kept_runs_all_come_from_one_state_of_the_code_or_from_what_it_repeated():
    assert RESULTS.exists()
    runs = load()
    again = repeated()
    for kind in (set(ABLATION), set(BASELINES)):
        codes = {run["code"] for run in runs if run["policy"] in kind}
        assert any(codes <= standing(code, again) for code in {*codes, *again})
    assert len({(r["trace"], r["policy"], r["seed"], r["order"]) for r in runs}) == len(runs)


def test_the_page_s_worked_examples_are_what_the_domain_does():
    page = (ROOT / "docs" / "internals" / "node-choice.md").read_text(encoding="utf-8")
    for busy in ((), (0,), (0, 2), (0, 2, 4)):
        assert worked(SIX, busy, (2, 3, 4)) in page
    for busy in ((), (0,), (0, 3), (0, 3, 5)):
        assert worked(nvswitch(8), busy, (2, 3, 4)) in page


def worked(machine, busy, sizes):
    """A row of the page: the single card and the sets that are chosen beside busy cards."""
    free = frozenset(range(machine.size)) - set(busy)
    sets = [best_set(machine, free, k) for k in sizes]
    cells = [", ".join(map(str, busy)) or "none", str(fragment(machine, free))]
    cells += [", ".join(map(str, cards)) if cards else "no room" for cards in sets]
    return f"| {' | '.join(cells)} |"

"""The openb replay: the protocol kept to the letter, nothing placed where it does not fit, yardsticks true."""

import gzip
import math
import random
import statistics
from collections import Counter
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import placement as group
from bench.placement import compiled, data, memory_mix, online, waits
from bench.placement.bars import BARS, Rows
from bench.placement.departures import (
    LAWS,
    OBSERVED,
    Coming,
    lifetime,
    observed_lifetimes,
    run,
    stream,
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
    compiled_key,
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

ROOT = Path(__file__).resolve().parents[2]
NODES = tuple(
    [Node(f"a{i}", 32_000, 100_000, 4, "A") for i in range(4)]
    + [Node(f"b{i}", 16_000, 50_000, 2, "B") for i in range(3)]
    + [Node("c", 16_000, 50_000, 1, "C")]
)
SHAPES = [
    RequestShape(30, 0, 2000),
    RequestShape(81, 0, 3000),
    RequestShape(100, 0, 8000),
    RequestShape(50, 0, 1000, ("B",)),
    RequestShape(0, 0, 4000),
]
SHAPES += [RequestShape(200, 0, 9000)]


needs_compiler = pytest.mark.skipif(not compiled.available(), reason="the compiled replay needs g++")


def pods_of(count, seed=1):
    chance = random.Random(seed)
    return tuple(
        Pod(f"p{i:04d}", chance.choice(SHAPES), chance.choice([1000, 20_000]), i, i + 500)
        for i in range(count)
    )


TRACE = Trace(NODES, pods_of(30))


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


@settings(max_examples=30, deadline=None)
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
    machine = random_machine(size, random.Random(3), kinds)
    best = online.Best(machine)
    everyone = (online.product(machine), lambda free, count: tuple(sorted(free)[:count]))
    ours, first = map(best.expected_of, everyone)
    assert first < ours <= best.expected_of_best_now <= best.expected
    each = [sequence(size, seed) for seed in range(300)]
    assert statistics.mean(map(best.achieved, each)) == pytest.approx(best.expected, rel=0.02)
    got = [achieved(machine, events, Product(machine)) for events in each]
    assert statistics.mean(got) == pytest.approx(ours, rel=0.02)
    assert all(best.achieved(events) <= hindsight(machine, events) for events in each[:20])


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
    every = [row.name for row in group.rows(full=True)]
    assert sorted(every) == sorted(BARS)
    assert [row.name for part in group.PARTS for row in group.rows(full=True, only=part)] == every
    measured = [row.name for row in group.rows(full=False) if row.figure is not None or not row.note]
    assert measured == ["fractions_nodes_ratio", "fractions_nodes_spread", "best_set_ms"], "needs no data"


def test_a_waiting_run_is_kept_and_counts_only_while_the_code_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(
        waits, "stream", lambda _trace, _seed, _load, _law, _part, _observed: (NODES, coming_and_going())
    )
    wait = waits.plan()[2]
    run = waits.measure(Study(TRACE), wait)
    assert (run["load"], run["seed"], run["policy"]) == (0.9, 42, "BestFit")
    waits.save([run], kept := tmp_path / "departures.json")
    assert waits.load(kept) == [run]
    assert wait not in list(waits.pending(waits.plan(), waits.load(kept)))
    waits.save([{**run, "code": "another"}], kept)
    assert waits.load(kept) == []
    assert waits.load(tmp_path / "none.json") == []
    known, differ = waits.repeats(Study(TRACE), {}, kept)
    assert differ == []
    assert known[run["code"]] == {"another": ["departures 0.9 42 BestFit trace an hour 16"]}
    assert waits.repeats(Study(TRACE), known, kept) == (known, []), "what stands is not measured again"
    other = {**run, "code": "another", "waiting": 99.0}
    waits.save([other], kept)
    assert waits.repeats(Study(TRACE), {}, kept) == ({}, [other])


@needs_compiler
def test_runs_of_another_compiled_replay_stand_for_a_policy_once_a_sample_of_it_came_out_the_same(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        waits, "stream", lambda _trace, _seed, _load, _law, _part, _observed: (NODES, coming_and_going())
    )
    study, kept = Study(TRACE), tmp_path / "departures.json"
    wanted = [waits.Wait(0.9, seed, policy) for seed in (42, 43) for policy in ("FGD", "BestFit")]
    runs = [{**waits.measure(study, wait), "compiled": "older"} for wait in wanted]
    waits.save(runs, kept)
    assert waits.load(kept) == []
    known, differ = waits.repeats(study, {}, kept)
    assert differ == []
    keys = [compiled_key(policy, compiled.digest()) for policy in ("FGD", "BestFit")]
    assert {key for key in known if " " in key} == set(keys)
    assert all(compiled_stands(run, known) for run in runs)
    assert not any(compiled_stands({**run, "policy": "ours"}, known) for run in runs), "each by itself"
    waits.save([*runs, {**runs[0], "law": "bimodal", "patience": "endless", "waiting": 99.0}], kept)
    known, differ = waits.repeats(study, {}, kept)
    assert [run["policy"] for run in differ] == ["FGD"]
    assert [compiled_stands(run, known) for run in runs] == [False, True, False, True]


def test_cells_go_on_where_the_last_call_ended_and_are_paired_by_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(
        waits, "stream", lambda _trace, _seed, _load, _law, _part, _observed: (NODES, coming_and_going())
    )
    wanted, kept, left = waits.cells(), tmp_path / "departures.json", iter([True] * 4)
    assert len(wanted) == 2700
    assert len({wait.cell for wait in wanted}) == 90
    first = waits.measured(Study(TRACE), wanted, lambda: next(left, False), kept)
    assert [waits.Wait.of(run) for run in first] == wanted[:4]
    more = waits.measured(Study(TRACE), wanted[:6], lambda: True, kept)
    assert sorted(map(waits.Wait.of, more), key=wanted.index) == wanted[:6]
    assert [(lead.cell, lead.seeds) for lead in waits.leads(first)] == [(wanted[0].cell, 1)], (
        "one seed is whole"
    )
    assert [(lead.cell, lead.seeds) for lead in waits.leads(more)] == [(wanted[0].cell, 2)]
    assert len({wait.cell for wait in wanted[:30]}) == 1, "the worst cell goes first, with all its seeds"


def test_without_all_cells_there_is_no_figure_of_their_worst(tmp_path, monkeypatch):
    few = [{**asdict(wait), "waiting": 1.0, "code": waits.code(wait.policy)} for wait in waits.cells()[:6]]
    waits.save(few, kept := tmp_path / "departures.json")
    monkeypatch.setattr(waits.measured, "__defaults__", (kept,))
    rows = list(group._departures(Rows(full=False), None, TRACE))
    assert [(row.name, row.figure, row.holds) for row in rows] == [
        ("departures_waiting_points", None, None),
        ("departures_waiting_upper", None, None),
        ("departures_observed_points", None, None),
    ]
    assert "6 of 2700 runs; +0.00 so far" in rows[0].note


@needs_compiler
@pytest.mark.parametrize("policy", ["ours", "FGD", "BestFit"])
@settings(max_examples=4, deadline=None)
@given(st.integers(0, 1 << 20), st.sampled_from(LAWS), st.floats(0.7, 1.4), st.sampled_from([60.0, math.inf]))
def test_the_compiled_replay_of_departures_is_the_one_in_python_to_the_last_digit(
    policy, seed, law, load, patience
):
    chance = random.Random(seed)
    pods = tuple(
        replace(pod, born=0, gone=chance.randrange(30, 4000), shape=allowed(pod.shape, chance))
        for pod in pods_of(400, seed)
    )
    trace = Trace(NODES, pods)
    nodes, coming = stream(trace, seed, load, law, 1)
    coming = coming[:300]
    python = run(nodes, coming, Study(trace).policy(Job("default", policy, seed)), patience=patience)
    assert compiled.run(nodes, coming, policy, patience, pods, stock_of(nodes)) == python


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


def test_observed_lifetimes_are_those_whose_both_ends_were_seen_and_keep_the_load(tmp_path):
    lines = ["instance_sn,creation_time,deletion_time", "a,10,40", "b,,50", "c,20,", "d,0,90", "e,7,7"]
    with gzip.open(tmp_path / "instances.csv.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    lives = observed_lifetimes(tmp_path / "instances.csv.gz")
    assert lives == [30, 90, 1]
    trace = Trace(NODES, pods_of(200))
    _, coming = stream(trace, 3, 0.9, OBSERVED, 1, lives)
    scale = lifetime(trace) / statistics.mean(lives)
    assert {round(each.runs / scale, 6) for each in coming} == {30, 90, 1}
    assert statistics.mean(each.runs for each in coming) == pytest.approx(lifetime(trace), rel=0.03)


@needs_compiler
@pytest.mark.parametrize("policy", ["ours", "FGD", "BestFit", "without roll-out", "without places"])
@settings(max_examples=4, deadline=None)
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


def allowed(shape, chance):
    return shape._replace(models=chance.choice([(), (), ("A",), ("A", "B")]))


@needs_compiler
def test_the_compiled_replay_refuses_what_it_cannot_count():
    wide = [Node("a", 1000, 1000, 9, "A")]
    with pytest.raises(ValueError, match="8 cards"):
        compiled.run(wide, coming_and_going(), "ours", stock=stock_of(wide))
    with_memory = [
        replace(each, pod=replace(each.pod, shape=RequestShape(30, 4))) for each in coming_and_going()
    ]
    with pytest.raises(ValueError, match="no memory of cards"):
        compiled.run(NODES, with_memory, "ours", stock=stock_of(NODES))
    with pytest.raises(ValueError, match="models that the compiled replay does not know"):
        compiled.run(NODES, coming_and_going(), "ours", stock=stock_of(NODES[:4]))


def test_a_lead_is_over_the_better_of_the_others_with_its_interval():
    def runs(seed, *waiting):
        policies = zip(("ours", "FGD", "BestFit"), waiting, strict=True)
        return [{"load": 0.9, "seed": seed, "policy": policy, "waiting": value} for policy, value in policies]

    (one,) = waits.leads(runs(1, 2.0, 5.0, 3.0))
    assert (one.mean, one.upper, one.seeds) == (-1.0, math.inf, 1)
    (two,) = waits.leads(runs(1, 2.0, 5.0, 3.0) + runs(2, 3.0, 3.5, 6.0))
    assert two.mean == pytest.approx((-3.0 - 0.5) / 2), "FGD has less in the mean of both"
    assert two.upper == pytest.approx(two.mean + 12.71 * 1.25)


def test_lifetimes_of_every_law_have_the_mean_of_the_traces():
    pods = [replace(pod, born=0, gone=60 * (at % 90)) for at, pod in enumerate(pods_of(900))]
    trace = Trace(NODES * 16, tuple(pods))
    for law in LAWS:
        nodes, coming = stream(trace, 1, 0.9, law, 4)
        assert len(nodes) == len(trace.nodes) // 4
        assert statistics.mean(each.runs for each in coming) == pytest.approx(lifetime(trace), rel=0.05)
        work = sum(each.pod.cores * each.runs for each in coming) / coming[-1].at
        assert work / sum(100 * node.cards for node in nodes) == pytest.approx(0.9, rel=0.1)


def coming_and_going():
    return [Coming(pod, 10.0 * at, 500.0) for at, pod in enumerate(pods_of(40))]


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
    page = (ROOT / "docs" / "placement.md").read_text(encoding="utf-8")
    pix, phb, sys = (Link.parse(kind) for kind in ("PIX", "PHB", "SYS"))
    kinds = {
        (i, j): pix if i // 2 == j // 2 else phb if i // 4 == j // 4 else sys
        for i in range(6)
        for j in range(6)
    }
    topology = Topology(
        tuple(tuple(Link.parse("X") if i == j else kinds[i, j] for j in range(6)) for i in range(6))
    )
    for busy in ((), (0,), (0, 2), (0, 2, 4)):
        free = frozenset(range(6)) - set(busy)
        sets = [best_set(topology, free, k) for k in (2, 3, 4)]
        cells = [", ".join(map(str, busy)) or "none", str(fragment(topology, free))]
        cells += [", ".join(map(str, cards)) if cards else "no room" for cards in sets]
        assert f"| {' | '.join(cells)} |" in page

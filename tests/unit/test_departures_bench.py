"""Pods that leave, replayed: runs are kept while the code is the same, and the compiled replay is Python's."""

import gzip
import math
import random
import statistics
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import placement as group
from bench.placement import compiled, waits
from bench.placement.bars import Rows
from bench.placement.departures import LAWS, OBSERVED, lifetime, observed_lifetimes, run, stream
from bench.placement.ours import Ours
from bench.placement.replay import stock_of
from bench.placement.study import Job, Study, compiled_key, compiled_stands
from bench.placement.trace import Node, Trace
from gpu_manager.domain.score.request_mix import RequestShape
from tests.fakes.small_trace import NODES, TRACE, allowed, coming_and_going, pods_of

needs_compiler = pytest.mark.skipif(not compiled.available(), reason="the compiled replay needs g++")


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
@settings(max_examples=4)
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


class Watched(Ours):
    """Remembers for which pods a node was closed."""

    def closed(self, waiting, running, nodes):
        found = super().closed(waiting, running, nodes)
        self.closed_for = getattr(self, "closed_for", set()) | ({found.pod} if found else set())
        return found


@needs_compiler
def test_both_replays_close_nodes_for_the_same_pods_or_their_figures_would_differ():
    pods = tuple(replace(pod, born=0, gone=600) for pod in pods_of(400, 3))
    nodes, coming = stream(Trace(NODES, pods), 3, 1.3, "exponential", 1)
    watched, without = Watched(stock_of(NODES)), Ours(stock_of(NODES), draining=False)
    found = run(nodes, coming[:500], watched, patience=math.inf)
    assert compiled.run(nodes, coming[:500], "ours", math.inf, pods, stock_of(nodes)) == found
    assert len(watched.closed_for) > 1
    assert run(nodes, coming[:500], without, patience=math.inf) != found


def test_after_a_restart_no_node_is_closed_and_waits_begin_anew():
    pods = tuple(replace(pod, born=0, gone=600) for pod in pods_of(400, 3))
    nodes, coming = stream(Trace(NODES, pods), 3, 1.3, "exponential", 1)
    coming, looks = coming[:500], []

    class Looked(Ours):
        def closed(self, waiting, running, nodes):
            found = super().closed(waiting, running, nodes)
            looks.append(found)
            return found

    ours, known = Looked(stock_of(NODES)), []

    def halfway(running, waiting):
        known.append(looks[-1])
        looks.clear()
        ours.restart([each.pod.shape for each in (*running, *waiting)], [])
        known.append(len(ours.arrivals) - len(running) - len(waiting))
        assert any(each.pod.shape.cards > 1 for each in waiting)

    run(nodes, coming, ours, halfway, patience=math.inf)
    closed_before, counted_besides = known
    assert closed_before is not None
    assert counted_besides == 0
    assert looks[0] is None
    assert any(looks), "closed again once one has waited for long enough"


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

"""How the weights of what counts where pods leave are chosen: by the worst cell, of complete candidates alone."""

import json
import random

import pytest

from bench.placement import choose, compiled
from bench.placement.departures import Coming
from bench.placement.study import Study
from bench.placement.trace import Node, Pod, Trace
from gpu_manager.domain.score.request_mix import RequestShape
from gpu_manager.domain.score.scorer import ASSUMED, OPEN, PACK


def waits_of(seeds, **by_cell):
    """Policy → what waits, in every cell, or cell by cell."""
    return {
        (name, cell, seed): value if isinstance(value, float) else value[at]
        for name, value in by_cell.items()
        for at, cell in enumerate(choose.CELLS)
        for seed in seeds
    }


def test_a_lead_is_over_the_better_of_the_published_policies_in_the_mean_of_the_seeds():
    waits = waits_of((1, 2), a=3.0, FGD=5.0, BestFit=4.0)
    first = choose.CELLS[0]
    assert set(choose.leads("a", waits, (1, 2)).values()) == {-1.0}
    waits["a", first, 1], waits["BestFit", first, 2] = 6.0, 8.0
    assert choose.leads("a", waits, (1, 2))[first] == pytest.approx((6 + 3) / 2 - 5)
    del waits["a", first, 2]
    assert first not in choose.leads("a", waits, (1, 2)), "a cell counts with all its seeds"


def test_the_best_worst_cell_wins_not_the_best_mean():
    spiky = [9.0, *[0.0] * (len(choose.CELLS) - 1)]
    waits = waits_of((1,), spiky=spiky, even=3.0, FGD=5.0, BestFit=5.0)
    assert choose.chosen(["spiky", "even"], waits, (1,)) == "even"
    del waits["even", choose.CELLS[-1], 1]
    assert choose.chosen(["spiky", "even"], waits, (1,)) == "spiky", "the other was not run everywhere"
    assert choose.chosen([], waits, (1,)) is None


def test_the_weights_in_force_are_a_candidate_and_its_runs_are_kept(tmp_path, monkeypatch, capsys):
    assert choose.CANDIDATES[0] == (PACK, OPEN, True, ASSUMED)
    assert len(set(choose.CANDIDATES)) == len(choose.CANDIDATES)
    assert not {42, 43, 44, 45, 46, 47, 48, 49, 50, 51}.intersection(choose.SEEDS), "those of the tables"
    ran = []

    def run(_study, name, cell, seed):
        ran.append((name, cell, seed))
        return 1.0 if name == str(choose.CANDIDATES[0]) else 2.0

    monkeypatch.setattr(choose, "_run", run)
    monkeypatch.setattr(choose, "read", lambda _nodes, _pods: None)
    monkeypatch.setattr(choose, "data", lambda _folder: tmp_path)
    monkeypatch.setattr("sys.argv", ["choose", "--kept", str(tmp_path / "kept"), "--seeds", "1"])
    assert choose.main() == 0
    assert len(ran) == len(set(ran)) == (2 + len(choose.CANDIDATES)) * len(choose.CELLS)
    kept = [json.loads(line) for line in (tmp_path / "kept").read_text("utf-8").splitlines()]
    assert [(name, tuple(cell), seed) for name, cell, seed, _ in kept] == ran
    assert choose.main() == 0
    assert len(ran) == len(kept), "nothing is run twice"
    assert f"chosen: {choose.CANDIDATES[0]}" in capsys.readouterr().out


@pytest.mark.skipif(not compiled.available(), reason="the compiled replay needs g++")
def test_candidates_wait_alike_in_both_replays_and_what_is_assumed_of_departures_counts(monkeypatch):
    chance = random.Random(5)  # an example in which what is assumed tells: not every one does
    shapes = [
        RequestShape(cores, 0, cpu) for cores, cpu in ((30, 2000), (60, 2000), (100, 8000), (400, 20_000))
    ]
    pods = tuple(Pod(f"p{i:03d}", chance.choice(shapes), 1000, i, i + 500) for i in range(150))
    nodes = [Node(f"n{i}", cpu, 400_000, 8, "A") for i, cpu in enumerate((400_000, 40_000) * 10)]
    coming = [Coming(pod, 3.0 * at, 400 + chance.random() * 2000) for at, pod in enumerate(pods)]
    monkeypatch.setattr(choose, "stream", lambda *_: (nodes, coming))
    study, cell = Study(Trace(tuple(nodes), pods)), (0.98, "bimodal", "endless")
    some = [each for each in choose.CANDIDATES if each.draining and (each.pack, each.open) == (PACK, OPEN)]
    known = {each: choose._run(study, str(each), cell, 3) for each in some}
    assert known == {each: choose._by_python(study, each, cell, 3) for each in some}
    assert len(set(known.values())) > 1
    small = tuple(Pod(f"s{i:03d}", RequestShape(10, 0, 100), 1000) for i in range(480))
    shown = choose.allocation(Study(Trace(tuple(nodes), small)), some[0], (1, 2))
    assert [99 < float(percent) <= 100 for percent in shown.split(" / ")] == [True, True]

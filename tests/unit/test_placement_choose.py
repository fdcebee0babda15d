"""How the weights of what counts where pods leave are chosen: by the worst cell, of complete candidates alone."""

import json

import pytest

from bench.placement import choose
from gpu_manager.domain.score.scorer import OPEN, PACK


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
    assert choose.CANDIDATES[0] == (PACK, OPEN, True)
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

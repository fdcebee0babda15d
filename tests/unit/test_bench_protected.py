"""The bench of protected services: what is kept from call to call, and what rows say of a part."""

from collections.abc import Iterator

import pytest

from bench import protected
from bench.protected import Table, constellations
from bench.protected_cells import Cell, Outcome
from bench.protected_kept import digest, kept
from bench.rows import Row

LONG = Cell("kernel", 5, 1, 50_000)
SHORT = Cell("slice", 5, 1, 1000)


def outcome(p99: float, service: float = 20.0, job: float = 78.0, least: float = 70.0) -> Outcome:
    return Outcome([p99], service, [job], [least], 0.3, [])


def rows(table: Table, *, full: bool = True) -> dict[str, Row]:
    return {row.name: row for row in protected._rows(1, table, full=full)}


def measured(*, wanted: int) -> Table:
    table = Table(wanted)
    table.add(LONG, outcome(15.0), outcome(8000.0), outcome(59.0))
    table.add(SHORT, outcome(15.0), outcome(60.0), outcome(16.0, least=57.0))
    return table


def test_what_is_kept_is_not_measured_again(tmp_path):
    calls: Iterator[int] = iter(range(10))
    path = tmp_path / "place" / "cell.json"
    assert kept(path, lambda: {"call": next(calls)}, lambda: False) is None, "the call is over"
    assert not path.exists()
    for _ in range(3):
        assert kept(path, lambda: {"call": next(calls)}, lambda: True) == {"call": 0}
    assert kept(path, lambda: {"call": next(calls)}, lambda: False) == {"call": 0}


def test_a_kernel_of_the_job_is_taken_off_the_p99():
    found = rows(measured(wanted=2))
    assert found["protected_p99_ratio"].figure == pytest.approx((16.0 - 1) / 15)
    assert found["protected_p99_ratio_long"].figure == pytest.approx((59.0 - 50) / 15)
    assert found["harvest_ratio"].figure == pytest.approx(0.975)
    assert found["best_effort_guarantee_ratio"].figure == pytest.approx(57 / 60)
    assert not found["best_effort_guarantee_ratio"].holds
    assert found["protected_p99_ratio_long"].full
    assert "15 / 8000 / 59.0 ms" in found["protected_p99_ratio_long"].note


def test_a_part_says_so_and_is_not_the_full_size():
    found = rows(measured(wanted=24))
    assert not any(row.full for row in found.values())
    assert all(row.note.startswith("2 of 24 constellations; ") for row in found.values())


def test_nothing_measured_is_no_figure():
    found = rows(Table(24))
    assert all(row.figure is None and row.holds is None for row in found.values())


def test_every_model_size_and_length_has_its_constellation_once():
    found = constellations(3, protected.SIZES_MS)
    assert len(set(found)) == len(found) == 24
    assert found == constellations(3, protected.SIZES_MS)
    assert {cell.jobs for cell in found} == {3}


def test_the_digest_is_of_the_code_as_it_is():
    assert digest() == digest()
    assert len(digest()) == 12

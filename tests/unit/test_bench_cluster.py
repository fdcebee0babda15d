"""Rows of the real cluster's last results: nothing is better than it was, and what is absent says so."""

from __future__ import annotations

from typing import Any

import pytest

from bench import cluster
from bench.cluster import beside_others, rows_of, startup_joins
from bench.rows import Row
from tests.cluster.agent_kills import AgentKills
from tests.cluster.lost_checkpoint import LostCheckpoint
from tests.cluster.soak import Result

VERSIONS = {"kubernetes": "v1.36.3"}
SOAK = {"seconds": 900.0, "starts": 1500, "wrong": 0, "unexpected_admission_errors": 0, "leaks": 0}
STARTS = {"added_ms": 80, "plain_ms": 900, "shared_ms": 980, "pairs": 30}
TESTS = {"test_a.py::one": "passed", "test_a.py::two": "failed"}
SUITE = {"seconds": 600.0, "passed": 1, "failed": 1, "skipped": 0, "tests": TESTS}


def rows(**results: dict[str, Any]) -> dict[str, Row]:
    found = {k: {**v, "versions": VERSIONS} for k, v in results.items()}
    return {row.name: row for row in (*rows_of(found), *beside_others(found))}


def test_what_was_never_run_has_no_figure_and_says_how_to_get_it() -> None:
    found = rows()
    assert {row.figure for row in found.values()} == {None}
    assert all("make " in row.note for row in found.values())


def test_the_group_has_every_row_that_the_cluster_gives() -> None:
    names = [row.name for row in cluster.rows(full=False)]
    assert len(names) == len(set(names))
    assert {"soak_wrong", "other_card_percent", "checkpoint_lost_wrong", "startup_joins_failed"} <= set(names)


def test_a_run_with_a_failed_test_does_not_hold_and_names_it() -> None:
    row = rows(e2e=SUITE)["e2e_failed"]
    assert row.holds is False
    assert "test_a.py::two" in row.note


def test_what_the_machine_did_beside_a_run_is_told() -> None:
    found = rows(e2e={**SUITE, "beside": "other work"})
    assert found["e2e_minutes"].note == "with warm caches; beside other work"
    assert found["e2e_failed"].note.endswith("; beside other work")


@pytest.mark.parametrize(("starts", "full"), [(1499, False), (1500, True)])
def test_a_soak_counts_as_full_from_1500_starts(starts: int, full: bool) -> None:
    row = rows(soak={**SOAK, "starts": starts})["soak_wrong"]
    assert (row.full, row.holds) == (full, True)


def test_a_soaks_note_tells_how_often_the_books_were_compared() -> None:
    told = {"forced": 300, "looks": 880, "longest_gap": 1.4}
    note = rows(soak={**SOAK, **told})["soak_wrong"].note
    assert "300 deleted by force" in note
    assert "880 times, at most 1.4 s apart" in note


def test_a_case_that_cannot_be_tried_is_told_with_its_reason_and_not_counted() -> None:
    suite = {**SUITE, "cases": {"5": "passed", "39": None}, "untried": {"39": "no CDI here"}}
    row = rows(e2e=suite)["e2e_cases_failed"]
    assert (row.figure, row.holds) == (0, True)
    assert row.note == "1 of 2 tried; 39: no CDI here"


@pytest.mark.parametrize("outcome", ["failed", "skipped", "absent"])
def test_a_case_that_did_not_pass_falls_short(outcome: str) -> None:
    suite = {**SUITE, "cases": {"5": "passed", "45": outcome}, "untried": {}}
    row = rows(e2e=suite)["e2e_cases_failed"]
    assert (row.figure, row.holds) == (1, False)
    assert f"45 {outcome}" in row.note


def test_an_older_line_of_kubernetes_has_a_row_of_its_own() -> None:
    row = rows(**{"e2e-1.33": {**SUITE, "skipped": 2}})["e2e_failed_1_33"]
    assert (row.figure, row.holds) == (1, False)
    assert row.note.startswith("1 passed, 2 skipped")


def test_a_leak_is_a_row_of_its_own() -> None:
    found = rows(soak={**SOAK, "leaks": 2})
    assert found["soak_leaks"].holds is False
    assert found["soak_wrong"].holds is True


def test_containers_on_other_cards_than_the_binding_names_are_told_in_percent() -> None:
    run = {"seconds": 1200.0, "created": 3000, "forced": 1500, "starts": 1500, "elsewhere": 30}
    row = rows(other_cards={**run, "elsewhere_living": 3, "refused": 5, "failed": 0, "kills": 20})[
        "other_card_percent"
    ]
    assert (row.figure, row.full, row.holds) == (2.0, True, False)
    assert "3 of them of pods that nobody had deleted" in row.note


def test_a_stranded_pod_that_is_named_late_or_stays_falls_short() -> None:
    run = {"times": 20, "pods": 140, "wrongly": 0, "longest_seconds": 4.1, "longest_replaced": 30.5}
    row = rows(lost_checkpoint={**run, "late": 0, "stayed": 0})["checkpoint_lost_wrong"]
    assert (row.figure, row.full, row.holds) == (0, True, True)
    row = rows(lost_checkpoint={**run, "late": 2, "stayed": 1})["checkpoint_lost_wrong"]
    assert (row.figure, row.holds) == (3, False)


def test_a_pod_that_fails_as_a_node_joins_falls_short() -> None:
    run = {"times": 20, "pods": 280, "longest_taint": 6.1, "longest_seconds": 4.5}
    on = {"versions": {"kubernetes": "v1.36.3"}}
    row = startup_joins({**run, "failed": 0, **on})
    assert (row.figure, row.full, row.holds) == (0, True, True)
    assert startup_joins({**run, "times": 3, "failed": 1, **on}).holds is False
    assert startup_joins(None).figure is None


def test_pods_that_fail_as_the_agent_ends_are_told_for_each_way_to_end_it() -> None:
    run = {"terms": 10, "created_terms": 900, "failed_terms": 0, "kills": 10, "created_kills": 880}
    jobs = {"job_kills": 10, "jobs_failed": 2, "job_pods": 300}
    found = rows(agent_kills={**run, "failed_kills": 7, **jobs})
    assert (found["agent_ended_failed"].figure, found["agent_ended_failed"].holds) == (0, True)
    assert (found["agent_killed_failed"].figure, found["agent_killed_failed"].holds) == (0.7, True)
    assert (found["agent_killed_jobs_failed"].figure, found["agent_killed_jobs_failed"].holds) == (2, False)
    assert found["agent_container_killed_failed"].figure is None
    wholes = {"wholes": 10, "created_wholes": 90, "failed_wholes": 15}
    found = rows(agent_kills={**run, "failed_kills": 7, **jobs, **wholes})
    whole = found["agent_container_killed_failed"]
    assert (whole.figure, whole.full, whole.holds) == (1.5, True, False)


def test_polite_ends_alone_add_up_and_are_told_where_there_were_more() -> None:
    first = AgentKills(image="a", terms=6, created_terms=60).added({})
    alone = AgentKills(image="a", terms=5, created_terms=70, failed_terms=1).added(first)
    all_kinds = AgentKills(image="b", terms=10, created_terms=90, kills=10).added(first)
    row = rows(agent_kills=all_kinds, agent_terms=alone)["agent_ended_failed"]
    assert (row.figure, row.full, row.holds) == (1, True, False)
    assert "11 ends by SIGTERM, 130 pods" in row.note
    assert "10 ends" in rows(agent_kills=all_kinds, agent_terms=first)["agent_ended_failed"].note


@pytest.mark.parametrize(("off", "unseen", "full", "holds"), [(40, 0, True, True), (5, 1, False, False)])
def test_containers_that_nobody_named_fall_short(off: int, unseen: int, full: bool, holds: bool) -> None:
    row = rows(cdi_off={"off": off, "on": off, "unseen": unseen, "longest_seconds": 4.2})[
        "injection_unseen_live"
    ]
    assert (row.figure, row.full, row.holds) == (unseen, full, holds)


def test_a_card_on_another_numa_node_than_its_ids_falls_short() -> None:
    run = {
        "policies": ["restricted"],
        "starts": 150,
        "refused": 0,
        "waited": 0,
        "containers": 90,
        "elsewhere": 2,
    }
    found = rows(numa=run)
    assert (found["numa_refusals"].holds, found["numa_elsewhere"].holds) == (True, False)
    assert found["numa_elsewhere"].full
    assert "could have been had" not in found["numa_elsewhere"].note
    looked = rows(numa={**run, "within_reach": 0})["numa_elsewhere"]
    assert "0 of them could have been had there" in looked.note
    assert not looked.holds


def test_a_pods_start_stands_beside_the_same_pods_without_a_share() -> None:
    row = rows(starts=STARTS)["pod_start_added_ms"]
    assert (row.figure, row.baseline, row.holds) == (80, 900, True)
    assert "v1.36.3" in row.note


def test_the_longest_resize_counts_and_the_medians_stand_beside_it() -> None:
    run = {
        "count": 64,
        "longest_seconds": 1.61,
        "median_seconds": {"more": 0.7, "less memory": 0.9},
        "said_seconds": {"more": 0.8, "less memory": 2.1},
    }
    row = rows(resizes=run)["resize_from_kubectl_s"]
    assert (row.figure, row.full, row.holds) == (1.61, True, False)
    assert "medians: more 0.70, less memory 0.90; the command says so after 2.10" in row.note


def test_runs_of_the_soak_on_one_image_are_added_up_and_others_begin_anew() -> None:
    first = Result(image="a", starts=900, longest_gap=1.5, footprint={"agent": {"peak_mib": 80.0}})
    kept = first.added({})
    second = Result(image="a", starts=700, wrong=1, longest_gap=1.2, footprint={"agent": {"peak_mib": 90.0}})
    found = second.added(kept)
    assert (found["runs"], found["starts"], found["wrong"], found["longest_gap"]) == (2, 1600, 1, 1.5)
    assert found["footprint"] == {"agent": {"peak_mib": 90.0}}
    assert Result(image="b", starts=3).added(kept)["starts"] == 3


def test_the_start_of_a_pod_with_a_claim_is_told_beside_that_by_a_template() -> None:
    measured = {"claim_added_ms": 180, "template_added_ms": 320, "plain_ms": 900, "rounds": 30}
    row = rows(claim_starts=measured)["claim_pod_start_added_ms"]
    assert (row.figure, row.baseline, row.holds, row.full) == (180, 900, True, True)
    assert "by a template, of which Kubernetes makes the claim first, 320 ms" in row.note


def test_waves_of_claims_have_a_row_for_each_thing_that_may_go_wrong() -> None:
    assert rows()["claim_waves_stuck"].figure is None
    counts = {"overcommitted": 0, "wrong": 0, "failed": 0, "stuck": 3}
    waves = {
        "each": 200,
        "claims": 200,
        "extended": 197,
        "reboots": 1,
        "made_again": 20,
        "longest_seconds": 61.5,
    }
    found = rows(claim_waves=waves | counts)
    held = {key: (found[f"claim_waves_{key}"].figure, found[f"claim_waves_{key}"].holds) for key in counts}
    assert held == {key: (count, not count) for key, count in counts.items()}
    assert found["claim_waves_stuck"].full
    assert "1 reboots; the longest start took 61.5 s" in found["claim_waves_stuck"].note
    assert not rows(claim_waves=waves | counts | {"reboots": 0})["claim_waves_stuck"].full


def test_lost_checkpoints_of_one_image_add_up() -> None:
    before = {"image": "a", "times": 5, "pods": 35, "late": 1, "wrongly": 0, "stayed": 0}
    before |= {"longest_seconds": 8.0, "longest_replaced": 18.4}
    now = LostCheckpoint("a", 3, 21, 0, 1, 0, 9.5, 12.0)
    found = now.added(before)
    assert (found["times"], found["pods"], found["late"], found["wrongly"]) == (8, 56, 1, 1)
    assert (found["longest_seconds"], found["longest_replaced"]) == (9.5, 18.4)
    assert now.added({**before, "image": "b"})["times"] == 3
    assert now.added({})["times"] == 3

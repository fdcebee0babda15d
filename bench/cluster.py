"""Figures of the real cluster, read and not measured: a cluster takes root, Debian's packages and minutes.

The last results of ``make e2e`` and its kin lie in ``bench/results/cluster.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.rows import Row

RESULTS: Final = Path(__file__).resolve().parent / "results" / "cluster.json"
ENOUGH: Final = 1500  # starts of a soak that counts as full
ENOUGH_ROLLOUTS: Final = 10
ENOUGH_ORDERS: Final = 100
ENOUGH_LOSSES: Final = 20  # of the checkpoint, and joins
ENOUGH_BARE: Final = 40
ENOUGH_ALIGNED: Final = 150
ENOUGH_RESIZES: Final = 40
ENOUGH_WAVES: Final = 200  # pods of each kind


def rows(*, full: bool) -> Iterator[Row]:
    """The group: all that was recorded, what :mod:`bench.nodes` and :mod:`bench.controllers` show of it too.

    ``full`` changes nothing: a row says how large its run was.
    """
    del full
    results = recorded()
    yield from rows_of(results)
    yield from beside_others(results)
    yield startup_joins(results.get("joins"))


def rows_of(results: Mapping[str, Any]) -> Iterator[Row]:
    """A row for each promise; what was never run has no figure."""
    yield _starts(results.get("starts"))
    yield _claim_starts(results.get("claim_starts"))
    yield from _claim_waves(results.get("claim_waves"))
    soak = results.get("soak")
    yield _soak("soak_wrong", "wrong", soak)
    yield _soak("soak_leaks", "leaks", soak)
    yield _soak("node_refusals", "unexpected_admission_errors", soak)
    yield _rollouts("agent_replaced_failed", results.get("rollouts"))
    yield _rollouts("agent_replaced_backlog_failed", results.get("rollouts_backlog"))
    yield from _numa(results.get("numa"))
    yield _resizes(results.get("resizes"))
    yield from _suite(results.get("e2e"))
    for key in sorted(key for key in results if key.startswith("e2e-")):
        found = results[key]
        note = f"{found['passed']} passed, {found['skipped']} skipped; {_on(found)}"
        name = f"e2e_failed_{key.removeprefix('e2e-').replace('.', '_')}"
        yield Row(name, found["failed"], "tests", "= 0", full=True, note=note)


def beside_others(results: Mapping[str, Any]) -> Iterator[Row]:
    """What the real kubelet and its runtime showed of nodes as they are, for :mod:`bench.nodes`."""
    yield _double_offers(results.get("double_offers"))
    yield _cdi_off(results.get("cdi_off"))
    yield _other_cards(results.get("other_cards"))
    yield _lost_checkpoint(results.get("lost_checkpoint"))
    yield from _agent_kills(results.get("agent_kills"), results.get("agent_terms"))


def startup_joins(found: Mapping[str, Any] | None) -> Row:
    """What became of pods that waited for a node with the startup taint, for :mod:`bench.controllers`."""
    name, unit, bar = "startup_joins_failed", "pods", "= 0"
    if found is None:
        return Row(name, None, unit, bar, note="never run: make cluster CMD=joins")
    note = (
        f"of {found['pods']} that waited for a node at its {found['times']} joins, new each time and with "
        f"the startup taint, beside a scheduler that stood ready: it went at most {found['longest_taint']} s "
        f"after the agent's label had come, and the last pod ran {found['longest_seconds']} s later at most; "
        f"{_on(found)}"
    )
    return Row(name, found["failed"], unit, bar, full=found["times"] >= ENOUGH_LOSSES, note=note)


def recorded() -> dict[str, Any]:
    """What was last recorded; empty if nothing was."""
    return dict(json.loads(RESULTS.read_text(encoding="utf-8"))) if RESULTS.exists() else {}


def _starts(found: Mapping[str, Any] | None) -> Row:
    name, unit, bar = "pod_start_added_ms", "ms", "≤ 150"
    if found is None:
        return Row(name, None, unit, bar, note="never measured: make cluster CMD=starts")
    note = f"medians of {found['pairs']} pods each, with a share {found['shared_ms']} ms; {_on(found)}"
    return Row(name, found["added_ms"], unit, bar, found["plain_ms"], full=True, note=note)


def _claim_starts(found: Mapping[str, Any] | None) -> Row:
    name, unit, bar = "claim_pod_start_added_ms", "ms", "≤ 250"
    if found is None:
        return Row(name, None, unit, bar, note="never measured: make cluster CMD=claim-starts")
    note = (
        f"medians of {found['rounds']} pods each, with a claim that is there before its pod; by a template, "
        f"of which Kubernetes makes the claim first, {found['template_added_ms']} ms; {_on(found)}"
    )
    return Row(name, found["claim_added_ms"], unit, bar, found["plain_ms"], full=True, note=note)


def _claim_waves(found: Mapping[str, Any] | None) -> Iterator[Row]:
    """Rows of pods by claims and by extended resources beside each other on a split node."""
    units = {"overcommitted": "cards", "wrong": "containers", "failed": "pods", "stuck": "pods"}
    for key, unit in units.items():
        if found is None:
            note = "never run: make cluster CMD=claim-waves"
            yield Row(f"claim_waves_{key}", None, unit, "= 0", note=note)
            continue
        note = (
            f"{found['claims']} pods by claims and {found['extended']} by extended resources on a split "
            f"node, up to 40 of each there at a time, restarts of kubelet and agent, {found['reboots']} "
            f"reboots; the longest start took {found['longest_seconds']} s (stuck: above 60); "
            f"{found['made_again']} pods by extended resources ended by a reboot, and were made again; "
            f"{_on(found)}"
        )
        full = found["each"] >= ENOUGH_WAVES and bool(found["reboots"])
        yield Row(f"claim_waves_{key}", found[key], unit, "= 0", full=full, note=note)


def _soak(name: str, key: str, found: Mapping[str, Any] | None) -> Row:
    if found is None:
        return Row(name, None, "count", "= 0", note="never run: make cluster CMD=soak")
    note = f"{found['starts']} pods in {found['seconds'] / 60:.0f} min"
    if "forced" in found:  # since the auditor looks by the clock
        gap = f"at most {found['longest_gap']:.1f} s apart"
        runs = f" in {found['runs']} runs" if found.get("runs", 1) > 1 else ""
        note += f"{runs}, {found['forced']} deleted by force; "
        note += f"books compared {found['looks']} times, {gap}"
    full = found["starts"] >= ENOUGH
    return Row(name, found[key], "count", "= 0", full=full, note=f"{note}; {_on(found)}")


def _rollouts(name: str, found: Mapping[str, Any] | None) -> Row:
    unit, bar = "pods", "= 0"
    if found is None:
        return Row(name, None, unit, bar, note="never run: make cluster CMD=rollouts")
    waiting = f" beside a backlog of {found['backlog']}" if found.get("backlog") else ""
    note = f"{found['rollouts']} rollouts, {found['created']} pods created{waiting}; {_on(found)}"
    return Row(name, found["failed"], unit, bar, full=found["rollouts"] >= ENOUGH_ROLLOUTS, note=note)


def _numa(found: Mapping[str, Any] | None) -> Iterator[Row]:
    refused, elsewhere = ("numa_refusals", "pods", "= 0"), ("numa_elsewhere", "containers", "= 0")
    if found is None:
        yield Row(refused[0], None, *refused[1:], note="never run: make cluster CMD=numa")
        yield Row(elsewhere[0], None, *elsewhere[1:], note="never run: make cluster CMD=numa")
        return
    full = found["starts"] >= ENOUGH_ALIGNED
    note = (
        f"{found['starts']} starts on four NUMA nodes of two cards, under {', '.join(found['policies'])}; "
        f"{found['waited']} pods were placed nowhere for a minute; {_on(found)}"
    )
    yield Row(refused[0], found["refused"], *refused[1:], full=full, note=note)
    note = (
        f"of {found['containers']}, looked at once a round: cards of another NUMA node than the kubelet's ids"
        f"{_had(found)}"
    )
    yield Row(elsewhere[0], found["elsewhere"], *elsewhere[1:], full=full, note=note)


def _had(found: Mapping[str, Any]) -> str:
    """How many cards of the ids' node could have been had, if that was looked at."""
    if "within_reach" not in found:
        return ""
    had = found["within_reach"]
    return f"; {had} of them could have been had there, by the books as the kubelet turned to them"


def _resizes(found: Mapping[str, Any] | None) -> Row:
    name, unit, bar = "resize_from_kubectl_s", "s", "≤ 1.5"
    if found is None:
        return Row(name, None, unit, bar, note="never run: make cluster CMD=resizes")
    medians = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in found["median_seconds"].items())
    said = max(found["said_seconds"].values())
    note = (
        f"the longest of {found['count']}, from the start of kubectl vcuda resize until the container's own "
        f"page has the size; medians: {medians}; the command says so after {said:.2f} (median of the slowest "
        f"kind); {_on(found)}"
    )
    return Row(name, found["longest_seconds"], unit, bar, full=found["count"] >= ENOUGH_RESIZES, note=note)


def _double_offers(found: Mapping[str, Any] | None) -> Row:
    name, unit, bar = "double_offers", "orders", "= 0"
    if found is None:
        return Row(name, None, unit, bar, note="never run: make cluster CMD=double-offers")
    note = (
        f"of {found['orders']} random orders in which a second plugin for the same cards comes and restarts "
        "beside restarts of kubelet and agent, those with a card on offer by both for over 2 s; longest "
        f"{found['longest_seconds']} s; {_on(found)}"
    )
    return Row(name, found["double"], unit, bar, full=found["orders"] >= ENOUGH_ORDERS, note=note)


def _cdi_off(found: Mapping[str, Any] | None) -> Row:
    name, unit, bar = "injection_unseen_live", "containers", "= 0"
    if found is None:
        return Row(name, None, unit, bar, note="never run: make cluster CMD=cdi-off")
    note = (
        f"of {found['off']} containers on the real kubelet while containerd has CDI off and the agent "
        f"injects by it, those not named by an Event within 10 s; of {found['on']} with CDI on, those named; "
        f"longest {found['longest_seconds']} s after the API shows the container; {_on(found)}"
    )
    return Row(name, found["unseen"], unit, bar, full=found["off"] >= ENOUGH_BARE, note=note)


def _other_cards(found: Mapping[str, Any] | None) -> Row:
    name, unit, bar = "other_card_percent", "%", "≤ 1"
    if found is None or not found["starts"]:
        return Row(name, None, unit, bar, note="never run: make cluster CMD=other-cards")
    note = (
        f"{found['elsewhere']} of {found['starts']} containers started on another card than the Binding "
        f"names, {found['elsewhere_living']} of them of pods that nobody had deleted; of "
        f"{found['created']} pods in {found['seconds'] / 60:.0f} min {found['forced']} were deleted by force "
        f"within 3 s after they were bound, {found['refused']} failed as the kubelet had no agent to ask, "
        f"and {found['failed']} otherwise; {found['kills']} kills in turn of the agent, the kubelet, "
        f"admission and the agent's whole container; "
        f"{_on(found)}"
    )
    percent = round(100 * found["elsewhere"] / found["starts"], 2)
    return Row(name, percent, unit, bar, full=found["starts"] >= ENOUGH, note=note)


def _lost_checkpoint(found: Mapping[str, Any] | None) -> Row:
    name, unit, bar = "checkpoint_lost_wrong", "pods", "= 0"
    if found is None:
        return Row(name, None, unit, bar, note="never run: make cluster CMD=lost-checkpoint")
    note = (
        f"of {found['pods']} whose containers the kubelet cannot start again after one of {found['times']} "
        f"losses of its checkpoint: {found['late']} not named within 10 s after it was back (longest "
        f"{found['longest_seconds']} s), {found['stayed']} of a Deployment not replaced (longest "
        f"{found['longest_replaced']} s, with an evictor of 60 a minute and node); {found['wrongly']} named "
        f"that needed nothing; {_on(found)}"
    )
    wrong = found["late"] + found["stayed"] + found["wrongly"]
    return Row(name, wrong, unit, bar, full=found["times"] >= ENOUGH_LOSSES, note=note)


def _agent_kills(found: Mapping[str, Any] | None, terms: Mapping[str, Any] | None) -> Iterator[Row]:
    """Rows of pods and Jobs while the agent ends; ``terms`` are polite ends alone, told if they are more."""
    rows = (
        ("agent_ended_failed", "pods", "= 0"),
        ("agent_killed_failed", "pods a kill", "≤ 1"),
        ("agent_container_killed_failed", "pods a kill", "≤ 1"),
        ("agent_killed_jobs_failed", "Jobs", "= 0"),
    )
    if found is None:
        for name, unit, bar in rows:
            yield Row(name, None, unit, bar, note="never run: make cluster CMD=agent-kills")
        return
    ended, killed, whole, jobs = rows
    most = max(found, terms or found, key=lambda one: int(one["terms"]))
    full = most["terms"] >= ENOUGH_ROLLOUTS
    note = f"{most['terms']} ends by SIGTERM, {most['created_terms']} pods created; {_on(most)}"
    yield Row(ended[0], most["failed_terms"], *ended[1:], full=full, note=note)
    full = found["kills"] >= ENOUGH_ROLLOUTS
    note = f"{found['failed_kills']} of {found['created_kills']} pods at {found['kills']} kills; {_on(found)}"
    each = round(found["failed_kills"] / max(1, found["kills"]), 1)
    yield Row(killed[0], each, *killed[1:], full=full, note=note)
    if wholes := found.get("wholes"):
        failed, created = found["failed_wholes"], found["created_wholes"]
        note = f"{failed} of {created} pods at {wholes} kills of all processes of its pod; {_on(found)}"
        yield Row(whole[0], round(failed / wholes, 1), *whole[1:], full=wholes >= ENOUGH_ROLLOUTS, note=note)
    else:
        yield Row(whole[0], None, *whole[1:], note="never run: make cluster CMD=agent-kills")
    note = (
        f"with backoffLimit 0 and 14 pods at a time, at {found['job_kills']} kills of the agent; "
        f"{found['job_pods']} of their pods succeeded; {_on(found)}"
    )
    yield Row(jobs[0], found["jobs_failed"], *jobs[1:], full=full, note=note)


def _suite(found: Mapping[str, Any] | None) -> Iterator[Row]:
    failed, minutes = ("e2e_failed", "tests", "= 0"), ("e2e_minutes", "min", "≤ 20")
    cases = ("e2e_cases_failed", "cases", "= 0")
    if found is None:
        for name, unit, bar in (failed, cases, minutes):
            yield Row(name, None, unit, bar, note="never run: make e2e")
        return
    names = [name for name, outcome in found["tests"].items() if outcome == "failed"]
    note = f"{found['passed']} passed, {found['skipped']} skipped{''.join(f'; {n}' for n in names)}"
    yield Row(failed[0], found["failed"], *failed[1:], full=True, note=f"{note}; {_on(found)}")
    yield _cases(cases, found)
    yield Row(
        minutes[0],
        round(found["seconds"] / 60, 1),
        *minutes[1:],
        full=True,
        note=f"with warm caches{_beside(found)}",
    )


def _cases(row: tuple[str, str, str], found: Mapping[str, Any]) -> Row:
    """Of the conformance list; what cannot be tried on these parts is told, and not counted."""
    name, unit, bar = row
    if "cases" not in found:
        return Row(name, None, unit, bar, note="not told apart in the last run: make e2e")
    outcomes = found["cases"]
    short = sorted((n for n, outcome in outcomes.items() if outcome not in ("passed", None)), key=int)
    tried = sum(outcome is not None for outcome in outcomes.values())
    note = f"{tried} of {len(outcomes)} tried"
    note += "".join(f"; {n}: {why}" for n, why in found["untried"].items())
    note += "".join(f"; {n} {outcomes[n]}" for n in short)
    return Row(name, len(short), unit, bar, full=True, note=note)


def _on(found: Mapping[str, Any]) -> str:
    """The programs' versions, and what else the machine did."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found["versions"].items()))
    return f"{versions}{_beside(found)}"


def _beside(found: Mapping[str, Any]) -> str:
    return f"; beside {found['beside']}" if "beside" in found else ""

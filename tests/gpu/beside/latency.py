"""T2 and T3: a service beside a job that trains. Tally's p99 of requests at half load, MLPerf's requests a second within a
bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

from bench.rows import Row
from gpu_manager.domain.priority import Priority
from tests.gpu.beside.arms import PROTECTED, TWO, left_out, moved, not_there, note_of, watched
from tests.gpu.beside.models import JOBS, SERVICES
from tests.gpu.beside.workers import Model, Tenant, Worker, together, workers
from tests.gpu.container import Failed
from tests.gpu.host_loop import host_loop
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings
from tests.gpu.protected import gates

LOAD = 0.5
"""Of what the service can do alone."""
CORES = 60
"""Of the service; the job has the others, and all while the service wants none."""
TALLY, LEFT = 1.072, 0.8
WITHIN_MS: Mapping[str, float] = {"resnet50": 15, "bert": 130}
"""MLPerf inference's bounds of the server scenario."""
TRIES = 6
START = 20.0


def cases(settings: Settings) -> Iterator[Case]:
    """Nine cells, those first in which services and jobs differ in both."""
    start = START if settings.seconds >= 1 else 0
    for turn in range(len(JOBS)):
        for at, service in enumerate(SERVICES):
            job = JOBS[(at + turn) % len(JOBS)]
            run = partial(_cell, service, job, seconds=settings.seconds)
            yield Case(f"{service.name}_beside_{job.name}", 5 * settings.seconds + start, run)


def server_cases(settings: Settings) -> Iterator[Case]:
    """The greatest rate within the bound: alone, beside a job, and protected from it."""
    for service in SERVICES:
        if service.name in WITHIN_MS:
            run = partial(_server, service, seconds=settings.seconds / 2)
            start = START if settings.seconds >= 1 else 0
            yield Case(f"server_{service.name}", 1.5 * TRIES * settings.seconds + start, run)


def _four(machine: Machine, service: Model, job: Model) -> list[Worker]:
    return workers(machine).ready(
        Tenant(service), Tenant(job), Tenant(service, held=True, priority=Priority.PROTECTED),
        Tenant(job, held=True, priority=Priority.BEST_EFFORT),
    )  # fmt: skip


@contextmanager
def _protected(machine: Machine, service: Worker, job: Worker) -> Iterator[None]:
    """The classes and their cores, as the agent writes them; its loop and its gates run."""
    if service.container is None or job.container is None:
        raise Failed("both are to be in containers")
    service.container.limit(CORES, 100)
    job.container.limit(100 - CORES, 100)
    with ExitStack() as stack:
        stack.enter_context(host_loop(machine, [service.container, job.container]))
        stack.enter_context(gates(machine, service.container, [job.container], CORES))
        yield


def _cell(service: Model, job: Model, machine: Machine, *, seconds: float) -> Iterator[Row]:
    name = f"gpu_beside_{service.name}_and_{job.name}"
    bare, work, held, kept = _four(machine, service, job)
    rate = LOAD * 1000 / bare.run(seconds / 2)["p50"]
    before = bare.run(seconds, rate)["p99"]
    alone = work.run(seconds / 2).rate
    arms = {TWO: ((bare, work), nullcontext(), "≥ 0", "≥ 0")}
    arms[PROTECTED] = ((held, kept), _protected(machine, held, kept), f"≤ {TALLY}", f"≥ {LEFT}")
    found = {}
    for arm, (pair, held_so, *_) in arms.items():
        with held_so, watched(machine) as clock:
            found[arm] = together([(pair[0], rate), (pair[1], 0.0)], seconds), str(clock)
    after = bare.run(seconds, rate)["p99"]
    for arm, ((served, worked), clock) in found.items():
        p99_bar, left_bar = arms[arm][2:]
        note = note_of(
            machine,
            f"p99 {served['p99']:.2f} ms, alone {before:.2f} and {after:.2f} at {rate:.1f} requests a second",
            clock,
            moved(before, after),
        )
        yield Row(
            f"{name}_{arm}_p99_ratio",
            round(served["p99"] * 2 / (before + after), 3),
            "times alone",
            p99_bar,
            1.0,
            note=note,
        )
        note = note_of(
            machine,
            f"{worked.rate:.2f} steps a second beside {alone:.2f} alone, of which the service leaves {1 - LOAD:.0%}",
        )
        yield Row(
            f"{name}_{arm}_job_ratio",
            round(worked.rate / alone / (1 - LOAD), 3),
            "of what is left",
            left_bar,
            1.0,
            note=note,
        )
    for arm, why in not_there(machine).items():
        yield from left_out(machine, [f"{name}_{arm}_p99_ratio"], "times alone", "≥ 0", why)


def _server(service: Model, machine: Machine, *, seconds: float) -> Iterator[Row]:
    name, bound = f"gpu_server_{service.name}", WITHIN_MS[service.name]
    job = next(one for one in JOBS if one.name == "gpt2")
    bare, work, held, kept = _four(machine, service, job)
    most = 1000 / bare.run(seconds)["p50"]
    alone = _greatest(most, bound, lambda rate: bare.run(seconds, rate)["p99"])
    yield Row(
        f"{name}_alone",
        round(alone, 1),
        "1/s",
        "≥ 0",
        note=note_of(machine, f"p99 within {bound:g} ms, {TRIES} tries"),
    )
    if not alone:
        yield from left_out(
            machine, [f"{name}_{PROTECTED}_kept"], "ratio", "≥ 0.95", "alone it holds no rate"
        )
        return
    arms = {
        TWO: (bare, work, nullcontext(), "≥ 0"),
        PROTECTED: (held, kept, _protected(machine, held, kept), "≥ 0.95"),
    }
    for arm, (serves, works, held_so, bar) in arms.items():
        with held_so:
            beside = _greatest(
                most,
                bound,
                lambda rate, s=serves, w=works: together([(s, rate), (w, 0.0)], seconds)[0]["p99"],
            )  # type: ignore[misc]
        note = note_of(
            machine,
            f"{beside:.1f} requests a second with p99 within {bound:g} ms, {alone:.1f} alone; beside {job.name} in training",
        )
        yield Row(f"{name}_{arm}_kept", round(beside / alone, 3), "ratio", bar, 1.0, note=note)
    for arm, why in not_there(machine).items():
        yield from left_out(machine, [f"{name}_{arm}_kept"], "ratio", "≥ 0", why)


def _greatest(most: float, bound: float, p99: Callable[[float], float]) -> float:
    """Requests a second, by halving: 0 if none of those tried is within the bound."""
    least = 0.0
    for _ in range(TRIES):
        rate = (least + most) / 2
        try:
            holds = p99(rate) <= bound
        except KeyError:  # no request came in so short a time
            holds = True
        least, most = (rate, most) if holds else (least, rate)
    return least

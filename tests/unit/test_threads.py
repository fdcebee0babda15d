"""No thread of the programs dies unseen: all are made in one file, which is told here what goes wrong."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gpu_manager.runtime import threads
from tests.fakes.waiting import PATIENCE
from tests.sources import sources

# What a pool runs answers to somebody: gRPC and ASGI turn an error into a reply, others ask for the result.
POOLS = {
    "gpu_manager/servers/plugin_registration.py",
    "gpu_manager/agent/holder.py",
    "gpu_manager/cli/kubectl/service.py",
    "admission/console/agents_usage.py",
    "admission/serving/extender_app.py",
    "sandbox/kubelet/serving.py",
    "sandbox/scheduler.py",
}


# What runs in a thread that can be left behind is raised again where the call was made, or nobody waits for it.
HANDED_OVER = {"gpu_manager/adapters/nvml/errors.py"}


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name
        if isinstance(node, ast.ClassDef):
            yield from (ast.unparse(base).rpartition(".")[2] for base in node.bases)


def files_that_call(*names: str) -> set[str]:
    return {place for place, tree in sources() if set(names) & set(calls(tree))}


def test_threads_are_made_in_one_file() -> None:
    assert files_that_call("Thread", "Timer", "start_new_thread", "ThreadingMixIn") == {
        "gpu_manager/runtime/threads.py"
    }


def test_pools_are_where_somebody_hears_of_an_error() -> None:
    assert files_that_call("ThreadPoolExecutor") == POOLS


def test_whatever_is_caught_without_a_name_is_counted() -> None:
    silent = [
        f"{place}:{node.lineno}"
        for place, tree in sources()
        if place not in HANDED_OVER
        and not place.endswith("/shim.py")  # a process of its own, whose child tells its parent over a pipe
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
        and not {"failed", "inc"} & set(calls(node))
        and not any(isinstance(last, ast.Raise) for last in node.body)
    ]
    assert silent == []


def test_a_loop_goes_on_after_an_error_and_ends_when_it_returns() -> None:
    rounds: list[int] = []

    def loop() -> None:
        rounds.append(1)
        if len(rounds) < 3:
            raise OverflowError("1025 times")

    before = threads.failures().get("loop", 0)
    with capture_logs() as logs:
        thread = threads.forever("loop", loop, again_seconds=0.0)
        thread.start()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len(rounds) == 3
    assert threads.failures()["loop"] - before == 2
    assert [(entry["event"], entry["thread"]) for entry in logs] == [("thread_failed", "loop")] * 2


def test_a_step_that_fails_costs_its_round_alone() -> None:
    stop, steps = threading.Event(), iter([ValueError("first"), None])
    before = threads.failures().get("step", 0)

    def step() -> None:
        error = next(steps, None)
        if error is not None:
            raise error
        stop.set()

    thread = threads.every(0.0, "step", step, stop)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert threads.failures()["step"] - before == 1


def test_rounds_are_made_at_once_when_they_are_due_and_end_so() -> None:
    stop, due, taken = threading.Event(), threading.Event(), threading.Event()
    thread = threads.rounds(1e6, "rounds", {"look": taken.set}, str, stop, due=due)
    thread.start()
    for _ in range(3):
        due.set()
        assert taken.wait(PATIENCE)
        taken.clear()
    stop.set()
    due.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not taken.is_set()


@pytest.mark.parametrize("error", [None, KeyError("x")])
def test_a_job_ends_either_way(error: Exception | None) -> None:
    def job() -> None:
        if error is not None:
            raise error

    before = threads.failures().get("job", 0)
    thread = threads.once("job", job)
    assert thread.daemon
    thread.start()
    thread.join(PATIENCE)
    assert threads.failures().get("job", 0) - before == (error is not None)

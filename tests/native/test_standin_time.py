"""The stand-in's time: streams, events, graphs, host functions, and several processes on one card.

Bounds are wide where the machine's own scheduling shows, and tight where the model alone decides: what is judged to
the millisecond is queued behind a long kernel, so that a host that is held up in between changes nothing.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.native import standin
from tests.native.card_watch import Watch

SPIN = ("spin", "--mode", "stream", "--us", "30000")
"""Always another kernel in the queue, so long that a host that is late to add one does not show."""


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def share(process: object) -> float:
    return float(standin.said(process)[-1].split()[-1])


def test_a_kernel_takes_the_time_its_name_says_and_events_measure_it(tmp_path: Path) -> None:
    program = standin.python(
        """
        import time
        driver = Driver()
        stream, middle, finish = driver.stream(), driver.event(), driver.event()
        begin = time.monotonic()
        driver.launch(driver.kernel("spin_500ms"), stream)
        driver.cuEventRecord(middle, stream)
        driver.launch(driver.kernel("spin_5ms"), stream)
        driver.launch(driver.kernel("gemm_1500us"), stream)
        driver.cuEventRecord(finish, stream)
        print(driver.code("cuStreamQuery", stream), driver.code("cuEventQuery", finish))
        driver.cuEventSynchronize(finish)
        print(driver.code("cuStreamQuery", stream), time.monotonic() - begin >= 0.5065)
        print(round(driver.milliseconds(middle, finish), 2))
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["600 600", "0 True", "6.5"]


def test_what_events_measured_does_not_change_with_later_work(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver()
        start, finish = driver.event(), driver.event()
        def run(name, count=1):
            kernel = driver.kernel(name)
            for _ in range(count):
                driver.launch(kernel)
                driver.cuCtxSynchronize()
        run("spin_10us", 100)
        driver.cuEventRecord(start, None)
        run("spin_20ms")
        driver.cuEventRecord(finish, None)
        driver.cuEventSynchronize(finish)
        before = driver.milliseconds(start, finish)
        run("spin_10us", 1500)
        print(before >= 20, driver.milliseconds(start, finish) - before)
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["True 0.0"]


def test_who_waits_for_a_short_kernel_spins_and_is_not_late_by_a_timer(tmp_path: Path) -> None:
    program = standin.python(
        """
        import resource
        driver = Driver()
        kernel = driver.kernel("spin_50us")
        def sleeps():
            return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        begin = sleeps()
        for _ in range(500):
            driver.launch(kernel)
            driver.cuCtxSynchronize()
        print(sleeps() - begin < 50)
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["True"]


def test_small_kernels_of_two_streams_overlap_and_full_ones_do_not(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver()
        kernel, start, finish = driver.kernel("spin_20ms"), driver.event(), driver.event()
        def span(grid):
            one, two = driver.stream(), driver.stream()
            driver.launch(driver.kernel("spin_300ms"), one)
            driver.cuEventRecord(start, one)
            driver.cuStreamWaitEvent(two, start, 0)
            driver.launch(kernel, one, grid=grid)
            driver.launch(kernel, two, grid=grid)
            driver.cuStreamWaitEvent(one, mark(two), 0)
            driver.cuEventRecord(finish, one)
            driver.cuEventSynchronize(finish)
            return round(driver.milliseconds(start, finish) / 20)
        def mark(stream):
            event = driver.event(); driver.cuEventRecord(event, stream); return event
        print(span(1), span(16))
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["1 2"]


def test_the_legacy_stream_waits_for_blocking_streams_and_not_for_others(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver()
        kernel = driver.kernel("spin_300ms")
        for flags in (0, 1):
            driver.launch(kernel, driver.stream(flags), grid=1)
            print(driver.code("cuStreamQuery", None))
            driver.cuCtxSynchronize()
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["600", "0"]


def test_work_behind_a_host_function_waits_for_it(tmp_path: Path) -> None:
    program = standin.python(
        """
        import threading
        driver = Driver()
        stream, other, event = driver.stream(), driver.stream(), driver.event()
        go, order = threading.Event(), []
        first = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: (go.wait(30), order.append("first")))
        second = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: order.append("second"))
        driver.launch(driver.kernel("spin_1ms"), stream)
        driver.cuLaunchHostFunc(stream, first, None)
        driver.launch(driver.kernel("spin_1ms"), stream)
        driver.cuEventRecord(event, stream)
        driver.cuStreamWaitEvent(other, event, 0)
        driver.cuLaunchHostFunc(other, second, None)
        print(driver.code("cuEventQuery", event), order)
        go.set()
        driver.cuStreamSynchronize(other)
        print(driver.code("cuEventQuery", event), order)
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["600 []", "0 ['first', 'second']"]


@pytest.mark.parametrize("late_us", [0, 3000])
def test_a_host_function_runs_so_long_after_its_turn(tmp_path: Path, late_us: int) -> None:
    """And its stream stands as long."""
    program = standin.python(
        """
        import time
        driver = Driver()
        stream = driver.stream()
        nothing = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: None)
        begin = time.monotonic()
        driver.cuLaunchHostFunc(stream, nothing, None)
        driver.launch(driver.kernel("spin_1ms"), stream)
        driver.cuStreamSynchronize(stream)
        print(time.monotonic() - begin)
        """,
        standin.environment(tmp_path, host_ns=late_us * 1000),
    )
    took_us = float(standin.said(program)[0]) * 1e6
    assert 1000 + late_us <= took_us
    assert late_us or took_us < 3500


@pytest.mark.parametrize(
    ("costs", "card_us", "launch_us"),
    [({}, 2 * 0.95 + 1.25, 3.6), ({"costs": "h100"}, 2 * 0.95 + 1.25, 3.6), ({"costs": "free"}, 0.0, 0.0)],
)
def test_calls_cost_what_they_cost_on_a_card_unless_they_are_free(
    tmp_path: Path, costs: dict[str, str], card_us: float, launch_us: float
) -> None:
    """On the card, the pause before a kernel that waits and the record of the second event; on the host, a launch."""
    program = standin.python(
        """
        import time
        driver = Driver()
        stream = driver.stream()
        first, last = driver.event(), driver.event()
        kernel = driver.kernel("spin_100us")
        driver.launch(driver.kernel("spin_50ms"), stream)
        driver.cuEventRecord(first, stream)
        driver.launch(kernel, stream)
        driver.launch(kernel, stream)
        driver.cuEventRecord(last, stream)
        driver.cuStreamSynchronize(stream)
        begin = time.thread_time()
        for _ in range(500):
            driver.launch(kernel, stream)
        print(driver.milliseconds(first, last), time.thread_time() - begin)
        """,
        standin.environment(tmp_path, **costs),
    )
    apart_ms, took_s = map(float, standin.said(program)[0].split())
    assert apart_ms * 1000 == pytest.approx(200 + card_us, abs=0.6)
    assert took_s >= 500 * launch_us * 1e-6


@pytest.mark.parametrize("reach_percent", [0, 50, 100])
def test_a_launch_reaches_the_card_at_that_part_of_its_call(tmp_path: Path, reach_percent: int) -> None:
    program = standin.python(
        """
        driver = Driver()
        stream = driver.stream()
        first, last = driver.event(), driver.event()
        kernel = driver.kernel("spin_1ms")
        driver.launch(kernel, stream)
        driver.cuStreamSynchronize(stream)
        driver.cuEventRecord(first, stream)
        driver.launch(kernel, stream)
        driver.cuEventRecord(last, stream)
        driver.cuStreamSynchronize(stream)
        print(driver.milliseconds(first, last))
        """,
        standin.environment(tmp_path, launch_ns=4_000_000, reach_percent=reach_percent),
    )
    took_ms = float(standin.said(program)[0])
    if reach_percent == 0:
        assert took_ms >= 4, "the end is recorded after the call, and the kernel is over before"
    else:
        assert took_ms >= 1 + 4 * reach_percent / 100
        assert reach_percent == 100 or took_ms < 4.9


def test_a_host_function_that_waits_keeps_other_host_functions_alone(tmp_path: Path) -> None:
    """Kernels of other streams run; host functions are called one at a time, as the driver may do."""
    program = standin.python(
        """
        import threading
        driver = Driver()
        stream, other = driver.stream(), driver.stream()
        go, called = threading.Event(), threading.Event()
        first = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: go.wait(30))
        second = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: called.set())
        driver.cuLaunchHostFunc(stream, first, None)
        driver.launch(driver.kernel("spin_1ms"), other)
        driver.cuStreamSynchronize(other)
        driver.cuLaunchHostFunc(other, second, None)
        print(called.wait(0.05))
        go.set()
        print(called.wait(30))
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["False", "True"]


def test_a_captured_graph_runs_its_branches_side_by_side_each_time_it_is_launched(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver()
        one, two, fork, join = driver.stream(), driver.stream(), driver.event(), driver.event()
        kernel = driver.kernel("spin_10ms")
        driver.cuStreamBeginCapture(one, 2)
        driver.cuEventRecord(fork, one)
        driver.cuStreamWaitEvent(two, fork, 0)
        driver.launch(kernel, one, grid=1)
        driver.launch(kernel, two, grid=1)
        print(driver.code("cuStreamSynchronize", two), driver.code("cuEventQuery", fork))
        driver.cuEventRecord(join, two)
        driver.cuStreamWaitEvent(one, join, 0)
        driver.launch(kernel, one, grid=1)
        graph, count = c_void_p(), c_size_t()
        driver.cuStreamEndCapture(one, byref(graph))
        driver.cuGraphGetNodes(graph, None, byref(count))
        run, start, finish = c_void_p(), driver.event(), driver.event()
        driver.cuGraphInstantiateWithFlags(byref(run), graph, c_uint64(0))
        driver.cuGraphDestroy(graph)
        driver.launch(driver.kernel("spin_300ms"), one)
        driver.cuEventRecord(start, one)
        for _ in range(3): driver.cuGraphLaunch(run, one)
        driver.cuEventRecord(finish, one)
        driver.cuEventSynchronize(finish)
        print(count.value, round(driver.milliseconds(start, finish) / 10))
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["900 907", "3 6"]


def test_a_branch_that_never_joins_spoils_the_capture(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver()
        one, two, fork = driver.stream(), driver.stream(), driver.event()
        driver.cuStreamBeginCapture(one, 0)
        driver.cuEventRecord(fork, one)
        driver.cuStreamWaitEvent(two, fork, 0)
        driver.launch(driver.kernel("spin_1ms"), two)
        graph = c_void_p()
        print(driver.code("cuStreamEndCapture", two, byref(graph)), driver.code("cuStreamEndCapture", one, byref(graph)))
        print(driver.code("cuStreamSynchronize", one), driver.code("cuStreamBeginCapture", None, 0))
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["903 904", "0 900"]


def test_memory_of_a_graph_comes_with_its_launch_and_goes_with_a_trim(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver()
        stream, pointer, graph, run = driver.stream(), c_uint64(), c_void_p(), c_void_p()
        start = driver.free()
        driver.cuStreamBeginCapture(stream, 2)
        driver.cuMemAllocAsync(byref(pointer), c_size_t(8 * MIB), stream)
        driver.cuMemFreeAsync(pointer, stream)
        driver.cuStreamEndCapture(stream, byref(graph))
        driver.cuGraphInstantiateWithFlags(byref(run), graph, c_uint64(0))
        before = start - driver.free()
        for _ in range(2): driver.cuGraphLaunch(run, stream)
        driver.cuStreamSynchronize(stream)
        held = start - driver.free()
        driver.cuDeviceGraphMemTrim(0)
        print(before, held // MIB, start - driver.free())
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["0 8 0"]


@pytest.mark.parametrize(("mode", "us"), [("sync", "50000"), ("stream", "30000"), ("graph", "4000")])
def test_a_lone_process_has_the_card_and_spends_little_of_the_host(
    tmp_path: Path, mode: str, us: str
) -> None:
    env = standin.environment(tmp_path)
    before = children_seconds()
    assert 0.7 < share(standin.client(env, "spin", "--us", us, "--seconds", "1", "--mode", mode)) <= 1.001
    assert children_seconds() - before < 0.3


def served(env: dict[str, str], *loads: Sequence[str]) -> list[float]:
    """The share of the card that each of these clients has, once all have begun."""
    runs = [standin.client(env, *load, "--seconds", "60") for load in loads]
    watch = Watch(env, 20)
    try:
        begin, before = end, after = watch.look()
        while end < begin + 1_500_000_000:
            end, after = watch.look()
            if not all(before.get(run.pid) for run in runs):
                begin, before = end, after
    finally:
        watch.kill()
        for run in runs:
            standin.end(run)
    return [(after[run.pid] - before[run.pid]) / (end - begin) for run in runs]


def test_with_turns_of_kernels_a_kernel_runs_out_before_anothers_begins(tmp_path: Path) -> None:
    env = standin.environment(tmp_path, turns="kernel")
    short, long = served(
        env, ("spin", "--us", "2000", "--mode", "stream"), ("spin", "--us", "18000", "--mode", "stream")
    )
    assert 0.9 < short + long <= 1.001
    assert 0.05 < short < 0.2, "one of its kernels for each of the other's, which is nine times as long"


@pytest.mark.parametrize("count", [2, 4])
def test_processes_that_always_have_work_get_equal_shares(tmp_path: Path, count: int) -> None:
    shares = served(standin.environment(tmp_path), *[SPIN] * count)
    assert 0.9 < sum(shares) <= 1.001, shares
    assert all(abs(part - 1 / count) < 0.12 for part in shares), shares


def test_a_process_without_work_leaves_the_card_to_the_other(tmp_path: Path) -> None:
    env = standin.environment(tmp_path)
    idle = standin.client(env, "alloc-to-limit", "--most", "64", "--hold", "60")
    standin.line(idle)
    alone = share(standin.client(env, *SPIN, "--seconds", "1.5"))
    standin.end(idle)
    assert alone > 0.8


def test_work_queued_by_a_killed_process_does_not_run(tmp_path: Path) -> None:
    env = standin.environment(tmp_path)
    hog = standin.python(
        """
        driver = Driver()
        for _ in range(100): driver.launch(driver.kernel("spin_900ms"), None)
        print("queued", flush=True)
        input()
        """,
        env,
    )
    assert standin.line(hog) == "queued"
    standin.end(hog)
    alone = share(standin.client(env, *SPIN, "--seconds", "1.5"))
    assert alone > 0.8


def test_a_full_launch_queue_holds_the_caller(tmp_path: Path) -> None:
    program = standin.python(
        """
        import time
        driver = Driver()
        kernel, begin = driver.kernel("spin_1ms"), time.monotonic()
        for _ in range(1024 + 50): driver.launch(kernel)
        print(time.monotonic() - begin >= 0.045)
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["True"]


def test_the_null_stream_of_per_thread_names_is_a_stream_of_its_own(tmp_path: Path) -> None:
    program = standin.python(
        """
        import threading
        driver = Driver()
        context = driver.out(c_void_p, "cuCtxGetCurrent")
        def ask():
            driver.cuCtxSetCurrent(c_void_p(context))
            print("another thread's", driver.code("cuStreamQuery", None, flags=2))
        kernel = driver.kernel("spin_300ms")
        driver.code("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None, flags=2)
        other = driver.stream(0)
        print(driver.code("cuStreamQuery", None, flags=2), driver.code("cuStreamQuery", other))
        another = threading.Thread(target=ask)
        another.start()
        another.join()
        print(driver.code("cuStreamSynchronize", None, flags=2), driver.code("cuStreamQuery", None, flags=2))
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["600 0", "another thread's 0", "0 0"]


def test_after_a_reset_of_the_primary_context_time_goes_on_as_before(tmp_path: Path) -> None:
    program = standin.python(
        """
        import time
        driver = Driver()
        for _ in range(2):
            kernel, begin = driver.kernel("spin_100ms"), time.monotonic()
            driver.launch(kernel)
            driver.cuCtxSynchronize()
            print(0.1 <= time.monotonic() - begin < 0.5)
            driver.cuDevicePrimaryCtxReset(0)
            driver = Driver()
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["True", "True"]

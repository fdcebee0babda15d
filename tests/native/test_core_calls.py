"""Every way to put work on a card: charged, counted, its errors forwarded, and nothing of it touched in a capture."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest

from tests.native.core_world import Tenant, World, uuid_of, world
from tests.native.tools import ROOT
from vcuda.page.usage import read_usage

Run = Callable[..., list[str]]
HEAD = """
from tests.native.standin_driver import *
import os, threading, time
from vcuda.page.usage import read_usage
driver = Driver()
# Until the helper has settled what was launched: it looks when it thinks that work is due, not when we do.
def settled():
    deadline = time.monotonic() + 20
    while any(any(slot.inflight) for slot in read_usage(open(f"{os.environ['VCUDA_ROOT']}/etc/vcuda/usage", "rb").read(), 8).slots):
        assert time.monotonic() < deadline, "launches that nobody settles"
        time.sleep(0.001)
# As driver.code, but with a function pointer of its own: no call through Python's attribute machinery.
def call(name, *arguments, flags=0, version=None):
    return driver.code(name, *arguments, flags=flags, version=version)
"""


@pytest.fixture
def one() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture
def run(one: World) -> Run:
    def start(tenant: Tenant, code: str, **settings: object) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", HEAD + textwrap.dedent(code)],
            env={**one.environment(tenant, **settings), "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=60, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()

    return start


KERNEL = "f, 64, 1, 1, 32, 1, 1, 0"
WAYS = {
    "cuLaunchKernel": f"call('cuLaunchKernel', {KERNEL}, s, None, None)",
    "cuLaunchKernel_ptsz": f"call('cuLaunchKernel', {KERNEL}, s, None, None, flags=2)",
    "cuLaunchKernel on the null stream": f"call('cuLaunchKernel', {KERNEL}, None, None, None)",
    "cuLaunchKernel on the thread's stream": f"call('cuLaunchKernel', {KERNEL}, None, None, None, flags=2)",
    "cuLaunchKernelEx": "call('cuLaunchKernelEx', config, f, None, None)",
    "cuLaunchKernelEx_ptsz": "call('cuLaunchKernelEx', config, f, None, None, flags=2)",
    "cuLaunchCooperativeKernel": "call('cuLaunchCooperativeKernel', f, 8, 1, 1, 32, 1, 1, 0, s, None)",
    "cuLaunchCooperativeKernel_ptsz": "call('cuLaunchCooperativeKernel', f, 8, 1, 1, 32, 1, 1, 0, s, None, flags=2)",
    "cuLaunchCooperativeKernelMultiDevice": "call('cuLaunchCooperativeKernelMultiDevice', params, 1, 0)",
    "cuLaunch": "call('cuLaunch', f)",
    "cuLaunchGrid": "call('cuLaunchGrid', f, 8, 8)",
    "cuLaunchGridAsync": "call('cuLaunchGridAsync', f, 8, 8, s)",
    "cuGraphLaunch": "call('cuGraphLaunch', graph, s)",
    "cuGraphLaunch_ptsz": "call('cuGraphLaunch', graph, s, flags=2)",
}
SETUP = """
f, s = driver.kernel("spin_2ms"), driver.stream()
driver.cuFuncSetBlockShape(f, 32, 1, 1)
config = ctypes.create_string_buffer(64)
ctypes.memmove(config, b"".join(n.to_bytes(4, "little") for n in (64, 1, 1, 32, 1, 1, 0, 0)) + s.value.to_bytes(8, "little"), 40)
params = ctypes.create_string_buffer(64)
ctypes.memmove(params, f.value.to_bytes(8, "little") + b"".join(
    n.to_bytes(4, "little") for n in (64, 1, 1, 32, 1, 1, 0, 0)) + s.value.to_bytes(8, "little"), 48)
g, graph = c_void_p(), c_void_p()
driver.cuStreamBeginCapture(s, 2)
driver.launch(f, s)
driver.cuStreamEndCapture(s, byref(g))
driver.cuGraphInstantiateWithFlags(byref(graph), g, c_uint64(0))
"""


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_launch_is_charged_and_held_to_the_limit(one: World, run: Run, way: str) -> None:
    tenant = one.tenant(20)
    out = run(
        tenant,
        SETUP
        + f"""
begin = time.monotonic()
codes = set()
for _ in range(40):
    codes.add({way})
    driver.cuCtxSynchronize()
print(codes, time.monotonic() - begin > 0.25)
settled()
""",
    )
    assert out == ["{0} True"]
    usage = one.usage(tenant)
    assert usage.launches == 40
    assert usage.busy_ns > 70_000_000
    assert usage.busy_ns - usage.longest_ns < 110_000_000, "but for one in which the machine stood still"


SETS = {
    "cuMemsetD32": "call('cuMemsetD32', p, 0, c_size_t(n // 4))",
    "cuMemsetD8Async": "call('cuMemsetD8Async', p, 0, c_size_t(n), s)",
    "cuMemsetD8Async_ptsz": "call('cuMemsetD8Async', p, 0, c_size_t(n), s, flags=2)",
    "cuMemsetD2D8": "call('cuMemsetD2D8', p, c_size_t(n // 16), 0, c_size_t(n // 16), c_size_t(16))",
    "cuMemcpyDtoD": "call('cuMemcpyDtoD', p, q, c_size_t(n))",
    "cuMemcpyDtoDAsync": "call('cuMemcpyDtoDAsync', p, q, c_size_t(n), s)",
    "cuMemcpy": "call('cuMemcpy', p, q, c_size_t(n))",
    "cuMemcpyAsync": "call('cuMemcpyAsync', p, q, c_size_t(n), s)",
    "cuMemcpyAsync_ptsz": "call('cuMemcpyAsync', p, q, c_size_t(n), s, flags=2)",
}


@pytest.mark.parametrize("way", SETS.values(), ids=SETS)
def test_sets_and_copies_within_the_card_are_charged(one: World, run: Run, way: str) -> None:
    tenant = one.tenant(50)
    out = run(
        tenant,
        f"""
n, s = 1 << 30, driver.stream()
p, q = driver.alloc(n), driver.alloc(n)
codes = set()
for _ in range(5):
    codes.add({way})
    driver.cuCtxSynchronize()
print(codes)
settled()
""",
    )
    assert out == ["{0}"]
    assert one.usage(tenant).busy_ns > 2_500_000  # 0.7 ms each on the stand-in


def test_copies_over_the_bus_are_not_charged(one: World, run: Run) -> None:
    tenant = one.tenant(50)
    run(
        tenant,
        """
n, s = 1 << 26, driver.stream()
p, host = driver.alloc(n), ctypes.create_string_buffer(n)
k = driver.kernel("spin_100us")
for _ in range(10):
    driver.launch(k, s)
    driver.cuMemcpyHtoDAsync(p, host, c_size_t(n), s)
    driver.launch(k, s)
    driver.cuMemcpyDtoHAsync(host, p, c_size_t(n), s)
driver.cuStreamSynchronize(s)
settled()
""",
    )
    usage = one.usage(tenant)
    assert usage.launches == 20
    assert usage.busy_ns < 12_000_000  # 2 ms of kernels, 54 ms of copies


def test_nothing_is_held_back_or_recorded_in_a_capture(one: World, run: Run) -> None:
    tenant = one.tenant(1)
    out = run(
        tenant,
        """
one, two, fork, join = driver.stream(), driver.stream(), driver.event(), driver.event()
k = driver.kernel("spin_50ms")
driver.launch(k, two)  # deep in debt from here on
driver.cuStreamSynchronize(two)
begin = time.monotonic()
for mode in (0, 1, 2):
    driver.cuStreamBeginCapture(one, mode)
    for _ in range(50):
        driver.launch(k, one)
    driver.cuEventRecord(fork, one)
    driver.cuStreamWaitEvent(two, fork, 0)
    for _ in range(50):
        driver.launch(k, two)  # a stream that joined without a word
    driver.cuEventRecord(join, two)
    driver.cuStreamWaitEvent(one, join, 0)
    graph, count = c_void_p(), c_size_t()
    driver.cuStreamEndCapture(one, byref(graph))
    driver.cuGraphGetNodes(graph, None, byref(count))
    print(count.value)
print(time.monotonic() - begin < 1)
settled()
""",
    )
    assert out == ["100", "100", "100", "True"]
    assert one.usage(tenant).launches == 1


def test_a_capture_on_one_thread_survives_measured_work_on_others(one: World, run: Run) -> None:
    tenant = one.tenant(60)
    out = run(
        tenant,
        """
busy, captured, enough, stop = driver.stream(), driver.stream(), threading.Event(), threading.Event()
k = driver.kernel("spin_300us")
def work():
    driver.cuCtxSetCurrent(c_void_p(driver.context))
    launches = 0
    while not stop.is_set():
        driver.launch(k, busy)
        driver.cuStreamSynchronize(busy)
        launches += 1
        if launches == 40: enough.set()
thread = threading.Thread(target=work)
thread.start()
counts, captures, deadline = set(), 0, time.monotonic() + 30
while captures < 40 or not enough.is_set():
    assert time.monotonic() < deadline, "no measured work beside the captures"
    captures += 1
    driver.cuStreamBeginCapture(captured, 1)
    for _ in range(20): driver.launch(k, captured)
    graph, count = c_void_p(), c_size_t()
    driver.cuStreamEndCapture(captured, byref(graph))
    driver.cuGraphGetNodes(graph, None, byref(count))
    counts.add(count.value)
stop.set(); thread.join()
print(counts)
settled()
""",
    )
    assert out == ["{20}"]
    assert one.usage(tenant).launches >= 40


def test_errors_of_launches_are_forwarded_and_cost_nothing(one: World, run: Run) -> None:
    tenant = one.tenant(50)
    out = run(
        tenant,
        """
s, k = driver.stream(), driver.kernel("spin_1ms")
print(call("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, s, None, None), call("cuLaunchKernel", k, 0, 1, 1, 1, 1, 1, 0, s, None, None))
print(call("cuLaunchKernelEx", None, k, None, None), call("cuLaunchCooperativeKernelMultiDevice", None, 1, 0))
for _ in range(200): call("cuLaunchKernel", k, 0, 1, 1, 1, 1, 1, 0, s, None, None)
driver.cuStreamSynchronize(s)
settled()
""",
    )
    assert out == ["400 1", "1 1"]
    usage = one.usage(tenant)
    assert usage.launches == 0
    assert usage.throttle_ns < 100_000_000


def test_streams_and_contexts_may_end_while_their_work_is_measured(one: World, run: Run) -> None:
    tenant = one.tenant(90)
    out = run(
        tenant,
        """
def spell():
    stream, k = driver.stream(), driver.kernel("spin_40us")
    for _ in range(30): driver.launch(k, stream)
    for _ in range(3): driver.launch(k)
    return stream
for _ in range(40): driver.cuStreamDestroy(spell())
for _ in range(10):
    context = c_void_p()
    driver.code("cuCtxCreate", byref(context), 0, 0, version=3020)
    spell()
    driver.cuCtxDestroy(context)
driver.cuCtxSetCurrent(c_void_p(driver.context))
for _ in range(5):
    spell()
    driver.cuDevicePrimaryCtxReset(0)
    driver.context = driver.out(c_void_p, "cuDevicePrimaryCtxRetain", 0)
    driver.cuCtxSetCurrent(c_void_p(driver.context))
spell()
driver.cuCtxSynchronize()
settled()
print("alive")
""",
    )
    assert out == ["alive"]
    usage = one.usage(tenant)
    assert usage.launches == 33 * 56
    assert usage.busy_ns > 0


def test_a_forked_child_is_no_user_of_its_parents_card(one: World, run: Run) -> None:
    tenant = one.tenant(50)
    out = run(
        tenant,
        """
s, k = driver.stream(), driver.kernel("spin_1ms")
for _ in range(20): driver.launch(k, s)
child = os.fork()
if child == 0:
    os._exit(0 if call("cuLaunchKernel", k, 1, 1, 1, 1, 1, 1, 0, s, None, None) in (3, 201, 400) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for _ in range(20): driver.launch(k, s)
driver.cuStreamSynchronize(s)
settled()
""",
    )
    assert out == ["0"]
    assert one.usage(tenant).launches == 40


def test_each_card_has_its_own_limit_whatever_its_number() -> None:
    with world(cards=2) as two:
        tenant = two.tenant(20, cards=(uuid_of(1), uuid_of(0)))
        two.limit(tenant.name, 20, cards=(uuid_of(1), uuid_of(0)))
        code = HEAD + textwrap.dedent("""
        def work(index):
            context = driver.out(c_void_p, "cuDevicePrimaryCtxRetain", index)
            driver.cuCtxSetCurrent(c_void_p(context))
            k, stream = driver.kernel("spin_2ms"), driver.stream()
            begin, count = time.monotonic(), 0
            while time.monotonic() - begin < 1.5:
                driver.launch(k, stream); driver.cuStreamSynchronize(stream); count += 1
            print(index, 0.15 < count * 0.002 / (time.monotonic() - begin) < 0.24, flush=True)
        threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
        [t.start() for t in threads]; [t.join() for t in threads]
        """)
        done = subprocess.run(
            [sys.executable, "-c", code], env={**two.environment(tenant), "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=60, cwd=ROOT,
        )  # fmt: skip
        assert sorted(done.stdout.splitlines()) == ["0 True", "1 True"], done.stderr
        first, second = (two.usage(tenant, card).busy_ns for card in (0, 1))
        assert min(first, second) > 200_000_000


def test_a_handle_that_comes_again_on_another_card_is_charged_there() -> None:
    with world(cards=2) as two:
        tenant = two.tenant(90, cards=(uuid_of(0), uuid_of(1)))
        code = HEAD + textwrap.dedent("""
        contexts, kernels, handles = [], [], (set(), set())
        for index in (0, 1):
            contexts.append(c_void_p(driver.out(c_void_p, "cuDevicePrimaryCtxRetain", index)))
            driver.cuCtxSetCurrent(contexts[index])
            kernels.append(driver.kernel("spin_40us"))
        stays = driver.stream()
        def launches_of_its_own(index):
            driver.cuCtxSetCurrent(contexts[index])
            stream = driver.stream()
            handles[index].add(stream.value)
            driver.launch(kernels[index], stream)
            driver.cuStreamDestroy(stream)
        for turn in range(150):
            launches_of_its_own(turn % 3 % 2)
            driver.cuCtxSetCurrent(contexts[1])
            driver.launch(kernels[1], stays)
        for context in contexts:
            driver.cuCtxSetCurrent(context)
            driver.cuCtxSynchronize()
        settled()
        print(bool(handles[0] & handles[1]))
        """)
        done = subprocess.run(
            [sys.executable, "-c", code], env={**two.environment(tenant), "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=60, cwd=ROOT,
        )  # fmt: skip
        assert done.stdout.splitlines() == ["True"], done.stderr
        assert [two.usage(tenant, card).launches for card in (0, 1)] == [100, 200]


def test_a_hundred_threads_come_and_go(one: World, run: Run) -> None:
    tenant = one.tenant(80)
    out = run(
        tenant,
        """
k = driver.kernel("spin_100us")
def work():
    driver.cuCtxSetCurrent(c_void_p(driver.context))
    stream = driver.stream()
    for _ in range(5):
        driver.launch(k, stream); driver.launch(k); call("cuLaunchKernel", k, 1, 1, 1, 1, 1, 1, 0, None, None, None, flags=2)
    driver.cuStreamSynchronize(stream)
    driver.cuStreamDestroy(stream)
for _ in range(10):
    threads = [threading.Thread(target=work) for _ in range(10)]
    [t.start() for t in threads]; [t.join() for t in threads]
driver.cuCtxSynchronize()
settled()
print("done")
""",
    )
    assert out == ["done"]
    assert one.usage(tenant).launches == 1500


def test_streams_that_end_behind_their_launches_leave_nothing_uncounted_and_nothing_in_flight(
    one: World, run: Run
) -> None:
    """What was not measured by then outlives its stream, for the next stream of the handle or until it is quiet."""
    tenant = one.tenant(90)
    out = run(
        tenant,
        """
k = driver.kernel("spin_10us")
launched = []
def work(seed):
    driver.cuCtxSetCurrent(c_void_p(driver.context))
    kept, count = driver.stream(), 0
    for turn in range(120):
        stream, some = driver.stream(), 1 + (turn * seed) % 4
        for _ in range(some):
            driver.launch(k, stream)
        driver.launch(k, kept)
        count += some + 1
        driver.cuStreamDestroy(stream)
    driver.cuStreamDestroy(kept)
    launched.append(count)
threads = [threading.Thread(target=work, args=(seed,)) for seed in (3, 5, 7, 11)]
[t.start() for t in threads]; [t.join() for t in threads]
driver.cuCtxSynchronize()
settled()
print(sum(launched))
""",
    )
    usage = one.usage(tenant)
    assert out == [str(usage.launches)]
    assert usage.busy_ns > 0


def test_the_helper_sleeps_when_nothing_is_in_flight(one: World, run: Run) -> None:
    tenant = one.tenant(50)
    out = run(
        tenant,
        """
s, k = driver.stream(), driver.kernel("spin_1ms")
driver.launch(k, s)
driver.cuStreamSynchronize(s)
settled()
helpers = [t for t in os.listdir("/proc/self/task") if open(f"/proc/self/task/{t}/comm").read() == "vcuda-meter\\n"]
def switches():
    text = open(f"/proc/self/task/{helpers[0]}/status").read()
    return sum(int(l.split()[1]) for l in text.splitlines() if "ctxt_switches" in l)
for _ in range(10):  # it may still be on its way to sleep
    before = switches()
    time.sleep(0.3)
    woken = switches() - before
    if not woken: break
print(len(helpers), woken)
""",
    )
    assert out == ["1 0"]
    slots = read_usage((one.base / "pages" / tenant.name / "usage").read_bytes(), 1).slots
    assert all(not any(slot.inflight) for slot in slots)

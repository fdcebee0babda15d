"""What a capture of the stand-in prohibits, and what becomes of it when that is called all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native import standin

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
"""What a capture prohibits to others; what a thread lets itself be prohibited."""


@pytest.mark.parametrize(
    ("capture", "thread", "said"),
    [
        (GLOBAL, GLOBAL, "900 901"),
        (GLOBAL, THREAD_LOCAL, "0 0"),
        (GLOBAL, RELAXED, "0 0"),
        (THREAD_LOCAL, GLOBAL, "0 0"),
        (RELAXED, GLOBAL, "0 0"),
    ],
)
@pytest.mark.parametrize(
    "call", ["cuEventQuery", "cuEventSynchronize", "cuStreamQuery", "cuMemAlloc", "cuMemFree"]
)
def test_what_a_capture_prohibits_spoils_it_unless_the_threads_mode_lets_it_pass(
    tmp_path: Path, call: str, capture: int, thread: int, said: str
) -> None:
    program = standin.python(
        """
        import sys, threading
        call, capture, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        driver = Driver()
        stream, other, event, memory, pointer = driver.stream(), driver.stream(), driver.event(), driver.alloc(MIB), c_uint64()
        driver.cuEventRecord(event, other)
        wanted = {
            "cuEventQuery": (event,), "cuEventSynchronize": (event,), "cuStreamQuery": (other,),
            "cuMemAlloc": (byref(pointer), c_size_t(MIB)), "cuMemFree": (memory,),
        }
        def beside():
            driver.cuCtxSetCurrent(c_void_p(driver.context))
            driver.cuThreadExchangeStreamCaptureMode(byref(c_int(mode)))
            print(driver.code(call, *wanted[call]), end=" ")
        driver.cuStreamBeginCapture(stream, capture)
        one = threading.Thread(target=beside)
        one.start()
        one.join()
        graph = c_void_p()
        print(driver.code("cuStreamEndCapture", stream, byref(graph)))
        assert (graph.value is None) == (sys.argv[4] != "0")
        print(driver.code("cuStreamBeginCapture", stream, 2), driver.code("cuStreamEndCapture", stream, byref(graph)))
        """,
        standin.environment(tmp_path),
        call, capture, thread, said.split()[1],
    )  # fmt: skip
    assert standin.said(program) == [said, "0 0"]


@pytest.mark.parametrize(("mode", "said"), [(GLOBAL, "900 901"), (THREAD_LOCAL, "900 901"), (RELAXED, "0 0")])
def test_a_thread_that_captures_may_not_ask_for_events_unless_its_capture_is_relaxed(
    tmp_path: Path, mode: int, said: str
) -> None:
    program = standin.python(
        """
        import sys
        driver = Driver()
        stream, event, graph = driver.stream(), driver.event(), c_void_p()
        driver.cuEventRecord(event, driver.stream())
        driver.cuStreamBeginCapture(stream, int(sys.argv[1]))
        print(driver.code("cuEventQuery", event), driver.code("cuStreamEndCapture", stream, byref(graph)))
        """,
        standin.environment(tmp_path),
        mode,
    )
    assert standin.said(program) == [said]

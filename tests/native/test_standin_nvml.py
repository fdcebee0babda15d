"""The stand-in NVML under pynvml: cards, memory, processes, utilisation, links, events."""

from __future__ import annotations

import os
import select
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.native import standin
from tests.native.driven import OUT, Program, program
from tests.native.export_player import descriptor_of
from tests.native.structures import block_props

ASK = """
    import pynvml as nv
    nv.nvmlInit()
    card = nv.nvmlDeviceGetHandleByIndex(0)
    def code(call, *arguments):
        try:
            return call(*arguments)
        except nv.NVMLError as error:
            return f"error {error.value}"
    """


def ask(env: dict[str, str], code: str) -> list[str]:
    return standin.said(standin.python(ASK + code, env))


def holding(env: dict[str, str], mib: int) -> subprocess.Popen[str]:
    """A process that holds so much, and its context of 64 MiB."""
    process = standin.client(env, "alloc-to-limit", "--step", mib, "--most", mib, "--hold", "100")
    standin.line(process)
    standin.line(process)
    return process


def test_a_card_is_the_same_by_index_uuid_and_bus_address_and_in_cuda(tmp_path: Path) -> None:
    env = standin.environment(tmp_path, cards=3)
    assert ask(
        env,
        """
    one = nv.nvmlDeviceGetHandleByIndex(1)
    uuid, bus = nv.nvmlDeviceGetUUID(one), nv.nvmlDeviceGetPciInfo(one).busId
    print(nv.nvmlDeviceGetCount(), nv.nvmlDeviceGetName(one), bus, nv.nvmlDeviceGetMinorNumber(one))
    print([nv.nvmlDeviceGetIndex(found) for found in (nv.nvmlDeviceGetHandleByUUID(uuid), nv.nvmlDeviceGetHandleByPciBusId(bus))])
    print(code(nv.nvmlDeviceGetHandleByIndex, 3), code(nv.nvmlDeviceGetHandleByUUID, "GPU-0"))
    driver = Driver(context=False); driver.cuInit(0)
    raw = ctypes.create_string_buffer(16); driver.cuDeviceGetUuid(raw, 1)
    print(raw.raw.hex() == uuid[4:].replace("-", ""), nv.nvmlSystemGetDriverVersion(), nv.nvmlSystemGetCudaDriverVersion())
    """,
    ) == [
        "3 Stand-in 16GB 00000000:29:00.0 1",
        "[1, 1]",
        "error 2 error 6",
        "True 580.65.06 13000",
    ]


def test_nothing_works_before_init_and_after_the_last_shutdown(tmp_path: Path) -> None:
    assert ask(
        standin.environment(tmp_path),
        """
    nv.nvmlInit(); nv.nvmlShutdown(); print(code(nv.nvmlDeviceGetCount))
    nv.nvmlShutdown(); print(code(nv.nvmlDeviceGetCount))
    """,
    ) == ["1", "error 1"]


def test_memory_and_processes_show_who_holds_what(tmp_path: Path) -> None:
    env = standin.environment(tmp_path)
    holders = [holding(env, mib) for mib in (512, 1024)]
    lines = ask(
        env,
        """
    memory, second = nv.nvmlDeviceGetMemoryInfo(card), nv.nvmlDeviceGetMemoryInfo(card, nv.nvmlMemory_v2)
    print(memory.total // MIB, memory.used // MIB, memory.free // MIB, second.used == memory.used)
    for version in ("_v2", "_v3", ""):
        found = getattr(nv, "nvmlDeviceGetComputeRunningProcesses" + version)(card)
        print(sorted((process.pid, process.usedGpuMemory // MIB) for process in found))
    print(nv.nvmlDeviceGetGraphicsRunningProcesses(card))
    count = c_uint(1); room = (ctypes.c_byte * 256)()
    library = ctypes.CDLL("libnvidia-ml.so.1")
    print(library.nvmlDeviceGetComputeRunningProcesses_v3(card, byref(count), room), count.value)
    count = c_uint(8)
    print(library.nvmlDeviceGetComputeRunningProcesses(card, byref(count), room), count.value)
    print(sorted(c_uint.from_buffer(room, at).value for at in (0, 16)))  # 16 bytes each in the first layout
    """,
    )
    shown = str(sorted((holder.pid, mib + 64) for holder, mib in zip(holders, (512, 1024), strict=True)))
    assert lines[:6] == ["16384 1664 14720 True", shown, shown, shown, "[]", "7 2"]
    assert lines[6:] == ["0 2", str(sorted(holder.pid for holder in holders))]
    for holder in holders:
        standin.end(holder)
    assert ask(
        env, "print(nv.nvmlDeviceGetMemoryInfo(card).used, nv.nvmlDeviceGetComputeRunningProcesses(card))"
    ) == ["0 []"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace of its own needs root")
def test_the_host_sees_host_pids_and_a_container_sees_none(tmp_path: Path) -> None:
    env = standin.environment(tmp_path)
    inside = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", str(standin.built() / "vcuda-client"), "alloc-to-limit",
         "--most", "64", "--hold", "60"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    first = inside.stdout.readline() if inside.stdout else ""
    if not first:
        pytest.skip(f"no PID namespace can be made here: {inside.communicate()[1].strip()}")
    standin.line(inside)
    look = "print([process.pid for process in nv.nvmlDeviceGetComputeRunningProcesses(card)])"
    child = Path(f"/proc/{inside.pid}/task/{inside.pid}/children").read_text().split()
    outside = holding(env, 128)
    assert ask(env, look) == [str(sorted([int(child[0]), outside.pid]))]
    code = "from tests.native.standin_driver import *\nimport pynvml as nv\nnv.nvmlInit()\n"
    code += "card = nv.nvmlDeviceGetHandleByIndex(0)\n" + look
    done = subprocess.run(
        ["unshare", "--pid", "--fork", standin.sys.executable, "-c", code], env=env, cwd=standin.ROOT,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"
    standin.end(inside)
    standin.end(outside)


def test_what_a_killed_process_held_is_listed_under_its_id_until_its_child_is_gone(tmp_path: Path) -> None:
    """Seen so on an H100 (driver 580): the child is not listed, and the card is as full as before."""
    env = standin.environment(tmp_path)
    code = """
    import os, sys, time
    driver = Driver()
    driver.out(c_uint64, "cuMemAlloc", 256 * MIB)
    child = os.fork()
    print(child or os.getpid(), flush=True)
    sys.stdin.read()
    """
    parent = subprocess.Popen(
        [standin.sys.executable, "-c", "from tests.native.standin_driver import *\n" + textwrap.dedent(code)],
        env=env, cwd=standin.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout
    assert parent.stdin
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.stdout.readline()
    look = "print([(p.pid, p.usedGpuMemory // MIB) for p in nv.nvmlDeviceGetComputeRunningProcesses(card)])"
    look += "; print(nv.nvmlDeviceGetMemoryInfo(card).used // MIB)"
    parent.kill()
    parent.wait()
    assert ask(env, look) == [f"[({parent.pid}, 320)]", "320"]
    parent.stdin.close()
    select.select([child], [], [])
    os.close(child)
    parent.stdout.close()
    assert ask(env, look) == ["[]", "0"]


def test_what_two_processes_hold_is_listed_for_both_and_after_its_makers_release_for_the_other(
    tmp_path: Path,
) -> None:
    """Seen so on an H100 (driver 580) of a block by its descriptor; the card has it once."""
    env = standin.environment(tmp_path)
    look = "print(sorted((p.pid, p.usedGpuMemory // MIB) for p in nv.nvmlDeviceGetComputeRunningProcesses(card)))"
    look += "; print(nv.nvmlDeviceGetMemoryInfo(card).used // MIB)"
    maker, holder = (Program(program("prog_call"), env).start() for _ in range(2))

    def listed(by_maker: int, by_holder: int, used: int) -> None:
        each = sorted([(maker.process.pid, by_maker), (holder.process.pid, by_holder)])
        assert ask(env, look) == [str(each), str(used)]

    made = maker("cuMemCreate", OUT, 256 << 20, block_props(), 0).value
    descriptor = maker("cuMemExportToShareableHandle", OUT, made, 1, 0).value & 0xFFFFFFFF
    copy = descriptor_of(maker.process.pid, descriptor)
    assert maker("close", descriptor).result == 0
    process = holder("pidfd_open", os.getpid(), 0).result
    own = holder("pidfd_getfd", process, copy, 0).result
    os.close(copy)
    listed(320, 64, 384)
    imported = holder("cuMemImportFromShareableHandle", OUT, own, 1).value
    assert holder("close", own).result == 0
    listed(320, 320, 384)
    assert maker("cuMemRelease", made).result == 0
    listed(64, 320, 384)
    assert holder("cuMemRelease", imported).result == 0
    maker("cuMemGetInfo_v2", OUT, OUT)  # the model's maker sees it when it calls
    listed(64, 64, 128)
    maker.kill()
    holder.kill()


@pytest.mark.timed
def test_utilisation_of_card_and_process_is_the_share_of_the_last_period(tmp_path: Path) -> None:
    env = standin.environment(tmp_path)
    spinner = standin.client(
        env, "spin", "--us", "30000", "--seconds", "60", "--mode", "stream", "--windows", "1"
    )
    standin.line(spinner)
    standin.line(spinner)
    lines = ask(
        env,
        """
    import time
    rates = nv.nvmlDeviceGetUtilizationRates(card)
    samples = nv.nvmlDeviceGetProcessUtilization(card, 0)
    print(samples[0].pid, min(rates.gpu, samples[0].smUtil) >= 80, abs(samples[0].timeStamp - time.time() * 1e6) < 2_000_000)
    kind, values = nv.nvmlDeviceGetSamples(card, nv.NVML_GPU_UTILIZATION_SAMPLES, 0)
    print(len(values) > 10, max(value.sampleValue.uiVal for value in values) <= 100)
    print(nv.nvmlDeviceGetPowerUsage(card) > 35_000, nv.nvmlDeviceGetTemperature(card, 0) > 60)
    print(code(nv.nvmlDeviceGetProcessUtilization, card, int((time.time() + 10) * 1e6)))
    """,
    )
    standin.end(spinner)
    assert lines == [f"{spinner.pid} True True", "True True", "True True", "error 6"]


def test_links_follow_the_matrix_that_the_machine_is_given(tmp_path: Path) -> None:
    rows = {
        "card_0_links": "X NV4 PIX SYS",
        "card_1_links": "NV4 X PHB NODE",
        "card_2_links": "PIX PHB X PXB",
    }
    env = standin.environment(tmp_path, cards=4, link="SYS", **rows)
    assert ask(
        env,
        """
    cards = [nv.nvmlDeviceGetHandleByIndex(at) for at in range(4)]
    print([nv.nvmlDeviceGetTopologyCommonAncestor(cards[0], other) for other in cards[1:]])
    print([nv.nvmlDeviceGetTopologyCommonAncestor(cards[2], other) for other in cards[3:]])
    print([nv.nvmlDeviceGetNvLinkState(card, link) for link in (0, 3, 4)], code(nv.nvmlDeviceGetNvLinkState, cards[2], 0))
    print(nv.nvmlDeviceGetNvLinkRemotePciInfo(card, 2).busId)
    """,
    ) == ["[40, 10, 50]", "[20]", "[1, 1, 0] error 3", "00000000:29:00.0"]
    switched = standin.environment(tmp_path, cards=4, model="h200")
    assert ask(switched, "print(nv.nvmlDeviceGetNvLinkRemoteDeviceType(card, 17), code(nv.nvmlDeviceGetNvLinkState, card, 18))") == [
        "2 error 2"
    ]  # fmt: skip


def test_events_reach_the_sets_that_wait_for_their_type(tmp_path: Path) -> None:
    env = standin.environment(tmp_path)
    waiting = standin.python(
        ASK
        + """
    events = nv.nvmlEventSetCreate()
    nv.nvmlDeviceRegisterEvents(card, nv.nvmlEventTypeXidCriticalError, events)
    print(nv.nvmlDeviceGetUUID(card), code(nv.nvmlEventSetWait_v2, events, 1), flush=True)
    seen = nv.nvmlEventSetWait_v2(events, 20000)
    print(seen.eventType, seen.eventData)
    """,
        env,
    )
    uuid, *late = standin.line(waiting).split()
    assert late == ["error", "10"]
    (tmp_path / f"event-{uuid}").write_text("2 1\n8 79\n")
    assert standin.said(waiting) == ["8 79"]


def test_a_card_that_falls_off_the_bus_says_so_and_the_others_stay(tmp_path: Path) -> None:
    env = standin.environment(tmp_path, cards=2, lost=0)
    code = """
        import pynvml as nv
        nv.nvmlInit()
        for index in (0, 1):
            try: print(nv.nvmlDeviceGetName(nv.nvmlDeviceGetHandleByIndex(index)))
            except nv.NVMLError as error: print(error.value)
        """
    assert standin.said(standin.python(code, env)) == ["15", "Stand-in 16GB"]


@pytest.mark.parametrize(("version", "answers"), [("13.0", "error 13"), ("13.5", "None")])
def test_memory_limits_by_cgroup_exist_from_the_driver_that_brought_them(
    tmp_path: Path, version: str, answers: str
) -> None:
    lines = ask(
        standin.environment(tmp_path, version),
        """
    import os
    class Limits(ctypes.Structure): _fields_ = [("name", c_char_p), ("soft", c_uint64), ("hard", c_uint64), ("used", c_uint64)]
    library = ctypes.CDLL("libnvidia-ml.so.1")
    if not hasattr(library, "nvmlDeviceSetMemoryLimits_v1"): print("error 13")
    else:
        limits = Limits(os.getcwd().encode(), 0, 1 << 30)
        result = library.nvmlDeviceSetMemoryLimits_v1(card, byref(limits))
        print(None if result == 0 or (os.geteuid() != 0 and result == 4) else result)
    """,
    )
    assert lines == [answers]


def test_nvml_calls_can_be_made_to_fail_and_unmodelled_ones_are_not_supported(tmp_path: Path) -> None:
    env = standin.environment(tmp_path, fail="nvmlDeviceGetMemoryInfo=999,nvmlDeviceGetName=6@2")
    assert ask(
        env,
        """
    print(code(nv.nvmlDeviceGetMemoryInfo, card), nv.nvmlDeviceGetName(card), code(nv.nvmlDeviceGetName, card))
    print(code(nv.nvmlDeviceGetFanSpeed, card), nv.nvmlDeviceGetMigMode(card), nv.nvmlDeviceGetRemappedRows(card))
    print(nv.NVMLError(15), nv.nvmlDeviceGetEccMode(card))
    """,
    ) == ["error 999 Stand-in 16GB error 6", "error 3 [0, 0] (0, 0, 0, 0)", "GPU is lost [1, 1]"]


def test_the_client_prints_cards_and_processes(tmp_path: Path) -> None:
    env = standin.environment(tmp_path, cards=2)
    holder = holding(env, 256)
    lines = standin.said(standin.client(env, "info"))
    standin.end(holder)
    assert lines[0] == "| driver 580.65.06, 2 cards"
    assert "Stand-in 16GB" in lines[1]
    assert "320MiB /  16384MiB" in lines[1]
    assert f"|       process {holder.pid} uses 320MiB" in lines
    assert lines[-1] == "| CUDA 13.0  free 16000MiB of 16384MiB"

"""The stand-in libcuda: names, resolver, memory, several processes, injected failures."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native import standin
from tests.native.tools import LIB, run

GEN = LIB / "gen"


def exported(library: Path) -> set[str]:
    return {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}


@pytest.mark.parametrize("version", standin.VERSIONS)
@pytest.mark.parametrize(("kind", "soname"), [("cuda", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")])
def test_each_version_exports_exactly_the_names_of_that_driver(version: str, kind: str, soname: str) -> None:
    listed = set((GEN / f"{kind}-{version}.txt").read_text().split())
    assert exported(standin.built() / version / soname) == listed


@pytest.mark.parametrize("version", standin.VERSIONS)
def test_the_resolver_hands_out_the_exported_variant_for_name_version_and_stream_mode(
    version: str, tmp_path: Path
) -> None:
    program = standin.python(
        """
        import sys
        driver = Driver(context=False)
        for row in open(sys.argv[1]):
            name, number, mode, symbol = row.split()
            flags = 0 if mode == "-" else 2
            found, status, result = driver.address(name, int(number), flags)
            own = ctypes.cast(getattr(driver.library, symbol), c_void_p).value
            assert (found, status, result) == (own, 0, 0), row
        print(driver.version, driver.address("", 0), driver.address("cuNoSuchName"))
        print(driver.address("cuMemAllocAsync", 11010), driver.address("cuInit", driver.version + 10)[2])
        """,
        standin.environment(tmp_path, version),
        GEN / f"variants-{version}.txt",
    )
    major, minor = version.split(".")
    assert standin.said(program) == [
        f"{int(major) * 1000 + int(minor) * 10} (None, 1, 0) (None, 1, 0)",
        "(None, 2, 0) 1",
    ]


def test_names_without_a_model_say_not_supported_and_nothing_works_before_init(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver(context=False)
        print(driver.code("cuMemAlloc", None, 0), driver.code("cuMulticastCreate"), driver.code("cuInit", 0))
        print(driver.code("cuMulticastCreate"), driver.code("cuMemGetInfo", None, None), driver.code("cuCtxSynchronize"))
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["3 3 0", "801 201 201"]


def test_every_way_to_take_memory_shows_in_what_is_left_and_comes_back(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver()
        start = driver.free()
        def taken(): return (start - driver.free()) // MIB
        small, big = driver.alloc(4096), driver.alloc(3 * MIB)
        second = driver.alloc(4096)  # the same block as the first
        print("linear", taken())
        for pointer in (small, big, second): driver.cuMemFree(pointer)
        pitched, row = c_uint64(), c_size_t()
        driver.cuMemAllocPitch(byref(pitched), byref(row), c_size_t(1000), c_size_t(4096), 4)
        print("pitch", row.value, taken()); driver.cuMemFree(pitched)
        # a pool grows by 32 MiB, and keeps freed memory until the next synchronisation
        pointer = c_uint64(); driver.cuMemAllocAsync(byref(pointer), c_size_t(33 * MIB), None)
        driver.cuMemFreeAsync(pointer, None); held = taken(); driver.cuStreamSynchronize(None)
        print("async", held, taken())
        # a physical block lives while it has a handle or a mapping
        class Prop(ctypes.Structure):
            _fields_ = [("type", c_int), ("handles", c_int), ("where", c_int), ("id", c_int), ("w", c_void_p), ("f", c_uint64)]
        handle, at, prop = c_uint64(), c_uint64(), Prop(1, 1, 1, 0)
        driver.cuMemCreate(byref(handle), c_size_t(4 * MIB), byref(prop), c_uint64(0))
        driver.cuMemAddressReserve(byref(at), c_size_t(4 * MIB), c_size_t(0), c_uint64(0), c_uint64(0))
        driver.cuMemMap(at, c_size_t(4 * MIB), c_size_t(0), handle, c_uint64(0))
        driver.cuMemRelease(handle); mapped = taken(); driver.cuMemUnmap(at, c_size_t(4 * MIB))
        print("vmm", mapped, taken())
        class Shape(ctypes.Structure):
            _fields_ = [("w", c_size_t), ("h", c_size_t), ("d", c_size_t), ("format", c_int), ("channels", c_uint), ("flags", c_uint)]
        array, levels = c_void_p(), c_void_p()
        driver.cuArray3DCreate(byref(array), byref(Shape(1024, 1024, 0, 0x20, 4, 0))); alone = taken()
        driver.cuMipmappedArrayCreate(byref(levels), byref(Shape(1024, 1024, 0, 0x20, 4, 0)), 11)
        print("arrays", alone, taken()); driver.cuArrayDestroy(array); driver.cuMipmappedArrayDestroy(levels)
        driver.kernel("anything"); print("module", taken())
        driver.cuDevicePrimaryCtxReset(0)
        print("total", Driver().free() == start)
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == [
        "linear 6", "pitch 1024 4", "async 64 0", "vmm 4 0", "arrays 16 38", "module 2", "total True",
    ]  # fmt: skip


def test_streams_wait_for_words_that_the_host_or_another_stream_writes(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver()
        at, one, other = driver.alloc(4096), driver.stream(), driver.stream()
        found, done = c_uint64(), driver.event()
        driver.cuMemsetD32(at, 0, 1024)
        for wide, value in ((32, c_uint(7)), (64, c_uint64(1 << 40))):
            getattr(driver, f"cuStreamWaitValue{wide}")(one, at, value, c_uint(1))
            driver.launch(driver.kernel("k"), one)
            driver.cuEventRecord(done, one)
            waits = driver.code("cuEventQuery", done)
            getattr(driver, f"cuStreamWriteValue{wide}")(other, at, value, c_uint(0))
            driver.cuStreamSynchronize(one)
            print(waits, driver.code("cuEventQuery", done))
        driver.cuStreamWaitValue32(one, at, c_uint(0x80), c_uint(2))
        waits = driver.code("cuStreamQuery", one)
        ctypes.c_uint32.from_address(at.value).value = 0x81
        driver.cuStreamSynchronize(one)
        print(waits)
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["600 0", "600 0", "600"]


def test_all_streams_of_a_context_wait_for_an_event(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver()
        at, held, streams, event = driver.alloc(4096), driver.stream(), [driver.stream() for _ in range(3)], driver.event()
        driver.cuMemsetD32(at, 0, 1024)
        driver.cuStreamWaitValue32(held, at, c_uint(1), c_uint(1))
        driver.cuEventRecord(event, held)
        driver.cuCtxWaitEvent(c_void_p(driver.context), event)
        print([driver.code("cuStreamQuery", stream) for stream in streams])
        ctypes.c_uint32.from_address(at.value).value = 1
        driver.cuCtxSynchronize()
        print([driver.code("cuStreamQuery", stream) for stream in streams])
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["[600, 600, 600]", "[0, 0, 0]"]


def test_contents_survive_copies_and_sets(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver()
        a, b = driver.alloc(4 * MIB), driver.alloc(4 * MIB)
        driver.cuMemsetD32(a, c_uint(0x01020304), c_size_t(MIB))
        driver.cuMemcpyDtoD(b, a, c_size_t(4 * MIB))
        back = ctypes.create_string_buffer(8)
        driver.cuMemcpyDtoH(back, c_uint64(b.value + 4 * MIB - 8), c_size_t(8))
        print(back.raw.hex(), driver.code("cuMemsetD8", c_uint64(a.value + 1), 0, c_size_t(4 * MIB)))
        print(driver.code("cuMemFree", c_uint64(a.value + 512)), driver.code("cuMemFree", c_uint64(0)))
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["0403020104030201 1", "1 0"]


def test_processes_share_one_card_and_the_killed_give_back_what_they_held(tmp_path: Path) -> None:
    env = standin.environment(tmp_path)
    holder = standin.client(env, "alloc-to-limit", "--step", "512", "--most", "8192", "--hold", "100")
    standin.line(holder)
    assert standin.line(holder).startswith("held_mib 8192 error 0")
    second = standin.said(standin.client(env, "alloc-to-limit", "--step", "64"))
    standin.end(holder)
    third = standin.said(standin.client(env, "alloc-to-limit", "--step", "64"))
    # 16384 MiB in all, 64 for each context
    assert second[-1].startswith("held_mib 8064 error 2")
    assert third[-1].startswith("held_mib 16320 error 2")


def test_a_process_killed_while_it_holds_the_lock_does_not_stop_the_others(tmp_path: Path) -> None:
    env = standin.environment(tmp_path)
    flood = """
        driver = Driver()
        print("ready", flush=True)
        while True:
            driver.cuMemFree(driver.alloc(2 * MIB))
        """
    for _ in range(10):
        workers = [standin.python(flood, env) for _ in range(3)]
        for worker in workers:
            standin.line(worker)
        for worker in workers:
            standin.end(worker)
    last = standin.said(standin.client(env, "alloc-to-limit", "--step", "64"))
    assert last[-1].startswith("held_mib 16320 error 2")


@pytest.mark.parametrize("size", ["4096", "3 * MIB"])
def test_memory_of_one_process_opens_in_another_without_being_charged_twice(
    tmp_path: Path, size: str
) -> None:
    env = standin.environment(tmp_path)
    owner = standin.python(
        f"""
        driver = Driver()
        pointer, handle = driver.alloc({size}), ctypes.create_string_buffer(64)
        driver.cuMemsetD8(pointer, 0x5A, c_size_t({size}))
        driver.cuIpcGetMemHandle(handle, pointer)
        print(handle.raw.hex(), flush=True)
        input()
        back = ctypes.create_string_buffer(2)
        driver.cuMemcpyDtoH(back, pointer, c_size_t(2))
        print(back.raw.hex())
        """,
        env,
    )
    guest = standin.python(
        """
        import sys
        driver = Driver()
        class Handle(ctypes.Structure): _fields_ = [("raw", ctypes.c_char * 64)]
        before, pointer = driver.free(), c_uint64()
        function = ctypes.CFUNCTYPE(c_int, c_void_p, Handle, c_uint)(driver.address("cuIpcOpenMemHandle")[0])
        print(function(ctypes.addressof(pointer), Handle.from_buffer_copy(bytes.fromhex(sys.argv[1])), 1))
        back = ctypes.create_string_buffer(2)
        driver.cuMemcpyDtoH(back, pointer, c_size_t(2))
        driver.cuMemsetD8(pointer, 0x77, c_size_t(2))
        print(back.raw.hex(), before - driver.free(), driver.code("cuIpcCloseMemHandle", pointer))
        """,
        env,
        standin.line(owner),
    )
    assert standin.said(guest) == ["0", "5a5a 0 0"]
    assert owner.communicate("\n", timeout=30)[0] == "7777\n"


def test_any_call_can_be_made_to_fail_always_or_once(tmp_path: Path) -> None:
    program = standin.python(
        """
        driver = Driver()
        pointer = c_uint64()
        print([driver.code("cuMemAlloc", byref(pointer), c_size_t(4096)) for _ in range(3)])
        print(driver.code("cuCtxSynchronize"), driver.code("cuCtxSynchronize"))
        """,
        standin.environment(tmp_path, fail="cuMemAlloc_v2=2@2,cuCtxSynchronize=719"),
    )
    assert standin.said(program) == ["[0, 2, 0]", "719 719"]


def test_cards_follow_cuda_visible_devices(tmp_path: Path) -> None:
    env = standin.environment(tmp_path, cards=4, card_2_model="t4")
    look = """
        driver = Driver(context=False); driver.cuInit(0)
        def name(at):
            text = ctypes.create_string_buffer(64); driver.cuDeviceGetName(text, 64, at); return text.value.decode()
        def bus(at):
            text = ctypes.create_string_buffer(64); driver.cuDeviceGetPCIBusId(text, 64, at); return text.value.decode()
        print([(name(at), bus(at)) for at in range(driver.out(c_int, "cuDeviceGetCount"))])
        """
    chosen = standin.said(standin.python(look, {**env, "CUDA_VISIBLE_DEVICES": "2,0,9,1"}))
    assert chosen == ["[('Tesla T4', '0000:3A:00.0'), ('Stand-in 16GB', '0000:18:00.0')]"]
    nothing = standin.python(
        "print(Driver(context=False).code('cuInit', 0))", {**env, "CUDA_VISIBLE_DEVICES": ""}
    )
    assert standin.said(nothing) == ["100"]


def test_a_machine_is_described_by_a_file_beside_the_library_or_one_that_is_named(tmp_path: Path) -> None:
    beside = tmp_path / "driver"
    beside.mkdir()
    shutil.copy(standin.built() / "13.0" / "libcuda.so.1", beside)
    (beside / "standin.conf").write_text(
        f"# two cards\ncards = 2\nstate = {tmp_path}\ncard.1.memory_mib = 4096 # less\n"
    )
    (tmp_path / "other.conf").write_text(f"cards=1\nstate={tmp_path}\nmodel=t4\n")
    look = """
        driver = Driver(context=False); driver.cuInit(0)
        print([driver.out(c_size_t, "cuDeviceTotalMem", at) // MIB for at in range(driver.out(c_int, "cuDeviceGetCount"))])
        """
    env = {"LD_LIBRARY_PATH": str(beside)}
    assert standin.said(standin.python(look, env)) == ["[143771, 4096]"]
    named = {**env, "VCUDA_STANDIN_CONFIG": str(tmp_path / "other.conf")}
    assert standin.said(standin.python(look, named)) == ["[15360]"]


def test_a_child_of_fork_cannot_use_what_its_parent_began(tmp_path: Path) -> None:
    program = standin.python(
        """
        import os
        driver = Driver()
        child = os.fork()
        if child == 0:
            os._exit(driver.code("cuInit", 0) * 10 + driver.code("cuCtxSynchronize"))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), driver.code("cuCtxSynchronize"))
        """,
        standin.environment(tmp_path),
    )
    assert standin.said(program) == ["33 0"]


def test_a_driver_that_looks_itself_up_while_it_starts_does_start(tmp_path: Path) -> None:
    program = standin.python("print(Driver().free() > 0)", standin.environment(tmp_path, callback=1))
    assert standin.said(program) == ["True"]


def test_the_client_says_what_is_missing_when_there_is_no_driver(tmp_path: Path) -> None:
    env = {**standin.environment(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}
    done = standin.client(env, "info")
    _, err = done.communicate(timeout=30)
    assert done.returncode == 1
    assert err.startswith("no NVML: ")


def test_the_drivers_pass_under_sanitizers(tmp_path: Path) -> None:
    directory = standin.built("address,undefined")
    env = {
        **standin.environment(tmp_path), "LD_LIBRARY_PATH": str(directory / "13.0"),
        "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1",
    }  # fmt: skip
    for way in ("alloc", "pitch", "async", "vmm", "array", "managed"):
        run_client(directory, env, "alloc-to-limit", "--way", way, "--step", "512")
    for mode in ("sync", "stream", "graph"):
        run_client(directory, env, "spin", "--us", "500", "--seconds", "0.3", "--mode", mode)
    assert "Stand-in 16GB" in run_client(directory, env, "info")


def run_client(directory: Path, env: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [directory / "vcuda-client", *arguments], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

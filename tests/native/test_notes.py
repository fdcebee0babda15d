"""What the library writes into its page for the node's administrator, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.native.conftest import Guest, usage_of
from tests.native.driven import CONTEXT, MIB, OUT, OUT_OF_MEMORY, Container, Program, program
from tests.native.fake_driver import install, python
from tests.native.structures import block_props
from tests.native.tools import run, tool
from vcuda.page.limits import LIMITS_SIZE
from vcuda.page.usage import MAX_NOTES, FrameworkCode, NoteCode

Start = Callable[..., Guest]
LIMIT = 256 * MIB
LOADED = [
    ("site-packages/torch/lib/libtorch_cuda.so", FrameworkCode.PYTORCH),
    ("site-packages/vllm/_C.abi3.so", FrameworkCode.VLLM),
    ("site-packages/sgl_kernel/common_ops.so", FrameworkCode.SGLANG),
    ("site-packages/jaxlib/xla_extension.so", FrameworkCode.JAX),
    ("site-packages/tensorflow/libtensorflow_framework.so.2", FrameworkCode.TENSORFLOW),
    ("capi/libonnxruntime_providers_cuda.so", FrameworkCode.ONNXRUNTIME),
    ("lib/libnvinfer.so.10", FrameworkCode.TENSORRT),
    ("lib/libggml-cuda.so", FrameworkCode.GGML),
    ("site-packages/cupy/_core/core.so", FrameworkCode.CUPY),
]
NOT_READY = 802


def test_a_refused_allocation_is_noted_with_what_was_asked_and_what_was_there(container: Container) -> None:
    guest = container.program().start()
    assert container.usage.notes == ()
    assert guest("cuMemAlloc_v2", OUT, 200 * MIB).result == OUT_OF_MEMORY
    (note,) = container.usage.notes
    assert (note.code, note.pid, note.card) == (NoteCode.MEMORY_REFUSED, guest.process.pid, 0)
    assert (note.bytes, note.used, note.limit) == (200 * MIB, CONTEXT, 256 * MIB)
    assert (note.pooled, note.framework) == (0, 0)


def test_a_refusal_says_what_the_pools_of_the_process_hold(container: Container) -> None:
    guest = container.program().start()
    assert guest("cuMemAllocAsync", OUT, 96 * MIB, 0).result == 0
    assert guest("cuMemAlloc_v2", OUT, 200 * MIB).result == OUT_OF_MEMORY
    (note,) = container.usage.notes
    assert (note.bytes, note.used, note.pooled) == (200 * MIB, CONTEXT + 96 * MIB, 96 * MIB)


def test_a_refusal_says_what_framework_the_process_has_loaded(tmp_path: Path) -> None:
    with Container(tmp_path, LIMIT) as container:
        for path, framework in LOADED:
            library = tmp_path / path
            library.parent.mkdir(parents=True, exist_ok=True)
            run(tool("cc"), "-shared", "-x", "c", "/dev/null", "-o", library)
            guest = Program(program("prog_call"), container.env() | {"LD_PRELOAD": str(library)}).start()
            assert guest("cuMemAlloc_v2", OUT, 200 * MIB).result == OUT_OF_MEMORY
            guest.end()
            assert container.usage.notes[-1].framework == framework


def test_a_program_that_asks_for_too_much_in_a_loop_notes_it_once_a_second(container: Container) -> None:
    guest = container.program().start()
    guest.tell(f".threads 4 500 cuMemCreate & {1 << 40} x{block_props().hex()} 0")
    assert container.usage.cards[0].refusals == 2000
    assert 1 <= len(container.usage.notes) <= 5


def test_cuda_refused_for_want_of_a_whole_limits_page_is_noted_in_the_other_page(
    container: Container,
) -> None:
    (container.root / "etc/vcuda/limits").write_bytes(bytes(LIMITS_SIZE))
    guest = container.program()
    assert guest("cuInit", 0).result == NOT_READY
    (note,) = container.usage.notes
    assert (note.code, note.card, note.text) == (
        NoteCode.CUDA_REFUSED, None, "limits is no limits page",
    )  # fmt: skip
    assert container.usage.slots == ()


def test_a_driver_that_cannot_be_opened_is_noted(tmp_path: Path) -> None:
    with Container(tmp_path, 256 * MIB) as container:
        (container.root / "usr/local/vcuda/real/libcuda.so.1").write_bytes(b"\x7fELF nonsense")
        guest = container.program()
        assert guest("cuInit", 0).result == NOT_READY
        (note,) = container.usage.notes
        assert note.text == "driver libcuda.so.1 cannot be opened"


def test_a_function_that_was_unknown_before_cuinit_is_named_once_the_page_is_there(
    native: Path, root: Path, fakes: dict[tuple[str, str], Path]
) -> None:
    """As the CUDA runtime does it: it looks all names up first."""
    install(root, fakes["cuda", "13.5"])
    script = """
pfn, status = ctypes.c_void_p(), ctypes.c_int()
for _ in range(2):
    interposer.cuGetProcAddress_v2(b"cuFromTheFuture", ctypes.byref(pfn), 14000, ctypes.c_uint64(0), ctypes.byref(status))
print(interposer.cuInit(0))
"""
    done = python(native / "sandbox/libcuda.so.1", root, script)
    assert (done.stdout, done.stderr) == ("0\n", "")
    usage = usage_of(root)
    assert usage.unknown_symbols == 2
    assert usage.unknown_name == "cuFromTheFuture"
    (note,) = usage.notes
    assert (note.code, note.text) == (NoteCode.UNKNOWN_FUNCTION, "cuFromTheFuture")


def test_limits_that_turn_invalid_are_noted_by_who_runs_on_with_the_last_ones(
    guests: Start, root: Path
) -> None:
    guest = guests()
    guest("attach")
    with (root / "etc/vcuda/limits").open("r+b") as file:
        file.write(b"\xee" * LIMITS_SIZE)
    while not usage_of(root).notes:
        assert guest("limits") == "2 4096 7680 0 0 1"
    assert usage_of(root).notes[0].code == NoteCode.LIMITS_LOST


def test_the_ring_keeps_the_newest(guests: Start, root: Path) -> None:
    guest = guests()
    guest("attach")
    assert guest("notes 1000") == "1000"
    notes = usage_of(root).notes
    assert [note.number for note in notes] == list(range(1000 - MAX_NOTES + 1, 1001))
    assert [(note.bytes, note.used, note.text) for note in notes] == [
        (n.number, n.number * 2, f"note {n.number}") for n in notes
    ]


def test_processes_that_note_without_a_pause_stop_no_reader(guests: Start, root: Path) -> None:
    writers = [guests() for _ in range(3)]
    for writer in writers:
        writer("attach")
        assert writer.process.stdin
        writer.process.stdin.write("notes 50000\n")
        writer.process.stdin.flush()
    for _ in range(100):
        notes = usage_of(root).notes
        assert len(notes) <= MAX_NOTES
        assert all(note.text == "" or note.text.startswith("note ") for note in notes)
    for writer in writers:
        assert writer.process.stdout
        assert writer.process.stdout.readline() == "50000\n"
    assert usage_of(root).notes[-1].number == 150_000

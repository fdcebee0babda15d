"""Calls go through: every name, every release, with all arguments, whoever calls first, driver present or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.native.fake_driver import (
    ARGUMENTS,
    FILES,
    REAL,
    RELEASES,
    all_names,
    code,
    hooked,
    install,
    names,
    python,
)
from tests.native.tools import run

MISSING = {"cuda": 500, "nvml": 13}
NO_DRIVER = {"cuda": 500, "nvml": 12}


def call_all(interposer: Path, root: Path, called: list[str]) -> dict[str, int]:
    """What each function answers, called without arguments."""
    done = python(interposer, root, f"print(json.dumps({{n: getattr(interposer, n)() for n in {called!r}}}))")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answers: dict[str, int] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", FILES)
def test_every_name_reaches_the_drivers_function_and_a_missing_one_answers_not_found(
    native: Path, root: Path, fakes: dict[tuple[str, str], Path], kind: str, release: str
) -> None:
    install(root, fakes[kind, release])
    called = sorted(
        all_names(kind) - hooked() - set(ARGUMENTS.values()) - {"cuProfilerStop", "nvmlErrorString"}
    )
    answers = call_all(native / "sandbox" / FILES[kind], root, called)
    has = set(names(kind, release))
    assert answers == {n: code(kind, release, n) if n in has else MISSING[kind] for n in called}


@pytest.mark.parametrize("kind", FILES)
def test_all_arguments_arrive_on_the_first_call_and_on_the_second(
    native: Path, root: Path, fakes: dict[tuple[str, str], Path], kind: str
) -> None:
    install(root, fakes[kind, "13.5"])
    integers = ", ".join(f"ctypes.c_long({2**n})" for n in range(10))
    doubles = ", ".join(f"ctypes.c_double({n})" for n in range(100, 108))
    first, rest = integers.split(", ")[:6], integers.split(", ")[6:]
    call = f"interposer.{ARGUMENTS[kind]}({', '.join(first)}, {doubles}, {', '.join(rest)})"
    done = python(native / "sandbox" / FILES[kind], root, f"print({call}, {call})")
    expected = sum(factor * 2**n for n, factor in enumerate(range(1, 11)))
    expected += sum(factor * value for factor, value in zip(range(11, 19), range(100, 108), strict=True))
    assert done.stdout.split() == [str(expected)] * 2


@pytest.mark.parametrize("kind", FILES)
def test_without_a_driver_every_name_answers_an_error(native: Path, root: Path, kind: str) -> None:
    called = sorted(all_names(kind) - hooked() - {"nvmlErrorString"})
    answers = call_all(native / "sandbox" / FILES[kind], root, called)
    assert set(answers.values()) == {NO_DRIVER[kind]}


def test_without_a_driver_cuinit_says_which_file_is_missing(native: Path, root: Path) -> None:
    done = python(native / "sandbox/libcuda.so.1", root, "print(interposer.cuInit(0), interposer.cuInit(0))")
    assert done.stdout == "802 802\n"
    assert done.stderr.count("\n") == 1
    assert str(root / REAL / "libcuda.so.1") in done.stderr


def test_without_a_driver_nvml_still_has_text(native: Path, root: Path) -> None:
    script = (
        "interposer.nvmlErrorString.restype = ctypes.c_char_p\nprint(interposer.nvmlErrorString(5).decode())"
    )
    assert python(native / "sandbox/libnvidia-ml.so.1", root, script).stdout == "Unknown Error\n"


def test_nvml_text_comes_from_the_driver(
    native: Path, root: Path, fakes: dict[tuple[str, str], Path]
) -> None:
    install(root, fakes["nvml", "13.5"])
    script = (
        "interposer.nvmlErrorString.restype = ctypes.c_char_p\nprint(interposer.nvmlErrorString(5).decode())"
    )
    assert python(native / "sandbox/libnvidia-ml.so.1", root, script).stdout == "five\n"


def test_a_interposer_where_the_driver_should_be_is_seen_and_not_called_for_ever(
    native: Path, root: Path
) -> None:
    interposer = native / "sandbox/libcuda.so.1"
    target = root / REAL / "libcuda.so.1"
    target.symlink_to(interposer)
    assert (
        python(interposer, root, "print(interposer.cuInit(0), interposer.cuDriverGetVersion())").stdout
        == "802 500\n"
    )
    target.unlink()
    target.write_bytes(interposer.read_bytes())  # another file, the same mistake
    assert python(interposer, root, "print(interposer.cuInit(0))").stdout == "802\n"


def test_a_broken_driver_file_is_no_driver(native: Path, root: Path) -> None:
    (root / REAL / "libcuda.so.1").write_bytes(b"\x7fELF nonsense")
    assert python(native / "sandbox/libcuda.so.1", root, "print(interposer.cuInit(0))").stdout == "802\n"


@pytest.mark.parametrize("initialised", [False, True])
def test_a_driver_that_lacks_a_hooked_function_says_so_as_without_the_library(
    native: Path, root: Path, fakes: dict[tuple[str, str], Path], initialised: bool
) -> None:
    """An older driver than the library knows: by name the answer is "not found", by resolver it is the driver's own."""
    install(root, fakes["cuda", "12.2"])
    lacking = sorted(hooked() & (all_names("cuda") - set(names("cuda", "12.2"))))
    assert len(lacking) > 5, "the newest releases brought functions that take memory or launch"
    script = f"""
if {initialised}:
    assert interposer.cuInit(0) == 0
found = {{n: getattr(interposer, n)() for n in {lacking!r}}}
pfn, status = ctypes.c_void_p(1), ctypes.c_int(-1)
code = interposer.cuGetProcAddress_v2(b"cuMemGetMemPool", ctypes.byref(pfn), 13000, ctypes.c_uint64(0),
                                 ctypes.byref(status))
print(json.dumps([found, code, pfn.value, status.value]))
"""
    done = python(native / "sandbox/libcuda.so.1", root, script)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [dict.fromkeys(lacking, MISSING["cuda"]), 500, None, 1]


def test_cuinit_attaches_and_reaches_the_driver(
    native: Path, root: Path, fakes: dict[tuple[str, str], Path]
) -> None:
    install(root, fakes["cuda", "12.2"])
    done = python(native / "sandbox/libcuda.so.1", root, "print(interposer.cuInit(0), interposer.cuInit(77))")
    assert (done.stdout, done.stderr) == ("0 4321\n", "")


def test_cuinit_is_refused_when_a_page_is_missing(
    native: Path, root: Path, fakes: dict[tuple[str, str], Path]
) -> None:
    install(root, fakes["cuda", "12.2"])
    (root / "etc/vcuda/limits").unlink()
    done = python(native / "sandbox/libcuda.so.1", root, "print(interposer.cuInit(0), interposer.cuInit(0))")
    assert done.stdout == "802 802\n"
    assert done.stderr.count("\n") == 1
    assert str(root / "etc/vcuda/limits") in done.stderr


def test_a_driver_that_calls_the_interposer_while_it_initialises_reaches_itself(
    native: Path, root: Path, fakes: dict[tuple[str, str], Path]
) -> None:
    install(root, fakes["cuda", "13.5"])
    done = python(native / "sandbox/libcuda.so.1", root, "print(interposer.cuInit(0))", FAKE_CALL_BACK="1")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_threads_that_all_call_first_all_arrive(
    native: Path, root: Path, fakes: dict[tuple[str, str], Path]
) -> None:
    install(root, fakes["cuda", "13.5"])
    called = sorted(set(names("cuda", "13.5")) - hooked() - {"cuProfilerStop", ARGUMENTS["cuda"]})[::7]
    script = f"""
import threading
names, found, start = {called!r}, [], threading.Barrier(16)
def work(i):
    start.wait()
    found.append((interposer.cuInit(0), [getattr(interposer, n)() for n in names[i:] + names[:i]] == want[i:] + want[:i]))
want = {[code("cuda", "13.5", n) for n in called]!r}
threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]
print(set(found))
"""
    done = python(native / "sandbox/libcuda.so.1", root, script)
    assert (done.stdout, done.stderr) == ("{(0, True)}\n", "")


def test_racing_first_cuinits_take_one_slot(
    native: Path, root: Path, fakes: dict[tuple[str, str], Path]
) -> None:
    install(root, fakes["cuda", "13.5"])
    script = f"""
import threading
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from vcuda.page.usage import read_usage
start = threading.Barrier(16)
threads = [threading.Thread(target=lambda: (start.wait(), interposer.cuInit(0))) for _ in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(read_usage(Path({str(root / "etc/vcuda/usage")!r}).read_bytes(), 1).slots))
"""
    assert python(native / "sandbox/libcuda.so.1", root, script).stdout == "1\n"


def test_companions_beside_the_driver_answer_to_their_names(
    native: Path, root: Path, compiler: str, fakes: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    """One needs the other by SONAME, and neither is on any search path."""
    install(root, fakes["cuda", "13.5"])
    source = tmp_path / "companion.c"
    source.write_text("int companion(void) { return 7; }\n")
    inner, outer = root / REAL / "libnvidia-gpucomp.so.9", root / REAL / "libnvidia-aaa.so.1"
    run(compiler, "-shared", "-fPIC", f"-Wl,-soname,{inner.name}", source, "-o", inner)
    source.write_text("int companion(void); int outer(void) { return companion(); }\n")
    run(compiler, "-shared", "-fPIC", f"-Wl,-soname,{outer.name}", source, inner, "-o", outer)
    script = f"""
try:
    ctypes.CDLL({outer.name!r})
except OSError:
    print("not before")
print(interposer.cuInit(0), ctypes.CDLL({outer.name!r}).outer())
"""
    done = python(native / "sandbox/libcuda.so.1", root, script)
    assert (done.stdout, done.stderr) == ("not before\n0 7\n", "")

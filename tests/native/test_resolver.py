"""The resolver: the driver chooses the variant, its pointer decides what is hooked, names only when they must."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.native.conftest import usage_of
from tests.native.fake_driver import RELEASES, all_names, hooked, install, python, variants

Fakes = dict[tuple[str, str], Path]

# In the script: `interposer` is the library under test, `real` the driver behind it (the same object that it opened).
PROLOGUE = """
real = ctypes.CDLL(os.environ["FAKE_SELF"])
here = [line.split() for line in open("/proc/self/maps") if line.rstrip().endswith("sandbox/libcuda.so.1")]
spans = [tuple(int(x, 16) for x in row[0].split("-")) for row in here]
def ours(pointer):
    return any(low <= pointer < high for low, high in spans)
def address(library, name):
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
def v1(name, version, flags):
    pfn = ctypes.c_void_p(1)
    code = interposer.cuGetProcAddress(name.encode(), ctypes.byref(pfn), version, ctypes.c_uint64(flags))
    return code, pfn.value
def v2(name, version, flags, resolve=interposer.cuGetProcAddress_v2):
    pfn, status = ctypes.c_void_p(1), ctypes.c_int(-1)
    code = resolve(name.encode(), ctypes.byref(pfn), version, ctypes.c_uint64(flags), ctypes.byref(status))
    return code, pfn.value, status.value
"""


def ask(native: Path, root: Path, script: str, **environment: str) -> object:
    done = python(native / "sandbox/libcuda.so.1", root, PROLOGUE + script, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize("release", RELEASES)
def test_every_variant_of_a_release_is_the_drivers_own_or_our_hook_of_exactly_that_one(
    native: Path, root: Path, fakes: Fakes, release: str
) -> None:
    install(root, fakes["cuda", release])
    rows = [row for row in variants(release) if row[3] != "cuProfilerStop"]
    script = f"""
rows, hooked, wrong, entries = {rows!r}, {hooked()!r}, [], {{}}
for name, since, thread, symbol in rows:
    flags = 2 if thread else 0
    for label, (code, pointer, *_) in (("v1", v1(name, since, flags)), ("v2", v2(name, since, flags))):
        good = ours(pointer) if symbol in hooked else pointer == address(real, symbol)
        if code or not good:
            wrong.append((label, name, since, thread, symbol))
        if symbol in hooked and entries.setdefault(symbol, pointer) != pointer:
            wrong.append(("moved", name, since, thread, symbol))
if len(set(entries.values())) != len(entries):
    wrong.append("two hooks at one address")
print(json.dumps(wrong))
"""
    assert ask(native, root, script) == []


def test_the_newest_variant_not_newer_than_asked_is_found_for_any_version(
    native: Path, root: Path, fakes: Fakes
) -> None:
    install(root, fakes["cuda", "13.5"])
    script = """
print(json.dumps([address(real, s) == v2("cuMemHostGetDevicePointer", v, 0)[1] for v, s in (
    (2020, "cuMemHostGetDevicePointer"), (3010, "cuMemHostGetDevicePointer"),
    (3020, "cuMemHostGetDevicePointer_v2"), (99999, "cuMemHostGetDevicePointer_v2"))]))
"""
    assert ask(native, root, script) == [True] * 4


@pytest.mark.parametrize("release", RELEASES)
def test_asking_for_the_resolver_gives_ourselves_in_the_form_of_that_version(
    native: Path, root: Path, fakes: Fakes, release: str
) -> None:
    """Four arguments below 12000, five from there on; and what those answer is routed as well."""
    install(root, fakes["cuda", release])
    script = """
old, new = v2("cuGetProcAddress", 11030, 0)[1], v2("cuGetProcAddress", 12000, 0)[1]
five = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64,
                        ctypes.c_void_p)(new)
four = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)(old)
pfn = ctypes.c_void_p()
inner = four(b"cuInit", ctypes.byref(pfn), 2000, 0), ours(pfn.value)
print(json.dumps([ours(old), ours(new), old != new, inner, ours(v2("cuInit", 2000, 0, five)[1])]))
"""
    assert ask(native, root, script) == [True, True, True, [0, True], True]


def test_codes_and_status_are_the_drivers_own(native: Path, root: Path, fakes: Fakes) -> None:
    install(root, fakes["cuda", "12.2"])
    script = """
print(json.dumps([v2("", 0, 0), v2("cuNoSuchThing", 12020, 0), v2("cuMemAlloc", 1000, 0), v1("cuNoSuchThing", 1, 0),
                  interposer.cuGetProcAddress_v2(None, ctypes.byref(ctypes.c_void_p()), 0, ctypes.c_uint64(0), None)]))
"""
    assert ask(native, root, script) == [[1, None, -1], [500, None, 1], [500, None, 2], [500, None], 1]


def test_a_status_pointer_may_be_missing(native: Path, root: Path, fakes: Fakes) -> None:
    install(root, fakes["cuda", "13.5"])
    script = """
pfn = ctypes.c_void_p()
code = interposer.cuGetProcAddress_v2(b"cuInit", ctypes.byref(pfn), 2000, ctypes.c_uint64(0), None)
print(json.dumps([code, ours(pfn.value)]))
"""
    assert ask(native, root, script) == [0, True]


def test_a_pointer_that_is_no_exported_function_is_routed_by_name_and_counted(
    native: Path, root: Path, fakes: Fakes
) -> None:
    install(root, fakes["cuda", "13.5"])
    script = """
pointer = v2("cuInit", 2000, 0)[1]
print(json.dumps([ours(pointer), ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(pointer)(0)]))
"""
    assert ask(native, root, script, FAKE_INTERNAL="1") == [True, 0]
    assert usage_of(root).routed_by_name == 1
    assert usage_of(root).unknown_symbols == 0


def test_a_name_that_the_tables_lack_passes_and_is_counted(native: Path, root: Path, fakes: Fakes) -> None:
    install(root, fakes["cuda", "13.5"])
    script = """
before = v2("cuFromTheFuture", 14000, 0)
interposer.cuInit(0)
after = v2("cuFromTheFuture", 14000, 0)
print(json.dumps([before[0], before == after, ours(before[1]), before[1] is not None]))
"""
    assert ask(native, root, script) == [0, True, False, True]
    usage = usage_of(root)
    assert usage.unknown_symbols == 2
    assert usage.unknown_name == "cuFromTheFuture"
    assert usage.routed_by_name == 0


def test_a_function_that_shares_its_address_with_a_hooked_one_is_not_hooked(
    native: Path, root: Path, fakes: Fakes
) -> None:
    install(root, fakes["cuda", "13.5"])
    script = """
stop, init = v2("cuProfilerStop", 4000, 0)[1], v2("cuInit", 2000, 0)[1]
print(json.dumps([stop == address(real, "cuInit"), ours(stop), ours(init)]))
"""
    assert ask(native, root, script) == [True, False, True]


def test_known_names_are_never_counted_as_unknown(native: Path, root: Path, fakes: Fakes) -> None:
    install(root, fakes["cuda", "13.5"])
    rows = variants("13.5")
    script = f"""
interposer.cuInit(0)
for name, since, thread, symbol in {rows!r}:
    v2(name, since, 2 if thread else 0)
print(json.dumps(0))
"""
    ask(native, root, script)
    assert usage_of(root).unknown_symbols == 0


def test_threads_that_resolve_first_all_get_the_hook(native: Path, root: Path, fakes: Fakes) -> None:
    install(root, fakes["cuda", "13.5"])
    script = """
import threading
found, start = [], threading.Barrier(16)
def work():
    start.wait()
    found.append(v2("cuInit", 2000, 0)[1])
threads = [threading.Thread(target=work) for _ in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]
print(json.dumps([len(set(found)), all(ours(p) for p in found)]))
"""
    assert ask(native, root, script) == [1, True]


def test_later_tables_hold_all_that_earlier_ones_held() -> None:
    """The library carries the newest release's variants alone."""
    newest = set(variants(RELEASES[-1]))
    for release in RELEASES:
        assert set(variants(release)) <= newest
    assert {symbol for *_, symbol in newest} <= all_names("cuda")

"""However a program comes by the driver, it meets the interposer; and a program that wants none is not disturbed."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from tests.native.fake_driver import install
from tests.native.tools import run, tool

Fakes = dict[tuple[str, str], Path]
HOOKED, BYPASSED = "802", "0"
"""cuInit without pages: the interposer refuses, the fake driver would not."""

CLIENT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

typedef int init_fn(unsigned);

static init_fn *walk(void *handle) /* a loader of one's own: read the symbol table */
{
    struct link_map *map = handle;
    ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    for (ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_SYMTAB)
            symbols = (void *)d->d_un.d_ptr;
        if (d->d_tag == DT_STRTAB)
            strings = (void *)d->d_un.d_ptr;
    }
    for (int i = 1; i < 100000; i++)
        if (!strcmp(strings + symbols[i].st_name, "cuInit"))
            return (init_fn *)(map->l_addr + symbols[i].st_value);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *how = argv[1], *file = argc > 2 ? argv[2] : "libcuda.so.1";
    init_fn *init = NULL;
    if (!strcmp(how, "dlopen"))
        init = (init_fn *)dlsym(dlopen(file, RTLD_NOW), "cuInit");
#ifdef LINKED
    extern init_fn cuInit;
    if (!strcmp(how, "linked"))
        init = cuInit;
#endif
#ifndef STATIC
    if (!strcmp(how, "deepbind"))
        init = (init_fn *)dlsym(dlopen(file, RTLD_NOW | RTLD_DEEPBIND), "cuInit");
    if (!strcmp(how, "namespace"))
        init = (init_fn *)dlsym(dlmopen(LM_ID_NEWLM, file, RTLD_NOW), "cuInit");
    if (!strcmp(how, "next")) {
        dlopen(file, RTLD_NOW | RTLD_GLOBAL);
        init = (init_fn *)dlsym(RTLD_DEFAULT, "cuInit");
    }
    if (!strcmp(how, "real dlsym")) {
        void *(*find)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", OLDEST);
        init = (init_fn *)find(dlopen(file, RTLD_NOW), "cuInit");
    }
    if (!strcmp(how, "walk"))
        init = walk(dlopen(file, RTLD_NOW));
#endif
    printf("%d\n", init ? init(0) : -1);
    return 0;
}
"""
WAYS = ("linked", "dlopen", "deepbind", "namespace", "next", "real dlsym", "walk")


@pytest.fixture(scope="module")
def clients(compiler: str, native: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``client`` (dlopen), ``linked`` (-lcuda) and ``static``."""
    base = tmp_path_factory.mktemp("clients")
    source = base / "client.c"
    source.write_text(CLIENT)
    oldest = '-DOLDEST="GLIBC_2.17"' if os.uname().machine == "aarch64" else '-DOLDEST="GLIBC_2.2.5"'
    run(compiler, "-w", oldest, source, "-o", base / "client", "-ldl")
    run(
        compiler,
        "-w",
        oldest,
        "-DLINKED",
        source,
        native / "sandbox/libcuda.so.1",
        "-o",
        base / "linked",
        "-ldl",
    )
    done = subprocess.run(
        [compiler, "-w", "-static", "-DSTATIC", str(source), "-o", str(base / "static"), "-ldl"],
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        (base / "static").unlink(missing_ok=True)
    return base


def answer(program: Path, *arguments: str | Path, **environment: str | Path) -> str:
    done = subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60,
        env={name: str(value) for name, value in environment.items()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def empty(root: Path, fakes: Fakes) -> Path:
    """A container with a driver and without pages: whoever reaches the driver past us is answered 0."""
    install(root, fakes["cuda", "13.5"])
    (root / "etc/vcuda/limits").unlink()
    return root


@pytest.mark.parametrize("way", WAYS)
def test_the_mounted_interposer_meets_every_client(
    native: Path, clients: Path, empty: Path, way: str
) -> None:
    program = clients / ("linked" if way == "linked" else "client")
    assert answer(program, way, LD_LIBRARY_PATH=native / "sandbox", VCUDA_ROOT=empty) == HOOKED


@pytest.mark.parametrize("way", [way for way in WAYS if way != "namespace"])
def test_the_preloaded_interposer_wins_over_a_driver_that_comes_first_on_the_path(
    native: Path, clients: Path, empty: Path, way: str
) -> None:
    """An image that ships a driver of its own, first on its search path."""
    program = clients / ("linked" if way == "linked" else "client")
    interposer = native / "sandbox/libcuda.so.1"
    real = empty / "usr/local/vcuda/real"
    assert answer(program, way, LD_LIBRARY_PATH=real, FAKE_SELF="", VCUDA_ROOT=empty) == BYPASSED
    assert answer(program, way, LD_LIBRARY_PATH=real, LD_PRELOAD=interposer, VCUDA_ROOT=empty) == HOOKED


def test_the_mounted_interposer_meets_a_statically_linked_program(
    native: Path, clients: Path, empty: Path
) -> None:
    if not (clients / "static").exists():
        pytest.skip("no static libc here")
    assert (
        answer(clients / "static", "dlopen", LD_LIBRARY_PATH=native / "sandbox", VCUDA_ROOT=empty) == HOOKED
    )


def test_the_unversioned_name_is_ours_where_it_is_mounted(
    native: Path, clients: Path, empty: Path, tmp_path: Path
) -> None:
    (tmp_path / "libcuda.so").symlink_to(native / "sandbox/libcuda.so.1")
    assert (
        answer(clients / "client", "dlopen", "libcuda.so", LD_LIBRARY_PATH=tmp_path, VCUDA_ROOT=empty)
        == HOOKED
    )


@pytest.mark.parametrize("file", ["libvcuda.so", "libvcuda-ml.so"])
@pytest.mark.parametrize(
    "command", [["true"], ["sh", "-c", "echo hi | cat"], ["bash", "-c", "exec true"], ["env"]]
)
def test_ordinary_programs_run_under_preload_and_hear_nothing(
    native: Path, file: str, command: list[str]
) -> None:
    program = shutil.which(command[0])
    if program is None:
        pytest.skip(f"no {command[0]} here")
    path = {"PATH": "/usr/bin:/bin"}
    plain = subprocess.run([program, *command[1:]], capture_output=True, check=True, env=path)
    ours = subprocess.run(
        [program, *command[1:]],
        capture_output=True,
        check=True,
        env={**path, "LD_PRELOAD": str(native / file)},
    )
    assert ours.stderr == b""
    assert ours.stdout.replace(b"LD_PRELOAD=" + str(native / file).encode() + b"\n", b"") == plain.stdout


OVERFLOW = "#include <stdlib.h>\nint main(int c, char **v) { char *at = malloc(1); at[c - 1] = 1; free(at); return !v; }\n"


@pytest.mark.parametrize("file", ["libvcuda.so", "libvcuda-ml.so"])
def test_a_program_built_with_the_address_sanitizer_runs_under_preload_and_finds_faults(
    native: Path, tmp_path: Path, file: str
) -> None:
    """Its runtime ends a program at its start if another library lies before it, unless that is allowed."""
    source, program = tmp_path / "overflow.c", tmp_path / "overflow"
    source.write_text(OVERFLOW, encoding="utf-8")
    if subprocess.run([tool("cc"), "-fsanitize=address", "-o", program, source], check=False).returncode:
        pytest.skip("this compiler has no address sanitizer")
    env = {"LD_PRELOAD": str(native / file)}
    done, faulty = (
        subprocess.run([program, *words], capture_output=True, text=True, env=env, check=False)
        for words in ([], ["overflow"])
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "heap-buffer-overflow" in faulty.stderr


def test_a_program_that_never_calls_cuda_opens_no_file_of_ours(native: Path, tmp_path: Path) -> None:
    """All it pays for is the mapping: even a directory without driver and pages does not matter."""
    done = subprocess.run(
        ["/bin/sh", "-c", "ls /proc/$$/fd | wc -l"], capture_output=True, text=True, check=True,
        env={"LD_PRELOAD": str(native / "sandbox/libcuda.so.1"), "VCUDA_ROOT": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (int(done.stdout) <= 5, done.stderr) == (True, "")


def test_preloading_both_interposers_adds_little_to_a_programs_start(native: Path) -> None:
    """Bar 0.2 ms for the CUDA interposer; a factor of five here, where other tests run beside this one: of starts that take
    turns, the quickest tenth."""

    def start_ms(**environment: str) -> float:
        start = time.perf_counter()
        subprocess.run(["/bin/true"], check=True, env=environment, close_fds=False)
        return (time.perf_counter() - start) * 1000

    pairs = [(start_ms(), start_ms(LD_PRELOAD=str(native / "libvcuda.so"))) for _ in range(100)]
    bare, ours = (statistics.quantiles(times, n=10)[0] for times in zip(*pairs, strict=True))
    assert ours - bare < 1.0


def test_a_child_of_fork_and_a_program_after_exec_are_on_their_own(
    native: Path, root: Path, fakes: Fakes
) -> None:
    install(root, fakes["cuda", "13.5"])
    script = f"""
import ctypes, os, sys
interposer = ctypes.CDLL({str(native / "sandbox/libcuda.so.1")!r})
assert interposer.cuInit(0) == 0
sys.stdout.flush()
if os.fork() == 0:
    assert interposer.cuInit(0) == 0
    os.execv(sys.executable, [sys.executable, "-c", "import os; print(any('usage' in os.readlink('/proc/self/fd/' + n)"
             " for n in os.listdir('/proc/self/fd') if os.path.lexists('/proc/self/fd/' + n)))"])
os.wait()
"""
    done = subprocess.run(
        [shutil.which("python3") or "python3", "-c", script], capture_output=True, text=True, check=False,
        env={"VCUDA_ROOT": str(root), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_where_libc_has_no_dlopen_it_is_found_among_what_is_loaded(native: Path) -> None:
    assert run(native / "unit_loader") == "all hold\n"

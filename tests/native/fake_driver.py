"""A driver of empty functions, made from the tables: each answers a number of its own, so a test sees who was called.

It has no model of a card (the stand-in drivers have); what it has is every name of a release, a resolver that follows
the release's variants, and switches for what real drivers do to whoever stands in interposer of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.native.tools import LIB, run

FILES = {"cuda": "libcuda.so.1", "nvml": "libnvidia-ml.so.1"}
REAL = "usr/local/vcuda/real"
RELEASES = ("12.2", "12.4", "12.9", "13.0", "13.5")
FIRST_CODE = 10_000
ARGUMENTS = {"cuda": "cuSurfObjectGetResourceDesc", "nvml": "nvmlUnitGetFanSpeedInfo"}
"""Functions that check their arguments instead: ten integers and eight doubles, all must arrive."""

COMMON = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Opening a driver runs code of its own, which may use every register that a call may. */
__attribute__((constructor)) static void use_registers(void)
{
#ifdef __x86_64__
    __asm__ volatile("pcmpeqd %%xmm0, %%xmm0\n pcmpeqd %%xmm1, %%xmm1\n pcmpeqd %%xmm2, %%xmm2\n"
                     "pcmpeqd %%xmm3, %%xmm3\n pcmpeqd %%xmm4, %%xmm4\n pcmpeqd %%xmm5, %%xmm5\n"
                     "pcmpeqd %%xmm6, %%xmm6\n pcmpeqd %%xmm7, %%xmm7\n" ::
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7");
#else
    __asm__ volatile("movi v0.16b, #255\n movi v1.16b, #255\n movi v2.16b, #255\n movi v3.16b, #255\n"
                     "movi v4.16b, #255\n movi v5.16b, #255\n movi v6.16b, #255\n movi v7.16b, #255\n" ::
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7");
#endif
}
"""

CHECKED = """
int %s(long a, long b, long c, long d, long e, long f, double s, double t, double u, double v, double w, double x,
       double y, double z, long g, long h, long i, long j)
{
    return (int)(a + 2*b + 3*c + 4*d + 5*e + 6*f + 7*g + 8*h + 9*i + 10*j
                 + 11*s + 12*t + 13*u + 14*v + 15*w + 16*x + 17*y + 18*z);
}
"""

CUDA = """
int cuInit(unsigned flags);
static int internal_cuInit(unsigned flags) { return flags == 77 ? 4321 : 0; }

/* Some drivers open the driver library by name while they initialise, and call it. */
static int call_back(void)
{
    void *interposer = dlopen("libcuda.so.1", RTLD_NOW);
    int (*resolve)(const char *, void **, int, unsigned long, int *) = dlsym(interposer, "cuGetProcAddress_v2");
    int (*init)(unsigned) = NULL;
    int status;
    if (!resolve || resolve("cuInit", (void **)&init, 2000, 0, &status) || !init)
        return 901;
    if (init != cuInit)
        return 902; /* nothing may stand between us and ourselves */
    return init(77) == 4321 ? 0 : 903;
}

int cuInit(unsigned flags)
{
    if (flags != 77 && getenv("FAKE_CALL_BACK"))
        return call_back();
    return internal_cuInit(flags);
}

struct variant { const char *name; int since, per_thread; const char *symbol; };
static const struct variant variants[] = {
%s};

static int resolve(const char *symbol, void **pfn, int version, unsigned long flags, int *status)
{
    const struct variant *best = NULL;
    int known = 0;
    *pfn = NULL;
    if (!symbol || !*symbol)
        return 1;
    for (const struct variant *v = variants; v < variants + sizeof variants / sizeof *variants; v++) {
        if (strcmp(v->name, symbol))
            continue;
        known = 1;
        if (v->since <= version && (!v->per_thread || flags == 2) &&
            (!best || v->since * 2 + v->per_thread > best->since * 2 + best->per_thread))
            best = v;
    }
    if (!strcmp(symbol, "cuFromTheFuture"))
        *pfn = (void *)call_back;
    else if (best && getenv("FAKE_INTERNAL") && !strcmp(symbol, "cuInit"))
        *pfn = (void *)internal_cuInit;
    else if (best)
        *pfn = dlsym(dlopen(getenv("FAKE_SELF"), RTLD_NOW | RTLD_NOLOAD), best->symbol);
    if (status)
        *status = *pfn ? 0 : known ? 2 : 1;
    return *pfn ? 0 : 500;
}

int cuGetProcAddress(const char *symbol, void **pfn, int version, unsigned long flags)
{
    return resolve(symbol, pfn, version, flags, NULL);
}

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, unsigned long flags, int *status)
{
    return resolve(symbol, pfn, version, flags, status);
}

/* Linkers may give functions with equal code one address. */
int cuProfilerStop(unsigned) __attribute__((alias("cuInit")));
"""

NVML = """
const char *nvmlErrorString(int code) { return code == 5 ? "five" : "other"; }
"""

OWN = {
    "cuInit",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuProfilerStop",
    "nvmlErrorString",
    *ARGUMENTS.values(),
}


def names(kind: str, release: str) -> list[str]:
    return (LIB / "gen" / f"{kind}-{release}.txt").read_text().split()


def all_names(kind: str) -> set[str]:
    return {name for release in RELEASES for name in names(kind, release)}


def variants(release: str) -> list[tuple[str, int, bool, str]]:
    """(name, since, per-thread streams, symbol) as the release's headers define them."""
    rows = (line.split() for line in (LIB / "gen" / f"variants-{release}.txt").read_text().splitlines())
    return [(name, int(since), mode != "-", symbol) for name, since, mode, symbol in rows]


def hooked() -> set[str]:
    """Names that the library replaces."""
    files = (LIB / "src" / "hooks.def", *sorted((LIB / "src" / "cuda").glob("*.def")))
    text = re.sub(r"/\*.*?\*/", "", "".join(file.read_text() for file in files), flags=re.DOTALL)
    return set(
        re.findall(
            r"^(?:(?:HOOK|LAUNCH)\(\w[\w\s*]*?,|CARD\(|BUS\(|WAITS(?:_FOR_HOST|_FOR_EVENT)?\()\s*(\w+)\s*,",
            text,
            flags=re.MULTILINE,
        )
    )


def code(kind: str, release: str, name: str) -> int:
    """What the fake's function of that name answers."""
    return FIRST_CODE + names(kind, release).index(name)


def build(compiler: str, kind: str, release: str, target: Path) -> Path:
    """Compile the fake for one release; ``target`` is the file to make."""
    lines = [COMMON, CHECKED % ARGUMENTS[kind]]
    if kind == "cuda":
        rows = (
            f'{{"{n}", {since}, {int(thread)}, "{symbol}"}},\n'
            for n, since, thread, symbol in variants(release)
        )
        lines.append(CUDA % "".join(rows))
    else:
        lines.append(NVML)
    lines += [
        f"int {n}(void) {{ return {code(kind, release, n)}; }}" for n in names(kind, release) if n not in OWN
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    source = target.with_name(target.name + ".c")
    source.write_text("\n".join(lines))
    run(
        compiler,
        "-shared",
        "-fPIC",
        "-w",
        "-Wl,-Bsymbolic",
        f"-Wl,-soname,{FILES[kind]}",
        source,
        "-o",
        target,
    )
    return target


def install(root: Path, fake: Path) -> Path:
    """Put a driver where the interposer looks for it."""
    target = root / REAL / fake.name
    target.write_bytes(fake.read_bytes())
    return target


def python(interposer: Path, root: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in which ``interposer`` is the loaded interposer."""
    setup = f"import ctypes, json, os, sys\ninterposer = ctypes.CDLL({str(interposer)!r})\n"
    real = root / REAL / interposer.name
    return subprocess.run(
        [sys.executable, "-I", "-c", setup + script], capture_output=True, text=True, check=False, timeout=60,
        env={"VCUDA_ROOT": str(root), "FAKE_SELF": str(real), **environment},
    )  # fmt: skip

"""Read NVIDIA's headers and write down which names a driver exports. Run by hand, once per CUDA release.

    python vcuda/lib/gen/names.py 13.5 UNPACKED_WHEELS_DIRECTORY

The directory holds the unpacked wheels of that release: nvidia-cuda-runtime (cuda.h, cudaGL.h, cudaEGL.h,
cudaVDPAU.h, cudaTypedefs.h), nvidia-cuda-profiler-api (cudaProfiler.h) and nvidia-nvml-dev (nvml.h); for
releases before 13 their names end in ``-cu12``. Needs gcc, for its preprocessor alone.

Writes, beside itself: ``cuda-<release>.txt`` and ``nvml-<release>.txt``, one exported function a line,
and ``variants-<release>.txt``: which function the resolver hands out for (name, version, stream mode).
Names and version numbers are facts; nothing else of the headers is kept.
"""
# ruff: noqa: INP001, S603, T201 -- a program, run by hand: it prints, and starts gcc on headers it was given

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Headers of other projects that the interop headers include; only their presence matters to the preprocessor.
FOREIGN = ("GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h")
# Three readings of the same header: what programs see, what they see with per-thread default streams, and
# every old version of a name.
MODES: tuple[list[str], ...] = (
    [],
    ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"],
    ["-D__CUDA_API_VERSION_INTERNAL"],
)
NVML_MODES: tuple[list[str], ...] = ([], ["-DNVML_NO_UNVERSIONED_FUNC_DEFS"])
# A driver also exports these; no header of the wheels declares them. cuda-gdb looks for the first two, and
# nvidia-smi for the last.
UNDECLARED = ("cudbgGetAPI", "cudbgGetAPIVersion")
NVML_UNDECLARED = ("nvmlInternalGetExportTable",)
WINDOWS = ("cuWGLGetDevice",)


def preprocess(header: Path, includes: list[Path], options: list[str]) -> str:
    """The header's text after the preprocessor, in one reading."""
    command = ["gcc", "-E", "-P", "-x", "c", *options, *(f"-I{path}" for path in includes), str(header)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def declared(header: Path, includes: list[Path], modes: tuple[list[str], ...], pattern: str) -> set[str]:
    """Every function name that any reading declares."""
    found: set[str] = set()
    for options in modes:
        found.update(re.findall(pattern, preprocess(header, includes, options)))
    return found


def one(root: Path, name: str) -> Path:
    """The one file of that name below root."""
    paths = sorted(root.rglob(name))
    if not paths:
        raise SystemExit(f"{root} holds no {name}: unpack the wheels of this release there")
    return paths[0]


def cuda_names(root: Path) -> set[str]:
    """Functions of the driver API, its OpenGL, EGL and VDPAU interop and its profiler control."""
    with tempfile.TemporaryDirectory() as empty:
        for name in FOREIGN:
            path = Path(empty, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        includes = [Path(empty), one(root, "cuda.h").parent]
        names: set[str] = set(UNDECLARED)
        for header in ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h"):
            names |= declared(
                one(root, header), includes, MODES, r"\bCUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w*)\s*\("
            )
    return names


def nvml_names(root: Path) -> set[str]:
    """Functions of NVML; three of them return text, not nvmlReturn_t."""
    return set(NVML_UNDECLARED) | declared(
        one(root, "nvml.h"), [], NVML_MODES, r"\b(?:nvmlReturn_t|char\s*\*)\s*(nvml[A-Z]\w*)\s*\("
    )


def typedefs(root: Path) -> dict[tuple[str, str], list[int]]:
    """(name, ``""`` | ``"_ptds"`` | ``"_ptsz"``) → versions in which its meaning changed, ascending."""
    versions: dict[tuple[str, str], set[int]] = defaultdict(set)
    for header in (
        "cudaTypedefs.h",
        "cudaGLTypedefs.h",
        "cudaEGLTypedefs.h",
        "cudaVDPAUTypedefs.h",
        "cudaProfilerTypedefs.h",
    ):
        for path in sorted(root.rglob(header)):
            pattern = r"\*\s*PFN_(cu\w+?)_v(\d{4,5})(_ptds|_ptsz)?\s*\)"
            for name, version, mode in re.findall(pattern, path.read_text()):
                versions[name, mode].add(int(version))
    return {key: sorted(found) for key, found in versions.items()}


def generation(symbol: str, mode: str) -> tuple[str, int]:
    """``cuMemAlloc_v2`` → (``cuMemAlloc``, 2)."""
    match = re.fullmatch(r"(\w+?)(?:_v(\d+))?", symbol.removesuffix(mode))
    if match is None:
        raise SystemExit(f"{symbol} is no symbol of the driver API")
    return match[1], int(match[2] or 1)


def variants(root: Path, names: set[str]) -> list[str]:
    """Lines ``name version mode symbol``: the resolver's answer from that version on.

    A name's exported forms, oldest first, belong to its typedefs' versions, oldest first: the header
    numbers both in the order in which the meaning changed. Where their counts differ the newest are matched,
    and it is said.
    """
    lines = []
    for (name, mode), versions in sorted(typedefs(root).items()):
        forms = sorted(
            (
                symbol
                for symbol in names
                if symbol.endswith(mode)
                and generation(symbol, mode)[0] == name
                and (mode or not re.search(r"_pt[ds][sz]$", symbol))
            ),
            key=lambda symbol: generation(symbol, mode)[1],
        )
        if len(forms) != len(versions) and name not in WINDOWS:
            print(f"{name}{mode}: versions {versions}, forms {forms}", file=sys.stderr)
        matched = min(len(forms), len(versions))
        pairs = zip(versions[len(versions) - matched :], forms[len(forms) - matched :], strict=True)
        lines += [f"{name} {version} {mode.lstrip('_') or '-'} {symbol}" for version, symbol in pairs]
    return lines


def main() -> None:
    release, root = sys.argv[1], Path(sys.argv[2])
    cuda, nvml = cuda_names(root), nvml_names(root)
    tables = {"cuda": sorted(cuda), "nvml": sorted(nvml), "variants": variants(root, cuda)}
    for kind, lines in tables.items():
        (HERE / f"{kind}-{release}.txt").write_text("\n".join(lines) + "\n")
        print(f"{kind}-{release}: {len(lines)}")


if __name__ == "__main__":
    main()

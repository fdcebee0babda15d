"""Write the C file and the linker script that make the stand-in's models one driver version.

    generate.py cuda|nvml VERSION GEN_DIRECTORY OUT_DIRECTORY MODEL_SOURCE...

Every name that the driver of that version exports (lists in vcuda/lib/gen) becomes a function of its own: one
that a model exists for checks the gate and calls the model; a per-thread-stream name sets its mode around it;
any other answers "not supported". What is modelled is read off the sources themselves: functions
``model_<name>`` and rows ``ALIAS(old, model)``.
"""
# ruff: noqa: INP001 -- a program that the build runs

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

# The first driver release of each CUDA version, as NVML names it.
DRIVERS = {
    "12.2": "535.54.03",
    "12.4": "550.54.14",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
    "13.5": "615.36.01",
}
MODEL = re.compile(
    r"^(CUresult|nvmlReturn_t|const char \*) ?model_(\w+)\(([^)]*)\)\s*(?:\{|FACT)", re.MULTILINE
)
DEFINED = re.compile(r"^\w[\w *]*\bmodel_(\w+)\([^;{]*\)\s*(?:\{|FACT)", re.MULTILINE)
ALIAS = re.compile(r"^ALIAS\((\w+), (\w+)\);", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Model:
    """A modelled function: what it returns, takes, and how it is called."""

    result: str
    name: str
    parameters: str

    @property
    def arguments(self) -> str:
        if self.parameters.strip() in ("", "void"):
            return ""
        return ", ".join(re.findall(r"\w+", part)[-1] for part in self.parameters.split(","))

    @property
    def prototype(self) -> str:
        return f"{self.result} model_{self.name}({self.parameters});"


def models_in(sources: list[Path]) -> tuple[dict[str, Model], list[Model]]:
    """Exported name -> model, aliases included, and the models themselves."""
    text = "\n".join(path.read_text() for path in sources)
    found = {
        name: Model(result, name, re.sub(r"\s+", " ", parameters))
        for result, name, parameters in MODEL.findall(text)
    }
    missed = set(DEFINED.findall(text)) - set(found)
    if missed:
        raise SystemExit(f"cannot read the definitions of {', '.join(sorted(missed))}")
    models = list(found.values())
    for old, model in ALIAS.findall(text):
        found[old] = found[model]
    return found, models


def words(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]


def function(name: str, models: dict[str, Model], failed: str) -> str:
    """The exported function of that name."""
    base = re.sub(r"_(ptsz|ptds)$", "", name)
    model = models.get(base)
    if model is None:
        return f'EXPORT {failed} {name}(void) {{ return ({failed})standin_unmodelled("{name}"); }}\n'
    call = f"model_{model.name}({model.arguments})"
    if model.result.startswith("const"):
        return f"EXPORT {model.result}{name}({model.parameters}) {{ return {call}; }}\n"
    closed = "__builtin_expect(__atomic_load_n(&standin_gate, __ATOMIC_RELAXED), 0)"
    gate = f'int refused = {closed} ? standin_enter("{name}") : 0;'
    body = f"    if (refused)\n        return ({model.result})refused;\n"
    if base == name:
        body += f"    return {call};\n"
    else:
        body += "    bool before = standin_per_thread;\n    standin_per_thread = true;\n"
        body += f"    {model.result} result = {call};\n    standin_per_thread = before;\n    return result;\n"
    return f"EXPORT {model.result} {name}({model.parameters}) {{\n    {gate}\n{body}}}\n"


def variants(directory: Path, version: str, exported: set[str]) -> list[tuple[str, int, bool, str]]:
    """Resolver rows of this version; names that its header forgot are taken from the newest list."""
    rows = words(directory / f"variants-{version}.txt")
    listed = {row[3] for row in rows}
    newest = words(directory / f"variants-{list(DRIVERS)[-1]}.txt")
    rows += [row for row in newest if row[3] in exported - listed]
    return sorted({(name, int(number), mode != "-", symbol) for name, number, mode, symbol in rows})


def cuda_tables(directory: Path, version: str, exported: set[str]) -> str:
    rows = variants(directory, version, exported)
    text = "\nconst struct variant standin_variants[] = {\n"
    text += "".join(
        f'    {{"{name}", {number}, {str(mode).lower()}, (void *){symbol}}},\n'
        for name, number, mode, symbol in rows
    )
    text += f"}};\nconst int standin_variant_count = {len(rows)};\n"
    major, minor = version.split(".")
    return text + f"const int standin_cuda_version = {int(major) * 1000 + int(minor) * 10};\n"


def main(kind: str, version: str, directory: Path, out: Path, sources: list[Path]) -> None:
    exported = sorted(row[0] for row in words(directory / f"{kind}-{version}.txt"))
    by_name, models = models_in(sources)
    known = {row[0] for path in directory.glob(f"{kind}-*.txt") for row in words(path)}
    if strange := sorted(set(by_name) - known):
        raise SystemExit(f"models of functions that no driver exports: {', '.join(strange)}")
    header, failed = ("cu.h", "CUresult") if kind == "cuda" else ("nv.h", "nvmlReturn_t")
    text = f'#include "{header}"\n#include "generated.h"\n\n'
    text += '#define EXPORT __attribute__((visibility("default")))\n\n'
    text += "".join(model.prototype + "\n" for model in models) + "\n"
    text += "".join(function(name, by_name, failed) for name in exported)
    if kind == "cuda":
        text += cuda_tables(directory, version, set(exported))
    else:
        major, minor = version.split(".")
        text += f"const int standin_cuda_version = {int(major) * 1000 + int(minor) * 10};\n"
    text += f'const char standin_driver_version[] = "{DRIVERS[version]}";\n'
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{kind}.c").write_text(text)
    (out / f"{kind}.map").write_text(
        "{\n  global:\n" + "".join(f"    {n};\n" for n in exported) + "  local: *;\n};\n"
    )


if __name__ == "__main__":
    main(
        sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), [Path(name) for name in sys.argv[5:]]
    )

"""Packs these tests into one folder for a machine without a network: ``make gpu-kit``, then copy ``build/gpu-kit``.

What the tests import is found by importing all of it here, and copied file by file: the project's own modules, and
pure Python of others with their licences. The library is the one that is built. Nothing has to be installed there.
"""

# ruff: noqa: T201 - a program that prints, not a library

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from gpu_manager.adapters.driver_files.delivery import find_native_libraries

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGET = ROOT / "build" / "gpu-kit"
MOST_MIB = 40
# Others' packages that are used where they happen to be there: without them the same code runs.
_OPTIONAL = ("yaml._yaml", "rich", "better_exceptions", "colorama", "greenlet", "zope", "twisted")
_LOADED = """
import importlib, json, pathlib, sys
sys.path[:0] = [".", sys.argv[2]]
for name in json.loads(sys.argv[1]): sys.modules[name] = None
for path in sorted([*pathlib.Path("tests/gpu").glob("*.py"), *pathlib.Path("tests/gpu/beside").glob("*.py")]):
    if path.stem not in ("__main__", "kit"): importlib.import_module(".".join(path.with_suffix("").parts))
importlib.import_module("tests.gpu.__main__")
print(json.dumps([m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)]))
"""
README = """# The tests of a real card, in one folder

Needs Python 3.11 or newer, a C compiler, glibc 2.34 or newer and NVIDIA's driver 12.0 or newer; no network, and
nothing to install. PyTorch, Triton, JAX, CuPy and Numba are used where an interpreter has them
(`FRAMEWORK_PYTHON` names another one).

    python3 -m tests.gpu --minutes 25
    python3 -m tests.gpu --stand-in --quick --minutes 10 --seconds 0.5     # without a card: proves this folder

Without a card every row is taken on a modelled one: rows of memory hold, rows of time only while other programs leave
the processors alone, and what runs NVIDIA's own code (PyTorch, the CUDA runtime) is not measured.
Each row is written to `build/gpu.jsonl` before the next is measured. The same command goes on where a run was cut.
Nobody else may use the card meanwhile. docs/real-card.md of the project says what the rows mean.
"""


def main() -> int:
    """Make the folder anew. Exit code 1, with a word, if it cannot be made or is too large."""
    native = find_native_libraries()
    if not native.complete or native.libraries is None:
        print("the library is not built: run make setup with a C compiler", file=sys.stderr)
        return 1
    shutil.rmtree(TARGET, ignore_errors=True)
    for source, place in [*_modules(), *_programs()]:
        (TARGET / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, TARGET / place)
    shutil.copytree(
        native.libraries, TARGET / "vcuda" / "native", ignore=shutil.ignore_patterns("__pycache__")
    )
    (TARGET / "tests" / "__init__.py").touch()  # a package of this name elsewhere on the path shall not win
    (TARGET / "README.md").write_text(README, encoding="utf-8")
    shutil.copyfile(ROOT / "LICENSE", TARGET / "LICENSE")
    size = sum(path.stat().st_size for path in TARGET.rglob("*") if path.is_file()) / (1 << 20)
    print(f"{TARGET.relative_to(ROOT)}: {size:.1f} MiB, for {sysconfig.get_platform()}")
    if size > MOST_MIB:
        print(f"that is more than {MOST_MIB} MiB", file=sys.stderr)
        return 1
    return 0


def _modules() -> Iterator[tuple[Path, Path]]:
    """(file, where it goes) of every module that the tests load and Python itself does not bring."""
    installed = Path(sysconfig.get_path("purelib"))
    # -S: what an environment loads at every start, such as hooks of installers, is none of theirs.
    command = [sys.executable, "-S", "-c", _LOADED, json.dumps(_OPTIONAL), str(installed)]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    owners = importlib.metadata.packages_distributions()
    licences: set[str] = set()
    for name in json.loads(asked.stdout):
        path = (ROOT / name).resolve()
        if path.is_relative_to(installed):
            place = path.relative_to(installed)
            if path.suffix != ".py":
                raise SystemExit(f"{path} is compiled: what the tests import must be pure Python")
            licences.update(owners.get(place.parts[0].removesuffix(".py"), []))
            yield path, place
        elif path.is_relative_to(ROOT):
            yield path, path.relative_to(ROOT)
    for owner in sorted(licences):
        for file in importlib.metadata.files(owner) or []:
            if file.name.lower().startswith(("license", "licence", "notice")):
                yield Path(str(file.locate())), Path("licenses") / owner / file.name


def _programs() -> Iterator[tuple[Path, Path]]:
    for path in sorted((HERE / "programs").iterdir()):
        if path.is_file():
            yield path, path.relative_to(ROOT)


if __name__ == "__main__":
    sys.exit(main())

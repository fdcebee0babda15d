"""The adapter, the real Python binding and a C library in the driver's place: names, arguments and layouts agree."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from tests.fakes.nvml import FakeNvml
from tests.fakes.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, queue, sys
from pathlib import Path
from gpu_manager.adapters.nvml.cards import NvmlCards
cards = NvmlCards(library=lambda: Path(sys.argv[1]), sysfs=Path("/nonexistent"))
states, (uses, processes), topology = cards.list(), cards.usage(), cards.topology()
told = queue.Queue()
cards.watch(told.put)
change = told.get(timeout=10)
cards.close()
print(json.dumps({
    "cards": [[s.card.index, s.card.uuid, s.card.model, s.card.memory, s.card.reserved, s.card.numa,
               s.card.minor, s.card.pci_bus_id, s.card.mig, s.healthy] for s in states],
    "reason": states[1].reason,
    "uses": [[u.memory_used, u.utilisation] for u in uses],
    "processes": [[p.uuid, p.pid, p.memory, p.utilisation] for p in processes],
    "links": [[str(link) for link in row] for row in topology.links],
    "change": [change.uuid, change.healthy, change.reason],
}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on this machine to build the library that stands in for the driver's")
    path = tmp_path_factory.mktemp("driver") / "libnvidia-ml.so.1"
    source = ROOT / "tests/data/nvml/standin.c"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    options = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", *warnings, "-o", str(path), str(source)]
    subprocess.run([compiler, *options], check=True, timeout=PATIENCE)
    return path


def test_the_real_binding_reads_a_library_that_only_we_can_find(library):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout.splitlines()[-1])
    uuids = [f"GPU-abcd000{i}-0000-4000-8000-00000000000{i}" for i in (0, 1)]
    memory, reserved = 143771 << 20, 603 << 20
    assert seen["cards"] == [
        [0, uuids[0], "NVIDIA-H200", memory, reserved, 0, 0, "0000:3b:00.0", False, True],
        [1, uuids[1], "NVIDIA-H200", memory, reserved, 1, 1, "0000:3c:00.0", False, False],
    ]
    assert "asks for a reset" in seen["reason"]
    assert seen["uses"] == [[7 << 30, 42.0], [7 << 30, 42.0]]
    assert seen["processes"] == [
        [uuids[0], 4242, 5 << 30, 33.0],
        [uuids[0], 4243, None, 0.0],
        [uuids[1], 4242, 5 << 30, 0.0],
        [uuids[1], 4243, None, 0.0],
    ]
    assert seen["links"] == [["X", "NV18"], ["NV18", "X"]]
    assert seen["change"][:2] == [uuids[0], False]
    assert seen["change"][2].startswith("XID 79: fallen off the bus")


def asked() -> set[str]:
    """Every name of the binding that the adapter's files mention."""
    sources = "".join(p.read_text("utf-8") for p in (ROOT / "gpu_manager/adapters").glob("nvml/*.py"))
    return set(re.findall(r"\bnvml\.((?:nvml|NVML)\w+)", sources))


def test_every_name_that_the_adapter_asks_for_is_in_the_binding():
    names = asked()
    assert len(names) > 25
    assert {name for name in names if not hasattr(pynvml, name)} == set()


def test_the_fake_takes_the_arguments_that_the_binding_takes():
    functions = [n for n, v in vars(FakeNvml).items() if n.startswith("nvml") and callable(v)]
    assert len(functions) > 25
    for name in functions:
        fake = inspect.signature(getattr(FakeNvml, name)).parameters
        real = inspect.signature(getattr(pynvml, name)).parameters
        assert len(fake) - 1 == len(real), name

"""The native tree, built once for all tests of a run."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.native import contained, driven, fake_driver, timed
from tests.native.tools import build_tests, run, tool
from vcuda.page.limits import CardLimits, Limits, build_limits
from vcuda.page.usage import Usage, build_usage, read_usage


@pytest.fixture(scope="session")
def compiler() -> str:
    return tool("cc")


@pytest.fixture(scope="session")
def native() -> Path:
    """Where the built fronts and test programs lie."""
    return build_tests("vcuda", "vcuda-ml", "sandbox-cuda", "sandbox-ml", "unit_loader")


@pytest.fixture(scope="session")
def unit_page() -> Path:
    """The test program of the page code; ``VCUDA_SANITIZE=address,undefined`` or ``thread`` in the environment of
    the tests builds it so."""
    return build_tests("unit_page", sanitize=os.environ.get("VCUDA_SANITIZE", "")) / "unit_page"


@pytest.fixture(scope="session")
def fakes(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """(``cuda`` | ``nvml``, release) → a driver of empty functions."""
    base = tmp_path_factory.mktemp("fakes")
    return {
        (kind, release): fake_driver.build(compiler, kind, release, base / release / file)
        for kind, file in fake_driver.FILES.items()
        for release in fake_driver.RELEASES
    }


@pytest.fixture(scope="session")
def namespaces() -> None:
    """The test makes mounts of its own."""
    contained.needs_mounts()


@pytest.fixture(scope="session")
def client(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that opens the library it is told, calls cuInit and says what that returned."""
    base = tmp_path_factory.mktemp("container")
    (base / "client.c").write_text(contained.CLIENT)
    run(compiler, "-w", base / "client.c", "-o", base / "client", "-ldl")
    return base / "client"


class Guest:
    """A process under the page code, that does what it is told: ``guest("charge 0 512 4096") == "1"``."""

    def __init__(self, program: Path, root: Path, *, before: Sequence[str] = (), **options: object) -> None:
        """``before`` is a command that starts the program, its last argument."""
        self.process = subprocess.Popen(
            [*before, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"VCUDA_ROOT": str(root)}, **options,
        )  # fmt: skip

    def __call__(self, command: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """As the kernel's memory killer does it."""
        self.process.kill()
        self.end()

    def end(self) -> str:
        """Let it end by itself; what it said on stderr."""
        return self.process.communicate(timeout=30)[1]


@pytest.fixture
def root() -> Iterator[Path]:
    """A container's root directory with whole pages for one card: 4 KiB of memory, 30 % of its time."""
    with tempfile.TemporaryDirectory(prefix="vcuda-") as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "etc/vcuda").mkdir(parents=True)
        (path / "usr/local/vcuda/real").mkdir(parents=True)
        (path / "etc/vcuda/limits").write_bytes(build_limits(limits()))
        (path / "etc/vcuda/usage").write_bytes(build_usage())
        (path / "etc/vcuda/usage").chmod(0o666)
        yield path


@pytest.fixture(params=driven.DOORS)
def container(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[driven.Container]:
    """A container on the modelled card, by each door; its memory is the test file's ``LIMIT``, in bytes."""
    with driven.Container(tmp_path, request.module.LIMIT, door=request.param) as made:
        yield made


@pytest.fixture
def guest(container: driven.Container) -> driven.Program:
    """A program in it that has begun."""
    return container.program().start()


@pytest.fixture
def guests(unit_page: Path, root: Path) -> Iterator[Callable[..., Guest]]:
    """Starts guests in ``root`` and ends them with the test."""
    started: list[Guest] = []

    def start(**options: object) -> Guest:
        started.append(Guest(unit_page, root, **options))
        return started[-1]

    yield start
    for guest in started:
        if guest.process.poll() is None:
            guest.kill()
        for stream in (guest.process.stdin, guest.process.stdout, guest.process.stderr):
            assert stream
            stream.close()


def limits(memory: int = 4096, **values: object) -> Limits:
    """Limits of one card with UUID bytes 0..15."""
    return Limits(cards=(CardLimits(bytes(range(16)), memory, 30.0),), **values)  # type: ignore[arg-type]


def usage_of(root: Path) -> Usage:
    """What the usage page says now."""
    return read_usage((root / "etc/vcuda/usage").read_bytes(), 1)


# Figures of time are true only while nothing else wants the processor: these files run alone, one by one.
TIMED = (
    "test_core_dispatch",
    "test_core_pairs",
    "test_core_shapes_held",
    "test_core_share",
    "test_core_tenants",
    "test_core_threads",
    "test_standin_time",
)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run what measures time as :mod:`tests.native.timed` says."""
    if item.get_closest_marker("timed") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    timed.run_timed(item, nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what measures time; and whichever test comes first builds all that it needs."""
    for item in items:
        if config.getoption("timeout") is None:  # on the command line
            item.add_marker(pytest.mark.timeout(300))
        if item.path.stem in TIMED:
            item.add_marker(pytest.mark.timed)

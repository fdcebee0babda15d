"""A node in a directory with NVIDIA's driver, and the agent's injector on it."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_manager.adapters.driver_files.driver import multiarch
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.injector import DriverFiles
from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.injection import Injection, Mount
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import Amount
from tests.component.driver_roots import DriverRoot

GIB = 1 << 30
NAME = "0123456789abcdef" * 2
OTHER = "f" * 32
UUIDS = tuple(CardUuid(f"GPU-{i:08x}-0000-4000-8000-000000000000") for i in range(8))
CARDS = tuple(
    CardState(Card(index=i, uuid=uuid, model="A100", memory=80 * GIB, minor=7 - i))
    for i, uuid in enumerate(UUIDS)
)
FRACTION = (Share(UUIDS[3], Amount(30, 5 * GIB)),)
WHOLE = (Share(UUIDS[0], Amount(100, 80 * GIB)), Share(UUIDS[1], Amount(100, 80 * GIB)))
ARCH = f"/usr/lib/{multiarch()}"


@dataclass
class World:
    """A node in a directory, and an agent's own places beside it."""

    base: Path
    node: DriverRoot

    @property
    def pages(self) -> Path:
        return self.base / "pages"

    @property
    def state(self) -> Path:
        return self.base / "state"

    @property
    def cdi(self) -> Path:
        return self.base / "cdi"

    @property
    def package(self) -> Path:
        return self.base / "package"

    def paged(self, *names: str) -> None:
        for name in names:
            for page in ("limits", "usage"):
                (self.pages / name).mkdir(parents=True, exist_ok=True)
                (self.pages / name / page).write_bytes(b"")

    def ship(self, content: bytes = b"one") -> None:
        self.package.mkdir(exist_ok=True)
        (self.package / "libvcuda.so").write_bytes(content)
        (self.package / "libvcuda-ml.so").write_bytes(b"ml " + content)
        (self.package / "vcuda-ldcache").write_bytes(b"hook")

    def injector(self, strategy: Strategy, **options) -> DriverFiles:
        settled = {
            "cards": lambda: CARDS,
            "state": self.state,
            "pages": self.pages,
            "libraries": self.package,
            "host": HostFiles(self.node.root),
            "cdi_dir": self.cdi,
        }
        return DriverFiles(strategy, **{**settled, **options})

    def sees(self, path: str) -> bool:
        """True if a runtime on this made-up node finds the path."""
        own = Path(path)
        return (
            own.exists() or own.is_symlink()
            if own.is_relative_to(self.base)
            else HostFiles(self.node.root).exists(path)
        )


@pytest.fixture
def world(tmp_path, objects):
    made = World(tmp_path, DriverRoot(tmp_path / "node", objects))
    made.node.install()
    made.node.nodes()
    made.paged(NAME)
    made.ship()
    return made


def targets(mounts: tuple[Mount, ...]) -> dict[str, Mount]:
    return {mount.container_path: mount for mount in mounts}


def edits(world: World, name: str = NAME) -> dict:
    spec = json.loads((world.cdi / f"tencent.com-vcuda_{name}.json").read_text())
    (device,) = spec["devices"]
    return {**device["containerEdits"], "spec": spec, "name": device["name"]}


def container_paths(given_: Injection, world: World, name: str) -> list[str]:
    if given_.cdi:
        return [mount["containerPath"] for mount in edits(world, name)["mounts"]]
    return [mount.container_path for mount in given_.mounts]

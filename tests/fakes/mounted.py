"""Nodes with one running container, made of recorded process trees, and what that container has mounted."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from gpu_manager.adapters.processes import CgroupProcesses
from gpu_manager.domain.contract import LIBRARY_DIR, LIMITS_PATH, USAGE_PATH
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.enforcement.container_starts import PERIOD_SECONDS, InjectionCheck
from tests.fakes.ports import FakeClock, FakePods, cards
from tests.fakes.state import state_of

TREES = Path(__file__).parents[1] / "data/proc"
SEEING = sorted(d.name for d in TREES.iterdir() if d.is_dir() and not d.name.startswith("no-host-pid"))
POD = PodUid("5fd4f087-86c1-4a7b-9d1e-3c2b1a0f9e8d")
CONTAINER = "3f2a9c4be1d07f6589ab4c3d2e1f00112233445566778899aabbccddeeff0011"
PID, BESIDE = 4242, 4299  # recorded in that container; made beside it
DIRECTORY, STRANGER = "a" * 32, "b" * 32
CARD = cards(1)[0].card

_LINE = "{number} 700 0:{number} {root} {path} rw,nosuid,nodev - tmpfs tmpfs rw\n"
_ROOT = ("/", "/")
_DRIVER = ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/opt/lib/libvcuda.so")


def _pages(directory: str, end: str = "") -> tuple[tuple[str, str], ...]:
    at = f"/gpu-manager/pages/{directory}"
    return (LIMITS_PATH, f"{at}/limits{end}"), (USAGE_PATH, f"{at}/usage{end}")


@dataclass(frozen=True)
class Mounted:
    """``mounts`` are (path, root), of each mount namespace of the container; ``sound``: they are as granted."""

    name: str
    mounts: tuple[tuple[tuple[str, str], ...], ...]
    sound: bool
    fraction: bool = True
    driver: bool = True
    tree: str = field(default="")


KINDS = (
    Mounted("as granted", ((_ROOT, _DRIVER, *_pages(DIRECTORY)),), True),
    Mounted("nothing, as where CDI is off", ((_ROOT, ("/proc", "/")),), False),
    Mounted("no limits page", ((_ROOT, _DRIVER, _pages(DIRECTORY)[1]),), False),
    Mounted("no usage page", ((_ROOT, _DRIVER, _pages(DIRECTORY)[0]),), False),
    Mounted("another container's pages", ((_ROOT, _DRIVER, *_pages(STRANGER)),), False),
    Mounted(
        "pages that were removed on the node", ((_ROOT, _DRIVER, *_pages(DIRECTORY, "//deleted")),), True
    ),
    Mounted("pages and no driver", ((_ROOT, *_pages(DIRECTORY)),), False),
    Mounted(
        "a driver that only the library opens",
        ((_ROOT, (f"{LIBRARY_DIR}/real/libcuda.so.1", "/x"), *_pages(DIRECTORY)),),
        False,
    ),
    Mounted(
        "the driver as NVIDIA's runtime mounts it",
        ((_ROOT, ("/usr/lib64/libcuda.so.550.54.14", "/x"), *_pages(DIRECTORY)),),
        True,
    ),
    Mounted("a whole card's driver", ((_ROOT, _DRIVER),), True, fraction=False),
    Mounted("a whole card without its driver", ((_ROOT,),), False, fraction=False),
    Mounted(
        "a page under another mount",
        ((_ROOT, _DRIVER, *_pages(DIRECTORY), (LIMITS_PATH, "/somebody/else")),),
        False,
    ),
    Mounted("a mount namespace of its own beside", ((_ROOT,), (_ROOT, _DRIVER, *_pages(DIRECTORY))), True),
    Mounted("paths with blanks", ((_ROOT, ("/a\\040b", "/c\\011d"), _DRIVER, *_pages(DIRECTORY)),), True),
    Mounted("simulated cards, which have no driver", ((_ROOT, *_pages(DIRECTORY)),), True, driver=False),
    Mounted("simulated cards without pages", ((_ROOT,),), False, driver=False),
)
ROOTS = tuple(
    Mounted(kind.name, kind.mounts, kind.sound, kind.fraction, kind.driver, SEEING[n % len(SEEING)])
    for n, kind in enumerate(KINDS * 3)
)


class MountedNode:
    """The node in ``place``, with an agent's check whose clock stands still."""

    def __init__(self, place: Path, made: Mounted) -> None:
        self.proc = place / "proc"
        shutil.copytree(TREES / (made.tree or SEEING[0]), self.proc, symlinks=True)
        for pid, mounts in zip((PID, BESIDE), made.mounts, strict=False):
            if pid == BESIDE:
                shutil.copytree(self.proc / str(PID), self.proc / str(BESIDE), symlinks=True)
            self.mount(pid, mounts)
        self.pods, self.clock = FakePods(), FakeClock()
        self.bind()
        share = Share(CARD.uuid, Amount(30, 5 * GIB) if made.fraction else Amount(100, CARD.memory))
        allocation = Allocation(POD, "c", ContainerKind.APP, 0, (share,), "team", "train", granted=True)
        self.state = state_of(cards(1), Grant(allocation, DIRECTORY))
        processes = CgroupProcesses(self.proc)
        self.check = InjectionCheck(self.state, self.pods, processes, self.clock, "cdi", driver=made.driver)

    def bind(self, *, running: bool = True, runtime_id: str = CONTAINER) -> None:
        """The pod as the API shows it."""
        container = Container("c", ContainerKind.APP, running=running, runtime_id=runtime_id)
        self.pods.bind(Pod(POD, "team", "train", (container,)))

    def mount(self, pid: int, mounts: tuple[tuple[str, str], ...]) -> None:
        """What the process has mounted from now on."""
        lines = (_LINE.format(number=n + 800, path=path, root=root) for n, (path, root) in enumerate(mounts))
        (self.proc / str(pid) / "mountinfo").write_text("".join(lines))

    def named_after(self, seconds: float) -> float | None:
        """Look as the agent does; after how many seconds the container is named, None if it is not."""
        started = self.clock.monotonic()
        while self.clock.monotonic() - started <= seconds:
            self.check.look()
            if self.check.found:
                return self.clock.monotonic() - started
            self.clock.pass_(PERIOD_SECONDS)
        return None

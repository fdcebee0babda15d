"""A power cut in the middle of an allocation under CDI: every state in which unsynced files may be found after it.

The kubelet holds two containers: one whose Allocate was answered a moment ago, and, where the cut came after the
agent had saved its books, the one that it was asking for. What lay in memory (specs, pages) is gone; of what was
written to disk without a sync anything may be there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.containers import HeldInjection
from tests.component.driver_roots import DriverRoot, Objects
from tests.fakes.injected import FRACTION, WHOLE, A, B, Place

Loss = Callable[[Path], None]  # of what lies in an allocation's directory on disk


def _file(content: Callable[[bytes], bytes]) -> Loss:
    def lose(directory: Path) -> None:
        path = directory / "injection.json"
        path.write_bytes(content(path.read_bytes()))

    return lose


def _only_draft(directory: Path) -> None:
    path = directory / "injection.json"
    path.rename(directory / ".injection.json.00c0ffee")


def _without_file(directory: Path) -> None:
    (directory / "injection.json").unlink()


def _without_directory(directory: Path) -> None:
    _without_file(directory)
    directory.rmdir()


LOSSES: dict[str, Loss] = {
    "whole": lambda _: None,
    "empty": _file(lambda _: b""),
    "half": _file(lambda text: text[: len(text) // 2]),
    "zeros": _file(lambda text: bytes(len(text))),
    "old-block": _file(lambda text: text[:64] + b"\xff" * (len(text) - 64)),
    "draft-only": _only_draft,
    "no-file": _without_file,
    "no-directory": _without_directory,
}


@dataclass(frozen=True)
class Cut:
    """What is found of the container that ran (``before``) and of the one that was being made (``during``)."""

    before: str
    during: str
    saved: bool

    @property
    def name(self) -> str:
        return f"{self.before}-{self.during}-{'saved' if self.saved else 'unsaved'}"


CUTS = tuple(Cut(*one) for one in product(LOSSES, LOSSES, (True, False)))


def stranded_after(place: Path, objects: Objects, cut: Cut) -> list[str]:
    """The containers that the kubelet holds and that cannot start again, once a new agent has started."""
    place.mkdir()
    node = Place(place)
    root = DriverRoot(place / "node", objects)
    root.install()
    root.nodes(range(1))
    agent = node.agent(Strategy.CDI)
    shares = {A: FRACTION, B: WHOLE}
    for name, loss in ((A, cut.before), (B, cut.during)):
        agent.inject(name, shares[name], None, "{}")
        LOSSES[loss](node.state / "tenants" / name)
    wanted = {path.name: path.read_bytes() for path in node.cdi.iterdir()}
    held = {name: HeldInjection(shares[name], None) for name in ((A, B) if cut.saved else (A,))}
    node.reboot()
    again = node.agent(Strategy.CDI)
    try:
        again.restore(held)
    except NodeUnready as error:
        return [str(error)]
    for _ in range(2):
        again.prune(held)
    files = (node.cdi / f"tencent.com-vcuda_{name}.json" for name in held)
    return [path.name for path in files if not path.exists() or path.read_bytes() != wanted[path.name]]

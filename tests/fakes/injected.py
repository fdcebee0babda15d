"""An agent's own directories, and agents that inject from there."""

import shutil

from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.injector import DriverFiles
from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import Amount

GIB = 1 << 30
A, B, C = ("a" * 32, "b" * 32, "c" * 32)
CARD = CardUuid("GPU-5fd4f087-86f3-7a43-b711-4771313afc50")
CARDS = (CardState(Card(index=0, uuid=CARD, model="A100", memory=80 * GIB, minor=0)),)
FRACTION = (Share(CARD, Amount(30, 5 * GIB)),)
WHOLE = (Share(CARD, Amount(100, 80 * GIB)),)


class Place:
    """An agent's own directories; its cards are simulated, so that no driver is needed."""

    def __init__(self, base):
        self.base = base
        self.state, self.pages, self.cdi, self.package = (
            base / n for n in ("state", "pages", "cdi", "package")
        )
        self.package.mkdir()
        self.ship(b"one")
        for name in (A, B, C):
            for page in ("limits", "usage"):
                (self.pages / name).mkdir(parents=True, exist_ok=True)
                (self.pages / name / page).write_bytes(b"")

    def ship(self, content):
        """The package with another library, as an upgrade replaces files: by new ones."""
        for name in ("libvcuda.so", "libvcuda-ml.so", "vcuda-ldcache"):
            draft = self.package / "draft"
            draft.write_bytes(content + name.encode())
            draft.rename(self.package / name)

    def reboot(self):
        """What lies in memory is gone."""
        for gone in (self.cdi, self.pages):
            shutil.rmtree(gone, ignore_errors=True)

    def agent(self, strategy=Strategy.SIMULATED, cdi_dir=None, simulated=False):
        return DriverFiles(
            strategy,
            cards=lambda: CARDS,
            state=self.state,
            pages=self.pages,
            libraries=self.package,
            host=HostFiles(self.base / "node"),
            cdi_dir=cdi_dir or self.cdi,
            simulated=simulated,
        )

    def library(self, injection):
        return next(
            m.host_path for m in injection.mounts if m.container_path == "/usr/local/vcuda/libvcuda.so"
        )

    def installed(self):
        return sorted(p.name for p in (self.state / "lib").iterdir())

    def specs(self):
        return sorted(p.name for p in self.cdi.iterdir())

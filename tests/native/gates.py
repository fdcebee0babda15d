"""What the agent does on a card with protected and best-effort containers, over a modelled card; or a hand of the test's
on the gate."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_manager.adapters.control_pages.pages import NativeGateWatcher
from gpu_manager.domain.enforcement.protection import CardMember, gated_cards
from gpu_manager.ports.control_pages import Correction, GateWatch, WatchedTenant
from tests.native.core_world import CARD, World
from tests.native.tools import build_tests
from vcuda.page.layout import read_gate


class GatedHost:
    """The shares granted to both classes, and the native watcher."""

    def __init__(self, made: World) -> None:
        self._made = made
        self.gate: Path = made.tenants.gates.path(CARD)
        program = build_tests("vcuda-gates") / "vcuda-gates"
        self.watcher = NativeGateWatcher(program, made.base / "pages", made.tenants.gates.path)

    def protect(self, members: Sequence[CardMember]) -> None:
        """Tell the containers their shares, and watch the card's gate."""
        (card,) = gated_cards(members)
        for name, granted in card.granted().items():
            told = Correction(granted=granted.share, beside=granted.beside)
            self._made.tenants.publish(name, time.monotonic_ns(), {CARD: told})
        watched = [
            tuple(WatchedTenant(m.name, m.index, m.cores) for m in some)
            for some in (card.protected, card.best_effort)
        ]
        self.watcher.watch([GateWatch(CARD, *watched)])

    @property
    def pid(self) -> int:
        """The watcher's process."""
        assert self.watcher._process is not None
        return self.watcher._process.pid

    def cpu_ns(self) -> int:
        """What the watcher has used of a processor; 0 while none runs."""
        if self.watcher._process is None:
            return 0
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0])

    def closed(self) -> bool:
        """True while the gate is closed."""
        return read_gate(self.gate.read_bytes()).closed_until_ns > time.monotonic_ns()

    def close(self) -> None:
        """End the watcher."""
        self.watcher.close()


CLOSED_UNTIL = 8


# Of a priority of its own, as the watcher is a program of its own: what is tested spins on both processors.
HOLD = """
import contextlib, os, select, struct, sys, time
path, at, ahead = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with contextlib.suppress(PermissionError):
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(50))
with open(path, "r+b", buffering=0) as gate:
    gate.seek(at)
    gate.write(struct.pack("<Q", time.monotonic_ns() + ahead))
    print(flush=True)
    while not select.select([sys.stdin], [], [], 0.005)[0]:
        gate.seek(at)
        gate.write(struct.pack("<Q", time.monotonic_ns() + ahead))
    gate.seek(at)
    gate.write(bytes(8))
"""


@contextlib.contextmanager
def closed(made: World, deadline_ns: int = 190_000_000) -> Iterator[None]:
    """The gate is kept closed, as the watcher does: by a deadline that is put off again and again."""
    made.tenants.gates.ensure(CARD)
    gate = made.tenants.gates.path(CARD)
    command = [sys.executable, "-c", HOLD, str(gate), str(CLOSED_UNTIL), str(deadline_ns)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            holder.stdout.readline()
            yield
        finally:
            holder.stdin.close()

"""What the agent does on a card with protected and best-effort containers, over a modelled card."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from gpu_manager.adapters.control_pages.gate_watcher import NativeGateWatcher
from gpu_manager.domain.enforcement.protection import CardMember, gated_cards
from gpu_manager.ports.control_pages import Correction
from gpu_manager.ports.gates import GateWatch, WatchedTenant
from tests.native.core_world import CARD, World
from tests.native.tools import build_tests
from vcuda.page.gate import read_gate


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
        for name, share in card.shares().items():
            self._made.tenants.publish(name, time.monotonic_ns(), {CARD: Correction(granted=share)})
        told = [
            tuple(WatchedTenant(m.name, m.index, m.cores) for m in some)
            for some in (card.protected, card.best_effort)
        ]
        self.watcher.watch([GateWatch(CARD, *told)])

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

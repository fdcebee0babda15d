"""Rounds of the reclaimer over pages that cannot be removed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gpu_manager.domain.errors import NodeUnready
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeTenants


@dataclass
class Mounted(FakeTenants):
    """Directories of which some are mounts that this agent may not take away."""

    stuck: set[str] = field(default_factory=set)
    tries: list[str] = field(default_factory=list)

    def remove(self, name: str) -> None:
        self.tries.append(name)
        if name in self.stuck:
            raise NodeUnready("Operation not permitted")
        super().remove(name)


def test_a_directory_that_cannot_be_removed_keeps_no_other_from_going(tmp_path: Path) -> None:
    rig, pages = NodeRig(tmp_path), Mounted()
    rig.tenants = pages
    with rig:
        obj = pod("kept", container("c", 30, 20))
        rig.admit(obj)
        [kept] = pages.names()
        pages.limits |= {"left-1": (), "left-2": (), "left-3": ()}
        pages.stuck = {"left-2"}
        for _ in range(4):
            rig.reclaimer.round()
        assert set(pages.names()) == {kept, "left-2"}
        assert pages.tries.count("left-2") == 1

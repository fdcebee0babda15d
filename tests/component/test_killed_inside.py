"""The agent killed in the middle of a call, at every thing that it asks of the node; a fresh one finds the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.injection import Injection
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.control_pages import Limit
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeClock, FakeInjector, FakeStore, FakeTenants, cards


class Killed(Exception):  # noqa: N818 - it is no error of the program's
    """Nothing of the agent goes on after this; what it had asked of the node until then stays."""


class Fate:
    """Ends the agent at the ``at``-th thing it asks of the node; 0 never. ``after``: when that is done."""

    def __init__(self, *, after: bool) -> None:
        self.after = after
        self.at = 0
        self.asked: list[str] = []

    def __call__(self, what: str, act: Callable[[], Any]) -> Any:
        self.asked.append(what)
        last = self.at == len(self.asked)
        if last and not self.after:
            raise Killed(what)
        result = act()
        if last:
            raise Killed(what)
        return result


class Node(NodeRig):
    """One card; everything that the agent writes goes through ``fate``."""

    def __init__(self, directory: Path, *, after: bool) -> None:
        super().__init__(directory, cards(1), clock=FakeClock())
        fate = self.fate = Fate(after=after)

        class Store(FakeStore):
            def save(self, state: bytes) -> None:
                fate("the books", lambda: super(Store, self).save(state))

        class Tenants(FakeTenants):
            def open(self, name: str, limits: Sequence[Limit]) -> None:
                fate("pages", lambda: super(Tenants, self).open(name, limits))

            def reset(self, name: str) -> None:
                fate("usage", lambda: super(Tenants, self).reset(name))

        class Injector(FakeInjector):
            def inject(self, *told: Any) -> Injection:
                found = fate("files", lambda: super(Injector, self).inject(*told))
                assert isinstance(found, Injection)
                return found

        self.store, self.tenants, self.injector = Store(), Tenants(), Injector()

    def kill_at(self, step: int) -> None:
        self.fate.asked.clear()
        self.fate.at = step

    def revive(self) -> None:
        self.fate.at = 0
        self.restart_agent()


Order = Callable[[Sequence[str]], Sequence[str]]
ORDERS: dict[str, Order] = {
    "core first": sorted,
    "memory first": lambda names: sorted(names, reverse=True),
}
ADMISSION = 4  # pages, files and books for the one resource, books for the other
START = 3  # pages, usage, books


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, ADMISSION + 1))
def test_killed_inside_an_admission_nothing_stays_behind_and_the_next_pod_has_the_card(
    tmp_path: Path, step: int, after: bool, order: str
) -> None:
    with Node(tmp_path, after=after) as node:
        node.kubelet.hooks.order = ORDERS[order]
        node.kill_at(step)
        lost = pod("lost", container("c", 60, 40), on={"c": [(node.states[0], 60, 10 * GIB)]})
        assert not node.admit(lost).admitted
        assert len(node.fate.asked) == step
        node.revive()
        lost["status"] = {"phase": "Failed"}
        node.pods.bind(node.parsed(lost))
        heir = pod("heir", container("c", 80, 60), on={"c": [(node.states[0], 80, 15 * GIB)]})
        result = node.admit(heir)
        assert result.admitted, result.message
        node.start(heir)
        (limit,) = node.limits(result, "c")
        assert (limit.cores, limit.memory) == (80, 15 * GIB)
        assert isinstance(node.clock, FakeClock)
        node.clock.pass_(SETTLE_SECONDS + 5)
        for _ in range(3):
            node.reclaimer.round()
        held = list(node.state.view.grants)
        assert held == [(PodUid(heir["metadata"]["uid"]), "c")]
        assert len(node.tenants.names()) == 1


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, START + 1))
def test_killed_inside_a_start_the_next_try_is_as_if_it_were_the_first(
    tmp_path: Path, step: int, after: bool
) -> None:
    with Node(tmp_path, after=after) as node:
        one = pod("one", container("c", 60, 40))
        result = node.admit(one)
        node.kill_at(step)
        with pytest.raises(NodeUnready):
            node.start(one)
        assert len(node.fate.asked) == step
        node.revive()
        node.start(one)
        (limit,) = node.limits(result, "c")
        assert (limit.cores, limit.memory) == (60, 10 * GIB)
        node.restart_agent()
        assert [g.proven for g in node.state.view.grants.values()] == [True]

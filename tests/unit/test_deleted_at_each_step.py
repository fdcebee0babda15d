"""A pod that is deleted by force at each step of its admission and start, beside a node that tells schedulers.

What a node tells as released is given to others at once: such a pod must hold nothing from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.kube.pod import PodUid
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock, cards

GHOST = PodUid("uid-ghost")
PORTS = {
    "pods": ("local", "fetch"),
    "client": ("listing", "checkpoint"),
    "processes": ("alive",),
    "tenants": ("open", "reset"),
    "injector": ("inject",),
    "store": ("save",),
}


@dataclass
class Steps:
    """Each call from the agent to what is outside of it, before and after; ``act`` is called there, but not
    within itself.
    """

    act: Callable[[int], object] = lambda _: None
    reached: int = 0
    names: list[str] = field(default_factory=list)

    def watch(self, rig: DirectRig) -> None:
        for port, methods in PORTS.items():
            for method in methods:
                at = getattr(rig, port)
                setattr(at, method, self._watched(f"{port}.{method}", getattr(at, method)))

    @contextmanager
    def acting(self, act: Callable[[int], object]) -> Iterator[None]:
        """Count from 0, with another act."""
        before = self.act, self.reached
        self.act, self.reached = act, 0
        try:
            yield
        finally:
            self.act, self.reached = before

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            self._reach(name)
            try:
                return call(*args, **options)
            finally:
                self._reach(name)

        return watched

    def _reach(self, name: str) -> None:
        self.names.append(name)
        self.reached += 1
        number, act = self.reached - 1, self.act
        with self.acting(lambda _: None):
            act(number)


class Judge:
    """Deletes the pod at one step, or while the node is about to tell of its pods at one step."""

    def __init__(self, rig: DirectRig, steps: Steps, at: int, within: int | None) -> None:
        self._rig, self._steps, self._at, self._within = rig, steps, at, within
        self.deleted = self.released = self.admitted = False

    def act(self, step: int) -> None:
        if step < self._at:
            return
        if step == self._at and self._within is None:
            self.delete()
        with self._steps.acting(self._while_told if step == self._at else lambda _: None):
            told = self._rig.departed.told()
        self.released = self.released or GHOST in told.released
        assert not (self.released and self.admitted), "told as released, and the kubelet starts it"

    def _while_told(self, step: int) -> None:
        if step == self._within:
            self.delete()

    def delete(self) -> None:
        if not self.deleted:
            self.deleted = True
            self._rig.pods.forget("default/ghost")


def admitted(directory: Path, at: int, within: int | None) -> tuple[Judge, list[str]]:
    """The ghost asks for its share while the processes of another deleted pod run on, so that they are looked at."""
    with DirectRig(directory, cards(2), clock=FakeClock(), patience=0) as rig:
        lasts = pod("lasts", container("c", 30, 20), on={"c": [(rig.states[1], 30, 20 << 28)]})
        assert rig.admit(lasts).admitted
        rig.start(lasts)
        rig.processes.living.add(PodUid(lasts["metadata"]["uid"]))
        rig.pods.forget("default/lasts")
        ghost = pod("ghost", container("c", 30, 20), uid=GHOST, on={"c": [(rig.states[0], 30, 20 << 28)]})
        steps = Steps()
        steps.watch(rig)
        judge = Judge(rig, steps, at, within)
        rig.kubelet.hooks.order = sorted
        with steps.acting(judge.act):
            judge.admitted = rig.admit(ghost).admitted
            if judge.admitted:
                rig.processes.living.add(GHOST)  # its sandbox
                rig.start(ghost)
            names = steps.names[:]
            judge.act(max(at, len(names)))
        return judge, names


def test_a_pod_deleted_by_force_at_any_step_is_never_told_as_released_while_it_holds_its_share(
    tmp_path: Path,
) -> None:
    _, plain = admitted(tmp_path / "plain", 1 << 20, None)
    assert {"pods.fetch", "client.listing", "injector.inject", "store.save", "client.checkpoint"} <= set(
        plain
    )
    outcomes = set()
    for at in range(len(plain)):
        judge, _ = admitted(tmp_path / str(at), at, None)
        assert judge.deleted
        outcomes.add((judge.admitted, judge.released))
    assert outcomes == {(False, True), (True, False)}


@pytest.mark.parametrize("within", range(5))
def test_nor_if_it_is_deleted_while_the_node_tells_of_its_pods(tmp_path: Path, within: int) -> None:
    _, plain = admitted(tmp_path / "plain", 1 << 20, None)
    deleted = [admitted(tmp_path / str(at), at, within)[0].deleted for at in range(0, len(plain), 2)]
    assert any(deleted) is (within < 4)

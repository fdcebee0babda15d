"""A claim's containers get what a pod's by extended resources get: environment, mounts, devices, hook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.domain.contract import PRELOAD, PRELOAD_PATH, PRIORITY
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import Amount
from gpu_manager.ports.containers import HeldInjection
from tests.component.driver_roots import machine_is_supported
from tests.fakes import driver_files
from tests.fakes.driver_files import FRACTION, NAME, UUIDS, WHOLE, World

pytestmark = pytest.mark.skipif(
    not machine_is_supported(), reason="the driver exists for x86-64 and aarch64 only"
)
world = driver_files.world

TWO = tuple(Share(uuid, Amount(30, 5 << 30)) for uuid in UUIDS[1:3])
SHARES = {"a part": FRACTION, "parts of two cards": TWO, "whole cards": WHOLE}
GATES = "/etc/vcuda/gates/"


def edits(world: World) -> dict[str, Any]:
    """What the runtime merges of all devices in the one spec on the node."""
    [spec] = world.cdi.glob("*.json")
    found: dict[str, Any] = {}
    for device in json.loads(spec.read_text())["devices"]:
        for kind, entries in device["containerEdits"].items():
            found.setdefault(kind, []).extend(entries)
    return {kind: sorted(map(json.dumps, entries)) for kind, entries in found.items()}


def by_pod(world: World, shares: tuple[Share, ...], priority: Priority, preload: bool) -> dict[str, Any]:
    notes = {PRIORITY: priority.value, PRELOAD: str(preload).lower()}
    pod = Pod(PodUid("u"), "team", "p", (), annotations=notes)
    given = world.injector(Strategy.CDI).inject(NAME, shares, pod, "{}")
    env = sorted(json.dumps(f"{name}={value}") for name, value in given.env.items())
    return {**edits(world), "env": env}


@pytest.mark.parametrize("preload", [True, False])
@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("kind", SHARES)
def test_a_claim_with_these_parameters_is_injected_as_a_pod_with_the_annotations(
    world: World, tmp_path: Path, kind: str, priority: Priority, preload: bool
) -> None:
    shares = SHARES[kind]
    expected = by_pod(world, shares, priority, preload)
    world.injector(Strategy.CDI).inject_claim(NAME, shares, priority, preload=preload)
    assert edits(world) == expected
    mounts = " ".join(expected.get("mounts", []))
    fraction = not shares[0].whole
    assert (GATES in mounts) is (fraction and priority is Priority.BEST_EFFORT)
    assert (f'"{PRELOAD_PATH}"' in mounts) is (fraction and preload)
    # The node loses the spec, and the record of what it was.
    for lost in (*world.cdi.glob("*.json"), *(p for p in world.state.rglob(f"{NAME}*") if p.is_file())):
        lost.unlink()
    agent = world.injector(Strategy.CDI)
    agent.restore({NAME: HeldInjection(shares, None, by_claim=True, priority=priority, preload=preload)})
    assert edits(world) == expected

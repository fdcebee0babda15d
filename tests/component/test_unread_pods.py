"""What a pod that cannot be read holds is what the ledger of its node's agent says, to agent and service alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import INVENTORY, TerminatingShare, decode_inventory
from tests.component.test_agent import NODE, World, series
from tests.fakes.admission import Service, create
from tests.fakes.node import container, pod
from tests.fakes.waiting import until

CARDS = 4


def spoil(world: World, obj: Mapping[str, Any], *, broken: bool) -> None:
    """Make what the API server sends of the pod unreadable: no JSON at all, or one that is no pod."""
    more = {} if broken else {"spec": {**obj["spec"], "containers": 7}}

    def write(version: int) -> bytes:
        meta = {**obj["metadata"], "resourceVersion": str(version)}
        text = json.dumps({**obj, "metadata": meta, **more}).encode()
        return text[:-1] + b",}" if broken else text

    world.api.create_written(obj, write)


def lingering(world: World) -> tuple[TerminatingShare, ...]:
    """Shares of pods that tell nothing of them by themselves, as the node says."""
    node = world.api.get("nodes", NODE) or {}
    found = decode_inventory(node["metadata"]["annotations"].get(INVENTORY))
    return found.lingering if found else ()


def fits(service: Service, world: World, name: str) -> bool:
    """Whether the extender has room on the node for a whole card."""
    asked = create(world.api, name, core=100, memory=None)
    found = service.filter(asked, [NODE])
    world.api.delete("pods", name, grace=0)
    return bool(found["NodeNames"])


@pytest.mark.parametrize("broken", [True, False])
def test_a_pod_that_becomes_unreadable_holds_what_it_holds_until_it_ends(
    tmp_path: Path, *, broken: bool
) -> None:
    with World(tmp_path, "t4x4") as world:
        assert world.run(pod("holder", container("c", 100 * CARDS, 0))).admitted
        holder = world.api.get("pods", "holder") or {}
        with Service(world.api) as before:
            assert not fits(before, world, "first")
            spoil(world, holder, broken=broken)
            until(lambda: len(lingering(world)) == CARDS)
            assert not fits(before, world, "second")
        world.agent.stop()
        world.start()  # it has never read the pod
        until(lambda: len(lingering(world)) == CARDS)
        with Service(world.api) as after:  # nor has this
            assert not fits(after, world, "third")
            world.kubelet.delete(holder["metadata"]["uid"], force=True)
            world.api.delete("pods", "holder", grace=0)
            until(lambda: not lingering(world))
            until(lambda: fits(after, world, "fourth"))


@pytest.mark.parametrize("broken", [True, False])
def test_one_that_the_agent_holds_nothing_for_holds_nothing(tmp_path: Path, *, broken: bool) -> None:
    with World(tmp_path, "t4x4") as world:
        claimed = pod("claims", container("c", 100 * CARDS, 0))
        claimed["metadata"]["annotations"] = {}
        spoil(world, claimed, broken=broken)
        until(
            lambda: (
                series(world.get("/metrics"), "vcuda_watch_unreadable_objects_total", resource="pods") > [0]
            )
        )
        with Service(world.api) as service:
            assert lingering(world) == ()
            until(lambda: fits(service, world, "first"))  # once the agent has published its cards

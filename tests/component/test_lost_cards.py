"""A card that is lost while the agent is away: its ids stay, unhealthy, for as long as anybody holds them."""

from __future__ import annotations

from pathlib import Path

import yaml

from gpu_manager.domain.contract import CORE, GPU_UUID, INVENTORY, decode_inventory
from gpu_manager.domain.pod import PodUid
from tests.component.test_agent import NODE, World
from tests.fakes.node import container, pod
from tests.fakes.waiting import until


def profile(directory: Path, count: int) -> str:
    path = directory / "node.yaml"
    names = [f"GPU{n}" for n in range(count)]
    rows = [[name, *("X" if other == name else "SYS" for other in names)] for name in names]
    matrix = "\n".join("\t".join(row) for row in [["", *names], *rows])
    kinds = [{"count": count, "model": "Tesla-T4", "memory": "16Gi"}]
    path.write_text(yaml.safe_dump({"cards": kinds, "topology": matrix}))
    return str(path)


def test_ids_of_a_lost_card_stay_unhealthy_until_the_last_pod_that_holds_some_is_gone(tmp_path: Path) -> None:
    with World(tmp_path, profile(tmp_path, 4)) as world:
        last = world.agent.state.node.cards[3].card.uuid
        result = world.run(pod("held", container("c", 30, 8), annotations={GPU_UUID: last}))
        assert result.admitted, result.message
        lost = world.limits_card(result)
        world.agent.stop()
        profile(tmp_path, 3)
        world.start()
        assert world.kubelet.capacity()[CORE] == 400, "its ids are still there"
        assert world.kubelet.allocatable()[CORE] == 300, "and nobody gets them"
        (state,) = [s for s in world.agent.state.node.cards if s.card.uuid == lost]
        assert not state.healthy
        assert "vanished" in state.reason
        shown = decode_inventory((world.api.get("nodes", NODE) or {})["metadata"]["annotations"][INVENTORY])
        assert shown is not None
        assert [s.healthy for s in shown.cards] == [True, True, True, False]
        world.agent.state.release([(PodUid(result.uid), "c")])
        until(lambda: world.kubelet.capacity()[CORE] == 300)


def test_a_lost_card_that_is_back_at_the_next_start_is_as_it_was(tmp_path: Path) -> None:
    with World(tmp_path, profile(tmp_path, 2)) as world:
        assert world.run(pod("held", container("c", 30, 8))).admitted
        world.agent.stop()
        world.start()
        assert world.kubelet.allocatable()[CORE] == 200
        assert all(s.healthy for s in world.agent.state.node.cards)

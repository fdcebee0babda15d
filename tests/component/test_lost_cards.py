"""A card that is lost while the agent is away is missed: unhealthy until it is back or forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gpu_manager.cli.main import run
from gpu_manager.domain.contract import CORE, FORGET, GPU_UUID, INVENTORY, Inventory, decode_inventory
from gpu_manager.domain.kube.pod import PodUid
from tests.component.test_agent import NODE, World, series
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


def test_a_lost_card_stays_unhealthy_until_it_is_forgotten_and_nobody_holds_any_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        where = ["--node-name", NODE, "--api-url", world.api.url]
        assert run(["forget", lost, *where]) == 0
        assert lost in capsys.readouterr().out
        until(lambda: FORGET in annotations(world))
        world.agent.state.release([(PodUid(result.uid), "c")])
        until(lambda: world.kubelet.capacity()[CORE] == 300)
        until(lambda: FORGET not in annotations(world))


def test_an_idle_card_that_a_reboot_does_not_bring_back_is_in_the_series_and_not_to_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with World(tmp_path, profile(tmp_path, 3)) as world:
        there, gone = (world.agent.state.node.cards[n].card.uuid for n in (0, 2))
        world.agent.stop()
        profile(tmp_path, 2)
        world.start()
        assert world.kubelet.allocatable()[CORE] == 200
        text = world.get("/metric")
        assert series(text, "vcuda_card_missing") == [0, 0, 1]
        assert series(text, "vcuda_card_healthy", uuid=gone, card="2") == [0]
        assert json.loads(world.get("/readyz"))["cards"], "the others serve"
        until(lambda: inventory(world).cards[2].missing)
        where = ["--node-name", NODE, "--api-url", world.api.url]
        assert run(["forget", there, *where]) == 2
        assert "cordon it" in capsys.readouterr().err
        assert run(["forget", gone, *where, "-o", "json"]) == 0
        until(lambda: series(world.get("/metric"), "vcuda_card_healthy") == [1, 1])
        assert world.agent.known_cards.load() == tuple(s.card for s in world.agent.state.node.cards)


def inventory(world: World) -> Inventory:
    shown = decode_inventory(annotations(world)[INVENTORY])
    assert shown is not None
    return shown


def annotations(world: World) -> dict[str, str]:
    node = world.api.get("nodes", NODE)
    assert node is not None
    found: dict[str, str] = node["metadata"]["annotations"]
    return found


def test_a_lost_card_that_is_back_at_the_next_start_is_as_it_was(tmp_path: Path) -> None:
    with World(tmp_path, profile(tmp_path, 2)) as world:
        assert world.run(pod("held", container("c", 30, 8))).admitted
        world.agent.stop()
        world.start()
        assert world.kubelet.allocatable()[CORE] == 200
        assert all(s.healthy for s in world.agent.state.node.cards)

"""The commands that ask a running agent, or the API server, about one node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.cli.main import run
from gpu_manager.domain.contract import CORDON
from sandbox.api import ADMIN_TOKEN
from tests.component.test_agent import NODE, World
from tests.fakes.node import container, pod
from tests.fakes.waiting import until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, "t4x4") as running:
        yield running


def test_status_graph_and_usage_show_the_node(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(pod("seen", container("c", 30, 8)))
    world.agent.running.usage.sample()
    url = f"http://127.0.0.1:{world.agent.http.port}"
    assert run(["status", "--url", url]) == run(["usage", "--url", url]) == 0
    stranger = capsys.readouterr().out
    assert "hidden 30" in stranger
    assert "hidden: asked 0.3 cards, 2048 MiB" in stranger
    monkeypatch.setenv("GPU_MANAGER_TOKEN", ADMIN_TOKEN)
    assert run(["status", "--url", url]) == 0
    assert "default/seen c 30" in capsys.readouterr().out
    assert run(["graph", "--url", url]) == 0
    assert "default/seen c: 30 cores, 2 GiB" in capsys.readouterr().out
    assert run(["usage", "--url", url]) == 0
    assert (
        "default/seen c: asked 0.3 cards, 2048 MiB; used 0 % and 0 MiB of card 0" in capsys.readouterr().out
    )
    assert run(["graph", "--url", url, "-o", "json"]) == 0
    said = capsys.readouterr().out
    assert len(json.loads(said[said.index("{\n") :])["cards"]) == 4  # the agent in this process logs too
    assert run(["status", "--url", url, "-o", "yaml"]) == 0
    assert "ready:" in capsys.readouterr().out


def test_a_cordoned_card_takes_nothing_new_until_it_is_opened(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    cards = [s.card.uuid for s in world.agent.state.node.cards]
    where = ["--node-name", NODE, "--api-url", world.api.url]

    def closed() -> int:
        return sum(s.cordoned for s in world.agent.state.node.cards)

    assert run(["cordon", *cards[:3], *where]) == 0
    assert "3 cordoned" in capsys.readouterr().out
    until(lambda: closed() == 3)
    one = world.run(pod("one", container("c", 30, 8)))
    assert world.limits_card(one) == cards[3]
    assert run(["uncordon", *cards[:3], *where]) == 0
    until(lambda: closed() == 0)
    node = world.api.get("nodes", NODE)
    assert node is not None
    assert CORDON not in node["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["status", "--url", "http://127.0.0.1:9"], 1, "no agent answers at"),
        (["graph", "--url", "file:///etc/passwd"], 2, "--url is"),
        (["cordon", "GPU-x", "--node-name", "n", "--api-url", "http://127.0.0.1:9"], 1, "API server"),
    ],
)
def test_what_cannot_be_asked_is_one_line_with_the_cure(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1


def test_a_mistyped_card_is_refused_with_those_there_are(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    until(
        lambda: (
            "tencent.com/vcuda-inventory"
            in (world.api.get("nodes", NODE) or {"metadata": {}})["metadata"].get("annotations", {})
        )
    )
    assert run(["cordon", "GPU-typo", "--node-name", NODE, "--api-url", world.api.url]) == 2
    assert world.agent.state.node.cards[0].card.uuid in capsys.readouterr().err

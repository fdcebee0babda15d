"""Association with the kubelet's Pods API as the only witness of which pods there are, and once it is gone."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from gpu_manager.adapters.kubelet.pods_api import PodsApi
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.ports.api_server import KnownPod
from sandbox.kubelet.pods_api import PodsApiServer
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakePods, cards
from tests.fakes.sandbox import short_directory
from tests.seeds import generator, seeds

UNITS = 4


class PodsBySocket(FakePods):
    """As the agent's adapter: what the socket lists is known from then on; else the API server is asked."""

    source: PodsApi

    def fetch(self, namespace: str, name: str) -> Pod | None:
        listed = self.source.pods()
        if listed is None:
            return super().fetch(namespace, name)
        self.known |= {one.key: [KnownPod(one)] for one in listed}
        return next((one for one in listed if (one.namespace, one.name) == (namespace, name)), None)


class Rig(NodeRig):
    """A node whose watch shows nothing; ``api`` is the kubelet's Pods API."""

    pods: PodsBySocket
    api: PodsApiServer


@pytest.fixture
def rig() -> Iterator[Rig]:
    with short_directory() as directory:
        made = Rig(directory, cards(4))
        made.api = PodsApiServer(directory, made.kubelet.pods)
        made.pods = PodsBySocket()
        made.pods.source = PodsApi(made.api.socket, SystemClock())
        made.api.start()
        with made:
            yield made
        made.pods.source.close()
        made.api.stop()


def run(rig: Rig, draw: random.Random, names: range, *, in_api: bool) -> None:
    """Pods of one shape, each for the card that the scheduler chose, in an order that nobody knows."""
    made = []
    for number in names:
        chosen = rig.states[number % len(rig.states)]
        on = {"c": [(chosen, 10, UNITS * DEFAULT_UNIT)]}
        made.append((chosen.card.index, pod(f"p{number}", container("c", 10, UNITS), on=on)))
    draw.shuffle(made)
    for index, obj in made:
        if in_api:
            rig.pods.bind(rig.parsed(obj), watched=False)
        assert rig.kubelet.admit(obj).admitted
        assert rig.cards_of(obj, "c") == (index,)


@pytest.mark.parametrize("seed", seeds(3))
def test_each_container_gets_the_card_that_was_chosen_for_it(rig: Rig, seed: int) -> None:
    run(rig, random.Random(seed), range(16), in_api=False)
    assert rig.api.calls > 0
    assert rig.pods.fetches == 0, "the API server was not asked"


def test_when_the_api_goes_away_the_others_are_asked_and_nothing_is_guessed(rig: Rig) -> None:
    draw = generator(7)
    run(rig, draw, range(8), in_api=False)
    rig.api.stop(leave=True)
    run(rig, draw, range(8, 16), in_api=True)
    assert rig.pods.fetches > 0
    rig.api.start()

"""The DRA front, whole: claims are allocated, prepared and released over real sockets, pages and CDI specs."""

from __future__ import annotations

import json
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.agent.composition import Agent
from gpu_manager.domain.contract import (
    CORE,
    DRA_DRIVER,
    FRONT_LABEL,
    GATES_DIR,
    INVENTORY,
    PRELOAD_PATH,
    decode_inventory,
)
from gpu_manager.domain.dra.sides import Front
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from sandbox.api import ADMIN_TOKEN
from tests.fakes.dra_world import NAMESPACE, NODE, DraWorld
from tests.fakes.sandbox import short_directory
from tests.fakes.waiting import PATIENCE, until
from vcuda.page.limits import read_limits

GIB = 1 << 30


@pytest.fixture
def world() -> Iterator[DraWorld]:
    with short_directory() as directory, DraWorld(directory) as running:
        yield running


def part(cores: int, memory: str) -> dict[str, object]:
    return {"capacity": {"requests": {"cores": str(cores), "memory": memory}}}


def ask(world: DraWorld, path: str, token: str = ADMIN_TOKEN) -> dict:
    url = f"http://127.0.0.1:{world.agent.http.port}{path}"
    login = {"Authorization": f"Bearer {token}"} if token else {}
    asked = urllib.request.Request(url, headers={"Accept": "application/json", **login})
    with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
        return json.loads(answer.read())


def test_two_pods_share_a_card_each_with_its_own_limits(world: DraWorld) -> None:
    one = world.run(world.pod(world.claim(**part(30, "4Gi"))))
    two = world.run(world.pod(world.claim(**part(50, "8Gi"))))
    [(card, first)], [(same, second)] = (world.limits(pod, "c0").items() for pod in (one, two))
    assert card == same
    assert (first, second) == ((30, 4 * GIB), (50, 8 * GIB))
    assert world.edits(one, "c0").env["VCUDA_CARDS"] == card


def test_a_claim_without_capacity_is_a_whole_card(world: DraWorld) -> None:
    pod = world.run(world.pod(world.claim(count=2)))
    assert sorted(world.limits(pod, "c0").values()) == [(100, -1), (100, -1)]


def test_one_request_gives_equal_parts_of_several_cards(world: DraWorld) -> None:
    pod = world.run(world.pod(world.claim(count=2, **part(30, "4Gi"))))
    limits = world.limits(pod, "c0")
    assert len(limits) == 2
    assert set(limits.values()) == {(30, 4 * GIB)}


def test_a_part_of_every_card_is_one_page_of_limits_and_the_environment_of_all(world: DraWorld) -> None:
    pod = world.run(world.pod(world.claim(allocationMode="All", **part(30, "4Gi"))))
    limits = world.limits(pod, "c0")
    assert list(limits.values()) == [(30, 4 * GIB)] * 4
    edits = world.edits(pod, "c0")
    assert sorted(edits.env["VCUDA_CARDS"].split(",")) == sorted(limits)
    more = world.run(world.pod(world.claim(count=2, **part(70, "4Gi"))))
    assert set(world.limits(more, "c0")) < set(limits)
    assert not world.scheduler.allocate(world.pod(world.claim(count=3, **part(70, "4Gi"))), NODE)


def test_containers_of_one_claim_get_what_their_request_was_given(world: DraWorld) -> None:
    requests = [
        {"name": name, "exactly": {"deviceClassName": DRA_DRIVER, **part(cores, "1Gi")}}
        for name, cores in (("big", 40), ("small", 10))
    ]
    claim = world.claim(*requests)
    pod = world.run(
        world.pod(claim, containers=[("a", claim, "big"), ("b", claim, "small"), ("c", claim, "small")])
    )
    assert [next(iter(world.limits(pod, name).values()))[0] for name in "abc"] == [40, 10, 10]
    assert world.edits(pod, "b").mounts == world.edits(pod, "c").mounts


def test_a_reboot_takes_pages_and_specs_and_every_claim_comes_back(world: DraWorld) -> None:
    pod = world.run(world.pod(world.claim(**part(30, "4Gi"))))
    before = world.limits(pod, "c0")
    world.manager.close()
    world.stop_agent()
    shutil.rmtree(world.pages)
    shutil.rmtree(world.cdi)
    world.manager = world.new_manager()
    world.start_agent()
    world.manager.prepare(pod)
    assert world.limits(pod, "c0") == before


def test_pages_and_specs_are_there_before_a_restarted_agent_registers(world: DraWorld) -> None:
    """A container may start again while the agent is down, and by the kubelet's answer of before."""
    pod = world.run(world.pod(world.claim(**part(30, "4Gi"))))
    before = world.limits(pod, "c0")
    world.stop_agent()
    shutil.rmtree(world.pages)
    shutil.rmtree(world.cdi)
    world.start_agent()
    assert world.limits(pod, "c0") == before


def test_a_kubelet_that_restarts_finds_the_driver_and_prepares_again(world: DraWorld) -> None:
    pod = world.run(world.pod(world.claim(**part(30, "4Gi"))))
    before = world.limits(pod, "c0")
    world.manager.close()
    world.manager = world.new_manager()
    world.register()
    world.manager.prepare(pod)
    assert world.limits(pod, "c0") == before
    world.end(pod)
    assert world.scheduler.used(NODE) == {}


def test_what_a_claim_held_is_free_when_it_is_unprepared(world: DraWorld) -> None:
    pods = [world.run(world.pod(world.claim())) for _ in range(4)]
    assert not world.scheduler.allocate(world.pod(world.claim(**part(1, "256Mi"))), NODE)
    world.end(pods[1])
    late = world.run(world.pod(world.claim(**part(30, "1Gi"))))
    assert len(world.limits(late, "c0")) == 1


def test_a_claim_of_several_pods_is_released_with_the_last(world: DraWorld) -> None:
    claim = world.claim(**part(30, "4Gi"))
    one, two = world.run(world.pod(claim)), world.run(world.pod(claim))
    assert world.edits(one, "c0") == world.edits(two, "c0")
    world.end(one)
    assert world.limits(two, "c0")
    world.end(two)
    assert world.agent.state.view.ledger.claims == ()


def test_a_claim_that_the_scheduler_allocated_twice_over_is_refused_with_its_holder(world: DraWorld) -> None:
    """Schedulers act on copies that are seconds old."""
    held = world.claim(**part(80, "4Gi"))
    world.run(world.pod(held))
    late = world.pod(world.claim(**part(80, "4Gi")))
    assert world.scheduler.allocate(late, NODE, used={"stale": {}})
    with pytest.raises(NodeUnready, match=rf"claim {NAMESPACE}/{held}"):
        world.manager.prepare(late)
    booked = [world.agent.state.view.ledger.booked(s.card.uuid).cores for s in world.agent.state.node.cards]
    assert sorted(booked) == [0, 0, 0, 80]


def test_the_kubelet_hears_of_the_health_of_each_card(world: DraWorld) -> None:
    until(lambda: set(world.manager.health(DRA_DRIVER).values()) == {1})
    assert len(world.manager.health(DRA_DRIVER)) == 4
    world.break_card(0)
    until(lambda: sorted(world.manager.health(DRA_DRIVER).values()) == [1, 1, 1, 2])
    until(lambda: any(device.taints for device in world.scheduler.devices(NODE)))
    assert len([device for device in world.scheduler.devices(NODE) if device.taints]) == 1


def test_one_slice_with_a_rising_generation_and_no_second_object(world: DraWorld) -> None:
    [first] = world.api.list("resourceslices")
    assert first["metadata"]["ownerReferences"][0]["name"] == NODE
    world.break_card(2)
    until(lambda: world.api.list("resourceslices")[0]["spec"]["pool"]["generation"] == 2)
    [second] = world.api.list("resourceslices")
    assert second["metadata"]["name"] == first["metadata"]["name"]
    assert len(second["spec"]["devices"]) == 4


def test_people_see_who_holds_a_card(world: DraWorld) -> None:
    claim = world.claim(**part(30, "4Gi"))
    pod = world.run(world.pod(claim))
    holders = [one for card in ask(world, "/graph")["cards"] for one in card["holders"]]
    assert [(one["claim"], one["request"], one["pod"], one["cores"]) for one in holders] == [
        (claim, "gpu", pod["metadata"]["name"], 30)
    ]
    shown = until(lambda: ask(world, "/usage")["usage"])
    [entry] = shown.values()
    assert (entry["claim"], entry["pod"]) == (claim, pod["metadata"]["name"])
    for path in ("/graph", "/usage"):
        strangers = json.dumps(ask(world, path, token=""))
        assert claim not in strangers
        assert pod["metadata"]["name"] not in strangers
    until(lambda: all(ask(world, "/readyz").values()))


def test_priority_and_preload_of_a_claim_are_in_page_mounts_and_pages_for_people(world: DraWorld) -> None:
    says = {
        "service": {"priority": "protected"},
        "batch": {"priority": "best-effort", "preload": False, "coreLimit": 100},
        "plain": {},
    }
    pods = {
        name: world.run(world.pod(world.claim(name=name, says=told, **part(20, "1Gi"))))
        for name, told in says.items()
    }
    for again in (False, True):
        if again:
            world.stop_agent()
            world.start_agent()
        edits = {name: world.edits(pod, "c0") for name, pod in pods.items()}
        [service], [batch], [plain] = (
            read_limits(Path(edits[name].mounts["/etc/vcuda/limits"]).read_bytes()).cards for name in pods
        )
        assert (service.protected, service.best_effort) == (True, False)
        assert (batch.protected, batch.best_effort, batch.core_ceiling) == (False, True, 100)
        assert (plain.protected, plain.best_effort) == (False, False)
        gates = {name: [m for m in one.mounts if m.startswith(GATES_DIR)] for name, one in edits.items()}
        assert {name: len(found) for name, found in gates.items()} == {"service": 0, "batch": 1, "plain": 0}
        assert Path(edits["batch"].mounts[gates["batch"][0]]).is_file()
        preloaded = {name for name, one in edits.items() if PRELOAD_PATH in one.mounts}
        assert preloaded == {"service", "plain"}
        holders = [one for card in ask(world, "/graph")["cards"] for one in card["holders"]]
        assert {one["claim"]: one["priority"] for one in holders} == {
            "service": "protected",
            "batch": "best-effort",
            "plain": "normal",
        }


def test_admin_access_looks_at_all_cards_and_takes_nothing(world: DraWorld) -> None:
    claim = world.claim(allocationMode="All", adminAccess=True, **part(5, "256Mi"))
    watching = world.run(world.pod(claim))
    assert list(world.limits(watching, "c0").values()) == [(0, 0)] * 4
    assert len(world.edits(watching, "c0").env["VCUDA_CARDS"].split(",")) == 4
    assert world.scheduler.used(NODE) == {}
    whole = world.run(world.pod(world.claim(count=4)))
    assert set(world.limits(whole, "c0").values()) == {(100, -1)}
    holders = [one for card in ask(world, "/graph")["cards"] for one in card["holders"]]
    assert [one["claim"] for one in holders if one.get("admin")] == [claim] * 4
    [entry] = [one for one in until(lambda: ask(world, "/usage")["usage"]).values() if one["claim"] == claim]
    [spec] = entry["spec"].values()
    assert spec == {"gpu": 0, "mem": 0}
    world.end(watching)
    assert all(not one.get("admin") for card in ask(world, "/graph")["cards"] for one in card["holders"])


def test_schedulers_of_extended_resources_see_no_free_card_here(world: DraWorld) -> None:
    node = until(
        lambda: (n := world.api.get("nodes", NODE)) and INVENTORY in n["metadata"]["annotations"] and n
    )
    inventory = decode_inventory(node["metadata"]["annotations"][INVENTORY])
    assert inventory is not None
    assert all(state.held == DRA_DRIVER and not state.open for state in inventory.cards)
    assert node["metadata"]["labels"][FRONT_LABEL] == "dra"
    assert world.kubelet.capacity() == {}


def test_a_node_whose_claims_hold_cards_keeps_its_front_until_the_last_has_ended(
    world: DraWorld, restart: threading.Event
) -> None:
    pod = world.run(world.pod(world.claim(**part(30, "4Gi"))))
    late = world.schedule(world.pod(world.claim()))
    world.stop_agent()
    world.wanted = Front.PLUGIN
    world.start_agent_with(injection="cdi")
    assert world.agent.fronts.in_force is Front.DRA
    assert (
        "keeps the front dra until nothing is held by it: 1 pods and claims hold cards" in world.agent.why()
    )
    assert not world.agent.ready()["front"]
    world.manager.prepare(late)
    assert world.limits(late, "c0")
    world.end(late)
    assert not restart.is_set()
    world.end(pod)
    until(restart.is_set)
    world.stop_agent()
    world.agent = Agent(world.config(injection="cdi"))
    world.agent.start()
    assert world.agent.fronts.in_force is Front.PLUGIN
    until(lambda: world.kubelet.allocatable().get(CORE) == 400)


def test_claims_need_cdi(world: DraWorld) -> None:
    with pytest.raises(RequestInvalid, match="--front dra gives cards by CDI alone"):
        Agent(world.config(injection="direct"))

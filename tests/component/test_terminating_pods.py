"""A pod deleted by force whose processes run on: told to schedulers, waited for a little, never booked over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.cluster.node_books import RELEASED_MOST
from gpu_manager.domain.contract import CORE, INVENTORY, Inventory, TerminatingShare, decode_inventory
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.services.cards.health import Health
from gpu_manager.services.cards.inventory import InventoryService
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from sandbox.kubelet import AdmissionResult
from tests.component.test_agent import World
from tests.fakes import extender
from tests.fakes.direct import DirectRig
from tests.fakes.metrics import counts
from tests.fakes.node import NODE, NodeRig, container, pod
from tests.fakes.ports import FakeCards, FakeClock, FakeNodeObject, FakePods, cards
from tests.fakes.waiting import PATIENCE, until

FULL = ("c", 60, 40)  # 60 cores, 10 GiB of 16: two of them never share a card


class Board(FakeNodeObject):
    """What the node says of itself."""

    @property
    def inventory(self) -> Inventory:
        found = decode_inventory(self.published[-1][0][INVENTORY])
        assert found is not None
        return found


def service(rig: NodeRig) -> tuple[InventoryService, Board]:
    board = Board()
    health = Health(FakeCards(rig.states), board, rig.clock)
    return InventoryService(
        rig.state, rig.allocator, rig.departed, health, board, rig.plugin.announce, {}, rig.clock
    ), board


def uid(obj: dict[str, Any]) -> PodUid:
    return PodUid(obj["metadata"]["uid"])


def forced(rig: NodeRig, name: str = "gone") -> dict[str, Any]:
    """A pod that ran on card 0, is gone from the API, and whose processes run on."""
    one = pod(name, container(*FULL), on={"c": [(rig.states[0], 60, 10 * GIB)]})
    assert rig.admit(one).admitted
    rig.start(one)
    rig.processes.living.add(uid(one))
    rig.delete(one, force=True)
    return one


@pytest.fixture
def one_card(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path, cards(1), patience=30.0) as rig:
        yield rig


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path, cards(1), clock=FakeClock(), patience=0.5) as rig:
        yield rig


def test_the_next_pod_waits_for_the_processes_of_a_deleted_one_and_starts(one_card: NodeRig) -> None:
    gone = forced(one_card)
    one_card.processes.asked.clear()
    with ThreadPoolExecutor(1) as pool:
        next_ = pod("next", container(*FULL), on={"c": [(one_card.states[0], 60, 10 * GIB)]})
        coming = pool.submit(one_card.admit, next_)
        one_card.until(lambda: one_card.processes.asked.count(uid(gone)) >= 3)
        held = one_card.state.view.ledger.booked(one_card.states[0].card.uuid)
        assert not coming.done(), "nobody holds the lock while it waits"
        assert held == Amount(60, 10 * GIB), "and nothing is booked over"
        one_card.processes.living.clear()
        result: AdmissionResult = coming.result(PATIENCE)
    assert result.admitted, result.message
    assert one_card.cards_of(next_, "c") == (0,)
    assert counts(one_card.metrics.allocations).get("refused", 0) == 0


def test_a_namesake_waits_for_the_processes_of_the_pod_before_it(one_card: NodeRig) -> None:
    gone = forced(one_card, "set-0")
    one_card.processes.asked.clear()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(one_card.admit, pod("set-0", container(*FULL)))
        one_card.until(lambda: one_card.processes.asked.count(uid(gone)) >= 3)
        one_card.processes.living.clear()
        assert coming.result(PATIENCE).admitted


def test_a_pod_whose_end_the_watch_has_yet_to_show_is_waited_for_too(one_card: NodeRig) -> None:
    old = pod("old", container(*FULL))
    assert one_card.admit(old).admitted
    one_card.restart_agent()  # the new one has never seen it listed
    one_card.pods.forget("default/old", watched=False)  # the kubelet's own watch was quicker
    one_card.kubelet.delete(old["metadata"]["uid"], force=True)
    new = pod("new", container(*FULL))
    one_card.pods.bind(one_card.parsed(new), watched=False)
    one_card.pods.known = {**one_card.pods.known, "default/new": [KnownPod(one_card.parsed(new))]}
    one_card.pods.looks = 0
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(one_card.kubelet.admit, new)
        one_card.until(lambda: one_card.pods.looks > 4)
        assert not coming.done()
        one_card.pods.watch()
        result = coming.result(PATIENCE)
    assert result.admitted, result.message


class BehindKubelet(FakePods):
    """The kubelet is asked, which has a pod for longer than the API, and the API about what no watch has shown."""

    def fetch(self, namespace: str, name: str) -> Pod | None:
        found = super().fetch(namespace, name)
        if found is not None and found.deleting:
            self.known[found.key] = [KnownPod(found, tombstone=True)]
        return found


def test_a_pod_that_ended_while_the_agent_was_away_keeps_no_card_though_the_kubelet_still_has_it(
    tmp_path: Path,
) -> None:
    """A killed agent holds the kubelet up in an admission; what the API deletes meanwhile, it hears of later."""
    node = DirectRig(tmp_path, cards(2), clock=FakeClock())
    node.pods = BehindKubelet()
    with node as rig:
        old = pod("old", container(*FULL), on={"c": [(rig.states[0], 60, 10 * GIB)]})
        assert rig.admit(old).admitted
        rig.start(old)
        rig.restart_agent()
        shown = {**old["metadata"], "deletionTimestamp": "2026-11-21T00:01:00Z"}
        rig.pods.bind(rig.parsed({**old, "metadata": shown, "status": {"phase": "Running"}}))
        rig.kubelet.begin_delete(uid(old))
        rig.kubelet.finish(uid(old))
        new = pod("new", container(*FULL), on={"c": [(rig.states[0], 60, 10 * GIB)]})
        assert rig.admit(new).admitted
        assert rig.cards_of(new, "c") == (0,)


def test_the_assigned_card_is_waited_for_though_another_has_room(tmp_path: Path) -> None:
    with NodeRig(tmp_path, cards(2), patience=30.0) as rig:
        first = rig.states[0]
        old = pod("old", container(*FULL), on={"c": [(first, 60, 10 * GIB)]})
        assert rig.admit(old).admitted
        rig.restart_agent()  # the new one has never seen it listed
        rig.pods.forget("default/old", watched=False)  # the kubelet's own watch was quicker
        rig.kubelet.delete(uid(old), force=True)
        new = pod("new", container(*FULL), on={"c": [(first, 60, 10 * GIB)]})
        rig.pods.bind(rig.parsed(new), watched=False)
        rig.pods.known = {**rig.pods.known, "default/new": [KnownPod(rig.parsed(new))]}
        rig.pods.looks = 0
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(rig.kubelet.admit, new)
            rig.until(lambda: rig.pods.looks > 4 or coming.done())
            rig.pods.watch()
            assert coming.result(PATIENCE).admitted
        assert rig.cards_of(new, "c") == (0,)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_card_is_waited_for_though_its_last_pods_name_is_used_again(
    tmp_path: Path, *, restarted: bool
) -> None:
    """Kubelet and watch both show that name: the one a newer pod, the other still the pod that has gone."""
    with NodeRig(tmp_path, cards(2), patience=30.0) as rig:
        first, second = rig.states
        old = pod("set-0", container(*FULL), on={"c": [(first, 60, 10 * GIB)]})
        assert rig.admit(old).admitted
        if restarted:
            rig.restart_agent()
        rig.pods.forget("default/set-0", watched=False)
        rig.kubelet.delete(uid(old), force=True)
        namesake = pod("set-0", container("c", 10, 4), on={"c": [(second, 10, GIB)]})
        new = pod("new", container(*FULL), on={"c": [(first, 60, 10 * GIB)]})
        for one in (namesake, new):
            rig.pods.bind(rig.parsed(one), watched=False)
        assert rig.kubelet.admit(namesake).admitted
        rig.pods.looks = 0
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(rig.kubelet.admit, new)
            rig.until(lambda: rig.pods.looks > 6 or coming.done())
            rig.pods.watch()
            assert coming.result(PATIENCE).admitted
        assert rig.cards_of(new, "c") == (0,)


@pytest.mark.parametrize("lists_ended", [False, True])
def test_a_pod_that_has_ended_is_no_more_whether_the_kubelet_lists_it_or_not(
    tmp_path: Path, lists_ended: bool
) -> None:
    """Kubelets before 1.34 list every pod that the API has, and offer the ids of those that have ended."""
    with NodeRig(tmp_path, cards(1), lists_ended=lists_ended) as rig:
        old, small = pod("old", container(*FULL)), pod("small", container("c", 10, 4))
        for one in (old, small):
            assert rig.admit(one).admitted
            rig.start(one)
        rig.kubelet.finish(uid(old))
        rig.pods.bind(rig.parsed({**old, "status": {"phase": "Succeeded"}}))
        result = rig.admit(pod("new", container(*FULL)))
        assert result.admitted, result.message


def test_who_outlasts_the_wait_is_said_and_not_waited_for_again(impatient: NodeRig) -> None:
    gone = forced(impatient)
    refused = impatient.admit(pod("next", container(*FULL)))
    assert not refused.admitted
    assert "processes of a deleted pod still run and hold the room" in refused.message
    assert "default/gone" not in refused.message, "whose they are is for the node's log alone"
    impatient.processes.asked.clear()
    assert not impatient.admit(pod("another", container(*FULL))).admitted
    assert impatient.processes.asked.count(uid(gone)) == 1, "looked at once, not waited for"
    impatient.processes.living.clear()
    late = impatient.admit(pod("late", container(*FULL)))
    assert late.admitted, late.message


def test_nobody_waits_where_another_card_has_room(tmp_path: Path) -> None:
    with NodeRig(tmp_path, cards(2), patience=30.0) as rig:
        gone = forced(rig)
        rig.processes.asked.clear()
        elsewhere = pod("next", container(*FULL), on={"c": [(rig.states[0], 60, 10 * GIB)]})
        assert rig.admit(elsewhere).admitted
        assert rig.cards_of(elsewhere, "c") == (1,)
        assert rig.processes.asked.count(uid(gone)) == 2, "once for each resource"


def test_nobody_waits_where_it_would_not_help(tmp_path: Path) -> None:
    with NodeRig(tmp_path, cards(1), patience=30.0) as rig:
        gone = forced(rig)
        rig.processes.asked.clear()
        large = pod("large", container("c", 60, 40), container("d", 60, 20))
        assert not rig.admit(large).admitted
        assert rig.processes.asked.count(uid(gone)) <= 1


def test_the_inventory_names_what_lingers_from_the_deletion_to_the_last_process(impatient: NodeRig) -> None:
    inventory, board = service(impatient)
    one = pod("one", container(*FULL))
    assert impatient.admit(one).admitted
    impatient.start(one)
    impatient.processes.living.add(uid(one))
    inventory.publish()
    assert board.inventory.lingering == (), "the API has it: it is charged as itself"
    assert board.inventory.released == ()
    impatient.delete(one, force=True)
    assert inventory.publish()
    left = TerminatingShare(uid(one), impatient.states[0].card.uuid, Amount(60, 10 * GIB))
    assert board.inventory.lingering == (left,)
    assert board.inventory.released == ()
    assert not inventory.publish(), "once"
    impatient.processes.living.clear()
    assert inventory.publish()
    assert board.inventory.lingering == ()
    assert board.inventory.released == (uid(one),)


def test_of_more_pods_than_an_inventory_holds_those_released_last_are_told(impatient: NodeRig) -> None:
    """Two waves, as many as there is room for and one: each UID is told once at least, the new ones now."""
    publisher, board = service(impatient)
    waves = [
        [pod(f"{wave}-{n}", container(*FULL)) for n in range(RELEASED_MOST // 2 + 1)] for wave in ("a", "b")
    ]
    heard: set[str] = set()
    for wave in waves:
        for one in wave:
            impatient.pods.bind(impatient.parsed(one), watched=False)
        impatient.pods.watch()
        for one in wave:
            impatient.pods.forget(impatient.parsed(one).key, watched=False)
        impatient.pods.watch()
        assert publisher.publish()
        told = set(board.inventory.released or ())
        assert told >= {uid(one) for one in wave}
        assert len(told) <= RELEASED_MOST
        heard |= told
    assert heard == {uid(one) for wave in waves for one in wave}


def test_an_agent_that_was_away_tells_of_the_pods_in_its_ledger_that_were_deleted_meanwhile(
    impatient: NodeRig,
) -> None:
    one = pod("one", container(*FULL))
    assert impatient.admit(one).admitted
    impatient.start(one)
    impatient.processes.living.add(uid(one))
    impatient.delete(one, force=True)
    impatient.pods.known.clear()  # an agent that starts remembers nothing but its ledger
    inventory, board = service(impatient)
    inventory.publish()
    assert board.inventory.released == ()
    impatient.processes.living.clear()
    inventory.publish()
    assert board.inventory.released == (uid(one),)


def test_a_pod_that_leaves_in_peace_is_never_told_of(impatient: NodeRig) -> None:
    inventory, board = service(impatient)
    one = pod("one", container(*FULL))
    assert impatient.admit(one).admitted
    inventory.publish()
    impatient.pods.bind(replace(impatient.parsed(one), phase="Succeeded"))  # as the kubelet shows an end
    impatient.delete(one)
    assert not inventory.publish()
    assert len(board.published) == 1


def test_where_processes_cannot_be_seen_it_is_told_until_the_books_give_it_back(tmp_path: Path) -> None:
    clock = FakeClock()
    with NodeRig(tmp_path, cards(1), clock=clock) as rig:
        inventory, board = service(rig)
        rig.processes.blind = True
        one = pod("one", container(*FULL))
        assert rig.admit(one).admitted
        rig.delete(one)
        inventory.publish()
        assert [left.pod for left in board.inventory.lingering] == [uid(one)]
        rig.kubelet.reap(uid(one))
        clock.pass_(SETTLE_SECONDS + 5)
        rig.until(lambda: bool(rig.reclaimer.round()))
        inventory.publish()
        assert board.inventory.lingering == ()


def test_the_stand_in_of_a_pod_that_nobody_can_name_is_no_deleted_pod(impatient: NodeRig) -> None:
    inventory, board = service(impatient)
    impatient.processes.blind = True
    impatient.pods.away = True
    hidden = pod("hidden", container("c", 60, 40))
    assert impatient.kubelet.admit(hidden).admitted
    inventory.publish()
    assert board.inventory.lingering == ()


def test_the_scheduler_sends_the_next_pod_elsewhere_until_the_last_process_has_ended(
    impatient: NodeRig,
) -> None:
    inventory, board = service(impatient)
    forced(impatient)
    inventory.publish()
    here = extender.node(NODE)
    here["metadata"]["annotations"] = dict(board.published[-1][0])
    world = extender.World([here, extender.node("n2", 1)])
    wants = extender.pod("next", 60, 40)
    world.create(wants)
    answer = world.filter(wants)
    assert answer["NodeNames"] == ["n2"]
    assert "held by a pod that is gone and whose processes still run" in json.dumps(answer)
    impatient.processes.living.clear()
    inventory.publish()
    here["metadata"]["annotations"] = dict(board.published[-1][0])
    world.cluster.apply("nodes", "MODIFIED", here)
    assert world.filter(wants)["NodeNames"] == [NODE, "n2"]
    assert world.bind(wants, NODE) == ""
    bound = world.api.pods["default", "next"]
    assert impatient.admit(bound).admitted
    assert impatient.kubelet.allocatable()[CORE] == 100


def test_a_scheduler_that_hears_of_the_deletion_before_the_node_counts_the_pod_until_the_node_has_spoken(
    impatient: NodeRig,
) -> None:
    inventory, board = service(impatient)
    one = pod("one", container(*FULL))
    assert impatient.admit(one).admitted
    impatient.start(one)
    impatient.processes.living.add(uid(one))
    inventory.publish()
    here = extender.node(NODE)
    here["metadata"]["annotations"] = dict(board.published[-1][0])
    world = extender.World([here])
    runs = {**one, "spec": {**one["spec"], "nodeName": NODE}}
    world.create(runs, wants := extender.pod("next", 60, 40))
    impatient.delete(one, force=True)
    world.delete(runs)
    assert world.filter(wants)["NodeNames"] == [], "the node has not said anything yet"

    def hear() -> None:
        inventory.publish()
        here["metadata"]["annotations"] = dict(board.published[-1][0])
        world.cluster.apply("nodes", "MODIFIED", here)

    hear()
    assert world.filter(wants)["NodeNames"] == [], "its processes run"
    impatient.processes.living.clear()
    hear()
    assert world.filter(wants)["NodeNames"] == [NODE]


def test_the_agent_tells_of_a_pod_deleted_by_force_from_its_cgroup_until_its_process_has_ended(
    tmp_path: Path,
) -> None:
    proc = tmp_path / "proc"
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to("pid:[4026531836]")  # the host's own namespace
    (proc / "1").mkdir()
    (proc / "1/cgroup").write_text("0::/init.scope\n")
    with World(tmp_path, "one", proc=proc) as world:

        def told() -> list[str]:
            node = world.api.get("nodes", NODE) or {}
            found = decode_inventory((node["metadata"].get("annotations") or {}).get(INVENTORY))
            return [left.pod for left in found.lingering] if found else ["nothing published"]

        one = pod("one", container(*FULL))
        result = world.run(one)
        assert result.admitted, result.message
        name = result.uid
        (proc / "4711").mkdir()
        (proc / "4711/cgroup").write_text(f"0::/kubepods/burstable/pod{name}/{'a' * 64}\n")
        until(lambda: told() == [])
        world.api.delete("pods", "one", grace=0)
        world.kubelet.delete(name, force=True)
        until(lambda: told() == [name])
        (proc / "4711/cgroup").unlink()
        (proc / "4711").rmdir()
        until(lambda: told() == [])

"""Persistence and release on the kubelet stand-in: cases 44 to 51 of kubelet.md section 4, and reclaiming."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpu_manager.adapters.kubelet.client import unix_target
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.resources import GIB
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from gpu_manager.servers.plugin_registration import SOCKETS
from gpu_manager.services.allocation.unidentified_grants import UNIDENTIFIED
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from sandbox.kubelet import checkpoint
from tests.fakes.metrics import counts
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeClock, cards
from tests.fakes.waiting import PATIENCE


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path) as node:
        yield node


@pytest.fixture
def still(tmp_path: Path) -> Iterator[NodeRig]:
    """A node whose agent's time is the test's."""
    with NodeRig(tmp_path, clock=FakeClock()) as node:
        yield node


def pass_(rig: NodeRig, seconds: float) -> None:
    assert isinstance(rig.clock, FakeClock)
    rig.clock.pass_(seconds)


def held(rig: NodeRig) -> dict[tuple[str, str], dict[str, frozenset[str]]]:
    """The kubelet's own books of our resources: (pod UID, container) → resource → ids."""
    books: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
    for entry in rig.client.checkpoint() or ():
        books.setdefault((entry.pod, entry.container), {})[entry.resource] = entry.ids
    return books


def granted(rig: NodeRig) -> dict[tuple[str, str], dict[str, frozenset[str]]]:
    """Our books, in the same shape."""
    return {key: dict(g.ids) for key, g in rig.state.view.grants.items()}


def asked(rig: NodeRig) -> int:
    """How often the plugin was asked to decide or to grant."""
    return sum(step.name in ("GetPreferredAllocation", "Allocate") for step in rig.kubelet.steps)


def uid(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["uid"])


def running(rig: NodeRig, obj: dict[str, Any]) -> dict[str, Any]:
    result = rig.admit(obj)
    assert result.admitted, result.message
    rig.start(obj)
    return obj


def test_case_44_a_restarted_container_keeps_its_ids_its_card_and_its_directory(rig: NodeRig) -> None:
    one = pod("one", container("c", 30, 20))
    result = rig.admit(one)
    rig.start(one)
    before, calls, card = granted(rig), asked(rig), rig.cards_of(one, "c")
    rig.kubelet.stop_container(uid(one), "c", exit_code=137)
    again = rig.kubelet.start_container(uid(one), "c")
    assert (granted(rig), asked(rig), rig.cards_of(one, "c")) == (before, calls, card)
    assert again.mounts == result.containers["c"].mounts


def test_case_45_a_kubelet_restart_re_allocates_nothing_for_running_pods(rig: NodeRig) -> None:
    pods = [running(rig, pod(f"p{i}", container("c", 60, 20))) for i in range(8)]
    before, calls = granted(rig), asked(rig)
    rig.kubelet.restart()
    rig.until(lambda: rig.kubelet.registrations[CORE] == 2 and rig.kubelet.registrations[MEMORY] == 2)
    rig.await_registered()
    assert all(result.admitted for result in rig.kubelet.resume())
    assert asked(rig) == calls
    assert granted(rig) == before == held(rig)
    names = {uid(one): one["metadata"]["name"] for one in pods}
    assert rig.listed() == {(names[pod_uid], name): ids for (pod_uid, name), ids in before.items()}
    assert not rig.admit(pod("late", container("c", 50, 4))).admitted
    assert rig.admit(pod("fits", container("c", 40, 4))).admitted


def test_case_46_a_pod_deleted_while_the_kubelet_is_down_is_freed_after_its_restart(rig: NodeRig) -> None:
    gone = running(rig, pod("gone", container("c", 100, 0), on={"c": [(rig.states[3], 100, 16 * GIB)]}))
    others = [
        running(rig, pod(f"p{i}", container("c", 100, 0), on={"c": [(rig.states[i], 100, 16 * GIB)]}))
        for i in (0, 1, 2, 4, 5, 6, 7)
    ]
    rig.kubelet.stop()
    rig.delete(gone)
    rig.kubelet.start()
    rig.until(lambda: rig.kubelet.registrations[CORE] == 2)
    rig.await_registered()
    rig.kubelet.resume()
    heir = pod("heir", container("c", 100, 0))
    assert rig.admit(heir).admitted
    assert rig.cards_of(heir, "c") == (3,)
    assert {key[0] for key in granted(rig)} == {uid(heir), *map(uid, others)}


def test_case_46_without_a_new_pod_two_rounds_free_it_and_never_within_60_s(still: NodeRig) -> None:
    gone = running(still, pod("gone", container("c", 60, 20)))
    still.kubelet.stop()
    still.delete(gone)
    still.kubelet.start()
    still.until(lambda: still.kubelet.registrations[CORE] == 2)
    still.await_registered()
    still.kubelet.resume()
    for _ in range(3):
        pass_(still, 15)
        assert still.reclaimer.round() == ()
    pass_(still, SETTLE_SECONDS)
    assert still.reclaimer.round() == (), "once is not proof"
    (freed,) = still.reclaimer.round()
    assert freed.pod == uid(gone)
    assert counts(still.metrics.allocations_reclaimed) == {"": 1}


def test_case_47_the_ids_of_a_succeeded_pod_are_free(rig: NodeRig) -> None:
    done = running(rig, pod("done", container("c", 100, 0), on={"c": [(rig.states[0], 100, 16 * GIB)]}))
    for i in range(1, 8):
        running(rig, pod(f"p{i}", container("c", 100, 0), on={"c": [(rig.states[i], 100, 16 * GIB)]}))
    rig.kubelet.finish(uid(done))
    rig.pods.bind(parse_pod(rig.kubelet.pod(uid(done))))
    rig.kubelet.restart()
    rig.until(lambda: rig.kubelet.registrations[CORE] == 2)
    rig.await_registered()
    assert uid(done) not in {result.uid for result in rig.kubelet.resume()}, "not admitted again"
    heir = pod("heir", container("c", 100, 0))
    assert rig.admit(heir).admitted
    assert rig.cards_of(heir, "c") == (0,)


def test_case_48_after_a_reboot_with_a_late_plugin_the_pod_fails_and_leaves_no_grant(still: NodeRig) -> None:
    one = running(still, pod("one", container("c", 60, 20)))
    still.stop_agent()
    still.kubelet.restart(reboot=True)
    (result,) = still.kubelet.resume()
    assert (result.admitted, result.reason) == (False, "UnexpectedAdmissionError")
    still.pods.bind(parse_pod(still.kubelet.pod(uid(one))))
    still.start_agent()
    fresh = pod("fresh", container("c", 100, 0), on={"c": [(still.states[0], 100, 16 * GIB)]})
    assert still.admit(fresh).admitted
    pass_(still, SETTLE_SECONDS + 5)
    still.reclaimer.round()
    still.reclaimer.round()
    assert {key[0] for key in granted(still)} == {uid(fresh)}
    assert still.tenants.limits == {}, "the directory goes with the grant"


def test_case_48_after_a_reboot_with_the_plugin_in_time_the_pod_keeps_its_place(rig: NodeRig) -> None:
    one = running(rig, pod("one", container("c", 60, 20)))
    before, card = granted(rig), rig.cards_of(one, "c")
    rig.kubelet.restart(reboot=True)
    rig.until(lambda: rig.kubelet.registrations[CORE] == 2)
    rig.await_registered()
    (result,) = rig.kubelet.resume()
    assert result.admitted, result.message
    rig.start(one)
    assert rig.cards_of(one, "c") == card
    assert held(rig) == granted(rig)
    assert {key: set(ids) for key, ids in granted(rig).items()} == {k: set(v) for k, v in before.items()}


def test_case_49_without_own_state_the_checkpoint_gives_the_exact_books(rig: NodeRig) -> None:
    pods = [running(rig, pod(f"p{i}", container("c", 60, 4 + i))) for i in range(8)]
    before = granted(rig)
    directories = {k: g.directory for k, g in rig.state.view.grants.items()}
    places = [rig.cards_of(one, "c") for one in pods]
    rig.store.state = None
    rig.restart_agent()
    assert granted(rig) == before
    assert [rig.cards_of(one, "c") for one in pods] == places
    assert {k: g.directory for k, g in rig.state.view.grants.items()} == directories


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"Data":{"PodDeviceEntries":[{"ResourceName":"tencent.com/vcuda-core"}]}}']
)
def test_case_49_without_own_state_and_checkpoint_pod_resources_give_the_cards(
    rig: NodeRig, text: str
) -> None:
    pods = [running(rig, pod(f"p{i}", container("c", 60, 4))) for i in range(8)]
    before, places = granted(rig), [rig.cards_of(one, "c") for one in pods]
    rig.store.state = None
    rig.stop_agent()
    if text:
        rig.kubelet.checkpoint_path.write_text(text)
    else:
        rig.kubelet.checkpoint_path.unlink()
    rig.start_agent()
    assert granted(rig) == before
    assert [rig.cards_of(one, "c") for one in pods] == places
    assert not rig.admit(pod("late", container("c", 50, 4))).admitted
    assert rig.admit(pod("fits", container("c", 40, 4))).admitted


def test_case_49_a_grant_known_only_by_its_ids_learns_its_directory_at_the_next_start(rig: NodeRig) -> None:
    one = pod("one", container("c", 60, 4))
    result = rig.admit(one)
    rig.start(one)
    directory = Path(result.containers["c"].mounts[0].host_path).parent.name
    rig.store.state = None
    rig.stop_agent()
    kept = rig.kubelet.checkpoint_path.read_text()
    rig.kubelet.checkpoint_path.unlink()
    rig.start_agent()
    rig.kubelet.checkpoint_path.write_text(kept)
    rig.kubelet.start_container(uid(one), "c")
    (grant,) = tuple(rig.state.view.grants.values())
    assert grant.directory == directory
    assert rig.tenants.resets[-1] == directory
    assert set(rig.tenants.limits) == {directory}


def test_case_49_a_grant_without_a_known_directory_does_not_start_until_it_is_known(rig: NodeRig) -> None:
    one = running(rig, pod("one", container("c", 60, 4)))
    rig.store.state = None
    rig.stop_agent()
    rig.kubelet.checkpoint_path.unlink()
    rig.start_agent()
    rig.until(
        lambda: all((checkpoint.read(rig.kubelet.checkpoint_path).registered or {}).get(r) for r in SOCKETS)
    )
    rig.kubelet.checkpoint_path.unlink()  # written once more, when the plugin had told its devices
    with pytest.raises(NodeUnready, match="directory"):
        rig.kubelet.start_container(uid(one), "c")
    assert "" not in rig.tenants.limits


def test_case_49_a_torn_ledger_is_not_believed_and_nothing_is_lost(rig: NodeRig) -> None:
    one = running(rig, pod("one", container("c", 60, 4)))
    before = granted(rig)
    rig.store.state = b'{"v":1,"allocations":[{"pod":'
    rig.restart_agent()
    assert granted(rig) == before
    assert rig.cards_of(one, "c") != ()
    assert counts(rig.metrics.recovery_disagreements)["store"] == 1


@pytest.mark.parametrize("order", [[CORE, MEMORY], [MEMORY, CORE]])
def test_case_49_whole_cards_that_only_the_checkpoint_still_shows_do_not_stand_in_an_assignments_way(
    rig: NodeRig, order: list[str]
) -> None:
    """They hold no memory ids, so that a question for memory offers none of theirs."""
    gone = running(rig, pod("gone", container("c", 100, 0), on={"c": [(rig.states[3], 100, 40 * GIB)]}))
    stays = running(rig, pod("stays", container("c", 100, 0), on={"c": [(rig.states[4], 100, 40 * GIB)]}))
    rig.stop_agent()
    rig.kubelet.finish(uid(gone))
    rig.delete(gone)
    rig.store.state = None
    rig.pods.known = {key: [f for f in found if not f.tombstone] for key, found in rig.pods.known.items()}
    rig.start_agent()
    assert rig.cards_of(gone, "c") == (3,), "nobody knows yet that it has gone, nor what it was called"
    rig.kubelet.hooks.order = lambda _: order
    next_ = pod("next", container("c", 50, 4), on={"c": [(rig.states[3], 50, GIB)]})
    assert rig.admit(next_).admitted
    assert rig.cards_of(next_, "c") == (3,)
    assert rig.cards_of(stays, "c") == (4,)


def test_case_50_what_a_force_deleted_pods_process_holds_is_not_handed_out(still: NodeRig) -> None:
    stays = running(still, pod("stays", container("c", 30, 60), on={"c": [(still.states[0], 30, 15 * GIB)]}))
    for i in range(1, 8):
        running(still, pod(f"p{i}", container("c", 30, 60), on={"c": [(still.states[i], 30, 15 * GIB)]}))
    still.processes.living.add(PodUid(uid(stays)))
    still.delete(stays, force=True)
    refused = still.admit(pod("early", container("c", 30, 60)))
    assert not refused.admitted, "the kubelet has the ids free, the card has not the memory"
    pass_(still, SETTLE_SECONDS + 5)
    for _ in range(3):
        assert still.reclaimer.round() == ()
    still.processes.living.clear()
    still.kubelet.reap(uid(stays))
    late = pod("late", container("c", 30, 60))
    assert still.admit(late).admitted
    assert still.cards_of(late, "c") == (0,)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _life(rig: NodeRig, number: int) -> None:
    one = running(rig, pod(f"p{number}", container("c", 30 + number % 40, 4 + number % 8)))
    rig.kubelet.finish(uid(one))
    rig.delete(one)


def test_case_51_a_hundred_pods_leave_neither_ids_nor_files_nor_threads(still: NodeRig) -> None:
    for number in range(5):  # what is opened once is open now
        _life(still, number)
    files, threads = open_files(), threading.active_count()
    for number in range(100):
        _life(still, number)
    pass_(still, SETTLE_SECONDS + 5)
    for _ in range(3):
        still.reclaimer.round()
    assert (len(still.state.view.ledger), len(still.state.view.grants)) == (0, 0)
    assert still.tenants.limits == {}
    everything = [
        running(still, pod(f"full{i}", container("c", 99, 64), on={"c": [(s, 99, 16 * GIB)]}))
        for i, s in enumerate(still.states)
    ]
    assert len(everything) == 8, "the whole node can be given away again"
    still.until(lambda: threading.active_count() <= threads + 2)
    assert open_files() <= files + 4


def test_a_living_pod_is_never_released_by_its_absence_from_the_list_or_checkpoint(still: NodeRig) -> None:
    one = running(still, pod("one", container("c", 60, 20)))
    still.kubelet.checkpoint_path.write_text('{"Data":{"PodDeviceEntries":[]},"Checksum":0}')
    still.kubelet.delete(uid(one))  # the kubelet has dropped it, the API has not
    pass_(still, SETTLE_SECONDS + 5)
    for _ in range(4):
        assert still.reclaimer.round() == ()
    assert still.cards_of(one, "c") != ()


def test_a_pod_the_api_forgot_stays_while_the_kubelet_holds_ids_for_it(still: NodeRig) -> None:
    one = running(still, pod("one", container("c", 60, 20)))
    still.pods.forget("default/one")
    pass_(still, SETTLE_SECONDS + 5)
    for _ in range(4):
        assert still.reclaimer.round() == ()
    assert still.cards_of(one, "c") != ()


def test_an_absence_seen_once_and_gone_again_counts_from_the_beginning(still: NodeRig) -> None:
    one = running(still, pod("one", container("c", 60, 20)))
    text = still.kubelet.checkpoint_path.read_text()
    still.pods.forget("default/one")
    pass_(still, SETTLE_SECONDS + 5)
    for _ in range(3):
        still.kubelet.checkpoint_path.write_text('{"Data":{"PodDeviceEntries":[]},"Checksum":0}')
        assert still.reclaimer.round() == ()
        still.kubelet.checkpoint_path.write_text(text)
        assert still.reclaimer.round() == ()
    assert still.cards_of(one, "c") != ()


def test_an_orphan_directory_goes_in_the_second_round_and_named_ones_stay(still: NodeRig) -> None:
    running(still, pod("one", container("c", 60, 20)))
    (named,) = still.tenants.limits
    still.tenants.open("f" * 32, ())
    still.reclaimer.round()
    assert set(still.tenants.limits) == {named, "f" * 32}
    still.reclaimer.round()
    assert set(still.tenants.limits) == {named}
    assert still.injector.alive == {named}


def test_an_unidentified_grant_that_the_kubelet_does_not_keep_is_given_back(still: NodeRig) -> None:
    """An Allocate whose admission failed afterwards: nobody ever starts with these ids."""
    ids = still.state.node.ids.of_card[CORE][still.states[0].card.uuid][:30]
    channel = grpc.insecure_channel(unix_target(still.kubelet.device_plugins / SOCKETS[CORE]))
    with channel:
        api_pb2_grpc.DevicePluginStub(channel).Allocate(
            api_pb2.AllocateRequest(container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=ids)])
        )
    (key,) = granted(still)
    assert key[0].startswith(UNIDENTIFIED)
    still.kubelet.checkpoint_path.write_text('{"Data":{"PodDeviceEntries":[]},"Checksum":0}')
    pass_(still, SETTLE_SECONDS + 5)
    assert still.reclaimer.round() == ()
    assert [a.key for a in still.reclaimer.round()] == [key]


@pytest.mark.parametrize("known", [True, False])
def test_an_unidentified_grant_goes_with_its_pod_though_the_kubelet_still_has_its_ids(
    still: NodeRig, known: bool
) -> None:
    """The kubelet forgets ids at its next admission; of a pod that was never seen nobody knows whether it
    has ended.
    """
    still.pods.away = True
    one = pod("one", container("c", 30, 20))
    assert still.kubelet.admit(one).admitted
    assert all(key[0].startswith(UNIDENTIFIED) for key in granted(still))
    still.pods.away = False
    if known:
        still.pods.bind(parse_pod(one))
    still.kubelet.delete(uid(one))
    still.pods.forget("default/one")
    pass_(still, SETTLE_SECONDS + 5)
    for _ in range(3):
        still.reclaimer.look()
        pass_(still, 2)
    assert (granted(still) == {}) is known
    assert held(still) != {}, "the kubelet has its entries all the same"


@pytest.mark.parametrize("loss", ["gone", "torn"])
def test_a_lost_checkpoint_leaves_containers_that_cannot_start_again_and_each_is_named(
    still: NodeRig, loss: str
) -> None:
    """As Kubernetes 1.36 does it: what runs goes on, and a start is refused, not allocated anew."""
    two, one = (
        pod(name, container("c", 30, 4), container("d", 10, 4), controlled=name == "two")
        for name in ("two", "one")
    )
    for obj in (two, one):
        running(still, obj)
        still.pods.bind(parse_pod(still.kubelet.pod(uid(obj))))
        still.processes.living.add(PodUid(uid(obj)))
    before = granted(still)
    lose_checkpoint(still, loss)
    still.kubelet.stop_container(uid(two), "c", exit_code=137)
    with pytest.raises(NodeUnready, match="no devices found allocated in local cache"):
        still.kubelet.start_container(uid(two), "c")
    assert granted(still) == before, "what runs keeps its share"
    for _ in range(2):
        pass_(still, 3)
        still.stranded.look()
    named = {key: text for key, reason, text in still.pods.events if reason == "VcudaStranded"}
    assert set(named) == {"default/one", "default/two"}
    assert all('lost its record of the devices of containers "c", "d"' in text for text in named.values())
    assert still.pods.evicted == [PodUid(uid(two))]


def test_after_a_lost_checkpoint_nobody_calls_the_pods_that_live_deleted(tmp_path: Path) -> None:
    with NodeRig(tmp_path, cards(1), clock=FakeClock()) as rig:
        for name in ("a", "b"):
            rig.processes.living.add(PodUid(uid(running(rig, pod(name, container("c", 40, 4))))))
        lose_checkpoint(rig, "gone")
        refused = rig.admit(pod("late", container("c", 60, 4)))
        assert not refused.admitted
        assert "deleted" not in refused.message
        assert "gives the device ids of 2 pods, default/a among them, out again" in refused.message


def test_what_is_admitted_after_a_lost_checkpoint_is_not_named(still: NodeRig) -> None:
    """The kubelet gives what does not run at its restart devices again: it has a record of these."""
    idle = pod("idle", container("c", 30, 4))
    assert still.admit(idle).admitted
    lose_checkpoint(still, "gone")
    still.pods.bind(parse_pod(still.kubelet.pod(uid(idle))))
    new = running(still, pod("new", container("c", 30, 4)))
    still.pods.bind(parse_pod(still.kubelet.pod(uid(new))))
    for _ in range(40):
        pass_(still, 3)
        still.stranded.look()
    assert [e for e in still.pods.events if e[1] == "VcudaStranded"] == []
    still.kubelet.start_container(uid(idle), "c")


def lose_checkpoint(rig: NodeRig, loss: str) -> None:
    """The kubelet is ended, its checkpoint is lost or cut in half, and it starts again."""
    rig.kubelet.stop()
    whole = rig.kubelet.checkpoint_path.read_bytes()
    rig.kubelet.checkpoint_path.unlink()
    if loss == "torn":
        rig.kubelet.checkpoint_path.write_bytes(whole[: len(whole) // 2])
    rig.kubelet.start()
    rig.await_registered()
    rig.kubelet.resume()


def test_cards_of_another_size_do_not_lose_what_was_booked(tmp_path: Path) -> None:
    """A node that comes back with fewer cards: what lies on the missing one stays accounted."""
    with NodeRig(tmp_path) as rig:
        one = running(rig, pod("one", container("c", 60, 4), on={"c": [(rig.states[7], 60, GIB)]}))
        rig.states, before = cards(7), granted(rig)
        rig.stop_agent()
        rig.topology = type(rig.topology)(tuple(row[:7] for row in rig.topology.links[:7]))
        rig.start_agent(wait=False)
        assert granted(rig) == before
        assert rig.plugin.registered.wait(PATIENCE)
        rig.kubelet.start_container(uid(one), "c")

"""Between the decision and the kubelet's answer: disks that are slow or full, and who must not wait for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import ALLOCATION, CORE
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.ports.control_pages import Limit
from gpu_manager.ports.records import PodResourcesEntry
from gpu_manager.services.allocation.admission_window import QUIET_SECONDS, AdmissionWindow
from gpu_manager.services.allocation.allocator import Allocator
from gpu_manager.services.allocation.association import Association
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.books_format import decode
from gpu_manager.services.allocation.prestart import AnnotationWriteback
from gpu_manager.services.allocation.reclaim import DepartedPods
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from tests.fakes.metrics import counts, service_metrics
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeClock, FakeInjector, FakePods, FakeProcesses, FakeStore, FakeTenants, cards
from tests.fakes.state import put, state_of
from tests.fakes.waiting import PATIENCE


class SlowStore(FakeStore):
    """A disk that takes its time once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.reached, self.done = threading.Event(), threading.Event()

    def save(self, state: bytes) -> None:
        if self.slow:
            self.reached.set()
            assert self.done.wait(PATIENCE), "nobody let the disk go on"
        super().save(state)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path, cards(2)) as node:
        yield node


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[NodeRig, SlowStore]]:
    node, store = NodeRig(tmp_path, cards(2)), SlowStore()
    node.store = store
    with node:
        yield node, store
        store.done.set()


def uid(obj: dict[str, Any]) -> PodUid:
    return PodUid(obj["metadata"]["uid"])


def proven(rig: NodeRig) -> list[bool]:
    return [g.proven for g in rig.state.view.grants.values()]


def test_who_only_looks_waits_for_no_disk(slow: tuple[NodeRig, SlowStore]) -> None:
    """A scrape, the sampler and the watch go on while the books are being written."""
    rig, store = slow
    store.slow = True
    with ThreadPoolExecutor(2) as pool:
        one = pod("one", container("c", 30, 20))
        coming = pool.submit(rig.admit, one)
        assert store.reached.wait(PATIENCE)
        look = pool.submit(lambda: [a.pod_name for a in rig.state.view.ledger])
        assert look.result(PATIENCE) == ["one"]
        rig.state.introduce(rig.parsed(pod("two", container("c", 30, 20))))
        assert rig.allocator.refused() == ()
        assert not coming.done(), "the kubelet is told when it is on the disk"
        store.done.set()
        result = coming.result(PATIENCE)
    assert result.admitted, result.message


@pytest.mark.parametrize("known", [True, False])
def test_nobody_lists_while_a_grant_waits_for_a_slow_disk_nor_right_after(
    tmp_path: Path, known: bool
) -> None:
    """A listing makes the kubelet forget the ids in flight, and offer them again."""
    clock, store = FakeClock(), SlowStore()
    rig = NodeRig(tmp_path, cards(1), clock=clock)
    rig.store = store
    with rig, ThreadPoolExecutor(1) as pool:
        store.slow = True
        rig.pods.away = not known
        obj = pod("one", container("c", 30, 20))
        rig.pods.bind(rig.parsed(obj), watched=known)
        coming = pool.submit(rig.kubelet.admit, obj)
        assert store.reached.wait(PATIENCE)
        clock.pass_(QUIET_SECONDS + 1)
        assert rig.reclaimer.active() is None
        store.done.set()
        assert coming.result(PATIENCE).admitted
        assert counts(rig.metrics.preferred_allocation_unidentified).get(CORE, 0) == (not known)
        assert rig.reclaimer.active() is None
        clock.pass_(QUIET_SECONDS)
        assert rig.reclaimer.active() == frozenset({("default", "one")})


def test_the_disk_has_what_was_changed_last_however_slow_it_is(slow: tuple[NodeRig, SlowStore]) -> None:
    rig, store = slow
    one = pod("one", container("c", 30, 20))
    assert rig.admit(one).admitted
    late = Grant(Allocation(PodUid("late"), "c", ContainerKind.APP, 0, ()), "dir-late")
    store.slow = True
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(rig.state.release, [(uid(one), "c")])
        assert store.reached.wait(PATIENCE)
        second = pool.submit(put, rig.state, late)
        store.done.set()
        first.result(PATIENCE)
        second.result(PATIENCE)
    (held,), planned = decode(store.state or b"")
    assert (held.key, planned) == (late.key, ())


def test_a_full_disk_refuses_books_nothing_and_tells_the_scheduler(rig: NodeRig) -> None:
    """Or the controller's next pod comes here at once, and the one after it."""
    rig.store.broken = True
    refused = rig.admit(pod("one", container("c", 30, 20)))
    assert not refused.admitted
    assert 'container "c": no space left on the disk' in refused.message
    assert rig.allocator.refused() == (Amount(30, 20 * DEFAULT_UNIT),)
    assert [reason for _, reason, _ in rig.pods.events] == ["VcudaRefused"]
    ids = rig.state.node.ids.card_of[CORE]
    assert (len(rig.state.view.ledger), rig.state.owners(ids)) == (0, set())
    rig.store.broken = False
    assert rig.admit(pod("two", container("c", 100, 0))).admitted


class BrokenPages(FakeTenants):
    def open(self, name: str, limits: Sequence[Limit]) -> None:
        raise NodeUnready("the file system of the pages is read-only")


class BrokenFiles(FakeInjector):
    def inject(self, *_: Any) -> Any:
        raise NodeUnready("the driver's libraries are gone")


@pytest.mark.parametrize("broken", ["pages", "files"])
def test_pages_or_files_that_cannot_be_made_refuse_and_leave_nothing(tmp_path: Path, broken: str) -> None:
    rig = NodeRig(tmp_path, cards(1))
    if broken == "pages":
        rig.tenants = BrokenPages()
    else:
        rig.injector = BrokenFiles()
    with rig:
        refused = rig.admit(pod("one", container("c", 30, 20)))
        assert not refused.admitted
        assert len(rig.state.view.ledger) == 0
        assert b'"one"' not in (rig.store.state or b"")


def test_a_pod_that_leaves_while_its_grant_fails_does_not_come_back(tmp_path: Path) -> None:
    rig, one = NodeRig(tmp_path, cards(1)), pod("one", container("c", 30, 20))

    class Leaving(FakeTenants):
        def open(self, name: str, limits: Sequence[Limit]) -> None:
            rig.state.forget_pod(uid(one))
            raise NodeUnready("the file system of the pages is read-only")

    rig.tenants = Leaving()
    with rig:
        assert not rig.admit(one).admitted
        assert len(rig.state.view.ledger) == 0


def test_a_start_whose_proof_could_not_be_saved_is_saved_by_the_next(rig: NodeRig) -> None:
    one = pod("one", container("c", 30, 20))
    assert rig.admit(one).admitted
    rig.store.broken = True
    with pytest.raises(NodeUnready, match="no space left"):
        rig.start(one)
    assert proven(rig) == [False]
    rig.store.broken = False
    rig.start(one)
    rig.restart_agent()
    assert proven(rig) == [True]


def test_a_container_that_runs_is_proven_though_the_books_were_lost(rig: NodeRig) -> None:
    """Its memory limit at the driver hangs on it."""
    runs, waits = pod("runs", container("c", 30, 20)), pod("waits", container("c", 30, 20))
    for one in (runs, waits):
        assert rig.admit(one).admitted
    rig.start(runs)
    runs["status"] |= {"containerStatuses": [{"name": "c", "containerID": "containerd://" + "a" * 64}]}
    rig.pods.bind(rig.parsed(runs))
    rig.store.state = None
    rig.restart_agent()
    found = {key[0]: g.proven for key, g in rig.state.view.grants.items()}
    assert found == {uid(runs): True, uid(waits): False}


def test_the_truth_that_a_killed_agent_did_not_get_written_is_told_by_the_next(rig: NodeRig) -> None:
    one, waits = pod("one", container("c", 30, 20)), pod("waits", container("c", 30, 20))
    for obj in (one, waits):
        assert rig.admit(obj).admitted
    rig.start(one)
    rig.pods.annotations.clear()  # they were waiting to be sent
    rig.restart_agent()
    truth = AnnotationWriteback(rig.state, rig.pods, rig.clock)
    for obj in (one, waits):
        truth.tell(rig.parsed(obj))
    assert rig.pods.annotations.keys() == {uid(one)}, "and nothing of a pod that may be another yet"
    one["metadata"]["annotations"] = rig.pods.annotations.pop(uid(one))
    assert ALLOCATION in one["metadata"]["annotations"]
    truth.tell(rig.parsed(one))
    assert rig.pods.annotations == {}, "once"


def test_a_full_disk_keeps_nothing_of_dead_pods_nor_their_directories(tmp_path: Path) -> None:
    """Their directories may be what fills it."""
    clock = FakeClock()
    with NodeRig(tmp_path, cards(2), clock=clock) as rig:
        gone = [pod(f"p{n}", container("c", 30, 20)) for n in range(3)]
        for one in gone:
            assert rig.admit(one).admitted
        for one in gone:
            rig.delete(one)
        rig.kubelet.checkpoint_path.write_text(
            '{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{}},"Checksum":0}'
        )
        rig.store.broken = True
        clock.pass_(SETTLE_SECONDS + 1)
        rounds = [rig.reclaimer.round() for _ in range(2)]
        assert [len(released) for released in rounds] == [0, 3]
        rig.reclaimer.round()
        assert rig.tenants.names() == ()


class SlowKubelet:
    """Its first list takes until the test lets it go on."""

    def __init__(self) -> None:
        self.lists = 0
        self.asked, self.go_on = threading.Event(), threading.Event()

    def listing(self) -> Mapping[tuple[str, str], Sequence[PodResourcesEntry]]:
        self.lists += 1
        self.asked.set()
        assert self.go_on.wait(PATIENCE)
        return {}

    def checkpoint(self) -> None:
        return None


def test_a_question_waits_for_a_listing_that_began_before_it() -> None:
    """Else that listing meets the grant that follows, and the kubelet forgets the ids in flight."""
    kubelet, pods, clock, metrics = SlowKubelet(), FakePods(), FakeClock(), service_metrics()
    state, window = state_of(cards(1)), AdmissionWindow(clock)
    allocator = Allocator(
        state,
        association=Association(kubelet, pods, clock, metrics, "n1"),
        window=window,
        departed=DepartedPods(state, pods, FakeProcesses()),
        pods=pods,
        tenants=FakeTenants(),
        injector=FakeInjector(),
        clock=clock,
        metrics=metrics,
    )
    clock.pass_(QUIET_SECONDS)
    with ThreadPoolExecutor(2) as pool:
        idle = pool.submit(window.when_idle, lambda: frozenset(kubelet.listing()))
        assert kubelet.asked.wait(PATIENCE)
        question = pool.submit(allocator.prefer, CORE, sorted(state.node.ids.card_of[CORE]), (), 30)
        with pytest.raises(TimeoutError):
            question.result(0.2)
        assert kubelet.lists == 1
        kubelet.go_on.set()
        assert idle.result(PATIENCE) == frozenset()
        assert len(question.result(PATIENCE)) == 30
    assert kubelet.lists == 2

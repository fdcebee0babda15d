"""Pods whose containers have no devices: named once, after two looks that agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gpu_manager.domain.contract import CORE, EVENT_WITHOUT_DEVICES, MEMORY
from gpu_manager.domain.kube.pod import MIRROR, ContainerKind, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.ports.records import CheckpointEntry, PodResourcesEntry
from gpu_manager.services.allocation.admission_window import AdmissionWindow
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.recovery.repairs import SETTLE_SECONDS, PodsWithoutDevices
from tests.fakes.metrics import counts, service_metrics
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock, FakePods, FakeProcesses, cards
from tests.fakes.state import state_of

ROUND_SECONDS = 30.0


class Kubelet:
    """What one pod has by its books; ``lists`` counts how often it was asked for its pods."""

    def __init__(self) -> None:
        self.entries: Sequence[CheckpointEntry] | None = ()
        self.active = True
        self.listed: Mapping[str, frozenset[str]] = {}  # of container c
        self.lists = 0

    def checkpoint(self) -> Sequence[CheckpointEntry] | None:
        return self.entries

    def listing(self) -> Mapping[tuple[str, str], Sequence[PodResourcesEntry]]:
        self.lists += 1
        one = PodResourcesEntry("default", "old", "c", self.listed)
        return {("default", "old"): (one,)} if self.active else {}


class Look:
    """A node on which one pod runs; each call is one look at it, some time after the kubelet restarted."""

    def __init__(
        self,
        *containers: dict[str, Any],
        evict: bool = True,
        booked: Sequence[str] = (),
        settled: bool = True,
        policy: str = "Always",
        **given: Any,
    ) -> None:
        self.pods, self.metrics, self.kubelet = FakePods(), service_metrics(), Kubelet()
        self.clock, self.processes = FakeClock(), FakeProcesses()
        obj = pod("old", *(containers or (container("c", 30, 20),)), **given)
        obj["status"] = {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"}
        obj["spec"]["restartPolicy"] = policy
        self.obj = obj
        self.show()
        states = cards(1)
        grants = [
            Grant(
                Allocation(
                    self.pod.uid,
                    name,
                    ContainerKind.APP,
                    0,
                    (Share(states[0].card.uuid, Amount(30, 20 * DEFAULT_UNIT)),),
                    "default",
                    "old",
                ),
                f"directory-{name}",
            )
            for name in booked
        ]
        self.service = PodsWithoutDevices(
            state_of(states, *grants),
            AdmissionWindow(self.clock),
            self.kubelet,
            self.pods,
            self.processes,
            self.clock,
            self.metrics,
            ROUND_SECONDS,
            evict=evict,
        )
        self.clock.pass_(SETTLE_SECONDS if settled else 1)

    def show(self) -> None:
        self.pod = parse_pod(self.obj)
        self.pods.bind(self.pod)

    def started(self, name: str) -> None:
        """The API shows that this container was made."""
        rows = self.obj["status"].setdefault("containerStatuses", [])
        rows.append({"name": name, "containerID": "containerd://1", "state": {"running": {}}})
        self.show()

    def __call__(self, *resources: str, seconds: float = ROUND_SECONDS) -> list[tuple[str, str, str]]:
        self.kubelet.entries = [
            CheckpointEntry(self.pod.uid, "c", r, frozenset({f"{r}-1"})) for r in resources
        ]
        return self.again(seconds)

    def again(self, seconds: float = ROUND_SECONDS) -> list[tuple[str, str, str]]:
        self.clock.pass_(seconds)
        self.service.look()
        return self.pods.events

    @property
    def stranded(self) -> float:
        (family,) = self.metrics.stranded_containers.collect()
        return family.samples[0].value


def test_it_is_named_at_the_second_look_and_never_again() -> None:
    look = Look()
    assert look() == []
    ((name, why, text),) = look()
    assert (name, why) == ("default/old", EVENT_WITHOUT_DEVICES)
    assert f'container "c" was admitted before this node offered {CORE}' in text
    assert "; delete the pod, so that" in text
    assert len(look()) == 1
    assert counts(look.metrics.pods_without_devices) == {"": 1}
    assert look.pods.evicted == []


@pytest.mark.parametrize("evict", [True, False])
@pytest.mark.parametrize("booked", [(), ("c",)])
def test_a_controllers_pod_is_evicted_where_that_is_allowed(evict: bool, booked: Sequence[str]) -> None:
    look = Look(evict=evict, booked=booked, controlled=True)
    look()
    ((_, _, text),) = look()
    assert look.pods.evicted == ([look.pod.uid] if evict else [])
    assert ("; the pod is evicted, so that" in text) == evict


def test_a_pod_to_which_the_kubelet_gives_devices_after_all_is_no_longer_to_be_evicted() -> None:
    look = Look(controlled=True)
    look()
    look()
    assert look.pods.evicted == [look.pod.uid]
    look(CORE, MEMORY)
    assert look.pods.evicted == []


def test_one_resource_of_two_is_as_bad_as_none() -> None:
    look = Look()
    look(CORE)
    ((_, _, text),) = look(CORE)
    assert MEMORY in text


def test_who_holds_all_that_it_asks_for_is_well() -> None:
    look = Look()
    assert [look(CORE, MEMORY) for _ in range(3)] == [[], [], []]
    assert look.kubelet.lists == 0, "the checkpoint alone says it"


def test_a_source_that_is_missing_proves_nothing() -> None:
    look = Look()
    for _ in range(3):
        look.kubelet.entries = None
        assert look.again() == []
        look.kubelet.entries, look.kubelet.active = (), False
        assert look.again() == []


def test_whom_the_kubelet_lists_with_devices_lacks_nothing_whatever_its_checkpoint_says() -> None:
    """A kubelet that writes the file in another way than its agent knows must cost nobody his pod."""
    look = Look(booked=("c",), controlled=True)
    look.kubelet.listed = {CORE: frozenset({"a"}), MEMORY: frozenset({"b"})}
    assert [look() for _ in range(3)] == [[], [], []]
    look.kubelet.listed = {}
    look()
    assert len(look()) == 1


def test_of_a_copy_of_a_static_pod_nobody_can_say() -> None:
    look = Look(annotations={MIRROR: "digest"})
    assert not look.pod.static
    assert [look() for _ in range(3)] == [[], [], []]


def test_a_booked_container_that_the_checkpoint_lost_is_named_with_all_its_kin() -> None:
    look = Look(container("c", 30, 20), container("d", 30, 20), booked=("c", "d"))
    look()
    assert look.stranded == 0
    ((_, why, text),) = look()
    assert why == EVENT_WITHOUT_DEVICES
    assert text.startswith('the kubelet has lost its record of the devices of containers "c", "d"; ')
    assert "keeps its card and limits, but once they have ended they cannot be started again" in text
    assert look.stranded == 2
    assert look.service.uids == (look.pod.uid,)


def test_only_the_container_that_was_lost_is_named() -> None:
    look = Look(container("c", 30, 20), container("d", 30, 20), booked=("c", "d"))
    look(CORE, MEMORY)
    ((_, _, text),) = look(CORE, MEMORY)
    assert 'devices of container "d"' in text
    assert look.stranded == 1


def test_it_counts_no_more_once_it_is_going() -> None:
    look = Look(booked=("c",))
    look()
    look()
    assert look.stranded == 1
    look.obj["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:01Z"
    look.show()
    look()
    assert (look.stranded, look.service.uids) == (0, ())


def test_it_is_named_seconds_after_the_kubelets_restart_while_it_runs() -> None:
    look = Look(booked=("c",), settled=False)
    look.processes.living = {look.pod.uid}
    look(seconds=2)
    assert len(look(seconds=2)) == 1


def test_a_pod_of_which_nothing_runs_may_be_given_devices_until_the_kubelet_has_settled() -> None:
    """After a reboot the kubelet admits it again, in its turn."""
    look = Look(booked=("c",), settled=False)
    for _ in range(10):
        assert look(seconds=2) == []
    look.clock.pass_(SETTLE_SECONDS)
    look()
    assert len(look()) == 1


def test_the_kubelet_is_asked_rarely_once_it_has_settled_and_not_at_all_once_all_are_named() -> None:
    look = Look(booked=("c",))
    look.kubelet.active = False
    for _ in range(15):
        look(seconds=2)
    assert look.kubelet.lists == 1
    look.kubelet.active = True
    look()
    look()
    asked = look.kubelet.lists
    for _ in range(15):
        look()
    assert look.kubelet.lists == asked


def test_a_running_container_that_is_never_restarted_lacks_nothing() -> None:
    """A Job's pod: to evict it would be the only harm."""
    look = Look(booked=("c",), policy="Never", controlled=True)
    look.started("c")
    assert [look() for _ in range(3)] == [[], [], []]


def test_of_a_pod_that_restarts_nothing_the_container_that_is_still_to_start_is_named() -> None:
    look = Look(container("c", 30, 20), container("d", 30, 20), booked=("c", "d"), policy="Never")
    look.started("c")
    look()
    ((_, _, text),) = look()
    assert 'devices of container "d"' in text


def test_a_container_whose_cards_come_by_a_claim_needs_no_devices() -> None:
    look = Look()
    look.obj["status"]["extendedResourceClaimStatus"] = {
        "resourceClaimName": "made",
        "requestMappings": [{"containerName": "c", "resourceName": CORE, "requestName": "r"}],
    }
    look.show()
    assert [look() for _ in range(3)] == [[], [], []]


def test_the_next_pod_is_looked_for_beside_one_that_is_named() -> None:
    look = Look(booked=("c",))
    look()
    look()
    other = parse_pod({**look.obj, "metadata": {**look.obj["metadata"], "uid": "other", "name": "new"}})
    look.pods.bind(other)
    assert len(look()) == 1, "the kubelet does not list it"
    assert look.service.uids == (PodUid(look.pod.uid),)

"""A static pod has two UIDs: what is read goes by the kubelet's, what is written by that of its mirror."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from gpu_manager.adapters.kube.connection import Connection, Timeouts, connect
from gpu_manager.adapters.kube.outbox import Outbox
from gpu_manager.adapters.kube.pods import KubePods
from gpu_manager.adapters.kube.reflector import Pause
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.domain.kube.pod import Pod, parse_pod
from sandbox.api import ADMIN_TOKEN, StandInApi
from tests.fakes.static import DIGEST, mirror_of, static
from tests.fakes.waiting import PATIENCE, until

NAME = static()["metadata"]["name"]


class Listing:
    """The kubelet's own ``/pods``."""

    def __init__(self) -> None:
        self.there: list[Pod] = []

    def pods(self) -> Sequence[Pod] | None:
        return self.there

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def connection(api: StandInApi) -> Iterator[Connection]:
    one = connect(
        url=api.url, token=ADMIN_TOKEN, timeouts=Timeouts(connect=PATIENCE, answer=PATIENCE, watch=30)
    )
    yield one
    one.close()


@pytest.fixture
def listing() -> Listing:
    return Listing()


@pytest.fixture
def pods(connection: Connection, listing: Listing) -> Iterator[KubePods]:
    clock, pause = SystemClock(), Pause(0.01, 0.05)
    outbox = Outbox(clock, pause)
    outbox.start()
    pods = KubePods(connection, "n1", clock=clock, outbox=outbox, kubelet=listing, pause=pause)  # type: ignore[arg-type]
    pods.start()
    assert pods.wait(PATIENCE)
    yield pods
    pods.close()
    outbox.close()


def mirrored(api: StandInApi, pods: KubePods) -> str:
    """Have the mirror in the API and in the watch; its UID."""
    uid = str(api.create(mirror_of(static()))["metadata"]["uid"])
    until(lambda: any(f.pod.twin for f in pods.local().get(f"default/{NAME}", ())))
    return uid


def test_the_watch_shows_it_under_the_kubelets_uid(api: StandInApi, pods: KubePods) -> None:
    uid = mirrored(api, pods)
    (found,) = pods.local()[f"default/{NAME}"]
    assert (found.pod.uid, found.pod.twin) == (DIGEST, uid)
    fetched = pods.fetch("default", NAME)
    assert fetched is not None
    assert (fetched.uid, fetched.twin) == (DIGEST, uid)


def test_the_kubelets_own_object_is_written_to_under_the_mirrors_uid(
    api: StandInApi, pods: KubePods, listing: Listing
) -> None:
    listing.there = [parse_pod(static())]
    before = pods.fetch("default", NAME)
    assert before is not None
    assert (before.uid, before.twin) == (DIGEST, ""), "the mirror is not there yet"
    uid = mirrored(api, pods)
    for known in (before, pods.fetch("default", NAME)):
        assert known is not None
        pods.annotate(known, {"example.com/card": "3"})
        pods.event(known, "VcudaAllocated", "30 cores of card 3")

        def annotated() -> bool:
            obj = api.get("pods", NAME) or {}
            return bool(obj["metadata"]["annotations"].get("example.com/card") == "3")

        until(annotated)
    until(lambda: api.list("events"))
    assert {e["involvedObject"]["uid"] for e in api.list("events")} == {uid}
    assert len(pods.local()[f"default/{NAME}"]) == 1, "one pod, whoever tells of it"


def test_a_forged_mirror_does_not_take_the_place_of_a_real_one(api: StandInApi, pods: KubePods) -> None:
    mirrored(api, pods)
    forged = mirror_of(static("evil-n1"), **{"tencent.com/vcuda-core-limit": "100"})
    api.create(forged)
    api.create({**static("last-n1"), "metadata": {"name": "last-n1", "namespace": "default"}})
    until(lambda: "default/last-n1" in pods.local())
    assert [f.pod.name for found in pods.local().values() for f in found if f.pod.uid == DIGEST] == [NAME]
    api.delete("pods", "evil-n1", grace=0)
    api.delete("pods", "last-n1", grace=0)
    until(lambda: all(f.tombstone for f in pods.local().get("default/last-n1", ())))
    assert not pods.local()[f"default/{NAME}"][0].tombstone


def test_a_forged_mirror_does_not_hide_a_real_one_that_is_made_anew(api: StandInApi, pods: KubePods) -> None:
    mirrored(api, pods)
    api.delete("pods", NAME, grace=0)
    until(lambda: pods.local()[f"default/{NAME}"][0].tombstone)
    api.create(mirror_of(static("evil-n1")))
    until(lambda: "default/evil-n1" in pods.local())
    api.create(mirror_of(static()))
    until(lambda: any(not f.tombstone for f in pods.local().get(f"default/{NAME}", ())))
    assert "default/evil-n1" not in pods.local()

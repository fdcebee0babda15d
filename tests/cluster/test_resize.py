"""Running pods resized by ``kubectl vcuda resize``: what is in force, what is on offer, what is said."""

from __future__ import annotations

import os
import signal

from gpu_manager.domain.contract import EVENT_RESIZE_REFUSED, EVENT_RESIZE_WAITS
from tests.cluster import auditor, product, views
from tests.cluster.auditor import Held
from tests.cluster.cluster import Cluster
from tests.cluster.periods import chosen
from tests.cluster.pods import Pods, cards_of, container, pod, run_client
from tests.cluster.shell import typed
from tests.cluster.test_lifecycle import FULL
from tests.cluster.test_limits import allocated
from tests.cluster.test_operations import explain

GIB = 1 << 30
STATUS_SECONDS = 30  # until the kubelet has reported another number of ids


def resize(cluster: Cluster, words: str) -> str:
    """What the command says; it must succeed."""
    done = typed(cluster, f"kubectl vcuda resize {words}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(cluster: Cluster, pods: Pods, name: str, cores: int = 30, units: int = 20) -> Held:
    """A pod of one container that runs, in every book."""
    pods.run(pod(name, container("c", cores, units), restartPolicy="Always"))
    auditor.settled(cluster)
    return of_pod(cluster, name)


def of_pod(cluster: Cluster, name: str) -> Held:
    """A pod's only container as the API has it now."""
    [found] = [one for one in auditor.containers(cluster) if one.pod == name]
    return found


def offered(cluster: Cluster, cores: int, units: int, seconds: float = STATUS_SECONDS) -> None:
    """Wait until the node offers so many fewer than all of its ids."""
    wanted = (FULL[0] - cores, FULL[1] - units)
    try:
        cluster.wait(lambda: product.allocatable(cluster) == wanted, seconds, "the ids are not on offer")
    except TimeoutError as error:
        raise AssertionError(f"{error}: {product.allocatable(cluster)}, not {wanted}") from None


def test_a_running_container_is_grown_shrunk_and_reset_without_a_restart(
    cluster: Cluster, pods: Pods
) -> None:
    """Each size is in force inside and in every book, and costs the node as many ids.

    Below the spec the views from outside show the spec, which the scheduler charges.
    """
    one = started(cluster, pods, "live")
    said = resize(cluster, "live --cores 50 --memory 8Gi")
    assert said == 'container "c" of default/live: 50 cores, 8 GiB\n'
    assert auditor.size_in_force(one) == (50, 8 * GIB)
    assert allocated(run_client(pods, "live", "alloc-to-limit")) == 8 * 1024
    auditor.settled(cluster)
    views.agreed(cluster)
    offered(cluster, 20, 12)

    assert "10 cores, 8 GiB" in resize(cluster, "live --cores 10 --memory 8Gi")
    assert auditor.size_in_force(one) == (10, 8 * GIB)
    offered(cluster, 0, 12)
    assert "10 cores, 2 GiB" in resize(cluster, "live --cores 10 --memory 2Gi")
    assert auditor.size_in_force(one) == (10, 2 * GIB)
    assert allocated(run_client(pods, "live", "alloc-to-limit")) == 2 * 1024
    auditor.settled(cluster)
    offered(cluster, 0, 0)

    assert "30 cores, 5 GiB" in resize(cluster, "live --reset")
    assert auditor.size_in_force(one) == (30, 5 * GIB)
    auditor.settled(cluster)
    assert of_pod(cluster, "live").container_id == one.container_id, "it was started anew"


def test_memory_in_use_is_waited_for_and_no_program_loses_any(cluster: Cluster, pods: Pods) -> None:
    one = started(cluster, pods, "full")
    hold = (
        "vcuda-client alloc-to-limit --most 3072 --hold 300 >/tmp/held 2>&1 </dev/null & echo $! > /tmp/pid"
    )
    pods.execute("full", "sh", "-c", hold)
    cluster.wait(lambda: "held_mib 3072" in pods.execute("full", "cat", "/tmp/held"), 20, "nothing held")
    said = resize(cluster, "full --cores 30 --memory 1Gi --wait 5")
    assert "the scheduler has reserved 30 cores, 1 GiB, the agent has booked 30 cores, 3 GiB" in said, said
    assert auditor.size_in_force(one) == (30, 3 * GIB)
    assert allocated(run_client(pods, "full", "alloc-to-limit")) == 0
    waits = (
        f'{EVENT_RESIZE_WAITS}: container "c" is not at 30 cores, 1 GiB yet: '
        "it waits until 2 GiB of its memory are freed"
    )
    cluster.wait(lambda: waits in pods.events("full"), 20, f"not said: {waits}: {pods.events('full')}")
    pods.execute("full", "sh", "-c", "kill -0 $(cat /tmp/pid)")  # it lives

    pods.execute("full", "sh", "-c", "kill -9 $(cat /tmp/pid)")
    cluster.wait(lambda: auditor.size_in_force(one) == (30, GIB), 20, "what it freed is not taken")
    auditor.settled(cluster)
    assert allocated(run_client(pods, "full", "alloc-to-limit")) == 1024


def test_a_growth_without_room_is_refused_with_the_arithmetic_and_comes_with_the_room(
    cluster: Cluster, pods: Pods
) -> None:
    big, small = pods.run(pod("big", container("c", 60, 20)), pod("small", container("c", 30, 20)))
    assert cards_of(big, "c") == cards_of(small, "c")
    auditor.settled(cluster)
    one = of_pod(cluster, "small")
    done = typed(cluster, "kubectl vcuda resize small --cores 50")
    [card] = [card.index for card in cluster.cards if card.uuid in cards_of(small, "c")]
    why = f'container "c": 50 cores, 5 GiB on card {card} does not fit: it holds 30 cores, 5 GiB and the card has '
    assert done.returncode == 1
    assert f"default/small keeps its size: {why}10 cores, " in done.stderr, done.stderr
    assert "so at most 40 cores, " in done.stderr, done.stderr
    assert any(text.startswith(f"{EVENT_RESIZE_REFUSED}: {why}") for text in pods.events("small"))
    assert auditor.size_in_force(one) == (30, 5 * GIB)
    auditor.settled(cluster)

    pods.delete("big")
    room = chosen().given_back_seconds
    cluster.wait(lambda: auditor.size_in_force(one) == (50, 5 * GIB), room, "it is not judged again")
    auditor.settled(cluster)


def test_the_size_outlives_the_container_the_agent_the_kubelet_and_admission(
    cluster: Cluster, pods: Pods
) -> None:
    """And it can be changed after each; what is asked for while the agent is away comes with it."""
    one = started(cluster, pods, "lasting")
    resize(cluster, "lasting --cores 50 --memory 8Gi")
    auditor.settled(cluster)
    os.kill(auditor.process_of(one), signal.SIGTERM)
    cluster.wait(lambda: restarts(pods, "lasting") == 1, 30, "no restart")
    pods.wait_running("lasting")
    one = of_pod(cluster, "lasting")
    assert auditor.size_in_force(one) == (50, 8 * GIB)

    product.kill(cluster, product.AGENT)
    said = resize(cluster, "lasting --cores 60 --memory 9Gi --wait 0")
    assert "the scheduler has not answered yet" in said or "60 cores, 9 GiB" in said, said
    cluster.wait(lambda: auditor.size_in_force(one) == (60, 9 * GIB), 60, "it is not followed")
    cluster.wait(lambda: product.agent_ready(cluster), 60, "the agent does not come back")
    auditor.settled(cluster)
    offered(cluster, 30, 16)

    cluster.kill("kubelet")
    try:
        assert "40 cores, 6 GiB" in resize(cluster, "lasting --cores 40 --memory 6Gi")
    finally:
        cluster.start("kubelet")
    cluster.wait(cluster.node_ready, 60, "the node is not ready")
    offered(cluster, 10, 4)

    product.kill(cluster, product.ADMISSION)
    again = "kubectl vcuda resize lasting --cores 45 --memory 7Gi --wait 60"
    cluster.wait(lambda: "45 cores, 7 GiB" in typed(cluster, again).stdout, 120, "nobody judges a resize")
    assert auditor.size_in_force(one) == (45, 7 * GIB)
    auditor.settled(cluster)
    offered(cluster, 15, 8)


def restarts(pods: Pods, name: str) -> int:
    """Of a pod's only container."""
    return int(pods.get(name)["status"]["containerStatuses"][0]["restartCount"])


def test_nobody_is_placed_in_the_room_of_a_grown_pod_and_all_of_it_comes_back(
    cluster: Cluster, pods: Pods
) -> None:
    """The scheduler counts ids: those of the growth are off the list, and on it again when the pod is deleted."""
    one = started(cluster, pods, "grown", 40, 20)
    pods.run(*(pod(f"whole-{n}", container("c", 100)) for n in range(7)))
    assert "90 cores, 5 GiB" in resize(cluster, "grown --cores 90")
    offered(cluster, 50, 0)
    pods.create(pod("late", container("c", 20, 4)))
    code, answer = explain(cluster, "late")
    assert code == 1, answer
    resize(cluster, "grown --reset")
    pods.wait_running("late")
    auditor.settled(cluster)
    assert auditor.size_in_force(one) == (40, 5 * GIB)

    assert "60 cores, 5 GiB" in resize(cluster, "grown --cores 60")
    offered(cluster, 20, 0)
    pods.clear()
    offered(cluster, 0, 0, chosen().given_back_seconds)
    pods.run(*(pod(f"next-{n}", container("c", 100)) for n in range(8)), seconds=120)
    auditor.settled(cluster)

"""The kubelet under each topology policy on a machine of four NUMA nodes with two cards each: which pods does it refuse,
and which containers get a card of another node than the ids that the kubelet has aligned?

``python -m tests.cluster numa [STARTS]``, of each policy. The machine's own NUMA nodes are hidden from the kubelet by
made ones, with the numbers that the simulated cards name.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import yaml

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.topology import NumaPolicy
from tests.cluster import auditor, numa_reach, product
from tests.cluster.cluster import Cluster
from tests.cluster.pods import NAMESPACE, Pods, cards_of, container, pod
from tests.cluster.soak import GRACES, draw

POLICIES: Final = ("best-effort", "restricted", "single-numa-node")
STARTS: Final = 60
_BATCH: Final = 8
_MOST_CORES: Final = 520
_PLACE: Final = "/sys/devices/system/node"
_SEED: Final = 1


@dataclass(slots=True)
class Numa:
    """Sums over the policies; ``refused`` counts pods that the kubelet failed."""

    policies: list[str] = field(default_factory=list)
    starts: int = 0
    refused: int = 0
    waited: int = 0  # pods that the scheduler placed nowhere for a minute
    containers: int = 0  # looked at, once a round
    elsewhere: int = 0  # of them on cards of another node than their ids
    within_reach: int = 0  # of these, those for which cards of the ids' node had room then
    told: list[str] = field(default_factory=list)  # of each of them

    def as_json(self) -> dict[str, object]:
        """For the record."""
        return asdict(self)


def measure(cluster: Cluster, starts: int = STARTS) -> Numa:
    """So many starts under each policy; half of the pods are deleted by force."""
    result = Numa()
    for policy in POLICIES:
        with topology(cluster, policy):
            _run(cluster, result, NumaPolicy(policy), result.starts + starts)
        result.policies.append(policy)
        sys.stdout.write(f"{result.as_json()}\n")
        sys.stdout.flush()
    return result


@contextmanager
def topology(cluster: Cluster, policy: str) -> Iterator[None]:
    """The kubelet has this policy, and sees the NUMA nodes of the cards, until the block ends."""
    config = cluster.scratch / "kubelet.yaml"
    text = config.read_text("utf-8")
    _make_nodes(cluster.scratch / "numa", sorted({card.numa or 0 for card in cluster.cards}))
    cluster.inside("mount", "--bind", str(cluster.scratch / "numa"), _PLACE, check=True)
    try:
        changed = {**yaml.safe_load(text), "topologyManagerPolicy": policy}
        _restarted(cluster, config, yaml.safe_dump(changed))
        product.install(
            cluster, admission=True, **{"agent.topologyManagerPolicy": policy, "agent.logLevel": "debug"}
        )
        yield
    finally:
        cluster.inside("umount", _PLACE, check=True)
        _restarted(cluster, config, text)
        product.install(cluster, admission=True)


def _make_nodes(place: Path, numbers: list[int]) -> None:
    """What a kubelet reads of NUMA nodes (sysfs-devices-node of the kernel's ABI): the processors go in turns."""
    processors = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*"))
    for at, number in enumerate(numbers):
        node = place / f"node{number}"
        (node / "hugepages").mkdir(parents=True, exist_ok=True)
        (node / "meminfo").write_text(f"Node {number} MemTotal: 1048576 kB\n", "ascii")
        distances = (10 if other == number else 20 for other in numbers)
        (node / "distance").write_text(" ".join(map(str, distances)) + "\n", "ascii")
        for processor in processors[at :: len(numbers)]:
            link = node / processor.name
            link.unlink(missing_ok=True)
            link.symlink_to(processor)
    (place / "online").write_text(",".join(map(str, numbers)) + "\n", "ascii")


def _restarted(cluster: Cluster, config: Path, text: str) -> None:
    config.write_text(text, "utf-8")
    cluster.restart("kubelet")
    cluster.wait(cluster.node_ready, 60, "the node is not ready")
    cluster.wait(lambda: product.agent_ready(cluster), 90, "the agent is not ready")


def _run(cluster: Cluster, result: Numa, policy: NumaPolicy, starts: int) -> None:
    pods, alive, number, dice = Pods(cluster), dict[str, int](), 0, random.Random(_SEED)
    try:
        while result.starts < starts:
            made: dict[str, int] = {}
            while len(made) < _BATCH and sum(alive.values()) + sum(made.values()) < _MOST_CORES:
                name = f"numa-{number}"
                number += 1
                manifest, cores = draw(dice, name)
                if number % 5 == 0:  # two cards, which a policy wants of one NUMA node
                    manifest, cores = pod(name, container("a", 200)), 200
                pods.create(manifest)
                made[name] = cores
            for name in made:
                _await(pods, name, result)
            alive |= made
            _compare(cluster, pods, policy, result)
            for name in dice.sample(sorted(alive), k=(3 * len(alive) + 3) // 4):
                alive.pop(name)
                path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
                cluster.api.delete(path, dice.choice(GRACES))
    finally:
        pods.clear()


def _await(pods: Pods, name: str, result: Numa) -> None:
    try:
        pods.wait_running(name, 60)
    except AssertionError as error:
        result.refused += 1
        result.told.append(str(error))
    except TimeoutError:
        result.waited += 1
    else:
        result.starts += 1


def _compare(cluster: Cluster, pods: Pods, policy: NumaPolicy, result: Numa) -> None:
    """The NUMA nodes of the ids in the kubelet's checkpoint, beside those of the cards that were granted."""
    numa = {str(card.uuid): card.numa for card in cluster.cards}
    of_id = {uuid.removeprefix("GPU-").partition("-")[0]: node for uuid, node in numa.items()}
    books, known = auditor.Books.of(cluster), numa_reach.moments(cluster.scratch)
    for one in auditor.containers(cluster):
        ids = _ids(books, one.uid, one.name)
        aligned = {of_id[device.partition("-")[0]] for held in ids.values() for device in held}
        granted = {numa[card] for card in cards_of(pods.get(one.pod), one.name)}
        result.containers += 1
        if granted <= aligned:
            continue
        result.elsewhere += 1
        # The kubelet hands ids of an ordinary init container on, and so its card.
        own = [row for row in books.rows if row["pod"] == one.uid]
        rows = [row for row in own if row["kind"] == "init" or row["container"] == one.name]
        passed = [_ids(books, one.uid, row["container"]) for row in rows]
        all_ids = {r: frozenset().union(*(each[r] for each in passed)) for r in (CORE, MEMORY)}
        wanted = {of_id[device.partition("-")[0]] for held in passed[0].values() for device in held}
        had = numa_reach.reached(known, cluster.cards, rows, all_ids, wanted, policy)
        result.within_reach += had is not False
        reach = {True: ", could have been had", False: "", None: ", no line of the agent tells"}[had]
        result.told.append(
            f"{one}: {one.cores} cores: ids of node {sorted(aligned)}, cards of {sorted(granted)}{reach}"
        )


def _ids(books: auditor.Books, uid: str, name: str) -> dict[str, frozenset[str]]:
    """What the kubelet's checkpoint has of a container."""
    return {r: books.checkpoint.get((uid, name, r), (frozenset[str](), None))[0] for r in (CORE, MEMORY)}

"""Pods by claims and pods by extended resources on one split node, in waves, while kubelet and agent restart, and the node
reboots.

``python -m tests.cluster claim-waves [EACH [WAVE]]``, so many pods of each kind; or one wave of them, 0 first, whose
figures are added to those of the waves before. Counted are cards of which more is booked or in force than they have,
containers whose limits are not what they were given, pods that the kubelet failed, and pods that do not run within a
minute.

A kubelet that comes back after a reboot admits the pods that it had before any agent can run there, and fails those by
extended resources (Kubernetes issue 118559). They are made again, as a controller does, and counted by themselves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from tests.cluster import auditor, claims, product, rollouts
from tests.cluster.cdi_off import back_to_simulated
from tests.cluster.claims import Claims, part
from tests.cluster.cluster import Cluster
from tests.cluster.pods import PATH, container, pod, why_failed
from tests.cluster.reboot import reboot

EACH: Final = 200
AT_A_TIME: Final = 40  # of each kind
CORES, UNITS = 8, 4
SPLIT: Final = {"agent.front": "split", "agent.claimCards": "4"}
STUCK_SECONDS: Final = 60.0


@dataclass(slots=True)
class Waves:
    """``overcommitted``, ``wrong``, ``failed`` and ``stuck`` must be 0; ``told`` says what was wrong."""

    each: int
    claims: int = 0  # pods that ran
    extended: int = 0
    overcommitted: int = 0
    wrong: int = 0
    failed: int = 0
    stuck: int = 0
    reboots: int = 0
    made_again: int = 0  # pods by extended resources that a reboot ended
    longest_seconds: float = 0.0  # from a pod's creation until it ran
    told: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """For the record."""
        return asdict(self)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Waves:
        """As :meth:`as_json` has it."""
        return cls(**{one.name: found[one.name] for one in fields(cls) if one.name in found})

    @property
    def clean(self) -> bool:
        """True if nothing was wrong."""
        return not (self.overcommitted or self.wrong or self.failed or self.stuck)


def measure(
    cluster: Cluster, each: int = EACH, only: int | None = None, before: Waves | None = None
) -> Waves:
    """Waves until so many pods of each kind were made; something restarts in all but the first.

    ``only``: one of them, added to the figures ``before`` it. The node stays split between two waves.
    """
    number = -(-each // AT_A_TIME)
    result, made = before or Waves(each), Claims(cluster)
    _split(cluster)
    disturbances = (_nothing, _kubelet, _agent, _both, _reboot)
    try:
        made.template("wave", part(CORES, UNITS))
        for wave in range(number) if only is None else (only,):
            count = min(AT_A_TIME, each - wave * AT_A_TIME)
            _wave(cluster, made, result, wave, count, disturbances[wave % len(disturbances)])
            sys.stdout.write(f"{wave}: {result.as_json()}\n")
            sys.stdout.flush()
        made.clear()
    finally:
        if only in (None, number - 1):
            _leave(cluster)
    return result


def _split(cluster: Cluster) -> None:
    if len(product.devices(cluster)) != 4 or product.allocatable(cluster)[0] != 400:
        product.install(cluster, admission=True, **SPLIT)
    cluster.wait(lambda: len(product.devices(cluster)) == 4, 180, "the cards are not split")


def _leave(cluster: Cluster) -> None:
    """Nothing is held any more: the agent gives all its cards by extended resources from its start on."""
    product.install(cluster, admission=True)
    cluster.wait(lambda: product.allocatable(cluster)[0] == 800, 300, "cards stay with claims")
    cluster.wait(lambda: product.agent_ready(cluster), 120, "the agent is not ready")
    back_to_simulated(cluster)


def _wave(
    cluster: Cluster, made: Claims, result: Waves, wave: int, count: int, disturb: Callable[[Cluster], None]
) -> None:
    born: dict[str, float] = {}
    for at in range(count):
        if at == count // 2:
            if disturb is _reboot:
                _await(cluster, result, born, counts=False)  # what is there runs, and has to come back
            disturb(cluster)
            if disturb is _reboot:
                _came_back(cluster, made, result, born)
        for kind in ("claim", "plain"):
            name = f"wave-{wave}-{at}-{kind}"
            made.pods.create(_manifest(name))
            born[name] = time.monotonic()
    _await(cluster, result, born)
    _judge(cluster, result)
    made.pods.delete(*born)


def _manifest(name: str) -> dict[str, Any]:
    """A killed kubelet takes back what it was asking the runtime for: such a container is started again."""
    if name.endswith("claim"):
        return claims.claiming(name, {"resourceClaimTemplateName": "wave"}, restartPolicy="Always")
    return pod(name, container("c", CORES, UNITS), restartPolicy="Always")


def _came_back(cluster: Cluster, made: Claims, result: Waves, born: dict[str, float]) -> None:
    """Make pods again that the reboot has ended; from now on all of them have a minute."""
    result.reboots += 1
    cluster.wait(
        lambda: all(
            one["status"].get("phase") in ("Running", "Failed") for one in cluster.api.get(PATH)["items"]
        ),
        120,
        "the pods of before the reboot are not settled",
    )
    ended = [one for one in cluster.api.get(PATH)["items"] if one["status"]["phase"] == "Failed"]
    for one in ended:
        name = one["metadata"]["name"]
        if name.endswith("claim"):
            result.failed += 1
            result.told.append(f"{name}: {why_failed(one['status'])}")
        made.pods.delete(name)
        made.pods.create(_manifest(name))
    result.made_again += len(ended)
    born |= dict.fromkeys(born, time.monotonic())


def _await(cluster: Cluster, result: Waves, born: dict[str, float], *, counts: bool = True) -> None:
    """Until each pod runs or has failed; each is looked at all the time, so that none waits for another's turn."""
    left, ends = dict(born), time.monotonic() + 4 * STUCK_SECONDS
    while left and time.monotonic() < ends:
        for found in cluster.api.get(PATH)["items"]:
            name, status = found["metadata"]["name"], found["status"]
            if name not in left or status.get("phase") not in ("Running", "Failed"):
                continue
            seconds = time.monotonic() - left.pop(name)
            if counts:
                _count(result, name, status, seconds)
        cluster.mend()
        time.sleep(0.2)
    for name in left:
        result.stuck += 1
        result.told.append(f"{name} does not run")


def _count(result: Waves, name: str, status: dict[str, Any], seconds: float) -> None:
    if status["phase"] == "Failed":
        result.failed += 1
        result.told.append(f"{name}: {why_failed(status)}")
        return
    result.claims += name.endswith("claim")
    result.extended += name.endswith("plain")
    result.longest_seconds = max(result.longest_seconds, round(seconds, 1))
    if seconds > STUCK_SECONDS:
        result.stuck += 1
        result.told.append(f"{name} ran after {seconds:.0f} s")


def _judge(cluster: Cluster, result: Waves) -> None:
    over = [*claims.together(cluster), *auditor.overcommitted(cluster, auditor.Books.of(cluster))]
    wrong = []
    for settled in (auditor.settled, claims.settled):
        try:
            settled(cluster, 20)
        except AssertionError as error:
            wrong += str(error).splitlines()
    result.overcommitted += len(over)
    result.wrong += len(wrong)
    result.told += over + wrong


def _nothing(_cluster: Cluster) -> None:
    """Leave it in peace."""


def _kubelet(cluster: Cluster) -> None:
    cluster.restart("kubelet")


def _agent(cluster: Cluster) -> None:
    cluster.kubectl("-n", product.NAMESPACE, "rollout", "restart", rollouts.DAEMONSET)


def _reboot(cluster: Cluster) -> None:
    reboot(cluster)


def _both(cluster: Cluster) -> None:
    _agent(cluster)
    _kubelet(cluster)

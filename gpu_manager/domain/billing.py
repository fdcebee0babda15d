"""Sums of what pods held of cards over time, and of what they used, as a base for bills.

A gauge that is read every 30 seconds cannot bill a job of ten seconds. So the node itself adds up, by pod and
by namespace, and its sums outlive the pod. A pod is billed at its booked peak over its phases, from its first
grant until it has ended.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Allocation, peak
from gpu_manager.domain.resources import ZERO, Amount

KEPT_SECONDS: Final = 300.0  # how long the sums of an ended pod are published: ten usual scrapes
KEPT_PODS: Final = 2000  # ended ones; the oldest are dropped first
KEPT_DAYS: Final = 90  # how long the sums of a namespace are published after its last pod on this node


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod holds and uses at one moment, over all its cards.

    Cores are hundredths of a card, memory is bytes. Unmeasured use counts as neither used nor wasted.
    """

    namespace: str
    pod: str
    booked: Amount
    cores_used: float = 0.0
    cores_wasted: float = 0.0
    memory_used: float = 0.0
    memory_wasted: float = 0.0


class Sums(NamedTuple):
    """Sums since ``since``, of cores times seconds and bytes times seconds; the last was added at ``until``.

    Both are seconds since 1970.
    """

    since: float
    until: float
    core_seconds: float = 0.0
    core_used_seconds: float = 0.0
    core_wasted_seconds: float = 0.0
    memory_byte_seconds: float = 0.0
    memory_used_byte_seconds: float = 0.0
    memory_wasted_byte_seconds: float = 0.0

    def plus(self, held: Holding, seconds: float, now: float) -> Sums:
        """The sums after ``seconds`` more of this holding, up to ``now``."""
        return Sums(
            self.since,
            now,
            self.core_seconds + held.booked.cores * seconds,
            self.core_used_seconds + held.cores_used * seconds,
            self.core_wasted_seconds + held.cores_wasted * seconds,
            self.memory_byte_seconds + held.booked.memory * seconds,
            self.memory_used_byte_seconds + held.memory_used * seconds,
            self.memory_wasted_byte_seconds + held.memory_wasted * seconds,
        )


FIGURES: Final = tuple(name for name in Sums._fields if name not in ("since", "until"))


@dataclass(frozen=True)
class PodSums:
    """A pod's UID and name, its sums, and when it ended (seconds since 1970; None: not yet)."""

    uid: PodUid
    namespace: str
    pod: str
    sums: Sums
    ended: float | None = None

    @cached_property
    def text(self) -> str:
        """A line of JSON. The line of an ended pod, of which there may be thousands, is encoded once."""
        return json.dumps([self.uid, self.namespace, self.pod, self.ended, self.sums])


@dataclass(slots=True)
class Bills:
    """The sums of one node. Not thread-safe; its values are immutable, so a copy is cheap."""

    namespaces: dict[str, Sums] = field(default_factory=dict)
    pods: dict[PodUid, PodSums] = field(default_factory=dict)

    def copy(self) -> Bills:
        """A copy of the present sums."""
        return Bills(dict(self.namespaces), dict(self.pods))

    def add(self, held: Mapping[PodUid, Holding], seconds: float, now: float) -> None:
        """Add what these pods held for the last ``seconds``; ``now`` is seconds since 1970."""
        began = now - seconds
        for uid, one in held.items():
            pod, whole = self.pods.get(uid), self.namespaces.get(one.namespace)
            sums = (pod.sums if pod else Sums(began, now)).plus(one, seconds, now)
            self.pods[uid] = PodSums(uid, one.namespace, one.pod, sums)
            self.namespaces[one.namespace] = (whole or Sums(began, now)).plus(one, seconds, now)

    def close(self, there: Collection[PodUid], now: float) -> bool:
        """Mark pods that are not in ``there`` as ended; True if there are new ones. Drops pods that ended
        long ago.
        """
        gone = [uid for uid, pod in self.pods.items() if pod.ended is None and uid not in there]
        for uid in gone:
            self.pods[uid] = replace(self.pods[uid], ended=now)
        ended = sorted((pod.ended, uid) for uid, pod in self.pods.items() if pod.ended is not None)
        surplus = len(ended) - KEPT_PODS
        for place, (at, uid) in enumerate(ended):
            if now - at >= KEPT_SECONDS or place < surplus:
                del self.pods[uid]
        old = [name for name, sums in self.namespaces.items() if now - sums.until > KEPT_DAYS * 86400]
        for name in old:
            del self.namespaces[name]
        return bool(gone)


def booked_peak(allocations: Iterable[Allocation]) -> Amount:
    """The amount booked for one pod on all its cards together: on each card the peak over its phases."""
    held = tuple(allocations)
    cards = {card for allocation in held for card in allocation.cards}
    return sum((peak(held, card) for card in cards), ZERO)


def encode_bills(bills: Bills, boot: str, at: float) -> bytes:
    """Encode a node's bills: a line of JSON about the node and its namespaces, then one for each pod.

    Args:
        bills: the sums.
        boot: ID of the node's boot.
        at: seconds since that boot of the last addition.
    """
    head = json.dumps({"boot": boot, "at": at, "namespaces": bills.namespaces})
    return "\n".join([head, *(pod.text for pod in bills.pods.values())]).encode()


def decode_bills(data: bytes) -> tuple[Bills, str, float]:
    """Decode what :func:`encode_bills` wrote: sums, boot and time. Raises ValueError for any other file."""
    try:
        head, *rows = (json.loads(line) for line in data.splitlines())
        namespaces = {str(name): _sums(row) for name, row in head["namespaces"].items()}
        pods = [
            PodSums(PodUid(str(uid)), str(namespace), str(pod), _sums(row), _time(ended))
            for uid, namespace, pod, ended, row in rows
        ]
        return Bills(namespaces, {pod.uid: pod for pod in pods}), str(head["boot"]), float(head["at"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no file of bills: {error!r}") from error


def _sums(row: Any) -> Sums:
    return Sums(*(float(value) for value in row))


def _time(value: Any) -> float | None:
    return None if value is None else float(value)

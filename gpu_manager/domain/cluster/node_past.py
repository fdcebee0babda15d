"""What an agent remembers of its node: ten minutes of each second, an hour of each minute; and who left
booked cores unused.

The console begins with it, however late it is opened. Not thread-safe. A share takes 8 KiB, and there are
:data:`MOST_SHARES` of them: less than 4 MiB whatever runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gpu_manager.domain.cluster.usage_history import (
    HOUR_SECONDS,
    MINUTE,
    SECONDS,
    Column,
    HistoryQuery,
    Series,
    ShareFrames,
    ShareKey,
    ShareSum,
    UsageHistory,
)
from gpu_manager.domain.cluster.usage_json import NodeUsage
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.names import container_digest, container_name
from gpu_manager.domain.untrusted import mapping, mappings, text

# Booked but unused cores: sums by pod, and the console's list of them.


SHOWN: Final = 20  # pods, the most wasteful first


class PodWaste(NamedTuple):
    """Cores (100 a card) times seconds of one pod; None if unknown."""

    namespace: str
    pod: str
    wasted: float
    used: float | None
    booked: float | None


class HeldShare(NamedTuple):
    """What a container of a pod holds of one card, in hundredths of it."""

    namespace: str
    pod: str
    key: ShareKey
    cores: int


def waste_of_shares(held: Iterable[HeldShare], used: Mapping[ShareKey, ShareSum]) -> list[PodWaste]:
    """Each pod's booked and used cores, for the time in which use is known."""
    found: dict[tuple[str, str], PodWaste] = {}
    for share in held:
        if (use := used.get(share.key)) is None:
            continue
        name = (share.namespace, share.pod)
        booked, spent = share.cores * use.seconds, use.core_seconds
        before = found.get(name, PodWaste(*name, 0.0, 0.0, 0.0))
        found[name] = PodWaste(
            *name,
            before.wasted + max(0.0, booked - spent),
            (before.used or 0.0) + spent,
            (before.booked or 0.0) + booked,
        )
    return list(found.values())


def waste_json(pods: Iterable[PodWaste], seconds: int, source: str) -> dict[str, Any]:
    """The answer of ``/ui/waste``, the most wasteful pod first; pods without waste are omitted."""
    rows = sorted((one for one in pods if one.wasted >= 1), key=lambda one: (-one.wasted, *one[:2]))
    return {
        "source": source,
        "seconds": seconds,
        "left_out": max(0, len(rows) - SHOWN),
        "pods": [
            {name: round(v, 1) if isinstance(v, float) else v for name, v in one._asdict().items()}
            for one in rows[:SHOWN]
        ],
    }


MOST_SHARES: Final = 400
STEP: Final = 5.0  # seconds between two figures of the minutes, as they are told
_LONGEST: Final = 512  # characters of a name, of what an agent tells
_MOST_FIGURES: Final = 600


class NodePast:
    """The rings of one node. ``shares`` is their bound."""

    def __init__(self, node: str, shares: int = MOST_SHARES) -> None:
        self._node = node
        self._seconds = UsageHistory(int(SECONDS), SECONDS, shares)
        self._minutes = UsageHistory(int(HOUR_SECONDS / MINUTE), HOUR_SECONDS, shares)
        self._minute_at: float | None = None
        self._usage: NodeUsage = {}
        self._same: list[float] = []  # moments at which the last usage was told again: written together

    def _write(self) -> None:
        for at in self._same:
            self._seconds.record(self._node, at, self._usage)
        self._same.clear()

    @property
    def left_out(self) -> int:
        """Shares for which there was no room."""
        self._write()
        return self._seconds.left_out

    def record(self, at: float, usage: NodeUsage) -> None:
        """Take in what is used at this monotonic second, later than the last; the same object where all of it
        is as it was.
        """
        if usage is not self._usage:
            self._write()
            self._usage = usage
        self._same.append(at)
        if self._minute_at is None:
            self._minute_at = at
        if at - self._minute_at >= MINUTE:
            self._write()
            self._minutes.record(self._node, at, self._seconds.means(self._node, at - MINUTE))
            self._minute_at = at

    def read(self, query: HistoryQuery, now: float, *, hour: bool) -> list[Series]:
        """The last hour, or the last minutes, as :meth:`UsageHistory.read` has them."""
        self._write()
        return self._minutes.read(query, now, MINUTE) if hour else self._seconds.read(query, now, STEP)

    def sums(self, now: float) -> dict[ShareKey, ShareSum]:
        """What each share used within the hour; of one that has no whole minute yet, of its seconds."""
        self._write()
        return self._seconds.sums(now, 1.0) | self._minutes.sums(now, MINUTE)

    def trends(self, now: float) -> dict[str, list[int | None]]:
        """As :meth:`UsageHistory.trends`, of the last minutes."""
        self._write()
        return self._seconds.trends(now)

    def as_json(self, now: float, covers: Callable[[str], bool]) -> Mapping[str, Any]:
        """JSON of ``/usage/history``; ``covers`` says of which namespaces names may be told."""
        self._write()
        rings = (("seconds", self._seconds, STEP), ("minutes", self._minutes, MINUTE))
        return {
            name: {
                "step": step,
                "shares": [_told(one, covers(one.namespace)) for one in ring.frames(self._node, now, step)],
            }
            for name, ring, step in rings
        }


def _told(one: ShareFrames, named: bool) -> Mapping[str, Any]:  # noqa: FBT001  # what is told of it
    uid, container, card = one.key
    cores, memory, waited = one.columns
    return {
        "uid": uid,
        "container": container if named else container_digest(uid, container),
        "uuid": card,
        "namespace": one.namespace if named else "",
        "pod": one.pod if named else "",
        "cores": [None if v is None else round(v, 4) for v in cores],
        "memory": [None if v is None else round(v) for v in memory],
        "waited": [None if v is None else round(v, 4) for v in waited],
    }


def read_past(answer: Any, ring: str) -> list[ShareFrames]:
    """One ring of an agent's ``/usage/history``; malformed figures count as not known.

    Raises:
        NodeUnready: it is something else.
    """
    shares = mapping(mapping(answer).get(ring)).get("shares")
    if not isinstance(shares, list):
        raise NodeUnready("its agent remembers nothing: it is an older one")
    found = []
    for one in mappings(shares)[:MOST_SHARES]:
        uid, container, card, namespace, pod = (
            text(one.get(name))[:_LONGEST] for name in ("uid", "container", "uuid", "namespace", "pod")
        )
        columns = [_column(one.get(name)) for name in ("cores", "memory", "waited")]
        if len({len(column) for column in columns}) == 1:
            found.append(ShareFrames((uid, container, card), namespace, pod, columns))
    return found


def named_frames(told: Sequence[ShareFrames], pods: Mapping[str, Pod]) -> list[ShareFrames]:
    """What an agent told of a node's containers, with the names of the pods that are known by their UIDs."""
    found = []
    for one in told:
        uid, container, card = one.key
        if (pod := pods.get(uid)) is not None:
            key = (uid, container_name(uid, container, pod), card)
            one = one._replace(key=key, namespace=pod.namespace, pod=pod.name)  # noqa: PLW2901  # the same, named
        found.append(one)
    return found


def _column(value: object) -> Column:
    figures: Sequence[object] = value if isinstance(value, list) else ()
    return [
        float(one) if isinstance(one, int | float) and 0 <= one < 1 << 60 else None
        for one in figures[-_MOST_FIGURES:]
    ]

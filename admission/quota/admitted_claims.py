"""Admitted but possibly unstored ResourceClaims, recorded at the API server so that a new leader knows them.

An API server ends a request within :data:`REQUEST_SECONDS`; until then an admitted ResourceClaim may still be
stored. Each is recorded before its creation is admitted, in one object that is written only if its version is
unchanged: once another replica has taken the record over, this one admits nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import structlog

from admission.cluster.claims import CLAIMS, AdmittedSums
from admission.cluster.snapshot import ClusterState
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.untrusted import mapping
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)

REQUEST_SECONDS: Final = 60.0
"""An API server ends a request by then (``--request-timeout``): what it asked about comes no later."""

KEPT_SECONDS: Final = REQUEST_SECONDS + 15.0
"""How long a claim that was let pass counts: until nobody can store it, and the watch has shown it."""

_PROTECTED: Final = "/protected"
"""After the UID of a claim: the part of it that may be protected shares. A replica one release older counts
it as a claim of its own: more, for a minute, and never less.
"""

_SHOWN: Final = "/shown/"
"""Before the resourceVersion of the newest claim that the writer's watch has shown: what has left the record
is not newer. A replica one release older takes it for a claim of nothing.
"""

_LARGEST: Final = 200_000  # bytes: an object's annotations have 256 KiB


class SharedText(Protocol):
    """A text that all replicas share."""

    def read(self) -> str | None:
        """The present text, None if there is none. Raises NodeUnready: no answer."""

    def write(self, text: str) -> bool:
        """Replace the text last read or written; False if another replica has changed it since.

        Raises NodeUnready: no answer, so it may have been replaced.
        """


class AdmittedClaims:
    """The record. Thread-safe. ``taken``: when this replica took it over (monotonic), None while it has not.
    ``shown``: the version that the watch of claims must reach for all claims to be known; None if the record
    does not name one.
    """

    def __init__(self, record: SharedText, cluster: ClusterState, clock: Clock) -> None:
        self._record = record
        self._cluster = cluster
        self._clock = clock
        self._turn = threading.Lock()  # one write at a time
        self._count = threading.Lock()
        self._asked = 0  # claims that were to be recorded, and up to which that is done
        self._done = 0
        self._text = ""
        self.taken: float | None = None
        self.shown: int | None = None

    def take(self) -> bool:
        """Take the record over, and count the claims in it. False if another replica was quicker.

        Without a record the earlier admissions are unknown: it then counts as taken once all of them are
        stored. Raises NodeUnready: no answer.
        """
        with self._turn:
            self.taken = None
            found = self._record.read()
            until = self._clock.monotonic() + KEPT_SECONDS
            named, self.shown = tuple(_decoded(found or "")), _shown(found or "")
            self._cluster.change_claims(lambda claims: claims.inherit(named, until))
            text = self._encoded()
            if not self._record.write(self._with_shown(text)):
                return False
            self._text = text
            self.taken = self._clock.monotonic() + (REQUEST_SECONDS if found is None else 0.0)
            log.info("claim_record_taken", claims=self._cluster.claims.admitted)
            return True

    def complete(self) -> None:
        """From now on this replica knows all that has ever left the record."""
        self.shown = self.shown or 0

    def give_up(self) -> None:
        """Forget that the record is this replica's: it leads no more."""
        self.taken = None

    def keep(self) -> bool:
        """Record every claim that counts by now as let pass; False if they may not be let pass after all."""
        with self._count:
            self._asked += 1
            mine = self._asked
        with self._turn:
            if self._done >= mine:
                return True  # a write that began later has recorded it
            with self._count:
                asked = self._asked
            if self.taken is None or not self._written(self._encoded()):
                return False
            self._done = asked
            return True

    def tidy(self) -> None:
        """Remove from the record the claims that the watch has shown since."""
        with self._turn:
            text = self._encoded()
            if self.taken is not None and text != self._text:
                self._written(text)

    def _written(self, text: str) -> bool:
        if len(text) > _LARGEST:
            return False
        try:
            done = self._record.write(self._with_shown(text))
        except NodeUnready as error:
            log.warning("claim_record_unwritten", reason=str(error))
            done = False
        self._text = text
        if not done:
            self.taken = None  # it is read again before anything is let pass
        return done

    def _with_shown(self, text: str) -> str:
        """The record as it is written: what leaves it with this text has been shown here by now."""
        version = 0 if self.shown is None else max(self.shown, self._cluster.shown(CLAIMS))
        return (
            json.dumps({**json.loads(text), f"{_SHOWN}{version}": ["", {}]}, separators=(",", ":"))
            if version
            else text
        )

    def _encoded(self) -> str:
        with self._cluster.lock:
            sums = self._cluster.claims.admitted_sums()
        return json.dumps(
            {
                key: [one.namespace, {model: [amount.cores, amount.memory] for model, amount in part.items()}]
                for uid, one in sorted(sums.items())
                for key, part in ((uid, one.models), (f"{uid}{_PROTECTED}", one.protected))
                if part or key == uid
            },
            separators=(",", ":"),
        )


def _decoded(text: str) -> Iterator[tuple[PodUid, AdmittedSums]]:
    """Read what was recorded; an entry that is none, as somebody's edit may leave, is passed over."""
    sums: dict[str, tuple[str, dict[str, Amount]]] = {}
    for uid, row in _rows(text).items():
        if uid.startswith(_SHOWN):
            continue
        try:
            namespace, models = row
            sums[uid] = str(namespace), dict(_amounts(mapping(models)))
        except (ValueError, TypeError):
            log.warning("claim_record_malformed", uid=uid)
    for uid, (namespace, models) in sums.items():
        if not uid.endswith(_PROTECTED):
            _, protected = sums.get(f"{uid}{_PROTECTED}", ("", {}))
            yield PodUid(uid), AdmittedSums(namespace, models, protected)


def _rows(text: str) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return {}


def _shown(text: str) -> int | None:
    versions = [key.removeprefix(_SHOWN) for key in _rows(text) if key.startswith(_SHOWN)]
    return max((int(version) for version in versions if version.isdecimal()), default=None)


def _amounts(models: Mapping[str, Any]) -> Iterator[tuple[str, Amount]]:
    for model, (cores, memory) in models.items():
        yield model, Amount(max(0, int(cores)), max(0, int(memory)))

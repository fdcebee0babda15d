"""May whoever shows this token read pods there? Asked of the API server, remembered for a moment."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Protocol

from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.ports.clock import Clock

YES_SECONDS: Final = 30.0  # how long a right that was taken away may still be used here
NO_SECONDS: Final = 5.0
_ROOM: Final = 1024
_LONGEST_TOKEN: Final = 16 << 10
_NAMESPACE: Final = re.compile(r"[a-z0-9-]{0,63}")  # anybody may send a name, and it is remembered

User = Mapping[str, Any]


class Reviews(Protocol):
    """Both raise NodeUnready where no answer comes."""

    def who(self, token: str) -> User | None:
        """The token's user; None if nobody has it."""

    def may_read_pods(self, user: User, namespace: str) -> bool:
        """True if the user may get pods there (empty: everywhere)."""


class AccessVerdict(Enum):
    """What became of a question."""

    YES = 200
    NOBODY = 401
    NO = 403


class AccessCheck:
    """Thread-safe. Tokens are remembered by their digest alone."""

    def __init__(self, reviews: Reviews, clock: Clock) -> None:
        self._reviews = reviews
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[bytes, str], tuple[float, AccessVerdict]] = OrderedDict()

    def may(self, authorization: str, namespace: str) -> AccessVerdict:
        """The header's value, and the namespace (empty: all).

        Raises:
            RequestInvalid: no namespace can have that name.
            NodeUnready: nobody can say now.
        """
        if not _NAMESPACE.fullmatch(namespace):
            raise RequestInvalid(f"{quoted(namespace)} is no name of a namespace")
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _LONGEST_TOKEN:
            return AccessVerdict.NOBODY
        key, now = (hashlib.sha256(token.encode()).digest(), namespace), self._clock.monotonic()
        with self._lock:
            until, verdict = self._known.get(key, (0.0, AccessVerdict.NOBODY))
        if now < until:
            return verdict
        verdict = self._ask(token, namespace)
        with self._lock:
            until = now + (YES_SECONDS if verdict is AccessVerdict.YES else NO_SECONDS)
            self._known[key] = until, verdict
            self._known.move_to_end(key)
            if len(self._known) > _ROOM:
                self._known.popitem(last=False)
        return verdict

    def _ask(self, token: str, namespace: str) -> AccessVerdict:
        user = self._reviews.who(token)
        if user is None:
            return AccessVerdict.NOBODY
        return AccessVerdict.YES if self._reviews.may_read_pods(user, namespace) else AccessVerdict.NO

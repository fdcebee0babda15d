"""The rights of a bearer token's owner in a namespace: queried from the API server, cached briefly."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.ports.clock import Clock

YES_SECONDS: Final = 30.0  # how long a right that was taken away may still be used here
NO_SECONDS: Final = 5.0
_ROOM: Final = 1024
_LONGEST_TOKEN: Final = 16 << 10
_NAMESPACE: Final = re.compile(r"[a-z0-9-]{0,63}")  # anybody may send a name, and it is remembered

User = Mapping[str, Any]


class Right(NamedTuple):
    """A verb on a resource of the core API."""

    verb: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


GET_PODS: Final = Right("get", "pods")
LIST_EVENTS: Final = Right("list", "events")


class Reviews(Protocol):
    """The two reviews. Both raise NodeUnready if there is no answer."""

    def who(self, token: str) -> User | None:
        """The token's user; None if the token is invalid."""

    def may(self, user: User, right: Right, namespace: str) -> bool:
        """True if the user has the right there (empty: everywhere)."""


class AccessVerdict(Enum):
    """The outcome of a query."""

    YES = 200
    NOBODY = 401
    NO = 403


_Key = tuple[bytes, str, Right]  # digest of the token, namespace, right


class AccessCheck:
    """Thread-safe. Tokens are remembered by their digest alone."""

    def __init__(self, reviews: Reviews, clock: Clock) -> None:
        self._reviews = reviews
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[_Key, tuple[float, AccessVerdict]] = OrderedDict()

    def known(self, authorization: str, namespace: str, right: Right = GET_PODS) -> AccessVerdict | None:
        """The verdict if it is cached, or needs no query; else None. Raises RequestInvalid."""
        if not _NAMESPACE.fullmatch(namespace):
            raise RequestInvalid(f"{quoted(namespace)} is no name of a namespace")
        token = _token(authorization)
        if not token:
            return AccessVerdict.NOBODY
        with self._lock:
            until, verdict = self._known.get(_key(token, namespace, right), (0.0, None))
        return verdict if self._clock.monotonic() < until else None

    def may(self, authorization: str, namespace: str, right: Right = GET_PODS) -> AccessVerdict:
        """Whether the owner of the token in this header's value has the right in the namespace (empty: all).

        Raises:
            RequestInvalid: no namespace can have that name.
            NodeUnready: the API server does not answer now.
        """
        known = self.known(authorization, namespace, right)
        if known is not None:
            return known
        token, now = _token(authorization), self._clock.monotonic()
        verdict = self._ask(token, namespace, right)
        with self._lock:
            key = _key(token, namespace, right)
            self._known[key] = now + (YES_SECONDS if verdict is AccessVerdict.YES else NO_SECONDS), verdict
            self._known.move_to_end(key)
            if len(self._known) > _ROOM:
                self._known.popitem(last=False)
        return verdict

    def _ask(self, token: str, namespace: str, right: Right) -> AccessVerdict:
        user = self._reviews.who(token)
        if user is None:
            return AccessVerdict.NOBODY
        return AccessVerdict.YES if self._reviews.may(user, right, namespace) else AccessVerdict.NO


def _token(authorization: str) -> str:
    """The bearer token; empty if there is none, or it is too long to be one."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and len(token) <= _LONGEST_TOKEN else ""


def _key(token: str, namespace: str, right: Right) -> _Key:
    return hashlib.sha256(token.encode()).digest(), namespace, right

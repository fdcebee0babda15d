"""What the listeners of every program share: the socket, what a caller may see, a scrape's page."""

from __future__ import annotations

import errno
import hashlib
import itertools
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.ports.clock import Clock

# A TCP socket to listen on: one address, or every address of the host in both families.


_LAST_PORT: Final = 65535


def bound(address: str, port: int) -> socket.socket:
    """A socket bound to ``address``, which does not listen yet. An empty ``address`` is every address of the
    host: of IPv6 and IPv4, or of IPv4 alone where the kernel has no IPv6. ``port`` 0 takes a free one.

    Raises:
        OSError: the address is taken or not ours, or there is no such port.
    """
    if not 0 <= port <= _LAST_PORT:
        raise OSError(errno.EINVAL, f"ports go up to {_LAST_PORT}")
    every = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if every or ":" in address else socket.AF_INET
    # asyncio turns Nagle's delay off only for sockets that say that they are TCP.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not every)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made


def spoken(address: str, port: int) -> str:
    """The address for a sentence: ``127.0.0.1:80``, ``[::1]:80``, or ``port 80`` of every address."""
    if not address:
        return f"port {port}"
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


# A scrape's answer, the same for all programs, and a counter that is kept elsewhere.


_WEIGHT: Final = re.compile(r"[01](\.[0-9]{0,3})?", re.ASCII)


class SampledCounter(Collector):
    """A counter whose values are read at each scrape."""

    def __init__(self, name: str, text: str, label: str, read: Callable[[], Mapping[str, int]]) -> None:
        """``name`` without ``_total``; ``read`` gives the count of each value of ``label``."""
        self._name = name
        self._text = text
        self._label = label
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """The family as it is now."""
        yield counter_by_label(self._name, self._text, self._label, self._read())


def series_of(
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], float | None]],
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Metric:
    """A family with a series for each row: values of the labels, and of the series; None leaves it out."""
    family = kind(name, text, labels=labels)
    for values, value in rows:
        if value is not None:
            family.add_metric(values, value)
    return family


def counter_by_label(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    """Return a counter metric with one series for each value of ``label``."""
    rows = (((value,), count) for value, count in sorted(counts.items()))
    return series_of(name, text, (label,), rows, CounterMetricFamily)


def scrape(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page and its content type, as ``Accept`` asks for; in the oldest format if that cannot be read."""
    formats = itertools.takewhile(lambda one: not _is_oldest(one), _by_weight(accept))
    try:
        encode, content_type = choose_encoder(",".join(formats))
    except (TypeError, ValueError):  # the library compares "version=abc" with numbers
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether ``Accept-Encoding`` allows gzip."""
    names = [one.split(";")[0].strip().lower() for one in _by_weight(accept_encoding)]
    return "gzip" in names


def _by_weight(header: str) -> list[str]:
    """The choices of an ``Accept`` header, the preferred first, without those of weight 0 (RFC 9110, 12.4.2).

    A weight that is no number counts as 1, as if there were none.
    """
    weighted = [(_weight(one), one) for one in header.split(",")]
    return [one for weight, one in sorted(weighted, key=lambda pair: -pair[0]) if weight > 0]


def _weight(choice: str) -> float:
    for parameter in choice.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            found = _WEIGHT.fullmatch(value.strip())
            return float(value) if found else 1.0
    return 1.0


def _is_oldest(choice: str) -> bool:
    """Whether the choice is met by the text format 0.0.4, which the library gives where nothing else fits."""
    media_type, *parameters = (part.strip() for part in choice.split(";"))
    if media_type == "text/plain":
        return not any(one.startswith("version=1.") for one in parameters)
    return media_type in ("*/*", "text/*")


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

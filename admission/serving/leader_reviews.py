"""Reviews that only the leader can answer, forwarded to it by a replica that does not lead.

API servers call any replica, so that reviews which need no leader never wait for one. The leader is reached
through its Service, and proves that it is a replica by the certificate that this replica serves too.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from admission.serving.certs import Pair, Switch

PASSED_ON: Final = "x-gpu-quota-admission-passed-on"
"""Header of a review that another replica has passed on: it is not passed on again."""

_AT_ONCE: Final = 8  # half of what a replica works at: pods must not wait for a leader that does not answer

ReviewClient = Callable[[bytes], bytes | None]
"""Sends a review, and returns the answer; None if there is none."""


class LeaderReviews:
    """Forwards reviews. Thread-safe. ``connect`` makes a client with the trust of the given context."""

    def __init__(self, switch: Switch, connect: Callable[[ssl.SSLContext], ReviewClient]) -> None:
        self._switch = switch
        self._connect = connect
        self._turns = threading.BoundedSemaphore(_AT_ONCE)
        self._client: tuple[Pair, ReviewClient] | None = None

    def ask(self, body: bytes) -> bytes | None:
        """The leader's answer to a review; None without an answer, or if too many reviews wait already."""
        pair = self._switch.pair
        if pair is None or not self._turns.acquire(blocking=False):
            return None
        try:
            return self._trusting(pair)(body)
        finally:
            self._turns.release()

    def _trusting(self, pair: Pair) -> ReviewClient:
        known = self._client
        if known is None or known[0] != pair:
            known = self._client = pair, self._connect(_trusts(pair))
        return known[1]


def _trusts(pair: Pair) -> ssl.SSLContext:
    """A client's context that trusts exactly the certificate of the pair, under whatever name."""
    (leaf, *_) = x509.load_pem_x509_certificates(pair.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=leaf.public_bytes(serialization.Encoding.PEM).decode())
    return context

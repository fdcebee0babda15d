"""Which client asks the leader, and how many reviews wait for it."""

from __future__ import annotations

import ssl
import threading
import time

from admission.serving.certs import Pair, Switch, issue
from admission.serving.webhook_app import LeaderReviews, ReviewClient
from tests.fakes.waiting import PATIENCE


def pair(name: str = "a") -> Pair:
    return issue((name,), time.time(), 90, "authority").pair


def _taking(asked: list[bytes]) -> ReviewClient:
    def take(body: bytes) -> bytes | None:
        asked.append(body)
        return b"yes"

    return take


def test_before_the_first_certificate_nobody_is_asked() -> None:
    asked: list[bytes] = []
    reviews = LeaderReviews(Switch(), lambda _tls: _taking(asked))
    assert reviews.ask(b"review") is None
    assert asked == []


def test_one_client_serves_until_the_certificate_changes() -> None:
    switch, made = Switch(), list[ssl.SSLContext]()

    def connect(tls: ssl.SSLContext) -> ReviewClient:
        made.append(tls)
        return lambda body: body

    reviews = LeaderReviews(switch, connect)
    for name, clients in (("a", 1), ("b", 2)):
        switch.take(pair(name))
        assert [reviews.ask(b"1"), reviews.ask(b"2")] == [b"1", b"2"]
        assert len(made) == clients
    assert {(tls.verify_mode, tls.cert_store_stats()["x509"]) for tls in made} == {(ssl.CERT_REQUIRED, 1)}


def test_while_eight_reviews_wait_for_the_leader_a_ninth_does_not() -> None:
    switch, ended, waiting = Switch(), threading.Event(), threading.Semaphore(0)
    switch.take(pair())

    def slow(_body: bytes) -> bytes | None:
        waiting.release()
        ended.wait(PATIENCE)
        return b"yes"

    reviews = LeaderReviews(switch, lambda _tls: slow)
    threads = [threading.Thread(target=reviews.ask, args=(b"",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert waiting.acquire(timeout=PATIENCE)
    assert reviews.ask(b"") is None
    ended.set()
    for thread in threads:
        thread.join()
    assert reviews.ask(b"") == b"yes"

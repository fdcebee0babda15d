"""Who may call which verb of the extender: bind is for loopback and named certificates alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from admission.config import ExtenderEndpoint
from admission.extender.cluster_metrics import ClusterMetrics
from admission.extender.verbs import Reply, Route
from admission.serving.extender_app import build_extender, scheduler_questions
from admission.serving.http_protocol import Peers

SCHEDULER = "system:kube-scheduler"


class Table:
    """An extender that says which of its handlers was called."""

    def routes(self) -> tuple[Route, ...]:
        return (
            Route("/scheduler/filter", "filter", lambda _: Reply(b'"filter"')),
            Route(
                "/scheduler/prioritize",
                "prioritize",
                lambda _: Reply(b'"keeps"'),
                others=lambda _: Reply(b'"keeps nothing"'),
            ),
            Route("/scheduler/bind", "bind", lambda _: Reply(b'"bind"'), guarded=True),
        )


def call(app: Any, path: str, client: tuple[str, int] | None) -> tuple[int, bytes]:
    """One request as an ASGI server hands it in."""
    said: list[Any] = []
    body = iter([{"type": "http.request", "body": b"{}", "more_body": False}])

    async def receive() -> Any:
        return next(body)

    async def send(message: Any) -> None:
        said.append(message)

    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [], "client": client, "server": ("x", 1), "scheme": "http", "http_version": "1.1",
        "root_path": "", "asgi": {"version": "3.0"},
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return said[0]["status"], b"".join(m.get("body", b"") for m in said[1:])


def app(peers: Peers, door: ExtenderEndpoint | None = None) -> Any:
    door, table = door or ExtenderEndpoint(), Table()
    return build_extender(door, table, peers, ClusterMetrics(CollectorRegistry()), "1", lambda: False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("client", "may"),
    [
        (("127.0.0.1", 1), True),
        (("127.8.9.1", 1), False),
        (("127.0.0.6", 1), False),  # a mesh's proxy calls from there for whoever called it
        (("::1", 1), True),
        (("::ffff:127.0.0.1", 1), True),
        (("10.0.0.7", 1), False),
        (("::ffff:10.0.0.7", 1), False),
        (("fe80::1", 1), False),
        (("localhost", 1), False),
        (None, False),
    ],
)
def test_bind_is_for_loopback_and_filter_for_all(client: tuple[str, int] | None, may: bool) -> None:
    made = app(Peers())
    assert call(made, "/scheduler/filter", client) == (200, b'"filter"')
    kept = b'"keeps"' if may else b'"keeps nothing"'
    assert call(made, "/scheduler/prioritize", client) == (200, kept)
    status, body = call(made, "/scheduler/bind", client)
    assert (status, b"--extender-client-ca-file" in body) == ((200, False) if may else (403, True))


def test_a_certificate_of_the_right_name_binds_from_anywhere() -> None:
    peers = Peers()
    made = app(peers)
    for name, status in ((SCHEDULER, 200), ("system:node:n1", 403)):
        peers.come(
            ("10.0.0.7", 9), {"subject": ((("organizationName", SCHEDULER),), (("commonName", name),))}
        )
        assert call(made, "/scheduler/bind", ("10.0.0.7", 9))[0] == status
        assert call(made, "/scheduler/bind", ("10.0.0.7", 10))[0] == 403
        peers.go(("10.0.0.7", 9))
        assert call(made, "/scheduler/bind", ("10.0.0.7", 9))[0] == 403


def test_where_certificates_are_shown_loopback_is_not_enough() -> None:
    """On a node's network it is every program's of that node."""
    peers = Peers()
    made = app(peers, ExtenderEndpoint(client_ca=Path("ca.crt")))
    assert call(made, "/scheduler/filter", ("127.0.0.1", 9))[0] == 200
    assert call(made, "/scheduler/bind", ("127.0.0.1", 9))[0] == 403
    peers.come(("127.0.0.1", 9), {"subject": ((("commonName", SCHEDULER),),)})
    assert call(made, "/scheduler/bind", ("127.0.0.1", 9))[0] == 200


def test_what_anybody_may_ask_is_answered_at_once_and_counted() -> None:
    registry = CollectorRegistry()
    asked = scheduler_questions(
        Table(),  # type: ignore[arg-type]
        ExtenderEndpoint(),
        Peers(),
        ClusterMetrics(registry),
        lambda: True,
    )
    head = ((b"content-length", b"2"),)
    question = asked.begin(b"/scheduler/filter", head)
    assert question is not None
    assert question.answer(b"{}", None) == (200, b"application/json", b'"filter"', None)
    question = asked.begin(b"/scheduler/prioritize", head)
    assert question is not None
    answers = [question.answer(b"{}", (address, 1)).body for address in ("127.0.0.1", "10.0.0.7")]
    assert answers == [b'"keeps"', b'"keeps nothing"']
    assert asked.begin(b"/scheduler/bind", head) is None
    assert asked.ending()
    labels = {"verb": "filter", "code": "200"}
    assert registry.get_sample_value("vcuda_admission_extender_responses_total", labels) == 1

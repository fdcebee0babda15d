"""Questions that are answered in the step in which they are read, on connections that carry other requests too."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from admission.serving.http_protocol import LARGEST, Questions, WholeAnswer
from admission.serving.https_server import HttpsServer
from tests.fakes.http_lines import lines_to
from tests.fakes.waiting import PATIENCE

PATH = b"/ask"
CLOSE = b"Connection: close\r\n"


def post(body: bytes, more: bytes = b"", path: bytes = PATH) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (path, more, len(body), body)


async def ordinary(_scope: Any, receive: Any, send: Any) -> None:
    """The application behind: says how many bytes it was sent."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"<app:%d>" % size
    head = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


def echo(body: bytes) -> WholeAnswer:
    return WholeAnswer(200, b"text/plain", b"<at once:%b>" % body)


@contextmanager
def listening(
    answer: Callable[[bytes], WholeAnswer] = echo,
    ending: Callable[[], bool] = lambda: False,
    patience_seconds: float = 10.0,
) -> Iterator[Callable[[], socket.socket]]:
    questions = Questions({PATH: lambda body, _client: answer(body)}, ending)
    with lines_to(ordinary, patience_seconds=patience_seconds, questions=questions) as connect:
        yield connect


def until(line: socket.socket, end: bytes) -> bytes:
    """What comes up to these bytes, or until the server closes."""
    got = b""
    try:
        while not got.endswith(end) and (piece := line.recv(65_536)):
            got += piece
    except ConnectionResetError:
        pass
    return got


def test_a_question_is_answered_whatever_pieces_it_comes_in() -> None:
    with listening() as connect:
        line = connect()
        for _ in range(2):  # the connection is kept
            for piece in (
                b"POST /as",
                b"k HTTP/1.1\r\nHost: x\r\nContent-",
                b"Length: 4\r\n\r\n",
                b"ab",
                b"cd",
            ):
                line.sendall(piece)
            got = until(line, b"<at once:abcd>")
            assert got.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
            assert b"\r\ncontent-type: text/plain\r\ncontent-length: 14\r\n\r\n" in got
        line.sendall(post(b""))
        assert until(line, b"<at once:>").endswith(b"content-length: 10\r\n\r\n<at once:>")


def test_what_is_no_plain_question_goes_to_the_application() -> None:
    chunked = b"POST /ask HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    with listening() as connect:
        line = connect()
        for request in (post(b"ab", path=b"/other"), post(b"ab", path=b"/ask?x"), chunked):
            line.sendall(request)
            assert until(line, b"<app:2>").endswith(b"<app:2>")
        line.sendall(b"PUT" + post(b"ab")[4:])
        assert until(line, b"<app:2>").endswith(b"<app:2>")
        line.sendall(b"GET /ask HTTP/1.1\r\nHost: x\r\n\r\n")
        assert until(line, b"<app:0>").endswith(b"<app:0>")
        line.sendall(post(b"x" * (LARGEST + 1)))
        assert until(line, b">").endswith(b"<app:%d>" % (LARGEST + 1))
        line.sendall(post(b"x" * LARGEST))
        assert until(line, b">").endswith(b"<at once:%b>" % (b"x" * LARGEST))
        line.sendall(post(b"ab", b"Expect: 100-continue\r\n"))
        assert until(line, b"<app:2>").startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        line.sendall(post(b"ab", CLOSE))
        assert until(line, b"no end").endswith(b"<app:2>")


def test_requests_that_are_sent_ahead_are_answered_in_their_order() -> None:
    with listening() as connect:
        line = connect()
        line.sendall(post(b"1") + post(b"22", path=b"/") + post(b"333") + post(b"4", path=b"/") + post(b"5"))
        got, order = until(line, b"<app:1>"), (b"<at once:1>", b"<app:2>", b"<app:3>")
        assert sorted(map(got.index, order)) == [got.index(one) for one in order]
        line.sendall(post(b"6"))
        assert until(line, b"<at once:6>").endswith(b"<at once:6>")
        line = connect()
        line.sendall(post(b"1") * 1000)
        assert b"<at once" not in until(line, b"no end")


GARBAGE = b"\x00\x01garbage\r\n\r\n"


def test_what_came_whole_is_answered_before_the_garbage_behind_it_is_refused() -> None:
    other = post(b"22", path=b"/")
    part = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nno size"
    for sent, answers in (
        (post(b"1") + GARBAGE, (b"<at once:1>",)),
        (other + GARBAGE, (b"<app:2>",)),
        (post(b"1") + other + post(b"333") + GARBAGE, (b"<at once:1>", b"<app:2>", b"<app:3>")),
        (other + part, (b"<app:2>",)),
        (post(b"1") + other + part, (b"<at once:1>", b"<app:2>")),
        (post(b"1") + part, (b"<at once:1>",)),
        (GARBAGE, ()),
        (part, ()),
    ):
        with listening() as connect:
            line = connect()
            line.sendall(sent)
            got = until(line, b"no end")
        order = [*answers, b"HTTP/1.1 400 Bad Request\r\n"]
        assert sorted(map(got.index, order)) == [got.index(one) for one in order], sent
        assert got.count(b"HTTP/1.1 ") == len(order), sent
        assert got.endswith(b"Invalid HTTP request received."), sent


def test_what_comes_behind_garbage_is_not_read() -> None:
    asked, answer = threading.Event(), threading.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            asked.set()
            await asyncio.to_thread(answer.wait)
        await ordinary(scope, receive, send)

    with lines_to(slow) as connect:
        line, other = connect(), connect()
        line.sendall(post(b"22", path=b"/slow") + GARBAGE)
        assert asked.wait(PATIENCE)
        line.sendall(post(b"333") + GARBAGE)
        other.sendall(post(b"1"))
        assert until(other, b"<app:1>")  # by then what came before it is received
        answer.set()
        got = until(line, b"no end")
    assert (got.count(b"HTTP/1.1 200 "), got.count(b"HTTP/1.1 400 ")) == (1, 1)


def test_after_the_last_answer_the_connection_is_closed() -> None:
    with listening(ending=lambda: True) as connect:
        line = connect()
        line.sendall(post(b"1"))
        got = until(line, b"no end")
        assert got.endswith(b"connection: close\r\n\r\n<at once:1>")


def test_a_fault_is_said_and_ends_the_connection() -> None:
    def fault(_body: bytes) -> WholeAnswer:
        raise ZeroDivisionError

    with listening(fault) as connect:
        line = connect()
        line.sendall(post(b"1"))
        got = until(line, b"no end")
        assert got.startswith(b"HTTP/1.1 500 ")
        assert got.endswith(b"Internal Server Error")
        line = connect()
        line.sendall(post(b"1", path=b"/"))
        assert until(line, b"<app:1>").endswith(b"<app:1>")


def test_who_never_ends_a_question_is_cut_off() -> None:
    with listening(patience_seconds=0.2) as connect:
        line = connect()
        line.sendall(post(b"1234")[:-2])
        assert until(line, b"no end") == b""


def test_questions_that_are_being_sent_hold_so_much_and_no_more() -> None:
    with listening() as connect:
        senders = [connect() for _ in range(16)]
        for line in senders:
            line.sendall(post(b"x" * LARGEST)[: -LARGEST + 1])
        asks = connect()
        while True:  # until all of them were read
            asks.sendall(post(b"1"))
            if until(asks, b">").endswith(b"<app:1>"):
                break
        for line in senders:
            line.close()
        while True:
            asks.sendall(post(b"1"))
            if until(asks, b">").endswith(b"<at once:1>"):
                break


def test_a_connection_that_is_to_end_answers_the_question_that_is_being_sent() -> None:
    read = threading.Event()

    class Watched(Questions):
        """Says when the head of a question was read."""

        def begin(self, *args: Any) -> Any:
            read.set()
            return super().begin(*args)

    server = HttpsServer(
        ordinary, "127.0.0.1", 0, questions=Watched({PATH: lambda body, _client: echo(body)})
    )
    server.start()
    ended = threading.Thread(target=server.stop)
    with ExitStack() as lines:
        asks, idle = (
            lines.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE))
            for _ in range(2)
        )
        idle.sendall(post(b"1", path=b"/"))
        assert until(idle, b"<app:1>")
        asks.sendall(post(b"1234")[:-2])
        assert read.wait(PATIENCE)
        ended.start()
        assert idle.recv(1) == b""  # all connections have been told
        asks.sendall(b"34")
        assert until(asks, b"no end").endswith(b"connection: close\r\n\r\n<at once:1234>")
    ended.join()


def test_what_is_left_to_do_is_done_once_the_answer_is_on_its_way() -> None:
    done: list[bytes] = []

    def answer(body: bytes) -> WholeAnswer:
        return WholeAnswer(
            200, b"text/plain", b"<%b after %d>" % (body, len(done)), lambda: done.append(body)
        )

    with listening(answer) as connect:
        line = connect()
        for at, body in enumerate((b"one", b"two", b"three")):
            line.sendall(post(body))
            assert until(line, b">").endswith(b"<%b after %d>" % (body, at))


def test_a_fault_after_an_answer_leaves_the_connection_as_it_is() -> None:
    def fault() -> None:
        raise ZeroDivisionError

    with listening(lambda body: WholeAnswer(200, b"text/plain", b"<%b>" % body, fault)) as connect:
        line = connect()
        for body in (b"one", b"two"):
            line.sendall(post(body))
            assert until(line, b">").endswith(b"<%b>" % body)

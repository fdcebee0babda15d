"""The one HTTP client: deadlines, bounds, kept connections that die, TLS and who is trusted, proxies."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpu_manager.adapters.http import IDEMPOTENT, HttpClient, HttpLimits, NoAnswer, proxy_of
from gpu_manager.adapters.kube.agent_pages import fetch
from gpu_manager.domain.errors import RequestInvalid
from tests.fakes.certificates import self_signed
from tests.fakes.waiting import PATIENCE
from tests.fakes.web import given, send, serving

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
Behaviour = Callable[[socket.socket, int], None]
Get = Callable[[int, HttpLimits], bytes]
WAYS: list[Get] = [
    lambda port, limits: HttpClient(f"http://127.0.0.1:{port}", limits=limits).ask("GET", "/").body,
    lambda port, limits: fetch("127.0.0.1", port, "/", {}, limits)[1],
]
BOTH = pytest.mark.parametrize("get", WAYS, ids=["client", "fetch"])


@contextmanager
def raw_server(behave: Behaviour, context: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[int]]]:
    """Each connection is handled by ``behave(connection, its number)``; yields port and the numbers so far."""
    seen: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                seen.append(len(seen) + 1)
                try:
                    with (
                        context.wrap_socket(connection, server_side=True)
                        if context
                        else connection as wrapped
                    ):
                        behave(wrapped, seen[-1])
                except OSError:
                    continue

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listening.getsockname()[1], seen
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


def one_answer_then(end: Callable[[socket.socket], None]) -> Behaviour:
    """Answers once; the next request on the same connection meets ``end``."""

    def behave(connection: socket.socket, number: int) -> None:
        while connection.recv(65536):
            if number > 1:
                connection.sendall(HELLO)
                continue
            connection.sendall(HELLO)
            connection.recv(65536)
            end(connection)
            return

    return behave


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.mark.parametrize("end", [lambda _: None, reset], ids=["closed", "reset"])
def test_a_kept_connection_that_died_is_replaced_and_the_request_made_once_more(
    end: Callable[..., None],
) -> None:
    with raw_server(one_answer_then(end)) as (port, seen):
        client = HttpClient(f"http://127.0.0.1:{port}")
        assert [client.ask("GET", "/").body for _ in range(3)] == [b"hi"] * 3
        client.close()
    assert seen == [1, 2]


def test_a_kept_tls_connection_that_ends_without_a_goodbye_is_replaced(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def cut(connection: socket.socket) -> None:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)

    with raw_server(one_answer_then(cut), context) as (port, seen):
        trust = ssl.create_default_context(cafile=str(certificate))
        client = HttpClient(f"https://127.0.0.1:{port}", tls=trust)
        assert [client.ask("GET", "/").body for _ in range(3)] == [b"hi"] * 3
        client.close()
    assert seen == [1, 2]


def test_a_write_is_not_made_twice_unless_that_does_no_harm() -> None:
    with raw_server(one_answer_then(reset)) as (port, seen):
        client = HttpClient(f"http://127.0.0.1:{port}")
        client.ask("GET", "/")
        with pytest.raises(NoAnswer):
            client.ask("POST", "/", body=b"{}")
        assert seen == [1]
    with raw_server(one_answer_then(reset)) as (port, seen):
        client = HttpClient(f"http://127.0.0.1:{port}", repeatable=IDEMPOTENT | {"POST"})
        assert [client.ask("POST", "/", body=b"{}").body for _ in range(2)] == [b"hi", b"hi"]
        client.close()
    assert seen == [1, 2]


def test_a_new_connection_that_dies_is_not_tried_again() -> None:
    with (
        raw_server(lambda connection, _: connection.recv(10) and None) as (port, seen),
        pytest.raises(NoAnswer),
    ):
        HttpClient(f"http://127.0.0.1:{port}").ask("GET", "/")
    assert seen == [1]


@BOTH
def test_a_body_that_trickles_ends_at_the_deadline_and_not_with_its_last_byte(get: Get) -> None:
    stop = threading.Event()

    def trickle(handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        while not stop.wait(0.05):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    with serving(trickle) as url:
        with pytest.raises(NoAnswer, match=r"did not end within 0\.4 s|in time"):
            get(urlsplit(url).port or 0, HttpLimits(connect=5, answer=0.4))
        stop.set()


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "status": (b"HTTP/1.1 200 ", b"H"),
    "announcements": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "headers": (HEAD, b"a: b\r\n"),
    "a chunk's size": (CHUNKED, b"0"),
    "trailers": (CHUNKED + b"2\r\nhi\r\n0\r\n", b"a: b\r\n"),
}


@BOTH
@pytest.mark.parametrize("kind", ENDLESS)
def test_whatever_trickles_ends_at_the_deadline(get: Get, kind: str) -> None:
    first, again = ENDLESS[kind]

    def trickle(connection: socket.socket, _: int) -> None:
        connection.recv(65536)
        connection.sendall(first)
        while True:  # until its reader is gone
            connection.sendall(again)
            connection.settimeout(0.02)
            with suppress(TimeoutError):
                if not connection.recv(1):
                    return

    with raw_server(trickle) as (port, seen):
        with pytest.raises(NoAnswer, match="in time"):
            get(port, HttpLimits(connect=5, answer=0.3))
        assert seen == [1]


@BOTH
def test_a_body_longer_than_the_limit_is_refused(get: Get) -> None:
    with serving(lambda h: send(h, b"x" * 2000)) as url:
        port = urlsplit(url).port or 0
        with pytest.raises(NoAnswer, match="more than 1999 bytes"):
            get(port, HttpLimits(largest=1999))
        assert get(port, HttpLimits(largest=2000)) == b"x" * 2000


@BOTH
@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (HELLO[:-1], "cut short"),
        (HELLO[:-9], "cut short"),
        (CHUNKED + b"2\r\nhi\r\n", "cut short"),
        (HEAD + b"Content-Length: 2\r\n" + HELLO[17:].replace(b": 2", b": 1"), "two lengths|Duplicate"),
        (b"\x1b[2Jx\r\n\r\n", r"not answer as HTTP servers do: (\\x1b\[2Jx$|Expected HTTP)"),
        (b"", "closed connection"),
    ],
)
def test_an_answer_that_is_cut_short_or_none_of_http_is_none(get: Get, sent: bytes, why: str) -> None:
    def behave(connection: socket.socket, _: int) -> None:
        connection.recv(65536)
        connection.sendall(sent)

    with raw_server(behave) as (port, _), pytest.raises(NoAnswer, match=why):
        get(port, HttpLimits(answer=5))


@pytest.mark.parametrize("announced", [100, 102, 103])
def test_an_answer_that_is_announced_is_waited_for(announced: int) -> None:
    def behave(connection: socket.socket, _: int) -> None:
        while connection.recv(65536):
            connection.sendall(b"HTTP/1.1 %d Soon\r\nLink: x\r\n\r\n" % announced + HELLO)

    with raw_server(behave) as (port, seen):
        with closing(HttpClient(f"http://127.0.0.1:{port}")) as client:
            assert [client.ask("POST", "/", body=b"{}").body for _ in range(2)] == [b"hi"] * 2
        assert seen == [1]


@pytest.mark.parametrize("end", [lambda _: None, reset], ids=["closed", "reset"])
def test_a_server_may_answer_before_it_has_read_all_of_the_request(end: Callable[..., None]) -> None:
    def behave(connection: socket.socket, _: int) -> None:
        connection.recv(100)
        connection.sendall(HELLO.replace(b"200 OK", b"413 Too Large\r\nConnection: close"))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20) and end is not reset:
            pass

    with raw_server(behave) as (port, _), closing(HttpClient(f"http://127.0.0.1:{port}")) as client:
        assert client.ask("PUT", "/", body=b"x" * (8 << 20)).status == 413


def test_what_is_left_of_an_answer_is_none_to_the_next_request(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def behave(connection: socket.socket, _: int) -> None:
        while connection.recv(65536):
            connection.sendall(HELLO + b"x" * 12_000)  # one record: TLS holds what is not read of it

    trust = ssl.create_default_context(cafile=str(certificate))
    with (
        raw_server(behave, context) as (port, seen),
        closing(HttpClient(f"https://127.0.0.1:{port}", tls=trust)) as client,
    ):
        assert [client.ask("POST", "/", body=b"{}").body for _ in range(2)] == [b"hi"] * 2
        assert seen == [1, 2]


def test_a_stream_that_was_read_to_its_end_does_not_shut_down_what_others_use() -> None:
    with serving(lambda h: send(h, b"{}")) as url, closing(HttpClient(url)) as client:
        first = client.open("GET", "/")
        assert first.read1() + first.read1() == b"{}"
        other = client.open("GET", "/")  # on the same connection
        first.shutdown()
        first.close()
        assert other.begun(10) == b"{}"


def test_a_stream_is_ended_from_another_thread() -> None:
    arrived = threading.Event()

    def behave(connection: socket.socket, _: int) -> None:
        connection.recv(65536)
        connection.sendall(CHUNKED + b"2\r\nhi\r\n")
        connection.recv(1)
        arrived.set()

    with raw_server(behave) as (port, _), closing(HttpClient(f"http://127.0.0.1:{port}")) as client:
        stream = client.open("GET", "/")
        stream.settimeout(PATIENCE)
        assert stream.read1() == b"hi"
        ending = threading.Thread(target=stream.shutdown)
        ending.start()
        with pytest.raises(http.client.IncompleteRead):
            stream.read1()
        ending.join(PATIENCE)
        assert not arrived.is_set(), "the connection is still the stream's"
        stream.close()
        assert arrived.wait(PATIENCE)


def test_what_cannot_be_sent_is_not_told() -> None:
    with serving(lambda h: send(h, b"{}")) as url, pytest.raises(NoAnswer) as caught:
        HttpClient(url).ask("GET", "/", headers={"Authorization": "Bearer secret\r\nA: b"})
    assert "Authorization" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_one_question_on_a_connection_of_its_own_has_its_headers_and_its_answers() -> None:
    def behave(connection: socket.socket, number: int) -> None:
        assert b"\r\nA: b\r\n" in connection.recv(65536)
        connection.sendall(b"HTTP/1.0 404 Not Found\r\nContent-Length: 4\r\n\r\ngone")

    with raw_server(behave) as (port, seen):
        found = [fetch("127.0.0.1", port, "/a", {"A": "b"}, HttpLimits()) for _ in range(2)]
        assert found == [(404, b"gone")] * 2
        assert seen == [1, 2]


def test_an_answer_that_redirects_is_returned_as_it_is() -> None:
    with serving(lambda h: send(h, b"", 302, Location="http://127.0.0.1:9/")) as url:
        answer = HttpClient(url).ask("GET", "/")
    assert (answer.status, answer.headers["location"]) == (302, "http://127.0.0.1:9/")


def test_who_is_not_trusted_is_not_asked(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    with serving(lambda h: send(h, b"{}"), certificate) as url:
        with pytest.raises(NoAnswer, match="its certificate is not trusted"):
            HttpClient(url).ask("GET", "/")
        trust = ssl.create_default_context(cafile=str(certificate[0]))
        with pytest.raises(NoAnswer, match="its certificate is not trusted"):
            HttpClient(url, tls=trust, server_name="another.name").ask("GET", "/")
        capitals = url.replace("https", "HTTPS")
        assert HttpClient(capitals, tls=trust, server_name="a.name").ask("GET", "/").status == 200


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "https://h:port", "http://h:99999", "http://[::1", "http://a b"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(RequestInvalid, match="no URL"):
        HttpClient(url)


@pytest.mark.parametrize(
    ("proxy", "shown"),
    [
        ("socks5://me:hunter2@there:1080", "'socks5://…@there:1080'"),
        ("me:hunter2@there", "'…@there'"),
        ("http://me:hun/ter2@there:0", "'http://…@there:0'"),
    ],
)
def test_a_proxy_that_is_no_url_is_named_without_its_password(proxy: str, shown: str) -> None:
    with pytest.raises(RequestInvalid) as told:
        HttpClient("http://127.0.0.1:1", proxy=proxy)
    assert str(told.value).startswith(shown)


def through(proxy: socket.socket, _: int) -> None:
    """A proxy of whoever is named: what follows CONNECT is passed on, else the answer tells what was asked."""
    asked = proxy.recv(65536).decode()
    method, target, _ = asked.split(maxsplit=2)
    if method != "CONNECT":
        proxy.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(asked)}\r\n\r\n{asked}".encode())
        return
    port = target.rpartition(":")[2]
    if "\r\nProxy-Authorization: Basic bWU6cEB3\r\n" not in asked:
        proxy.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        return
    with socket.create_connection(("127.0.0.1", int(port))) as server:
        proxy.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        back = threading.Thread(target=pass_on, args=(server, proxy))
        back.start()
        pass_on(proxy, server)
        back.join(PATIENCE)


def pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while piece := one.recv(65536):
            other.sendall(piece)
    with suppress(OSError):
        socket.socket.shutdown(other, socket.SHUT_RDWR)


@pytest.mark.parametrize("secure", [False, True], ids=["in-the-clear", "by-tls"])
def test_a_proxy_is_asked_in_the_servers_place_or_passes_tls_on(
    secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # whom the proxy's TLS is checked by
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    trust = ssl.create_default_context(cafile=str(certificate))

    def answer(handler) -> None:
        send(handler, given(handler), **({"Connection": "close"} if handler.path == "/last" else {}))

    with (
        raw_server(through, context if secure else None) as (port, seen),
        serving(answer, (certificate, key)) as url,
    ):
        proxy = f"{'https' if secure else 'http'}://me:p%40w@127.0.0.1:{port}"
        named = url.replace("127.0.0.1", "a.name")  # only the proxy knows where that is
        with closing(HttpClient(named, tls=trust, proxy=proxy)) as client:
            for _ in range(2):
                assert client.ask("POST", "/", body=b"x" * 200_000).body == b"x" * 200_000
            assert seen == [1]
            assert client.ask("POST", "/last", body=b"y").body == b"y"
            assert client.ask("POST", "/", body=b"z").body == b"z"
            assert seen == [1, 2]
        plain = HttpClient("http://u:v@b.example:81/x", proxy=proxy).ask("GET", "/y").body
        assert plain.startswith(b"GET http://b.example:81/x/y HTTP/1.1\r\nHost: b.example:81\r\n")
        assert b"\r\nProxy-Authorization: Basic bWU6cEB3\r\n" in plain
        with pytest.raises(NoAnswer, match="its proxy refused: 407"):
            HttpClient(named, tls=trust, proxy=proxy.replace("me:p%40w@", "")).ask("GET", "/")


@BOTH
def test_nobody_there_is_said_in_two_words(get: Get) -> None:
    with pytest.raises(NoAnswer, match=r"^Connection refused$"):
        get(9, HttpLimits())


@pytest.mark.parametrize(
    ("url", "without", "proxy"),
    [
        ("https://api.example:6443", "", "http://proxy:3128"),
        ("http://api.example", "", ""),
        ("https://api.example", "other.example,.example", ""),
        ("https://api.example", "*", ""),
        ("https://notexample", "example", "http://proxy:3128"),
        ("https://10.1.2.3:6443", "10.0.0.0/8", ""),
        ("https://10.1.2.3:6443", "10.1.2.4", "http://proxy:3128"),
        ("https://127.0.0.1:6443", "", ""),
        ("https://localhost:6443", "", ""),
    ],
)
def test_the_proxy_is_the_environments(
    url: str, without: str, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", without)
    for named in ("http://proxy:3128", "proxy:3128"):
        monkeypatch.setenv("HTTPS_PROXY", named)
        assert proxy_of(url) == proxy


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi and more", 200, b"hi"),
        (b"HTTP/1.0 503 Not Now\r\ncontent-LENGTH:2\r\n\r\nhi", 503, b"hi"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 200, b"hi"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\nA: c\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi"),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, b""),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_page_is_read_in_whatever_form_and_pieces_it_comes(
    answer: bytes, status: int, body: bytes, size: int
) -> None:
    def behave(connection: socket.socket, _: int) -> None:
        connection.recv(65536)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin in range(0, len(answer), size):
            connection.sendall(answer[begin : begin + size])

    with raw_server(behave) as (port, seen):
        assert fetch("127.0.0.1", port, "/", {}, HttpLimits()) == (status, body)
        assert seen == [1]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi", "Duplicate"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", "not answer as HTTP servers do"),
        (b"HTTP/1.1 200 OK\r\n\r\nhi", "cut short"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", "cut short"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not answer as HTTP servers do"),
        (b"", "closed connection"),
    ],
)
def test_a_page_whose_answer_is_not_whole_http_is_refused(answer: bytes, why: str) -> None:
    def behave(connection: socket.socket, _: int) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    with raw_server(behave) as (port, _), pytest.raises(NoAnswer, match=why):
        fetch("127.0.0.1", port, "/", {}, HttpLimits())


def test_a_page_is_not_asked_for_with_a_header_that_has_a_line_break() -> None:
    with raw_server(lambda connection, _: None) as (port, seen):
        with pytest.raises(NoAnswer, match="line break"):
            fetch("127.0.0.1", port, "/", {"A": "b\r\nC: d"}, HttpLimits())
        assert not seen

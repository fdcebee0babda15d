"""Who may bind: loopback, or a client whose certificate an authority signed for the right name."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from admission.__main__ import run
from admission.serving.certs import POD_NAME, ClientGuard
from admission.serving.http_protocol import Peers
from admission.serving.https_server import HttpsServer
from gpu_manager.domain.errors import NodeUnready
from tests.fakes.https import Caller, trusting, visit
from tests.fakes.sandbox import until
from tests.fakes.waiting import PATIENCE

SCHEDULER = "system:kube-scheduler"
REFUSED = (ssl.SSLError, ConnectionError, http.client.HTTPException)


class Authority:
    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self.name, self.key, ca=True)
        self.file = directory / f"{name}.crt"
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM)
        self.file.write_bytes(self.pem)

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )  # fmt: skip

    def pair(self, name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = self._sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, ca=False)
        paths = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return paths


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Authority, ClientGuard, HttpsServer]]:
    """A listener that answers with the names of who asks."""
    authority, peers = Authority(tmp_path), Peers()
    guard = ClientGuard(*authority.pair("server"), authority.file, peers.end)
    guard.check()

    async def names(scope: Any, receive: Any, send: Any) -> None:
        found = sorted(peers.names(scope["client"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(found).encode()})

    listener = HttpsServer(names, "127.0.0.1", 0, guard.context, peers=peers)
    listener.start()
    yield authority, guard, listener
    listener.stop()


def ask(listener: HttpsServer, authority: Authority, pair: tuple[Path, Path] | None = None) -> list[str]:
    context = trusting(authority.pem)
    if pair is not None:
        context.load_cert_chain(*pair)
    line = http.client.HTTPSConnection("localhost", listener.port, context=context, timeout=PATIENCE)
    try:
        line.request("GET", "/")
        with line.getresponse() as answer:
            found: list[str] = json.loads(answer.read())
            return found
    finally:
        line.close()


def test_names_come_from_verified_certificates_alone(
    guarded: tuple[Authority, ClientGuard, HttpsServer], tmp_path: Path
) -> None:
    authority, _, listener = guarded
    assert ask(listener, authority) == []
    assert ask(listener, authority, authority.pair(SCHEDULER)) == [SCHEDULER]
    (tmp_path / "forged").mkdir()
    with pytest.raises(REFUSED):
        ask(listener, authority, Authority(tmp_path / "forged").pair(SCHEDULER))


def test_the_containers_of_one_pod_know_one_another_by_what_one_of_them_wrote(tmp_path: Path) -> None:
    assert run(["--make-pod-certificate", str(tmp_path)]) == 0
    files = {name: tmp_path / name for name in ("tls.crt", "tls.key", "ca.crt")}
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o600}
    peers = Peers()
    guard = ClientGuard(*files.values())
    guard.check()

    async def names(scope: Any, receive: Any, send: Any) -> None:
        body = json.dumps(sorted(peers.names(scope["client"]))).encode()
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    listener = HttpsServer(names, "127.0.0.1", 0, guard.context, peers=peers)
    listener.start()
    try:
        context = ssl.create_default_context(cafile=str(files["ca.crt"]))
        for shown in ([], [POD_NAME]):
            if shown:
                context.load_cert_chain(files["tls.crt"], files["tls.key"])
            with (
                socket.create_connection(("127.0.0.1", listener.port), PATIENCE) as line,
                context.wrap_socket(line, server_hostname=POD_NAME) as secured,
            ):
                secured.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer = b"".join(iter(lambda open_=secured: open_.recv(4096), b""))
            assert json.loads(answer.rpartition(b"\r\n\r\n")[2]) == shown
    finally:
        listener.stop()


def test_a_new_authority_for_clients_is_taken_from_its_file(
    guarded: tuple[Authority, ClientGuard, HttpsServer], tmp_path: Path
) -> None:
    authority, guard, listener = guarded
    (tmp_path / "new").mkdir()
    renewed = Authority(tmp_path / "new", "renewed")
    authority.file.write_bytes(authority.file.read_bytes() + renewed.file.read_bytes())
    guard.check()
    assert ask(listener, authority, renewed.pair(SCHEDULER)) == [SCHEDULER]
    assert ask(listener, authority, authority.pair(SCHEDULER)) == [SCHEDULER]
    authority.file.write_bytes(b"nothing")
    with pytest.raises(NodeUnready, match="no certificate"):
        guard.check()
    assert ask(listener, authority, renewed.pair(SCHEDULER)) == [SCHEDULER], (
        "the last good one stays in force"
    )
    authority.file.write_bytes(renewed.file.read_bytes())
    guard.check()
    assert ask(listener, authority, renewed.pair(SCHEDULER)) == [SCHEDULER]
    with pytest.raises(REFUSED):
        ask(listener, authority, authority.pair(SCHEDULER))


def test_a_client_of_an_authority_that_was_withdrawn_cannot_resume_what_it_was(
    guarded: tuple[Authority, ClientGuard, HttpsServer], tmp_path: Path
) -> None:
    authority, guard, listener = guarded
    context = trusting(authority.pem)
    context.load_cert_chain(*authority.pair(SCHEDULER))
    first = visit(listener.port, context)
    assert first.body == f'["{SCHEDULER}"]'
    again = visit(listener.port, context, first.session)
    assert (again.body, again.resumed) == (first.body, False)
    (tmp_path / "new").mkdir()
    authority.file.write_bytes(Authority(tmp_path / "new", "renewed").pem)
    guard.check()
    for session in (first.session, again.session, None):
        with pytest.raises(REFUSED):
            visit(listener.port, context, session)


def test_a_connection_outlives_a_new_authority_and_ends_when_one_is_withdrawn(
    guarded: tuple[Authority, ClientGuard, HttpsServer], tmp_path: Path
) -> None:
    authority, guard, listener = guarded
    context = trusting(authority.pem)
    context.load_cert_chain(*authority.pair(SCHEDULER))
    (tmp_path / "new").mkdir()
    renewed = Authority(tmp_path / "new", "renewed")
    with Caller(listener.port, context) as caller:
        assert json.loads(caller.get("/")[1]) == [SCHEDULER]
        line = caller._connection.sock
        authority.file.write_bytes(authority.pem + renewed.pem)
        guard.check()
        assert json.loads(caller.get("/")[1]) == [SCHEDULER]
        assert caller._connection.sock is line
        authority.file.write_bytes(renewed.pem)
        guard.check()
        until(lambda: _ended(line))


def _ended(line: ssl.SSLSocket) -> bool:
    line.settimeout(0.1)
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False


def test_a_version_of_tls_that_resumes_without_a_ticket_is_not_spoken_to_clients_with_certificates(
    guarded: tuple[Authority, ClientGuard, HttpsServer],
) -> None:
    authority, _, listener = guarded
    context = trusting(authority.pem)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(REFUSED):
        visit(listener.port, context)


@pytest.mark.usefixtures("own_log")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--extender-tls-cert-file", "/x"], "--extender-client-ca-file together"),
        (["--extender-address", "3456"], "use HOST:PORT"),
        (["--extender-address", "x:99999"], "use HOST:PORT"),
        (["--quota-configmap", "gpuquota"], "use NAMESPACE/NAME"),
        (["--leader-mode", "sometimes"], "sometimes"),
    ],
)
def test_wrong_settings_are_named(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.usefixtures("own_log")
def test_a_taken_port_is_said_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = run(["--api-url", "http://127.0.0.1:1", "--extender-address", f"127.0.0.1:{port}"])
    assert code == 1
    assert f"127.0.0.1:{port}" in capsys.readouterr().err

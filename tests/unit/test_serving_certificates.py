"""Serving certificates: taken whole or not at all, from files and of our own signing."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509

from admission.serving.certs import FileCertificates, Issued, Switch, issue
from gpu_manager.domain.errors import NodeUnready
from tests.fakes.https import HOST, trusting
from tests.fakes.vault import AUTHORITY, DAY, NAME


def made(now: float | None = None, name: str = HOST, days: int = 90) -> Issued:
    return issue((name,), time.time() if now is None else now, days, "test authority")


# The switch.


def handshake(switch: Switch, context: ssl.SSLContext, name: str = HOST) -> ssl.SSLObject:
    """A TLS handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = switch.context.wrap_bio(to_server, to_client, server_side=True)
    client = context.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client


def test_without_a_certificate_no_handshake_succeeds_and_with_one_any_does() -> None:
    switch, first = Switch(), made()
    with pytest.raises(ssl.SSLError):
        handshake(switch, trusting(first.authority))
    switch.take(first.pair)
    assert handshake(switch, trusting(first.authority)).version() == "TLSv1.3"
    old = trusting(first.authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(switch, old).version() == "TLSv1.2"


def test_a_pair_that_does_not_match_changes_nothing() -> None:
    switch, first, second = Switch(), made(), made()
    switch.take(first.pair)
    for certificate, key in (
        (second.pair.certificate, first.pair.key),
        (b"", b""),
        (second.pair.certificate, b"x"),
    ):
        with pytest.raises(NodeUnready, match="must be PEM and match"):
            switch.take(type(first.pair)(certificate, key, 0.0))
    assert handshake(switch, trusting(first.authority)).version()
    assert switch.pair == first.pair


def test_an_issued_certificate_is_good_for_servers_of_its_names_alone() -> None:
    issued = issue((NAME, f"{NAME}.cluster.local"), 1e9, 90, AUTHORITY)
    (leaf,) = x509.load_pem_x509_certificates(issued.pair.certificate)
    (authority,) = x509.load_pem_x509_certificates(issued.authority)
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME, f"{NAME}.cluster.local"]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert leaf.not_valid_before_utc.timestamp() == 1e9 - 3600
    assert issued.pair.not_after == 1e9 + 90 * DAY == leaf.not_valid_after_utc.timestamp()


# Files.


def write(directory: Path, issued: Issued, *, key_of: Issued | None = None) -> tuple[Path, Path]:
    paths = directory / "tls.crt", directory / "tls.key"
    paths[0].write_bytes(issued.pair.certificate)
    paths[1].write_bytes((key_of or issued).pair.key)
    return paths


def test_files_that_change_are_taken_and_half_a_change_is_not(tmp_path: Path) -> None:
    switch, notes = Switch(), []
    first, second = made(), made(days=30)
    files = FileCertificates(*write(tmp_path, first), switch, notes.append)
    files.check()
    files.check()
    assert notes == [True]
    write(tmp_path, second, key_of=first)
    for _ in range(3):
        with pytest.raises(NodeUnready):
            files.check()
    assert (notes, switch.pair) == ([True, False], first.pair)
    write(tmp_path, second)
    files.check()
    assert (notes, switch.pair) == ([True, False, True], second.pair)


def test_files_that_are_absent_or_no_certificate_say_what_to_do(tmp_path: Path) -> None:
    files = FileCertificates(tmp_path / "a", tmp_path / "b", Switch())
    with pytest.raises(NodeUnready, match="cert-manager"):
        files.check()
    (tmp_path / "a").write_bytes(b"nothing")
    (tmp_path / "b").write_bytes(b"x" * (1 << 21))
    with pytest.raises(NodeUnready, match="holds no certificate"):
        files.check()
    (tmp_path / "b").write_bytes(b"nothing")
    with pytest.raises(NodeUnready, match="cannot be read"):
        files.check()

"""When certificates expire, read without a library: what cryptography made is the judge."""

from __future__ import annotations

import base64
import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.diagnosis.cluster import first_expiry

KEY = ec.generate_private_key(ec.SECP256R1())


def made(until: dt.datetime, name: str = "authority") -> bytes:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, KEY.public_key(), x509.random_serial_number())
    signed = (
        builder.not_valid_before(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(until)
        .sign(KEY, hashes.SHA256())
    )
    return signed.public_bytes(serialization.Encoding.PEM)


UNTIL = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
PEM = made(UNTIL)
DER = x509.load_pem_x509_certificate(PEM).public_bytes(serialization.Encoding.DER)


def stored(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


@pytest.mark.parametrize(
    "year", [2026, 2049, 2050, 2068, 2069, 9999]
)  # from 2050 on the time is written otherwise
def test_the_end_of_a_certificate_is_read_to_the_second(year: int) -> None:
    until = dt.datetime(year, 12, 31, 23, 59, 58, tzinfo=dt.UTC)
    assert first_expiry(stored(made(until, "x" * 64))) == until.timestamp()


def test_of_several_the_first_to_expire_counts_whatever_stands_between_them() -> None:
    early, late = (dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (2030, 2040))
    bundle = b"# ours\n" + made(late) + b"# theirs\r\n" + made(early).replace(b"\n", b"\r\n")
    assert first_expiry(stored(bundle)) == early.timestamp()


@pytest.mark.parametrize("bundle", [None, "", 7, "not base64", stored(b"nothing"), stored(PEM[:-40])])
def test_without_a_whole_certificate_there_is_no_expiry(bundle: object) -> None:
    assert first_expiry(bundle) is None


@given(st.integers(0, len(DER)), st.binary(max_size=8))
def test_a_certificate_that_is_cut_or_overwritten_raises_nothing(at: int, bytes_: bytes) -> None:
    for der in (DER[:at] + bytes_, DER[:at] + bytes_ + DER[at + len(bytes_) :]):
        body = base64.encodebytes(der)
        found = first_expiry(stored(b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"))
        assert found is None or isinstance(found, float)

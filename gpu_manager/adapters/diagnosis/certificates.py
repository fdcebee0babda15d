"""When certificates expire: the one field of X.509 that a diagnosis reads.

``kubectl vcuda`` runs from one file without compiled parts, so that no library for certificates is at hand.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from typing import Final

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0  # [0] EXPLICIT; absent in certificates of version 1
_TIMES: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}  # UTCTime, GeneralizedTime


def first_expiry(bundle: object) -> float | None:
    """When the first of these PEM certificates expires, in seconds since 1970.

    Args:
        bundle: base64, as ``caBundle`` and Secrets hold it.

    Returns:
        None without a certificate, or where one cannot be read.
    """
    try:
        pem = base64.b64decode(str(bundle or ""), validate=True)
        return min((_not_after(base64.b64decode(body)) for body in _PEM.findall(pem)), default=None)
    except (ValueError, IndexError, binascii.Error):
        return None


def _not_after(der: bytes) -> float:
    """``tbsCertificate.validity.notAfter`` (RFC 5280, 4.1.2.5).

    Raises:
        ValueError: this is no certificate.
    """
    fields, _ = _value(_value(der, _SEQUENCE)[0], _SEQUENCE)
    if fields[0] == _VERSION:
        _, fields = _value(fields)
    for _ in ("serialNumber", "signature", "issuer"):
        _, fields = _value(fields)
    validity, _ = _value(fields, _SEQUENCE)
    _, rest = _value(validity)
    text, _ = _value(rest)
    # strptime reads the years 50 to 68 as 2050 to 2068, RFC 5280 as 1950 to 1968: nobody stores those.
    return dt.datetime.strptime(text.decode(), _TIMES.get(rest[0], "")).replace(tzinfo=dt.UTC).timestamp()


def _value(data: bytes, tag: int | None = None) -> tuple[bytes, bytes]:
    """The content of the DER element at the beginning of ``data``, and what follows it.

    Raises:
        ValueError: it has another tag, or is longer than the data.
        IndexError: the data ends within its head.
    """
    if tag is not None and data[0] != tag:
        raise ValueError(f"tag {data[0]:#x} where {tag:#x} belongs")
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start])
    if len(data) < start + length:
        raise ValueError("an element ends before its end")
    return data[start : start + length], data[start + length :]

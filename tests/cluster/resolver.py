"""Cluster DNS for Services, and for nothing else: their addresses as the API has them at the moment of asking.

``resolver.py ADDRESS SERVER AUTHORITY TOKEN_FILE``: UDP, A records of ``NAME.NAMESPACE.svc.cluster.local``.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_A, _IN = 1, 1
_ANSWER, _AUTHORITATIVE, _NO_SUCH_NAME, _FAILED = 0x8000, 0x0400, 3, 2  # RFC 1035, 4.1.1
_POINTER = 0xC00C  # to the question's name
_SECONDS = 5  # an answer may be kept
_SUFFIX = ["svc", "cluster", "local"]


class Services:
    """Addresses of Services, from the API server."""

    def __init__(self, server: str, authority: str, token: str) -> None:
        self._server, self._token = server, token
        self._context = ssl.create_default_context(cafile=authority)

    def addresses(self, namespace: str, name: str) -> list[str] | None:
        """Its own address, or those of the pods of one without; None if there is no such Service."""
        found = self._get(f"/api/v1/namespaces/{namespace}/services/{name}")
        if found is None:
            return None
        own = found["spec"].get("clusterIP", "None")
        if own != "None":
            return [own]
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        slices = self._get(f"{path}?labelSelector=kubernetes.io/service-name%3D{name}") or {"items": []}
        unready = found["spec"].get("publishNotReadyAddresses", False)
        return sorted(
            address
            for one in slices["items"]
            for endpoint in one.get("endpoints") or ()
            if unready or endpoint.get("conditions", {}).get("ready", True)
            for address in endpoint["addresses"]
        )

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(
            f"{self._server}{path}", headers={"Authorization": f"Bearer {self._token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=2, context=self._context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                raise


def answer(query: bytes, services: Services) -> bytes:
    """The response to one query. Raises ValueError: it is none."""
    if len(query) < 12 or struct.unpack_from("!H", query, 4)[0] != 1:
        raise ValueError("not one question")
    labels, at = [], 12
    while (length := query[at]) != 0:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
    kind, klass = struct.unpack_from("!HH", query, at + 1)
    code, records = 0, b""
    try:
        found = services.addresses(labels[1], labels[0]) if labels[2:] == _SUFFIX else None
    except OSError:
        code, found = _FAILED, []
    if found is None:
        code, found = _NO_SUCH_NAME, []
    shown = found if (kind, klass) == (_A, _IN) else []
    for address in shown:
        records += struct.pack("!HHHIH", _POINTER, _A, _IN, _SECONDS, 4) + socket.inet_aton(address)
    head = query[:2] + struct.pack("!HHHHH", _ANSWER | _AUTHORITATIVE | code, 1, len(shown), 0, 0)
    return head + query[12 : at + 5] + records


def main() -> None:
    """Answer for ever."""
    services = Services(sys.argv[2], sys.argv[3], Path(sys.argv[4]).read_text("utf-8"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((sys.argv[1], 53))
        while True:
            query, client = server.recvfrom(512)
            with contextlib.suppress(ValueError, IndexError, struct.error):
                server.sendto(answer(query, services), client)


if __name__ == "__main__":
    main()

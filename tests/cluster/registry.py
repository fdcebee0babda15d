"""A registry that has one image, the test workload, under every name: so that any manifest's image starts.

``registry.py DIRECTORY PORT``: serves blobs of an unpacked OCI layout, on loopback.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    layout = Path()

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        index = json.loads((self.layout / "index.json").read_text("utf-8"))
        [manifest] = index["manifests"]
        kind = "application/octet-stream"
        if path == "/v2/":
            content: bytes | None = b"{}"
        elif "/manifests/" in path:
            content, kind = self._blob(manifest["digest"]), manifest["mediaType"]
        elif "/blobs/" in path:
            content = self._blob(path.rpartition("/")[2])
        else:
            content = None
        self.send_response(200 if content is not None else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content or b"")))
        if "/manifests/" in path:
            self.send_header("Docker-Content-Digest", manifest["digest"])
        self.end_headers()
        if body and content is not None:
            self.wfile.write(content)

    def _blob(self, digest: str) -> bytes | None:
        name = digest.removeprefix("sha256:")
        path = self.layout / "blobs/sha256" / name
        return path.read_bytes() if name.isalnum() and path.is_file() else None

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name for it
        pass


def main() -> None:
    """Serve until killed."""
    _Handler.layout = Path(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler).serve_forever()


if __name__ == "__main__":
    main()

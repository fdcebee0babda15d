"""The console: static files, served by the agent for its node and by admission for the cluster.

The files ask whoever sent them for ``ui/data`` and draw what comes. Nothing is fetched from elsewhere.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from typing import Final

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SCRIPTS: Final = (
    "console.js",  # the entry: addresses, header, keyboard
    "source.js",
    "model.js",
    "words.js",
    "sentences.js",
    "rules.js",
    "parts.js",
    "overview.js",
    "capacity.js",
    "history.js",
    "asked.js",
    "waiting.js",
    "waste.js",
    "places.js",
    "quota.js",
    "find.js",
    "what_if.js",
    "vendor/preact.mjs",
    "vendor/htm.module.js",
)
_SCRIPT: Final = "text/javascript; charset=utf-8"
_FILES: Final = {
    "/ui": ("console.html", "text/html; charset=utf-8"),
    "/ui/console.css": ("console.css", "text/css; charset=utf-8"),
    **{f"/ui/{name.rpartition('/')[2]}": (name, _SCRIPT) for name in SCRIPTS},
}
PATHS: Final = tuple(_FILES)
"""Every path that :func:`asset` knows."""


def asset(path: str, *, zipped: bool = False) -> tuple[str, bytes] | None:
    """Content type and body, gzipped if asked, of a file of the console; None if the path is none of them."""
    found = _FILES.get(path)
    if found is None:
        return None
    name, content_type = found
    return content_type, _body(name, zipped)


@cache
def _body(name: str, zipped: bool) -> bytes:  # noqa: FBT001  # one of two forms of each file
    body = files(__name__).joinpath(name).read_bytes()
    return gzip.compress(body) if zipped else body

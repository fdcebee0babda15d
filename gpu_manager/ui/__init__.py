"""The page for people: three static files, served by the agent for its node and by admission for the cluster.

The files ask whoever sent them for ``ui/data`` and draw what comes. Nothing is fetched from elsewhere.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Final = {
    "/ui": ("page.html", "text/html; charset=utf-8"),
    "/ui/page.css": ("page.css", "text/css; charset=utf-8"),
    "/ui/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def asset(path: str) -> tuple[str, bytes] | None:
    """Content type and body of one of the page's files; None if the path is none of them."""
    found = _TYPES.get(path)
    if found is None:
        return None
    name, content_type = found
    return content_type, files(__name__).joinpath(name).read_bytes()

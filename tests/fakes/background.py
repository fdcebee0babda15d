"""How a shell starts a job in the background, which must end all the same when it is told to."""

from __future__ import annotations

SIGINT_IGNORED = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")

"""The node's file system as the agent sees it: ``root`` is where the node's ``/`` is mounted.

The container runtime resolves the paths that we hand out on the *node*; seen through a mount, an absolute
link would lead into the agent's own image. So links are followed here by hand, within the node's root.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_MAX_LINKS: Final = 40  # as the kernel


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Paths given and returned are the node's own (``/usr/bin/nvidia-smi``), never the agent's."""

    root: Path = Path("/")

    def seen(self, path: str) -> Path:
        """Where the agent finds a path of the node that has no links in it."""
        return self.root / path.lstrip("/")

    def resolve(self, path: str, within: str = "/") -> str | None:
        """``path`` with all links resolved, as a process rooted at ``within`` finds it; None if it is
        missing.
        """
        todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        base = "/" + within.strip("/") if within.strip("/") else ""
        root = str(self.root).rstrip("/")  # plain text: this runs dozens of times for each container
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                done = done[:-1]
                continue
            here = "/".join([base, *done, part])
            try:
                target = os.readlink(root + here)  # noqa: PTH115  # as above
            except OSError:
                done.append(part)  # no link; whether it is there at all, the end says
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            if target.startswith("/"):
                done = []
            todo += [step for step in reversed(target.split("/")) if step not in ("", ".")]
        found = "/".join([base, *done]) or "/"
        return found if os.path.lexists(root + found) else None

    def exists(self, path: str) -> bool:
        """True if the node finds something at the path."""
        return self.resolve(path) is not None

    def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """A small file's content; None if it is missing, not a file, too large or not readable."""
        found = self.resolve(path)
        if found is None:
            return None
        try:
            with self.seen(found).open("rb") as file:
                content = file.read(limit + 1)
        except OSError:
            return None
        return content if len(content) <= limit else None

    def modified(self, path: str) -> float:
        """When a file was last written, in seconds since 1970; 0 if it is missing."""
        found = self.resolve(path)
        try:
            return self.seen(found).stat().st_mtime if found is not None else 0.0
        except OSError:
            return 0.0

    def listing(self, path: str) -> list[str]:
        """The names in a directory, sorted; none if it is missing."""
        found = self.resolve(path)
        if found is None:
            return []
        try:
            return sorted(os.listdir(self.seen(found)))  # noqa: PTH208  # names, of which there may be thousands
        except OSError:
            return []


@dataclass(frozen=True, slots=True)
class NotedFiles(HostFiles):
    """Records the files read and listed, so that :meth:`times` shows whether any of them has changed."""

    noted: set[str] = field(default_factory=set, compare=False)

    def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """See :meth:`HostFiles.read`."""
        self.noted.add(path)
        return HostFiles.read(self, path, limit)

    def listing(self, path: str) -> list[str]:
        """See :meth:`HostFiles.listing`."""
        self.noted.add(path)
        return HostFiles.listing(self, path)

    def times(self) -> dict[str, float]:
        """When each was last written; 0 if it does not exist."""
        return {path: self.modified(path) for path in self.noted}

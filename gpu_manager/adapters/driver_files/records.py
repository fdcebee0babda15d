"""Records of each allocation's injection: its library, and its CDI spec.

One small file for each, ``<state>/tenants/<name>/injection.json``. It is not synced to disk, which would cost
every admission a second fsync: what is lost with the power makes :meth:`Records.libraries` answer "unknown",
and then nothing is removed; a CDI spec is made again from the grant. So it is with a newer agent's record.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpu_manager.adapters.driver_files.delivery import is_hash
from gpu_manager.domain.errors import NodeUnready

_NAME: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_FILE: Final = "injection.json"


@dataclass(frozen=True, slots=True)
class InjectionRecord:
    """``library`` is a set's hash (None for whole cards), ``cdi`` the spec's text (None without CDI)."""

    library: str | None = None
    cdi: str | None = None


def is_name(name: str) -> bool:
    """True for what an allocation's directory is called: it becomes part of paths."""
    return _NAME.fullmatch(name) is not None


class Records:
    """Keeps them under ``root``; the caller serialises the calls."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, InjectionRecord] = {}  # what the disk was seen to hold

    def put(self, name: str, record: InjectionRecord) -> None:
        """Write or replace a record, whole. Raises NodeUnready if the disk refuses."""
        if self.get(name) == record:
            return
        path = self._root / name / _FILE
        text = json.dumps({"v": 1, "library": record.library, "cdi": record.cdi})
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = path.with_name(f".{_FILE}.{secrets.token_hex(4)}")
            draft.write_text(text)
            draft.rename(path)
            self._known[name] = record
        except OSError as error:
            raise NodeUnready(
                f"{path} cannot be written: {error.strerror or error}; "
                "no container with a card can start here until it can"
            ) from error

    def get(self, name: str) -> InjectionRecord | None:
        """The record; None if there is none or it is torn."""
        try:
            data = json.loads((self._root / name / _FILE).read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(data, dict) or data.get("v") != 1:
            return None
        library, cdi = data.get("library"), data.get("cdi")
        if not (library is None or (isinstance(library, str) and is_hash(library))):
            return None
        return InjectionRecord(library, cdi if isinstance(cdi, str) else None)

    def names(self) -> frozenset[str]:
        """Every allocation that has a directory here."""
        try:
            return frozenset(entry.name for entry in self._root.iterdir() if is_name(entry.name))
        except OSError:
            return frozenset()

    def libraries(self, names: Collection[str]) -> frozenset[str] | None:
        """The libraries these allocations were given; None if one of them cannot be told.

        Each record is read once: nobody else writes them.
        """
        for name in names:
            if name not in self._known:
                record = self.get(name)
                if record is None:
                    return None
                self._known[name] = record
        found = [self._known[name].library for name in names]
        return frozenset(library for library in found if library)

    def remove(self, name: str) -> None:
        """Forget an allocation; absent is fine."""
        self._known.pop(name, None)
        with contextlib.suppress(OSError):
            shutil.rmtree(self._root / name)

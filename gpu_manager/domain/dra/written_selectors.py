"""Selectors (CEL) that say what a pod's annotations say: cards of these models, or these cards alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.rules.request import model_tokens

_OURS: Final = f"device.attributes['{DRA_DRIVER}']"
_SEPARATORS: Final = "[ _/-]"  # between tokens of a model's name: NVML writes spaces, labels cannot
_START, _END = f"(^|{_SEPARATORS})", f"($|{_SEPARATORS})"
_BETWEEN: Final = f"{_SEPARATORS}+"
_TOKEN_OF_MODEL: Final = re.compile(r"[0-9a-z.+()@#%&:,=;!~<>*?$|{}]+")
_MARK: Final = re.compile(r"[^0-9a-z]")


def uuid_selector(uuids: Iterable[CardUuid]) -> str:
    """Return the expression that takes the cards of these UUIDs, which are legal ones, alone."""
    listed = ", ".join(f"'{uuid}'" for uuid in sorted(uuids))
    return f"{_OURS}.uuid in [{listed}]"


def model_selector(wanted: Sequence[str]) -> str:
    """Return the expression that takes the cards which
    :func:`~gpu_manager.domain.rules.request.matches_model` matches.

    Raises:
        RequestInvalid: an entry has a character that no expression of ours is written with.
    """
    return " || ".join(f"{_OURS}.productName.lowerAscii().matches('{_pattern(one)}')" for one in wanted)


def _pattern(wanted: str) -> str:
    """A pattern of RE2 without a backslash, so that it stands in a CEL text as it is."""
    tokens = model_tokens(wanted)
    for token in tokens:
        if not _TOKEN_OF_MODEL.fullmatch(token):
            raise RequestInvalid(f"{quoted(wanted)} has a character that is not written here")
    return _START + _BETWEEN.join(_MARK.sub(r"[\g<0>]", token) for token in tokens) + _END


def matches(text: str, pattern: str) -> bool | None:
    """Return whether the text matches; None for a pattern that is not one of ours: it may take very long."""
    if not (pattern.startswith(_START) and pattern.endswith(_END)):
        return None
    wanted = pattern[len(_START) : -len(_END)].split(_BETWEEN)
    plain = [re.sub(r"\[([^0-9a-z])\]", r"\1", token) for token in wanted]
    if not all(_TOKEN_OF_MODEL.fullmatch(token) for token in plain) or _pattern("-".join(plain)) != pattern:
        return None
    return re.search(pattern, text) is not None

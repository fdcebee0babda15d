"""The pod annotation ``tencent.com/vcuda-cards``: on how many cards a container lies in equal parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gpu_manager.domain.contract import CORE
from gpu_manager.domain.errors import RequestInvalid, quoted

MOST_PARTS: Final = 16  # cards for which a control page has limits
_COUNT: Final = re.compile("0*([1-9][0-9]?)")
_LONGEST: Final = 16 << 10  # characters


def read_parts(written: str, containers: Sequence[str]) -> Mapping[str, int]:
    """Container → its number of cards; ``containers`` are the names of those that request cores.

    ``2`` is for all of them, ``train=2,eval=4`` for those that it names.

    Raises:
        RequestInvalid: the text cannot be read; the message completes "the annotation is …".
    """
    if "=" not in written:
        return dict.fromkeys(containers, _count(written))
    if len(written) > _LONGEST:
        raise RequestInvalid(f"{len(written)} characters long")
    parts: dict[str, int] = {}
    for entry in written.split(","):
        name, _, count = (text.strip() for text in entry.partition("="))
        if name in parts:
            raise RequestInvalid(f"{quoted(written)}, which names container {quoted(name)} twice")
        if name not in containers:
            raise RequestInvalid(
                f"{quoted(written)}, and no container {quoted(name)} of the pod asks for {CORE}"
            )
        parts[name] = _count(count)
    return parts


def _count(written: str) -> int:
    match = _COUNT.fullmatch(written.strip())
    if match is None or int(match[1]) > MOST_PARTS:
        raise RequestInvalid(f"{quoted(written)}, not a number of cards from 1 to {MOST_PARTS}")
    return int(match[1])

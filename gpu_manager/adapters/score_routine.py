"""What the admission service computes in C, where the package was built with it: the roll-out of
:mod:`gpu_manager.domain.score.fragmentation`, and the reading and writing of node names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_manager.domain.score.fragmentation import BAGS, RollOutRoutine
from gpu_manager.domain.topology import MAX_CARDS

_LIBRARY = "libvcuda-score.so"
_INT, _LONG, _ANY, _TEXT = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p

Places = npt.NDArray[np.int32]


def roll_out_routine() -> RollOutRoutine | None:
    """The routine; None where the package has none, or it cannot be loaded."""
    words = (_INT, _INT, _ANY, _ANY, _ANY, _INT, _INT, _ANY, _ANY, ctypes.c_uint32, _ANY, _ANY)
    function = _found("vcuda_roll_out", None, *words)
    if function is None:
        return None

    def roll_out(
        free: npt.NDArray[np.uint32],
        cpu: npt.NDArray[np.int32],
        model: npt.NDArray[np.int64],
        asked: npt.NDArray[np.uint32],
        asked_cpu: npt.NDArray[np.int32],
        least: int,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        rooms, cards = free.shape
        steps, models, bags = asked.shape
        if bags != BAGS or cards > MAX_CARDS:
            raise ValueError(f"{bags} bags and {cards} cards: the routine has {BAGS} and at most {MAX_CARDS}")
        cores, units = np.empty(rooms, np.int64), np.empty(rooms, np.int64)
        arrays = (free, cpu, model, asked, asked_cpu)
        whole = [np.ascontiguousarray(array) for array in arrays]  # kept until the call is over
        at = [array.ctypes.data for array in whole]
        function(rooms, cards, *at[:3], steps, models, *at[3:], least, cores.ctypes.data, units.ctypes.data)
        return cores, units

    return roll_out


class NamesInC:
    """Names that are read and written by their places; see
    :class:`admission.extender.node_names.NameTable`. Immutable, and may be used by several threads.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """``names``: none needs an escape in JSON; an empty one leaves its place free. Only where
        :func:`names_routine` gives this class.
        """
        texts = [name.encode() for name in names]
        self._count = len(texts)
        self._lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        self._starts = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(self._lengths, out=self._starts[1:])
        self._texts = b"".join(texts)
        self._slots = np.zeros(1 << (2 * len(texts) + 1).bit_length(), np.int32)
        self._at = self._texts, self._starts.ctypes.data, self._slots.ctypes.data, len(self._slots) - 1
        index = _found("vcuda_index_names", None, _INT, _TEXT, _ANY, _ANY, ctypes.c_uint64)
        read = (_TEXT, _LONG, _INT, _TEXT, _ANY, _ANY, ctypes.c_uint64, _ANY, _ANY)
        write = (_INT, _ANY, _TEXT, _ANY, _TEXT, _ANY, _TEXT, _ANY, _ANY)
        self._read, self._write = (
            _found("vcuda_read_names", _INT, *read),
            _found("vcuda_write_names", _LONG, *write),
        )
        index(self._count, *self._at)

    def read(self, text: bytes) -> Places | None:
        """See :class:`admission.extender.node_names.NameTable`."""
        seen, places = np.zeros(self._count, np.uint8), np.empty(self._count, np.int32)
        found = self._read(text, len(text), self._count, *self._at, seen.ctypes.data, places.ctypes.data)
        return None if found < 0 else places[:found]

    def write(
        self, places: Places, before: bytes, ends: Sequence[bytes], which: npt.NDArray[np.uint8]
    ) -> bytes:
        """See :class:`admission.extender.node_names.NameTable`."""
        places, which = np.ascontiguousarray(places), np.ascontiguousarray(which)
        starts = np.fromiter(accumulate(map(len, ends), initial=0), np.int32, len(ends) + 1)
        most = len(before) + int(np.diff(starts).max(initial=0))
        out = np.empty(len(places) * most + int(self._lengths[places].sum()), np.uint8)
        written = self._write(
            len(places), places.ctypes.data, self._texts, self._starts.ctypes.data, before, which.ctypes.data,
            b"".join(ends), starts.ctypes.data, out.ctypes.data,
        )  # fmt: skip
        return out[:written].tobytes()


def names_routine() -> type[NamesInC] | None:
    """Makes tables of names; None where the package has no such routine, or it cannot be loaded."""
    return None if _found("vcuda_write_names", _LONG) is None else NamesInC


def _found(name: str, result: Any, *words: Any) -> Any:
    """The function of that name; None where the package has none, or it cannot be loaded."""
    spec = find_spec("vcuda")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(place) / "native" / _LIBRARY
        if file.is_file():
            try:
                function = ctypes.CDLL(str(file))[name]
            except (OSError, AttributeError):
                return None
            function.argtypes, function.restype = words, result
            return function
    return None

"""The roll-out of :mod:`gpu_manager.domain.score.fragmentation` in C, where the package was built with it."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpu_manager.domain.score.fragmentation import BAGS, RollOutRoutine
from gpu_manager.domain.topology import MAX_CARDS

_LIBRARY = "libvcuda-score.so"
_INT, _ANY = ctypes.c_int, ctypes.c_void_p


def roll_out_routine() -> RollOutRoutine | None:
    """The routine; None where the package has none, or it cannot be loaded."""
    spec = find_spec("vcuda")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(place) / "native" / _LIBRARY
        if file.is_file():
            return _loaded(file)
    return None


def _loaded(file: Path) -> RollOutRoutine | None:
    try:
        function = ctypes.CDLL(str(file)).vcuda_roll_out
    except (OSError, AttributeError):
        return None
    words = (_INT, _INT, _ANY, _ANY, _ANY, _INT, _INT, _ANY, _ANY, ctypes.c_uint32, _ANY, _ANY)
    function.argtypes, function.restype = words, None

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

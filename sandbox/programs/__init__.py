"""Programs that a sandbox's containers find on their PATH: small CUDA and NVML clients, in plain Python.

Each runs by itself (``python -I file.py``) and knows the driver only by the names every CUDA program uses,
``libcuda.so.1`` and ``libnvidia-ml.so.1``: what answers is libvcuda, and behind it the stand-in driver.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_FILES: Final = {"cuda-fill": "fill.py", "cuda-spin": "spin.py", "nvidia-smi": "smi.py"}


def commands() -> Mapping[str, Sequence[str]]:
    """Name → argv."""
    here = Path(__file__).parent
    return {name: (sys.executable, "-I", str(here / file)) for name, file in _FILES.items()}

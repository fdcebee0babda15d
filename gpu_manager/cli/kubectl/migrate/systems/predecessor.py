"""The predecessor: its names are kept; settings that never had an effect are removed."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from gpu_manager.cli.kubectl.migrate.model import Becomes, MigratedShare, MigrationTerms, System
from gpu_manager.cli.kubectl.migrate.systems.words import Asked
from gpu_manager.domain import contract
from gpu_manager.domain.resources import CORES_PER_CARD


def _predecessor(asked: Asked, _terms: MigrationTerms) -> MigratedShare | None:
    cores, memory = asked.get(contract.CORE, Fraction(0)), asked.get(contract.MEMORY)
    if cores >= CORES_PER_CARD and memory:
        return MigratedShare(cores, None, None, ("memory beside whole cards never had an effect: removed",))
    return MigratedShare(cores, memory)


def _ceiling(text: str) -> str:
    plain = text.strip()
    is_above = re.fullmatch(r"\+?[0-9]{1,18}", plain) is not None and int(plain) > CORES_PER_CARD
    return str(CORES_PER_CARD) if is_above else plain


PREDECESSOR: Final = System(
    name="gpu-manager",
    title="gpu-manager (tkestack)",
    resources=(contract.CORE, contract.MEMORY),
    share=_predecessor,
    annotations={contract.CORE_LIMIT: Becomes(contract.CORE_LIMIT, change=_ceiling)},
    state=(contract.PREDICATE_INDEX, contract.PREDICATE_NODE, contract.PREDICATE_TIME, contract.ASSIGNED),
    paths={
        "/usr/local/nvidia": "the driver's libraries are where the loader looks, nvidia-smi is in /usr/bin; "
        "nothing is mounted at that path"
    },
    drops_runtime_class=False,
)

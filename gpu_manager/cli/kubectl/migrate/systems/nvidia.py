"""NVIDIA's device plugin: whole cards, replicas under time-slicing, or parts of a card under MPS."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Final

from gpu_manager.adapters.manifests import read_documents
from gpu_manager.cli.kubectl.migrate import model
from gpu_manager.cli.kubectl.migrate.model import MODEL_NOTE, Asked, MigrationTerms, number
from gpu_manager.domain.contract import CORE, GPU_MODEL, MEMORY, NVIDIA
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.other_plugins import SlicedCard, shared_cards
from gpu_manager.domain.resources import CORES_PER_CARD, format_number

MIG: Final = "nvidia.com/mig-"
PRODUCT: Final = "nvidia.com/gpu.product"
_GPU, _SHARED = NVIDIA, "nvidia.com/gpu.shared"
_MPS_PERCENT, _MPS_MEMORY = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_MPS_SIZES: Final = {"G": 1 << 30, "M": 1 << 20, "K": 1 << 10}


def _nvidia(asked: Asked, terms: model.MigrationTerms) -> model.MigratedShare | None:
    name = _SHARED if _SHARED in asked else _GPU
    count = model.whole(asked.get(name, Fraction(0)), name)
    if count == 0:
        return None
    if _MPS_PERCENT in asked or _MPS_MEMORY in asked:
        return _mps(asked, terms, count, name)
    shared = terms.sharing(name)
    if shared is None:
        if name == _SHARED:
            raise RequestInvalid(
                f"{_SHARED} is a turn on a card whose number of users stands in the plugin's configuration: "
                "give --replicas and --card-memory, --card-model or --like"
            )
        told = f"{_GPU} taken for whole cards; if time-slicing shares them, give --replicas and --card-memory"
        return model.MigratedShare(count * CORES_PER_CARD, None, None, (told,))
    if count > 1:
        raise RequestInvalid(
            f"{name} is {count}: turns on a card, perhaps of one card, which do not add up; ask for one part "
            "of a card, or for whole cards"
        )
    cores = CORES_PER_CARD // shared.replicas
    units = model.part_of(Fraction(1, shared.replicas), terms, name)
    if shared.mps:
        return model.MigratedShare(cores, units, None, (f"1 of {shared.replicas} clients: {cores} cores",))
    note = f"1 of {shared.replicas} turns: {cores} cores, up to 100 while the card is idle"
    return model.MigratedShare(cores, units, CORES_PER_CARD, (note,))


def _mps(asked: Asked, terms: model.MigrationTerms, count: int, name: str) -> model.MigratedShare:
    """Return the equivalent of an MPS client's limits: percent of a card's threads, and memory."""
    percent, pinned = asked.get(_MPS_PERCENT), asked.get(_MPS_MEMORY)
    if percent is not None and not 0 < percent <= CORES_PER_CARD:
        raise RequestInvalid(f"{_MPS_PERCENT} is {format_number(percent)}: it goes from 1 to 100")
    if percent in (None, CORES_PER_CARD) and pinned is None:
        return model.MigratedShare(count * CORES_PER_CARD, None, None, ("MPS without a limit: whole cards",))
    if count > 1:
        raise model.several(count, name)
    notes: tuple[str, ...] = ()
    cores = ceil(percent or 0)
    if percent and cores != percent:
        notes = (f"{_MPS_PERCENT} {format_number(percent)} rounded up to {cores} cores",)
    if pinned is not None:
        units, rounded = model.units_of(pinned, 1, terms, _MPS_MEMORY)
    elif shared := terms.sharing(name):
        units, rounded = model.part_of(Fraction(1, shared.replicas), terms, name), ()
    else:
        units, rounded = model.part_of(Fraction(cores, CORES_PER_CARD), terms, _MPS_PERCENT), ()
        notes = (*notes, f"{_MPS_PERCENT} says nothing of memory: as large a part of it assumed")
    if cores == CORES_PER_CARD:
        whole_card = "all of a card's time was asked for: a whole card, with all its memory"
        return model.MigratedShare(CORES_PER_CARD, None, None, (*notes, whole_card))
    return model.fraction(cores, units, terms, (*notes, *rounded))


def _pinned(text: str) -> Fraction:
    """Return bytes from ``0=2G`` or ``0=2G,1=2G``, the syntax of MPS."""
    sizes = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*[^=\s]+\s*=\s*([0-9]{1,9})([GMK])B?\s*", part, re.IGNORECASE)
        if found is None:
            raise RequestInvalid(f"{_MPS_MEMORY} is {quoted(text)}: write it as 0=2G")
        sizes.add(int(found[1]) * _MPS_SIZES[found[2].upper()])
    if len(sizes) > 1:
        raise RequestInvalid(f"{_MPS_MEMORY} is {quoted(text)}: one limit for one card is translated")
    return Fraction(sizes.pop())


def profile_of_resource(name: str) -> str:
    """Return the MIG profile in a resource of NVIDIA's plugin: ``nvidia.com/mig-1g.5gb.me`` → ``1g.5gb+me``.

    Raises RequestInvalid for instances that are shared by turns, and for what is no profile.
    """
    text = name.removeprefix(MIG)
    if text.endswith(".shared"):
        raise RequestInvalid(
            f"{name} is a turn on a MIG instance: ask for a part of one by {CORE} and {MEMORY}, and name its "
            f"profile in {GPU_MODEL}"
        )
    found = re.fullmatch(r"([0-9]+g\.[0-9]+gb)((?:\.[a-z][a-z0-9]*)*)", text)
    if found is None:
        raise RequestInvalid(f"{name} names no profile of whole MIG instances, such as {MIG}1g.5gb")
    return found[1] + found[2].replace(".", "+", 1)


def product_of(text: str) -> str:
    """Return the model of a value of the node label for products."""
    return text.removesuffix("-SHARED").removeprefix("NVIDIA-")


_ITS_PLUGIN = "set up by its own plugin, which does not run on these nodes"
_NO_DAEMON = "no MPS daemon takes part here: the library in the container holds the share"
TIME_SLICING: Final = model.System(
    name="nvidia",
    title="NVIDIA time-slicing",
    resources=(_GPU, _SHARED),
    share=_nvidia,
    selectors={
        PRODUCT: model.Becomes(GPU_MODEL, change=product_of, note=MODEL_NOTE),
        "nvidia.com/gpu.sharing-strategy": model.Needless(_ITS_PLUGIN),
        "nvidia.com/gpu.replicas": model.Needless(_ITS_PLUGIN),
        "nvidia.com/device-plugin.config": model.Needless(_ITS_PLUGIN),
        "nvidia.com/mps.capable": model.Needless(_ITS_PLUGIN),
    },
    variables={
        _MPS_PERCENT: model.Needless("the share of time is tencent.com/vcuda-core"),
        _MPS_MEMORY: model.Needless("the share of memory is tencent.com/vcuda-memory"),
        "CUDA_MPS_PIPE_DIRECTORY": model.Needless(_NO_DAEMON),
        "CUDA_MPS_LOG_DIRECTORY": model.Needless(_NO_DAEMON),
        "CUDA_MPS_CLIENT_PRIORITY": model.Lost("pods are ranked by PriorityClass"),
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": model.Needless(_NO_DAEMON),
    },
    variable_amounts={_MPS_PERCENT: number, _MPS_MEMORY: _pinned},
)


def agreed(texts: list[str]) -> Mapping[str, SlicedCard | None]:
    """What configurations share, by resource; None where they differ, as for nodes of several kinds."""
    shares: dict[str, SlicedCard | None] = {}
    for one in shared_cards(texts, _parsed):
        shares[one.name] = one if shares.get(one.name, one) == one else None
    return shares


def advice_of(tree: object, terms: MigrationTerms) -> list[tuple[str, str]]:
    """Return for each resource that is shared its name, and what a user of it becomes."""
    return [(one.name, _advice(one, terms)) for one in shared_cards(tree, _parsed)]


def _advice(one: SlicedCard, terms: MigrationTerms) -> str:
    if not one.name.startswith(NVIDIA):
        return f"{one.replicas} users of each: such cards are left to NVIDIA's plugin"
    memory = "its part of the memory (give --card-memory, --card-model or --like)"
    if terms.card:
        memory = f"{MEMORY}: {terms.card.offered // terms.unit // one.replicas} ({terms.card.title})"
    cores = f"{CORE}: {CORES_PER_CARD // one.replicas}{'' if one.mps else ', up to 100 while it is idle,'}"
    becomes = f"{one.replicas} users of a card, each of which becomes {cores} with {memory}"
    return f"{becomes}; no plugin reads this on the agent's nodes: take it out"


def _parsed(entry: str) -> list[object]:
    try:
        return [tree for tree in read_documents(entry.encode()) if not isinstance(tree, str)]
    except (RequestInvalid, UnicodeEncodeError):
        return []  # what is no configuration

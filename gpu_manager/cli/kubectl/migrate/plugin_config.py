"""What becomes of cards that NVIDIA's device plugin shares, by its configuration among the manifests."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_manager.adapters.manifests import read_documents
from gpu_manager.cli.kubectl.migrate.model import MigrationTerms
from gpu_manager.domain.contract import CORE, MEMORY, NVIDIA
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.other_plugins import SlicedCard, shared_cards
from gpu_manager.domain.resources import CORES_PER_CARD


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

"""``written_sizes_impossible``: sizes that programs and people write into a workload's own metadata.

Random clusters, templates with one or two parts of a card and with wishes for models; sizes from advice after
absurd allocations, and typed ones. What the webhook lets through has to lie on some node of the cluster if it
were empty, by brute force; what lies on one must not be refused.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final

from admission.config import ClusterTerms
from admission.webhook.admission_review import Review, parse_review
from admission.webhook.admit import validate
from admission.webhook.create_time_checks import create_time_checks
from bench.rows import Row
from gpu_manager.domain.advice.demand import DAY, HOURS, Need
from gpu_manager.domain.advice.opt_in import SizeBounds, advised_size
from gpu_manager.domain.advice.size import AdvicePolicy, advise
from gpu_manager.domain.contract import CORE, GPU_MODEL, MEMORY, RESIZE
from gpu_manager.domain.resources import CORES_PER_CARD, GIB, Amount
from tests.fakes.extender import UNIT, World, node

QUICK: Final = 1_000
FULL: Final = 10_000
_MODELS: Final = {"Tesla-T4": 15, "A10": 22, "A100": 39}  # GiB
_TERMS: Final = ClusterTerms()
Sizes = dict[str, Amount]


def rows(*, full: bool) -> Iterator[Row]:
    """The row."""
    count = FULL if full else QUICK
    passed, refused, wrong = 0, 0, list[str]()
    for seed in range(count):
        said, fault = written(seed)
        passed, refused = passed + said, refused + (not said)
        wrong += [fault] if fault else []
    note = f"{count} written sizes: {passed} taken, {refused} refused. {'; '.join(wrong[:3])}".rstrip(". ")
    yield Row("written_sizes_impossible", len(wrong), "count", "= 0", full=full, note=note)


def written(seed: int) -> tuple[bool, str]:
    """Whether one size is taken, and what is wrong with that; empty if nothing is."""
    dice = random.Random(seed)
    models = [dice.sample(sorted(_MODELS), dice.randint(1, 2)) for _ in range(dice.randint(1, 3))]
    nodes = [
        [(model, _MODELS[model]) for model in kinds for _ in range(dice.choice((1, 2, 4)))]
        for kinds in models
    ]
    world = World([_node(f"n{at}", cards) for at, cards in enumerate(nodes)])
    wished = dice.choice(sorted(_MODELS)) if dice.random() < 0.3 else ""
    names = ["a", "b"][: dice.choice((1, 1, 2))]
    template = {name: Amount(dice.choice((10, 30, 60)), dice.choice((1, 4, 8)) * GIB) for name in names}
    most = max(size for cards in nodes for _, size in cards) * GIB
    sizes = {name: _size(dice, given, most) for name, given in template.items()}
    checks = create_time_checks(world.cluster, world.quota, world.judge, world.clock)
    verdict = validate(_review(template, sizes, wished), _TERMS, checks)
    could = _lies(list(sizes.values()), nodes, wished)
    what = f"{seed}: {sizes} of {wished or 'any model'} on {nodes}"
    if verdict.allowed and not could:
        return True, f"taken, and never runs: {what}"
    return verdict.allowed, f"refused, and would run: {what}" if could and not verdict.allowed else ""


def _node(name: str, cards: Sequence[tuple[str, int]]) -> dict[str, Any]:
    size = min(size for _, size in cards)
    return node(name, len(cards), memory=size * GIB, model=[model for model, _ in cards])


def _size(dice: random.Random, given: Amount, most: int) -> Amount:
    """A typed size, or the one that follows from advice after a refused allocation."""
    if dice.random() < 0.5:
        memory = dice.choice((1, 8, 14, 16, 24, 40, 80)) * GIB
        return Amount(dice.choice((1, 20, 50, 99)), memory)
    refused = dice.choice((2, 9, 20, 100, 1000)) * GIB
    need = Need(4 * DAY, 3, 3600.0, dice.randint(1, CORES_PER_CARD), (GIB,) * HOURS, (GIB,) * 5, refused)
    return advised_size(advise(need, given, UNIT, AdvicePolicy(largest=most)), given, SizeBounds())


def _review(template: Sizes, sizes: Sizes, wished: str) -> Review:
    containers = [
        {
            "name": name,
            "image": "x",
            "resources": {"limits": {CORE: str(a.cores), MEMORY: str(a.memory // UNIT)}},
        }
        for name, a in template.items()
    ]
    meta = {"annotations": {GPU_MODEL: wished} if wished else {}}
    asked = {name: {"cores": a.cores, "memory": str(a.memory)} for name, a in sizes.items()}
    before = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"template": {"metadata": meta, "spec": {"containers": containers}}},
    }
    annotated = {**before["metadata"], "annotations": {RESIZE: json.dumps({"v": 1, "containers": asked})}}  # type: ignore[dict-item]
    request = {
        "uid": "u",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
        "operation": "UPDATE",
        "namespace": "default",
        "name": "web",
        "userInfo": {"username": "user"},
        "object": {**before, "metadata": annotated},
        "oldObject": before,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return parse_review(json.dumps(review).encode())


def _lies(sizes: Sequence[Amount], nodes: Sequence[Sequence[tuple[str, int]]], wished: str) -> bool:
    """By brute force: each size on each card of one empty node."""
    for cards in nodes:
        least = min(size for _, size in cards)  # what the stand-in node gives each of its cards
        able = [at for at, (model, _) in enumerate(cards) if not wished or model == wished]
        for places in product(able, repeat=len(sizes)):
            held = {at: [a for a, place in zip(sizes, places, strict=True) if place == at] for at in places}
            if all(
                sum(a.cores for a in on) <= CORES_PER_CARD and sum(a.memory for a in on) <= least * GIB
                for on in held.values()
            ):
                return True
    return False

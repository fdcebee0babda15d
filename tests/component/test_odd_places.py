"""A manifest with something odd at any one place: an answer, or a refusal in words, from whoever reads manifests."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission.cluster.trim import slim_pod
from admission.config import ClusterTerms
from admission.explain.drafts import read_draft
from gpu_manager.cli.files import pod_templates
from gpu_manager.cli.kubectl.migrate.command import migrate, of_memory
from gpu_manager.cli.kubectl.migrate.left_over import foreign_names
from gpu_manager.cli.kubectl.migrate.model import MigrationTerms
from gpu_manager.domain.cluster.claims import read_claim
from gpu_manager.domain.dra.claim import parse_claim_spec
from gpu_manager.domain.errors import VcudaError
from gpu_manager.domain.kube.constraints import host_of_pod
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.rules.unknown_names import uncounted

ROOT = Path(__file__).parents[2]
FILES = [*ROOT.glob("tests/data/migrate/shapes/*.yaml"), *ROOT.glob("deploy/examples/*.yaml")]
EXACTLY = {
    "deviceClassName": "x",
    "allocationMode": "All",
    "count": 1,
    "selectors": [{"cel": {"expression": "true"}}],
}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": EXACTLY}]}},
}  # fmt: skip
TREES = [
    ("claim", CLAIM),
    *((file.name, tree) for file in sorted(FILES) for tree in yaml.safe_load_all(file.read_text())),
]
ODD = ([], {}, [[]], [{}], {"a": 1}, 5, None, True, "x", 1e308, 10**400, "\ud800", [None])
TERMS = MigrationTerms(card=of_memory(40 * GIB))


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield from places(value, (*path, key))


def with_odd(tree: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    made = copy.deepcopy(tree)
    holder = made
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = odd
    return made


def read_by_all(manifest: Any) -> Iterator[Callable[[], object]]:
    data = json.dumps(manifest).encode()
    yield lambda: migrate("f", data, TERMS)
    yield lambda: read_draft(data, ClusterTerms())
    yield lambda: [parse_pod(found.as_pod()) for found in pod_templates(manifest)]
    yield lambda: list(foreign_names(manifest))
    yield lambda: read_claim(manifest)
    if isinstance(manifest, dict):
        yield lambda: parse_claim_spec(manifest.get("spec"))
        yield lambda: (slim_pod(manifest), host_of_pod(manifest), list(uncounted(manifest)))


@pytest.mark.parametrize(("name", "tree"), TREES, ids=[name for name, _ in TREES])
def test_an_odd_value_at_any_place_is_no_fault_of_who_reads_it(name: str, tree: Any) -> None:
    refused = read = 0
    for number, path in enumerate(places(tree)):
        for odd in (ODD[number % len(ODD)], ODD[(5 * number + 3) % len(ODD)]):
            for reader in read_by_all(with_odd(tree, path, odd)):
                read += 1
                try:
                    reader()
                except VcudaError:
                    refused += 1
    assert refused < read, name

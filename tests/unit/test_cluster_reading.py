"""What commands list of the cluster: no more than they ask about."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import cast

from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.adapters.kube.reading import read_cluster
from tests.fakes.extender import node, pod


class Lists:
    """An API server that answers lists, a page each, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, str]]] = []
        self.unread: list[object] = []
        self.told = self.unread.append

    def pieces(self, _what: str, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        self.asked.append((path, {key: value for key, value in query.items() if key != "limit"}))
        items = [node("n1")] if path.endswith("nodes") else [pod("p", on="n1")]
        yield json.dumps({"kind": "List", "metadata": {}, "items": items}).encode()


def test_of_one_node_that_node_and_its_pods_are_listed_alone() -> None:
    server = Lists()
    cluster = read_cluster(cast("Connection", server), "n1")
    assert server.asked == [
        ("/api/v1/nodes", {"fieldSelector": "metadata.name=n1"}),
        ("/api/v1/pods", {"fieldSelector": "spec.nodeName=n1"}),
    ]
    assert [books.name for books in cluster.with_cards] == ["n1"]
    assert not server.unread


def test_without_a_node_everything_is_listed() -> None:
    server = Lists()
    read_cluster(cast("Connection", server))
    assert server.asked == [("/api/v1/nodes", {}), ("/api/v1/pods", {})]

"""The real parts as a world for the cases of tests/agreement."""

from __future__ import annotations

from tests.agreement.world import NOBODY, World
from tests.cluster.cluster import Cluster


def world(cluster: Cluster) -> World:
    """The cluster's API server."""
    admin = {"Authorization": f"Bearer {cluster.api.token}"}
    made = World(
        f"https://{cluster.api.host}:{cluster.api.port}",
        {"": admin, NOBODY: {**admin, "Impersonate-User": NOBODY}},
        cluster.api.authority,
        forget=lambda: _forget(cluster),
    )
    made.begin()
    return made


def _forget(cluster: Cluster) -> None:
    """A restarted API server remembers nothing from before its first lists."""
    cluster.restart("kube-apiserver")
    cluster.wait(lambda: cluster.api.get("/readyz", text=True) == "ok", 60, "the API server is not back")

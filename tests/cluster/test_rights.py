"""The chart's accounts on the whole cluster, by tokens of their own: the writes of :mod:`tests.deploy.rights`, which are
there asked of an API server alone. Here the controllers, the scheduler and the product itself are at work beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import nodes, product
from tests.cluster.api import ApiError
from tests.cluster.cluster import Cluster
from tests.deploy.rights import FORBIDDEN, OWN, PAST, Accounts, Write
from tests.fakes.sandbox import short_directory

NODES = {"n1": "n8", "n2": "n9"}  # objects alone: the real node's agent goes on
SPACES = ("team-a", "team-b")
THERE = {"default", "kube-scheduler", *NODES}  # made by the cluster, or before
# The product holds them itself: its certificate would be torn, its Lease is taken.
LEFT_OUT = {"its certificate", "its Lease"}
OTHERS = {
    "/api/v1/namespaces/kube-system/pods": (
        "gpu-manager-daemonset-x",
        "gpu-quota-admission-x",
        "gpu-manager-evictor-x",
        "dns",
    ),
    "/api/v1/namespaces/kube-system/secrets": ("foreign",),
    "/api/v1/namespaces/kube-system/serviceaccounts": ("other",),
    "/api/v1/persistentvolumes": ("free", "held"),
}


class Whole:
    """The cluster as :class:`Accounts` uses a server; its nodes have other names."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.directory = directory
        self._cluster = cluster

    def ask(
        self, method: str, path: str, body: Any = None, *, token: str = "", kind: str = "application/json"
    ) -> tuple[int, str]:
        """Status and text of one request."""
        text = json.dumps(body)
        for before, now in NODES.items():
            path = path.replace(f"/nodes/{before}", f"/nodes/{now}")
            text = text.replace(f'"{before}"', f'"{now}"')
        api = self._cluster.api
        asked = api if not token else type(api)(api.host, api.port, token, api.authority)
        try:
            answer = asked.request(method, path, json.loads(text), kind)
        except ApiError as error:
            return error.code, str(error)
        return 201 if method == "POST" else 200, answer.decode()

    def make(self, path: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
        """Create it; what is there already stays."""
        if kind == "Node":
            nodes.add(self._cluster, NODES[name])
            self._cluster.api.patch(
                f"/api/v1/nodes/{NODES[name]}", {"spec": fields["spec"]}
            )  # with its taint
            return {}
        if kind == "Pod" and "nodeName" not in fields["spec"]:
            fields["spec"]["schedulerName"] = "nobody"
        api = path.partition("/namespaces/")[0] if "/namespaces/" in path else path.rpartition("/")[0]
        meta = {"name": name, **fields.pop("metadata", {})}
        version = api.removeprefix("/apis/").removeprefix("/api/")
        found: dict[str, Any] = {}

        def made() -> bool:
            code, text = self.ask(
                "POST", path, {"apiVersion": version, "kind": kind, "metadata": meta, **fields}
            )
            if code == 201:
                found.update(json.loads(text))
            elif not (code == 409 and name in THERE) and "serviceaccount" not in text:
                raise AssertionError(f"{kind} {name}: {code} {text}")
            return code in (201, 409)

        self._cluster.wait(
            made, 30, f"{kind} {name} cannot be made"
        )  # a new namespace has no account at first
        return found

    def token(self, account: str, pod: dict[str, Any]) -> str:
        """A token of an account of kube-system, as the kubelet has it made for the pod."""
        meta = {key: pod["metadata"][key] for key in ("name", "uid")}
        bound = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", **meta}}
        path = f"/api/v1/namespaces/kube-system/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": bound}
        return str(self._cluster.api.post(path, asked)["status"]["token"])


@pytest.fixture(scope="module")
def accounts(cluster: Cluster) -> Iterator[Accounts]:
    try:
        with short_directory() as directory:
            made = Accounts(Whole(cluster, directory))
            made.settle()
            yield made
    finally:
        for space in SPACES:
            for one in cluster.api.get(f"/api/v1/namespaces/{space}/pods")["items"]:
                cluster.api.delete(f"/api/v1/namespaces/{space}/pods/{one['metadata']['name']}", 0)
            cluster.api.delete(f"/api/v1/namespaces/{space}")
        for path, names in OTHERS.items():
            for name in names:
                cluster.api.delete(f"{path}/{name}", 0)
        for name in NODES.values():
            nodes.remove(cluster, name)
        cluster.wait(lambda: product.admission_ready(cluster), 60, "admission is not ready")


@pytest.mark.parametrize("write", PAST, ids=lambda w: f"{w.account}: {w.what}")
def test_no_account_writes_past_its_own_names(accounts: Accounts, write: Write) -> None:
    code, text = accounts.write(write)
    assert code == FORBIDDEN, f"{code} {text}"


@pytest.mark.parametrize(
    "write", [one for one in OWN if one.what not in LEFT_OUT], ids=lambda w: f"{w.account}: {w.what}"
)
def test_every_account_writes_what_it_needs(accounts: Accounts, write: Write) -> None:
    code, text = accounts.write(write)
    assert code in (200, 201), f"{code} {text}"

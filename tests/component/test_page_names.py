"""Whose names the agent's pages tell: nobody's to a stranger, a namespace's to who may get pods there."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.advice.demand import DAY, HOUR, Need
from gpu_manager.domain.advice.size import Sized, advise, named_advice, read_sized
from gpu_manager.domain.cluster.usage_json import NOT_USED, named_usage, read_usage, used_share
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import GIB, MIB, Amount
from gpu_manager.runtime.inbound import AccessCheck, Right
from gpu_manager.servers.http import FAILED_SECONDS, PageAccess, StatusServer
from gpu_manager.servers.status import NAMING
from tests.component.test_exporter_http import Served
from tests.fakes.browser import NEEDS_A_BROWSER, browsing
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeClock
from tests.fakes.waiting import PATIENCE

NAMES = ("reactor", "turbine", "neutron", "Pod/", "team-a", "team-b", "secret-c")
NEED = Need(2 * DAY, 3, 4 * HOUR, 30, (2 * GIB,) * 25, (2 * GIB,) * 3)
GIVEN, UNIT = Amount(30, 2 * GIB), 256 * MIB
QUERIES = {"/ui/history": "?subject=card&name={card}", "/ui/advice": "?uid={uid}"}


class HeldReviews:
    """Token → namespaces whose pods its user may get; ``""`` is all. Answers once ``open`` is set."""

    def __init__(self) -> None:
        self.rights = {"all": {"", "team-a", "team-b"}, "a": {"team-a"}}
        self.open = threading.Event()
        self.open.set()
        self.down = False
        self.asked = 0

    def who(self, token: str) -> Mapping[str, Any] | None:
        self.asked += 1
        assert self.open.wait(PATIENCE)
        if self.down:
            raise NodeUnready("no API server")
        return {"username": token} if token in self.rights else None

    def may(self, user: Mapping[str, Any], right: Right, namespace: str) -> bool:
        assert right == ("get", "pods")
        return namespace in self.rights[user["username"]]


class Named(Served):
    """The pages of a node on which two namespaces hold shares of one card."""

    def __init__(self, rig: NodeRig, token: str | None = None) -> None:
        super().__init__(rig, token=token)
        self.reviews = HeldReviews()
        self.server.stop()
        self.clock = FakeClock()
        self.access = PageAccess(AccessCheck(self.reviews, self.clock), self.clock)
        self.server = StatusServer(self.status, "127.0.0.1", 0, token, self.access)
        self.server.start()
        self.past.record(replace(self.usage.sample(), at=time.monotonic()))

    def get(self, path: str, token: str = "", **headers: str) -> tuple[int, str]:
        code, _, body = self.ask(path, **headers, **({"Authorization": f"Bearer {token}"} if token else {}))
        return code, body

    def json(self, path: str, token: str = "") -> Any:
        code, body = self.get(path, token, Accept="application/json")
        assert code == 200, body
        return json.loads(body)


@pytest.fixture(scope="module")
def pods() -> list[dict[str, Any]]:
    return [
        {**made, "metadata": {**made["metadata"], "namespace": namespace, "uid": uid}}
        for made, namespace, uid in (
            (pod("reactor", container("neutron", 30, 8)), "team-a", "6f1c"),
            (pod("turbine", container("secret-c", 20, 4)), "team-b", "a20b"),
        )
    ]


@pytest.fixture(scope="module")
def node(pods: list[dict[str, Any]]) -> Iterator[NodeRig]:
    with tempfile.TemporaryDirectory(prefix="gm-") as directory, NodeRig(Path(directory)) as rig:
        for obj in pods:
            assert rig.admit(obj).admitted
        yield rig


@pytest.fixture
def pages(node: NodeRig) -> Iterator[Named]:
    running = Named(node)
    running.status.sized = lambda: [
        Sized(
            (namespace, f"Pod/{name}", inside), (name,), GIVEN, UNIT, NEED, advise(NEED, GIVEN, UNIT), (uid,)
        )
        for (uid, inside), (namespace, name) in _held(running).items()
    ]
    yield running
    running.reviews.open.set()
    running.server.stop()


def _held(pages: Named) -> dict[tuple[str, str], tuple[str, str]]:
    """UID and container → namespace and name of what holds a share."""
    return {
        grant.key: (grant.allocation.namespace, grant.allocation.pod_name)
        for grant in pages.usage.last.grants.values()
    }


def _asked(pages: Named, path: str) -> str:
    (uid, _), *_ = _held(pages)
    card = next(u.share.card for u in pages.usage.last.shares)
    return path + QUERIES.get(path, "").format(uid=uid, card=card)


def test_recorded_decisions_are_for_those_who_may_see_all_names(pages: Named) -> None:
    assert pages.get("/records")[0] == 403
    assert pages.json("/records", "all") == {"lines": []}


@pytest.mark.parametrize("path", [path for path in NAMING if path != "/records"])
def test_a_stranger_hears_no_name_of_a_pod_a_namespace_or_a_container(pages: Named, path: str) -> None:
    code, body = pages.get(_asked(pages, path))
    assert code == 200
    assert [name for name in NAMES if name in body] == []
    assert len(body) > 60, "figures are told all the same"
    told = pages.get(_asked(pages, path), "all")[1]
    assert any(name in told for name in NAMES), "and names to who may hear them"


def test_the_cards_figures_are_the_same_with_and_without_names(pages: Named) -> None:
    hidden, told = pages.json("/graph"), pages.json("/graph", "all")
    for card, other in zip(hidden["cards"], told["cards"], strict=True):
        assert {**card, "holders": 0} == {**other, "holders": 0}
        figures = ("cores", "memory", "core_used", "memory_used", "planned")
        assert [[h[f] for f in figures] for h in card["holders"]] == [
            [h[f] for f in figures] for h in other["holders"]
        ]
    assert pages.json("/graph") == pages.json("/graph", " "), "an empty token is none"
    assert "hidden: 30 cores, 2 GiB" in pages.get("/graph", Accept="text/plain")[1]
    assert pages.json("/ui/data")["named"] is False
    assert pages.json("/ui/data", "all")["named"] is True


def test_who_may_get_pods_in_one_namespace_hears_of_those_alone(pages: Named) -> None:
    assert pages.get("/usage", "a")[0] == 403
    names = {(p["project"], p["pod"]) for p in pages.json("/usage?namespace=team-a", "a")["usage"].values()}
    assert names == {("team-a", "reactor"), ("", "")}
    body = pages.get("/ui/data?namespace=team-a", "a")[1]
    assert "reactor" in body
    assert "turbine" not in body
    assert pages.get("/ui/data?namespace=team-b", "a")[0] == 403
    assert pages.get("/ui/advice?namespace=team-a&name=team-b/turbine", "a")[0] == 403
    assert pages.get("/ui/history?subject=pod&name=team-b/turbine&namespace=team-a", "a")[0] == 400
    assert pages.get("/ui/history?subject=pod&name=team-a/reactor")[0] == 403
    assert pages.get("/usage?namespace=../x", "a")[0] == 400
    assert pages.get("/usage", "nobody")[0] == 401


def test_who_knows_the_pods_finds_each_ones_use_by_its_uid(pages: Named, pods: list[dict[str, Any]]) -> None:
    hidden, told = (read_usage(pages.json("/usage", token)) for token in ("", "all"))
    assert len(told) == 2
    known = {
        uid: parse_pod({**obj, "metadata": {**obj["metadata"], "uid": uid}})
        for uid, obj in _objects(pages, pods)
    }
    assert named_usage(hidden, known) == told
    for key, used in told.items():
        assert used_share(hidden, *key)[:3] == used[:3]
        assert used_share(hidden, key[0], "another", key[2]) is NOT_USED
    advised = [named_advice(read_sized(row), known) for row in pages.json("/advice")["containers"]]
    assert [one and one.workload for one in advised] == [
        ("team-a", "Pod/reactor", "neutron"),
        ("team-b", "Pod/turbine", "secret-c"),
    ]
    assert [named_advice(read_sized(row), {}) for row in pages.json("/advice")["containers"]] == [None, None]


def _objects(pages: Named, pods: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    uids = {name: uid for (uid, _), (_, name) in _held(pages).items()}
    return ((uids[obj["metadata"]["name"]], obj) for obj in pods)


def test_while_the_api_server_thinks_health_and_strangers_are_answered(pages: Named) -> None:
    pages.reviews.open.clear()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(pages.get, "/graph", "all") for _ in range(2)]
        assert pages.get("/healthz")[0] == 200
        assert pages.get("/graph")[0] == 200
        assert not any(one.done() for one in asked)
        pages.reviews.open.set()
        assert all(one.result(PATIENCE)[0] == 200 for one in asked)
    assert pages.reviews.asked == 1, "one question for one token"


def test_an_api_server_that_is_away_is_told_and_asked_again_later(pages: Named) -> None:
    pages.reviews.down = True
    code, body = pages.get("/graph", "all")
    assert code == 503
    assert "no API server" in body
    pages.reviews.down = False
    assert pages.get("/graph", "all")[0] == 503, "not asked again at once"
    pages.clock.pass_(FAILED_SECONDS)
    assert pages.get("/graph", "all")[0] == 200


def test_a_metrics_token_opens_names_and_so_does_one_that_the_api_server_knows(node: NodeRig) -> None:
    pages = Named(node, token="s3cret")
    try:
        for path in ("/graph", "/metric"):
            assert [pages.get(path, token)[0] for token in ("", "nobody", "a")] == [401, 401, 403]
            assert "reactor" in pages.get(path, "s3cret")[1]
            assert "reactor" in pages.get(path, "all")[1]
    finally:
        pages.server.stop()


def test_metrics_keep_their_names_and_ask_nobody(pages: Named) -> None:
    assert "reactor" in pages.get("/metric")[1]
    assert "reactor" in pages.get("/metric", "whatever")[1], "a scrape that sends its account's token"
    assert pages.reviews.asked == 0


@NEEDS_A_BROWSER
def test_the_page_shows_cards_to_a_stranger_and_asks_for_a_token_to_name_their_holders(
    pages: Named, tmp_path: Path
) -> None:
    with browsing(tmp_path) as page:
        page.open(f"http://127.0.0.1:{pages.server.port}/ui#/node/n1", "document.querySelector('.card .bar')")
        assert "name not shown" in page.text()
        assert "Names of pods are shown to callers with the right to get pods." in page.text()
        assert "reactor" not in page.text()
        for token, found in (("nobody", "a bearer token is needed"), ("all", "team-a/reactor neutron")):
            page.look("document.querySelector('[name=token]').focus()")
            page.type(token)
            page.key("Enter")
            page.wait(f"document.body.innerText.includes({json.dumps(found)})")
        assert page.look("document.querySelector('form.login')") is None
        assert [one for one in page.complaints if "401" not in one] == []

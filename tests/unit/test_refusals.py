"""Every sentence with which extender and quota refuse is in docs/errors with its cure, and none else is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from admission.cluster.node_view import KeptFor
from admission.extender.refusal_lines import FULL_LINES
from gpu_manager.domain.contract import GPU_UUID, POOL_LABEL
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import Amount
from tests.fakes.extender import UNIT, World, args, node, pod
from tools.docs.errors import errors_page
from tools.docs.refusals import refusal_texts

ROOT = Path(__file__).parents[2]
QUOTA = {"default": {"quota": {"T4": 0.5}}}


def failed(world: World, obj: dict, names: list[str] | None = None) -> list[str]:
    found = world.filter(obj, names)
    return [
        text
        for text in (
            found["Error"],
            *found["FailedNodes"].values(),
            *found["FailedAndUnresolvableNodes"].values(),
        )
        if text
    ]


def from_filter() -> Iterator[str]:
    full = [pod("x", 80, 40, on="n1"), pod("y", 80, 40, on="n1")]
    yield from failed(World([node("n1")], full), pod("a"))
    yield from failed(World([node("n1")], full), pod("a", 200, None))
    yield from failed(
        World([node("n1"), node("n2")], full),
        pod("a", annotations={GPU_UUID: f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}"}),
    )
    many = [node(f"n{i}", cards=1) for i in range(FULL_LINES + 1)]
    yield from failed(World(many, [pod(f"x{i}", 80, 4, on=f"n{i}") for i in range(FULL_LINES + 1)]), pod("a"))
    yield from failed(World(many), pod("a", 30, 1000))
    kept = [pod("first", 90, 4, nominated="n1", priority=5), pod("b", 90, 4, on="n1")]
    yield from failed(World([node("n1")], kept), pod("a", 30))
    closed = World([node("n1", cards=4), node("n2", cards=4)])
    for left, at in (1, "2026-07-01T12:00:00Z"), (90, ""):
        closed.cluster.keep("n1", KeptFor(parse_pod(pod("big", 400, None, created=at)), 4, left))
        yield from failed(closed, pod("a"))
    yield from failed(World([node("n1", inventory=False)]), pod("a"))
    yield from failed(World([node("n1", cards=0)]), pod("a"))
    yield from failed(World([node("n1", serving=False)]), pod("a"))
    yield from failed(World([node("n1")]), pod("a"), ["n2"])
    yield from failed(World([node("n1", unit=UNIT * 2)]), pod("a"))
    yield from failed(World([node("n1", refused=[Amount(30, 4 * UNIT)])]), pod("a"))
    differing = [node(f"n{i:03}", cards=1, memory=(20 + i) << 30, unit=UNIT * (i + 2)) for i in range(70)]
    yield from failed(World(differing), pod("a"))
    unlisted = World([node("n1")])
    unlisted.cluster._synced.clear()
    yield from failed(unlisted, pod("a"), ["n1"])


def from_quota() -> Iterator[str]:
    yield from failed(World([node("n1")], [pod("x", 40, on="n1")], quota=QUOTA), pod("a"))
    yield from failed(World([node("n1", model="A100")], quota=QUOTA), pod("a"))
    pools = {"default": {"pool": ["blue"]}}
    yield from failed(World([node("n1"), node("n2", labels={POOL_LABEL: "red"})], quota=pools), pod("a"))
    for obj in (None, {"data": {"gpu_quota": "["}}):
        world = World([node("n1")])
        fresh = type(world.quota)()
        if obj:
            fresh.update(obj)
        world.extender.quota = world.binder.quota = fresh
        yield from failed(world, pod("a"))


def from_bind() -> Iterator[str]:
    def world(*more: dict, **settings: object) -> World:
        made = World([node("n1")], list(more), **settings)  # type: ignore[arg-type]  # as the World takes them
        made.create(pod("a"))
        made.filter(pod("a"))
        return made

    made = world()
    made.leads = False
    yield made.bind(pod("a"), "n1")
    yield world().bind(pod("a"), "n2")
    made = world()
    made.delete(pod("a"))
    yield made.bind(pod("a"), "n1")
    yield world().bind(
        {**pod("b"), "metadata": {**pod("b")["metadata"], "uid": pod("a")["metadata"]["uid"]}}, "n1"
    )
    made = world()
    made.show(pod("a", scheduler="other"))
    yield made.bind(pod("a"), "n1")
    made = world()
    made.show(pod("a", on="n1"))
    yield made.bind(pod("a"), "n1")
    made = world()
    made.api.plan = ["lost"]
    yield made.bind(pod("a"), "n1")
    yield made.bind(pod("a"), "n1")
    made = world()
    made.api.plan = ["refuse"]
    yield made.bind(pod("a"), "n1")
    made = world()
    made.cluster.replace("nodes", [])
    yield made.bind(pod("a"), "n1")
    made = world()
    plain = pod("a", 0, 0)
    made.cluster.replace("pods", [])
    made.api.put(plain)
    yield made.bind(pod("a"), "n1")


def from_questions() -> Iterator[str]:
    extender = World([node("n1")]).extender
    for body in (b"{", b"[]", b'{"Pod": {}, "NodeNames": 3}'):
        yield json.loads(extender.filter(body).body)["Error"]
    yield json.loads(extender.bind(b"{}").body)["Error"]
    yield json.loads(extender.bind(b'{"PodName": 3}').body)["Error"]
    yield extender.prioritize(
        args(pod("a"), []).replace(b'"NodeNames": []', b'"NodeNames": [3]')
    ).body.decode()


def said() -> list[str]:
    return [*from_filter(), *from_quota(), *from_bind(), *from_questions()]


@pytest.mark.parametrize("source", [from_filter, from_quota, from_bind, from_questions])
def test_every_sentence_has_its_place_in_the_docs(source):
    for sentence in source():
        assert any(one.matches(sentence) for one in refusal_texts()), sentence


def test_nothing_in_the_docs_is_never_said():
    sentences = said()
    assert [one.id for one in refusal_texts() if not any(map(one.matches, sentences))] == []


def test_the_page_is_what_the_program_prints():
    written = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert written == errors_page()


def test_ids_are_anchors_of_their_own():
    page = errors_page()
    anchors = [line for line in page.splitlines() if line.startswith("### ")]
    assert len(anchors) == len(set(anchors))
    assert all(one.cure and one.why for one in refusal_texts())

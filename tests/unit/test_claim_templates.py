"""Templates of turned pods: made once whoever asks, there for every pod that was let pass, collected when idle."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from admission.cluster.claim_templates import (
    FRESH_SECONDS,
    IDLE_SECONDS,
    ClaimTemplates,
    TurnedTemplate,
    read_turned_template,
)
from admission.cluster.claims import TEMPLATES, slim_template
from gpu_manager.domain.contract import TEMPLATE_NEEDED, TURNED_LABEL
from gpu_manager.domain.errors import NodeUnready
from tests.fakes.extender import World
from tests.fakes.ports import FakeClock
from tests.seeds import generator

SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vcuda.tencent.com"}}]}}


class Api:
    """The API server's templates and pods; ``between`` runs before each call, as what others do meanwhile."""

    def __init__(self) -> None:
        self.there: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: set[tuple[str, str]] = set()
        self.calls: list[str] = []
        self.away = ""
        self.between: Callable[[str], None] = lambda _call: None
        self._versions = itertools.count(1)

    def create(self, namespace: str, body: Mapping[str, Any]) -> bool:
        self._called("create")
        name = body["metadata"]["name"]
        if (namespace, name) in self.there:
            return False
        number = str(next(self._versions))
        meta = {**body["metadata"], "uid": f"uid-{number}", "resourceVersion": number}
        self.there[namespace, name] = {**body, "metadata": meta}
        return True

    def annotate(self, namespace: str, name: str, annotations: Mapping[str, str]) -> bool:
        self._called("annotate")
        if (namespace, name) not in self.there:
            return False
        meta = self.there[namespace, name]["metadata"]
        meta["annotations"] = {**meta["annotations"], **annotations}
        meta["resourceVersion"] = str(next(self._versions))
        return True

    def delete(self, namespace: str, name: str, uid: str, version: str) -> bool:
        self._called("delete")
        meta = self.there.get((namespace, name), {}).get("metadata", {})
        if (meta.get("uid"), meta.get("resourceVersion")) != (uid, version):
            return False
        del self.there[namespace, name]
        return True

    def named_by_pods(self, namespace: str) -> Collection[str]:
        self._called("list")
        return {name for where, name in self.pods if where == namespace}

    def watched(self) -> list[TurnedTemplate]:
        found = [read_turned_template(one) for one in self.there.values()]
        return [one for one in found if one is not None]

    def _called(self, call: str) -> None:
        if self.away:
            raise NodeUnready(self.away)
        self.calls.append(call)
        meanwhile, self.between = self.between, lambda _call: None
        meanwhile(call)


@pytest.fixture
def api() -> Api:
    return Api()


def replica(api: Api, clock: FakeClock) -> ClaimTemplates:
    return ClaimTemplates(api, clock)


def test_a_template_is_made_once_and_needed_again_at_most_once_a_minute(api: Api) -> None:
    clock = FakeClock()
    one, other = replica(api, clock), replica(api, clock)
    assert [one.ensure("ml", "t", SPEC) for _ in range(5)] == [""] * 5
    assert api.calls == ["annotate", "create"]
    assert other.ensure("ml", "t", SPEC) == ""
    assert api.calls[2:] == ["annotate"]
    clock.pass_(FRESH_SECONDS)
    assert one.ensure("ml", "t", SPEC) == ""
    [made] = api.there.values()
    assert made["metadata"]["annotations"] == {TEMPLATE_NEEDED: str(int(clock.now()))}
    assert made["metadata"]["labels"] == {TURNED_LABEL: "true"}
    assert made["spec"] == {"spec": SPEC}


def test_two_replicas_that_make_it_at_once_are_both_content(api: Api) -> None:
    clock = FakeClock()
    other = replica(api, clock)

    def meanwhile(_call: str) -> None:
        assert other.ensure("ml", "t", SPEC) == ""

    one = replica(api, clock)
    api.between = lambda _call: setattr(api, "between", meanwhile)  # between the one's two calls
    assert one.ensure("ml", "t", SPEC) == ""
    assert len(api.there) == 1


def test_why_it_cannot_be_made_is_said_and_the_next_pod_asks_again(api: Api) -> None:
    templates = replica(api, FakeClock())
    api.away = "the API server refused to create it: forbidden (403)"
    assert templates.ensure("ml", "t", SPEC) == api.away
    api.away = ""
    assert templates.ensure("ml", "t", SPEC) == ""
    assert len(api.there) == 1


def test_one_that_others_delete_each_time_is_given_up(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "create", lambda _namespace, _body: False)
    assert replica(api, FakeClock()).ensure("ml", "t", SPEC) == "it is made and deleted again and again"


def test_one_that_was_deleted_by_hand_is_made_again_at_once(api: Api) -> None:
    templates = replica(api, FakeClock())
    templates.ensure("ml", "t", SPEC)
    api.there.clear()
    templates.forget("ml", "t")
    templates.ensure("ml", "t", SPEC)
    assert len(api.there) == 1


def test_many_shapes_are_remembered_for_a_minute_alone(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admission.cluster.claim_templates._MOST_FRESH", 3)
    clock = FakeClock()
    templates = replica(api, clock)
    for number in range(3):
        templates.ensure("ml", f"t{number}", SPEC)
    clock.pass_(FRESH_SECONDS)
    templates.ensure("ml", "t3", SPEC)
    assert len(templates._fresh) == 1


def test_an_idle_one_is_deleted_and_one_that_pods_name_is_kept_and_not_looked_at_for_an_hour(
    api: Api,
) -> None:
    clock = FakeClock()
    leader = replica(api, clock)
    for name in ("used", "idle"):
        leader.ensure("ml", name, SPEC)
    api.pods = {("ml", "used"), ("other", "idle")}
    clock.pass_(IDLE_SECONDS - 1)
    assert leader.sweep(api.watched()) == 0
    clock.pass_(1)
    assert leader.sweep(api.watched()) == 1
    assert list(api.there) == [("ml", "used")]
    api.pods, before = set(), len(api.calls)
    clock.pass_(IDLE_SECONDS - 1)
    assert leader.sweep(api.watched()) == 0
    assert len(api.calls) == before
    clock.pass_(1)
    assert leader.sweep(api.watched()) == 1


def test_one_that_a_pod_needs_while_it_is_being_collected_stays(api: Api) -> None:
    clock = FakeClock()
    leader, other = replica(api, clock), replica(api, clock)
    leader.ensure("ml", "t", SPEC)
    clock.pass_(IDLE_SECONDS)
    seen = api.watched()
    other.ensure("ml", "t", SPEC)
    assert leader.sweep(seen) == 0
    assert ("ml", "t") in api.there


def test_one_that_is_collected_first_is_made_again_for_the_pod(api: Api) -> None:
    clock = FakeClock()
    leader, other = replica(api, clock), replica(api, clock)
    leader.ensure("ml", "t", SPEC)
    clock.pass_(IDLE_SECONDS)
    seen = api.watched()
    api.between = lambda _call: None if leader.sweep(seen) == 1 else pytest.fail("not collected")
    assert other.ensure("ml", "t", SPEC) == ""
    assert ("ml", "t") in api.there


def test_no_pod_that_was_let_pass_lacks_its_template_under_any_interleaving() -> None:
    """Two replicas, a leader that sweeps, pods that come and go, hands that delete nothing."""
    for seed in range(300):
        draw, api, clock = generator(f"templates/{seed}"), Api(), FakeClock()
        replicas = [replica(api, clock), replica(api, clock)]
        seen: list[TurnedTemplate] = []
        storing: list[tuple[float, tuple[str, str]]] = []  # pods that were let pass, stored within a minute
        for _ in range(60):
            act = draw.randrange(6)
            key = ("ml", f"t{draw.randrange(3)}")
            if act == 0:
                seen = api.watched()  # what the watch showed last may be old
            elif act == 1:
                replicas[0].sweep(seen)
            elif act == 2 and api.pods:
                api.pods.discard(draw.choice(sorted(api.pods)))
            elif act == 3:
                clock.pass_(draw.choice([1.0, 30.0, 59.0, IDLE_SECONDS / 2, IDLE_SECONDS]))
                storing = [one for one in storing if not _store(api, one, clock)]
            else:
                assert draw.choice(replicas).ensure(*key, SPEC) == ""
                storing.append((clock.monotonic() + 60.0, key))
            for _, wanted in storing:
                assert wanted in api.there
            assert api.pods <= set(api.there)


def _store(api: Api, pod: tuple[float, tuple[str, str]], clock: FakeClock) -> bool:
    """The pod is stored if its time has come; one whose API server gave up meanwhile is not."""
    until, key = pod
    if clock.monotonic() - until < 60.0:
        api.pods.add(key)
    return True


@pytest.mark.parametrize("said", ["", "soon", "-5", "1" * 16, "٣"])
def test_one_that_does_not_say_when_it_was_needed_was_needed_long_ago(said: str) -> None:
    meta = {"name": "t", "labels": {TURNED_LABEL: "true"}, "annotations": {TEMPLATE_NEEDED: said}}
    found = read_turned_template({"metadata": meta})
    assert found is not None
    assert found.needed == 0.0


def test_the_watch_keeps_of_templates_what_the_sweep_needs_and_only_of_ours() -> None:
    world, api = World(), Api()
    replica(api, world.clock).ensure("ml", "t", SPEC)
    foreign = {"metadata": {"name": "f", "namespace": "ml"}, "spec": {"spec": SPEC}}
    [made] = api.there.values()
    world.cluster.replace(TEMPLATES, [slim_template(made), slim_template(foreign)])
    assert world.cluster.claims.turned == tuple(api.watched())
    assert world.cluster.claims.spec_of("ml", {"resourceClaimTemplateName": "f"}) is not None
    world.cluster.apply(TEMPLATES, "DELETED", slim_template(made))
    assert world.cluster.claims.turned == ()

"""A size in a workload's own metadata: its pods follow in place, new ones start so, and go back without it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from admission.cluster.snapshot import ClusterState
from admission.cluster.trim import slim_pod
from admission.webhook.admit import CreateTimeChecks, mutate, validate
from bench.advice_written import written
from gpu_manager.domain.contract import ADVICE, CORE, MEMORY, RESIZE, TEMPLATE_SIZE
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.resize.judgement import legal_sizes
from gpu_manager.domain.resize.sizes import effective_request, note_template, was_made_for_another
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from tests.fakes.extender import pod
from tests.fakes.resize_answers import Cluster
from tests.fakes.reviews import ask, container, patched, review
from tests.fakes.reviews import pod as new_pod
from tests.fakes.reviews import workload as workload_review

UNIT = DEFAULT_UNIT
Obj = dict[str, Any]


def wants(**size: Any) -> str:
    return json.dumps({"v": 1, "containers": {"main": size}})


def workload(asked: str | None, name: str = "web") -> Obj:
    annotations = {} if asked is None else {RESIZE: asked}
    return {"metadata": {"namespace": "default", "name": name, "annotations": annotations}}


def replica(name: str, core: int = 30, memory: int = 4, **annotations: str) -> Obj:
    """A pod of Deployment web."""
    obj = pod(name, core, memory, annotations=annotations)
    meta = {
        **obj["metadata"],
        "labels": {"pod-template-hash": "abc"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "web-abc", "controller": True, "uid": "1"}],
    }
    return {**obj, "metadata": meta}


class Owned(Cluster):
    """A Deployment whose pods run; ``owner`` is what it asks for."""

    def deploy(self, name: str, core: int = 30, memory: int = 4, **annotations: str) -> None:
        self.create(replica(name, core, memory, **annotations))
        assert self.schedule(self.there(name))
        self.agent(name, core, memory)

    def owner(self, asked: str | None) -> None:
        self.cluster.workloads.change("Deployment", workload(asked), gone=False)
        self.answers.tick()

    def size(self, name: str) -> Amount | None:
        answer = self.answered(name)
        return answer.sizes.get("main") if answer else None


def test_running_pods_follow_their_owner_in_place_and_go_back_without_it() -> None:
    cluster = Owned()
    cluster.deploy("one")
    cluster.run("alone")
    cluster.owner(wants(cores=40))
    assert cluster.size("one") == Amount(40, 4 * UNIT)
    assert cluster.size("alone") is None
    cluster.agent("one", 40, 4)
    cluster.clock.pass_(2)
    cluster.owner(None)
    assert cluster.size("one") == Amount(30, 4 * UNIT)


def test_a_pods_own_request_stands_over_its_owners() -> None:
    cluster = Owned()
    cluster.deploy("one")
    cluster.ask("one", cores=20)
    cluster.agent("one", 20, 4)
    cluster.clock.pass_(2)
    cluster.owner(wants(cores=40))
    assert cluster.size("one") == Amount(20, 4 * UNIT)
    cluster.annotate("one", {RESIZE: None})
    cluster.clock.pass_(2)
    cluster.answers.tick()
    assert cluster.size("one") == Amount(40, 4 * UNIT)


def created(asked: str, **given: Any) -> tuple[Pod, list[str]]:
    """A new pod of the workload, as ``/mutate`` leaves it, and the warnings."""
    before = new_pod(container("main", core="30", memory="4"), **given)
    checks = CreateTimeChecks(size=lambda _: asked)
    response = ask(lambda r, terms: mutate(r, terms, checks), review(before))
    after = patched(before, response)
    again = ask(lambda r, terms: mutate(r, terms, checks), review(after))
    assert patched(after, again) == after, "the API server may ask twice"
    return parse_pod(after), list(response.get("warnings") or ())


@pytest.mark.parametrize("annotations", [None, {"mine": "kept"}])
def test_a_new_pod_starts_at_its_owners_size_and_knows_its_templates(
    annotations: dict[str, str] | None,
) -> None:
    there, warnings = created(wants(cores=50), **({"annotations": annotations} if annotations else {}))
    (main,) = there.containers
    assert (main.wants(CORE), main.wants(MEMORY), warnings) == (50, 4, [])
    assert legal_sizes(there, UNIT) == {"main": Amount(50, 4 * UNIT)}
    assert json.loads(there.annotations[TEMPLATE_SIZE])["containers"] == {
        "main": {"cores": 30, "memory": 4 * UNIT}
    }


def test_a_size_that_does_not_suit_the_template_leaves_new_pods_as_they_are() -> None:
    there, warnings = created(wants(cores=100))
    assert there.containers[0].wants(CORE) == 30
    assert "is not used" in warnings[0]
    assert "use 99" in warnings[0]


def test_a_copied_pod_does_not_bring_another_ones_template() -> None:
    there, warnings = created("", annotations={TEMPLATE_SIZE: wants(cores=5)})
    assert TEMPLATE_SIZE not in there.annotations
    assert warnings == [
        f"annotation {TEMPLATE_SIZE} is removed: it resizes a running pod, and a new one has the size of its spec"
    ]


def test_a_pod_that_was_created_at_its_owners_size_is_left_alone_until_that_changes() -> None:
    asked = wants(cores=50)
    note = created(asked)[0].annotations[TEMPLATE_SIZE]
    cluster = Owned()
    cluster.cluster.workloads.change("Deployment", workload(asked), gone=False)
    cluster.deploy("one", 50, 4, **{TEMPLATE_SIZE: note})
    cluster.answers.tick()
    assert cluster.size("one") is None
    cluster.owner(wants(memory="2Gi"))
    assert cluster.size("one") == Amount(30, 8 * UNIT), "what is left out is as in the template"
    cluster.agent("one", 50, 8)
    cluster.agent("one", 30, 8)
    cluster.clock.pass_(2)
    cluster.owner(None)
    assert cluster.size("one") == Amount(30, 4 * UNIT)


def test_pods_without_a_request_are_not_looked_at() -> None:
    cluster = Owned()
    cluster.deploy("one")
    assert cluster.cluster.resizing() == ()
    cluster.owner(wants(cores=40))
    assert [one.uid for one in cluster.cluster.resizing()] == [
        PodUid(cluster.there("one")["metadata"]["uid"])
    ]
    cluster.cluster.workloads.replace("Deployment", [], lambda _: None)
    assert len(cluster.cluster.resizing()) == 1, "its answer stays"


def test_a_list_of_one_kind_leaves_the_others() -> None:
    state = ClusterState(UNIT)
    changed: list[bool] = []

    def listed(kind: str, *objects: dict[str, Any]) -> None:
        state.workloads.replace(
            kind, objects, lambda obj: changed.append(state.workloads.change(kind, obj, gone=False))
        )

    listed("StatefulSet", workload(wants(cores=5), "db"))
    listed("Deployment", workload(wants(cores=6)))
    listed("Deployment", workload(wants(cores=6)))
    listed("Deployment")
    assert changed == [True, True, False]
    there = parse_pod(
        {
            "metadata": {
                "namespace": "default",
                "name": "db-0",
                "ownerReferences": [{"kind": "StatefulSet", "name": "db", "controller": True}],
            }
        }
    )
    assert state.workloads.asked_of(there) == wants(cores=5)


def test_what_is_kept_of_pods_owners_is_small() -> None:
    kept = slim_pod(replica("one"))
    assert kept is not None
    assert parse_pod(kept).workload == "Deployment/web"


@pytest.mark.parametrize(("asked", "says"), [(wants(cores=100), "use 99"), (wants(cores=50), "")])
def test_a_workloads_size_is_judged_when_it_is_written(asked: str, says: str) -> None:
    template = new_pod(container("main", core="30", memory="4"))
    old = {"metadata": {"name": "web"}, "spec": {"template": template}}
    new = {**old, "metadata": {"name": "web", "annotations": {RESIZE: asked}}}
    response = ask(validate, workload_review("Deployment", "apps", "deployments", new, old))
    assert (response["allowed"], says in str(response.get("status", ""))) == (not says, True)
    later = workload_review("Deployment", "apps", "deployments", new, new)
    assert ask(validate, later)["allowed"], "what stands may stay"


@pytest.mark.parametrize(
    ("cores", "says"), [([10, 120], "bounded by 10 to 120: use 10 to 99"), ([10, 60], "")]
)
def test_a_workloads_bounds_of_advice_are_judged_when_they_are_written(cores: list[int], says: str) -> None:
    template = new_pod(container("main", core="30", memory="4"))
    old = {"metadata": {"name": "web"}, "spec": {"template": template}}
    terms = json.dumps({"v": 1, "apply": "in-place", "containers": {"main": {"cores": cores}}})
    new = {**old, "metadata": {"name": "web", "annotations": {ADVICE: terms}}}
    response = ask(validate, workload_review("Deployment", "apps", "deployments", new, old))
    assert (response["allowed"], says in str(response.get("status", ""))) == (not says, True)


def made_at(owners: str, **annotations: str) -> Pod:
    """A replica that was created at this size of its owner, from a template of 30 cores, 1 GiB."""
    note = note_template({"main": Amount(30, 4 * UNIT)}, owners)
    return parse_pod(replica("one", **{TEMPLATE_SIZE: note, **annotations}))


def test_an_owners_size_that_cannot_be_read_is_passed_on_as_it_is() -> None:
    assert effective_request(made_at(wants(cores=40)), "nonsense") == "nonsense"


def test_a_pod_whose_note_of_its_template_cannot_be_read_follows_its_owner() -> None:
    odd = parse_pod(replica("one", **{TEMPLATE_SIZE: '{"v": 1, "containers": {"main": {"cores": "x"}}}'}))
    assert effective_request(odd, wants(cores=40)) == wants(cores=40)
    assert effective_request(odd, "") is None


@pytest.mark.parametrize("seed", range(40))
def test_a_size_is_taken_if_an_empty_node_could_hold_it_and_refused_else(seed: int) -> None:
    assert written(seed)[1] == ""


def test_a_pod_was_made_for_another_size_if_its_note_is_of_another_request() -> None:
    noted = note_template({"main": Amount(30, 4 * UNIT)}, wants(cores=40))
    made = parse_pod(replica("one", **{TEMPLATE_SIZE: noted}))
    assert was_made_for_another(made, "")
    assert was_made_for_another(made, wants(cores=50))
    assert not was_made_for_another(made, wants(cores=40))
    assert not was_made_for_another(parse_pod(replica("two")), wants(cores=50)), "it has its template's size"

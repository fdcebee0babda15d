"""Ways in which a container of a pod could be shown more cards than its own: envFrom, privilege, ephemeral ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from admission.config import ClusterTerms
from admission.webhook.admission_review import parse_review
from admission.webhook.admit import CreateTimeChecks, InjectionWays, mutate, validate
from admission.webhook.create_time_checks import create_time_checks
from gpu_manager.domain.contract import CORE, INVENTORY, VISIBLE_ENV, decode_inventory, encode_inventory
from gpu_manager.domain.rules.rulebook import Rule
from gpu_manager.domain.topology import MAX_CARDS
from tests.fakes.extender import World, node
from tests.fakes.reviews import ask, container, patched, pod, review, update, workload

FROM = [{"configMapRef": {"name": "settings"}}]
VOID = {"name": VISIBLE_ENV, "value": "void"}
BY_VARIABLE = CreateTimeChecks(injection=lambda _: InjectionWays("n1", known=True))
BY_DEVICES = CreateTimeChecks(injection=lambda _: InjectionWays(known=True))
UNTOLD = CreateTimeChecks()


def judged(
    obj: dict[str, Any], checks: CreateTimeChecks, terms: ClusterTerms | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The pod as it is stored, and the ids of the rules that refuse it."""
    first = ask(mutate, review(obj), terms, checks=checks)
    stored = patched(obj, first)
    found = validate(parse_review(json.dumps(review(stored)).encode()), terms or ClusterTerms(), checks)
    assert found.allowed is not bool(found.message)
    return stored, () if found.allowed else found.rules


def env_of(obj: dict[str, Any], index: int = 0, group: str = "containers") -> list[dict[str, Any]] | None:
    return obj["spec"][group][index].get("env")


def test_where_no_variable_shows_cards_an_explicit_void_comes_before_what_env_from_may_bring() -> None:
    stored, refused = judged(pod(container("c", "30", "20", envFrom=FROM)), BY_DEVICES)
    assert (env_of(stored), refused) == ([VOID], ())
    other = {"name": "A", "value": "b"}
    stored, refused = judged(pod(container("c", "30", "20", envFrom=FROM, env=[other])), BY_DEVICES)
    assert (env_of(stored), refused) == ([other, VOID], ())
    again = ask(mutate, review(stored), checks=BY_DEVICES)
    assert patched(stored, again) == stored


def test_where_a_variable_shows_them_env_from_is_refused_with_the_cure() -> None:
    made = pod(container("c", "30", "20", envFrom=FROM))
    stored, refused = judged(made, BY_VARIABLE)
    assert (env_of(stored), refused) == (None, ("env-from",))
    answer = ask(validate, review(made), checks=BY_VARIABLE)
    assert 'container "c": envFrom may bring NVIDIA_VISIBLE_DEVICES' in answer["status"]["message"]
    assert 'as on node "n1": name its variables one by one in env' in answer["status"]["message"]
    assert judged(made, BY_VARIABLE, ClusterTerms(allow_env_from=True))[1] == ()


def test_a_container_without_a_share_is_shown_none_on_any_node() -> None:
    """Init containers and neighbours get no card by the variable, so nothing is lost."""
    beside = container("b", resources={}, envFrom=FROM)
    for checks in (BY_VARIABLE, BY_DEVICES, UNTOLD):
        stored, refused = judged(pod(container("c", "30", "20"), beside, initContainers=[beside]), checks)
        assert (env_of(stored, 1), env_of(stored, 0, "initContainers"), refused) == ([VOID], [VOID], ())


def test_what_names_the_variable_itself_or_asks_for_no_card_is_left_as_it_is() -> None:
    named = pod(container("c", "30", "20", envFrom=FROM, env=[{"name": VISIBLE_ENV, "value": "none"}]))
    plain = pod(container("c", resources={}, envFrom=FROM))
    for made in (named, plain):
        stored, refused = judged(made, BY_VARIABLE)
        assert (env_of(stored), refused) == (env_of(made), ())


def test_nodes_that_do_not_tell_how_they_inject_are_given_the_benefit_and_judge_themselves() -> None:
    stored, refused = judged(pod(container("c", "30", "20", envFrom=FROM)), UNTOLD)
    assert (env_of(stored), refused) == (None, ())


def test_a_template_is_foretold_the_same() -> None:
    template = pod(container("c", "30", "20", envFrom=FROM))
    made = {"metadata": {"name": "d"}, "spec": {"template": template}}
    for checks, said in ((BY_VARIABLE, True), (BY_DEVICES, False)):
        answer = ask(validate, workload("Deployment", "apps", "deployments", made), checks=checks)
        assert answer["allowed"]
        assert any("envFrom may bring" in one for one in answer.get("warnings", ())) is said


# How nodes inject.


def injecting(name: str, way: str, **labels: str) -> dict[str, Any]:
    made = node(name, labels=labels)
    told = json.loads(made["metadata"]["annotations"][INVENTORY])
    told["injection"] = {"ok": True, **({"by": way} if way else {})}
    made["metadata"]["annotations"][INVENTORY] = json.dumps(told)
    return made


def ways(nodes: list[dict[str, Any]], **spec: Any) -> InjectionWays:
    world = World(nodes)
    checks = create_time_checks(world.cluster, world.quota, world.judge, world.clock)
    return checks.injection({"spec": spec})


def test_the_nodes_that_a_pod_may_go_to_decide() -> None:
    nodes = [injecting("a", "direct", kind="a"), injecting("b", "nvidia", kind="b"), injecting("c", "cdi")]
    assert ways(nodes) == InjectionWays("b", known=True)
    assert ways(nodes, nodeSelector={"kind": "a"}) == InjectionWays(known=True)
    assert ways(nodes, nodeSelector={"kind": "b"}).by_variable == "b"
    assert ways(nodes, nodeName="c").hidden
    assert ways([injecting("a", "direct"), injecting("old", "")]) == InjectionWays(known=False)
    assert ways([]) == ways(nodes, nodeSelector={"kind": "none"}) == InjectionWays()


def test_a_cordon_or_a_taint_may_be_gone_when_the_pod_is_placed() -> None:
    closed = injecting("a", "nvidia")
    closed["spec"] = {"unschedulable": True, "taints": [{"key": "x", "effect": "NoSchedule"}]}
    assert ways([closed, injecting("b", "direct")]).by_variable == "a"


def test_an_inventory_tells_how_and_is_bounded_before_its_links_are_read() -> None:
    found = decode_inventory(injecting("a", "cdi")["metadata"]["annotations"][INVENTORY])
    assert found is not None
    assert found.injects_by == "cdi"
    assert decode_inventory(encode_inventory(found)) == found
    told = json.loads(encode_inventory(found))
    card = told["cards"][0]
    told["cards"] = [{**card, "i": n, "uuid": f"GPU-{n}"} for n in range(MAX_CARDS + 1)]
    count = len(told["cards"])
    told["links"] = [["X" if a == b else "SYS" for a in range(count)] for b in range(count)]
    assert decode_inventory(json.dumps(told)) is None
    told["cards"] = told["cards"][:MAX_CARDS]
    told["links"] = [row[:MAX_CARDS] for row in told["links"][:MAX_CARDS]]
    assert decode_inventory(json.dumps(told)) is not None


# Neighbours.


def test_a_privileged_neighbour_of_a_share_is_warned_of() -> None:
    beside = container("b", resources={}, securityContext={"privileged": True})
    answer = ask(validate, review(pod(container("c", "30", "20"), beside)))
    assert answer["allowed"]
    (said,) = answer["warnings"]
    assert 'container "b": securityContext.privileged is true in a pod in which container "c"' in said
    for whole in (container("c", "100"), container("c", resources={})):
        assert "warnings" not in ask(validate, review(pod(whole, beside)))


@pytest.mark.parametrize(
    ("added", "rule"),
    [
        ({"env": [{"name": VISIBLE_ENV, "value": "all"}]}, Rule.VISIBLE_DEVICES_SET),
        ({"env": [{"name": VISIBLE_ENV, "valueFrom": {}}]}, Rule.VISIBLE_DEVICES_SET),
        ({"envFrom": FROM}, Rule.ENV_FROM),
        ({"envFrom": FROM, "env": [VOID]}, None),
        ({}, None),
    ],
)
def test_an_ephemeral_container_is_shown_no_card(added: dict[str, Any], rule: Rule | None) -> None:
    old = pod(container("c", "30", "20"))
    new = pod(container("c", "30", "20"), ephemeralContainers=[{"name": "debug", "image": "i", **added}])
    answer = ask(validate, update(old, new, "ephemeralcontainers"))
    assert answer["allowed"] is (rule is None)
    if rule is not None:
        assert 'container "debug": ' in answer["status"]["message"]
    plain = pod(container("c", resources={}), ephemeralContainers=new["spec"]["ephemeralContainers"])
    assert ask(validate, update(pod(container("c", resources={})), plain, "ephemeralcontainers"))["allowed"]
    assert CORE not in str(plain)

"""The sandbox with front dra and split: claims from a manifest to a running container, and their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from gpu_manager.adapters.manifests import read_objects
from gpu_manager.cli.ask import status
from gpu_manager.cli.files import load
from gpu_manager.domain.contract import CORE, DRA_DRIVER, FRONT_LABEL, MEMORY
from gpu_manager.domain.dra.sides import Front
from gpu_manager.domain.errors import RequestInvalid
from sandbox import commands
from sandbox.simulated_cluster import NODE, Sandbox, SandboxSettings
from tests.fakes.sandbox import short_directory
from tests.fakes.waiting import until

PART: dict[str, Any] = {"capacity": {"requests": {"cores": "30", "memory": "4Gi"}}}
EXAMPLES = "deploy/examples"
Obj = Mapping[str, Any]


@pytest.fixture(scope="module", params=["dra", "split"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with (
        short_directory() as directory,
        Sandbox(SandboxSettings(directory / "s", "t4x4", front=Front(request.param))) as made,
    ):
        yield made


@pytest.fixture(autouse=True)
def nothing_left(sandbox: Sandbox) -> Iterator[None]:
    """Every pod goes, its claims with it, and no claim holds a card."""
    yield
    for pod in sandbox.api.list("pods"):
        if pod["metadata"]["namespace"] != "kube-system":
            sandbox.api.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
    until(lambda: not holders(sandbox))
    until(lambda: not any(users(claim) for claim in sandbox.api.list("resourceclaims")))
    for claim in sandbox.api.list("resourceclaims"):
        if not claim["metadata"].get("ownerReferences"):
            sandbox.api.delete("resourceclaims", claim["metadata"]["name"], claim["metadata"]["namespace"])
    until(lambda: not sandbox.api.list("resourceclaims"))


def users(claim: Obj) -> Sequence[Obj]:
    """The pods for which it is reserved."""
    found: Sequence[Obj] = (claim.get("status") or {}).get("reservedFor") or ()
    return found


def request_of(*, template: bool = False, name: str = "gpu", **exactly: Any) -> dict[str, Any]:
    """A ResourceClaim or a template, of one request ``gpu``."""
    one = {"name": "gpu", "exactly": {"deviceClassName": DRA_DRIVER, **exactly}}
    spec: dict[str, Any] = {"devices": {"requests": [one]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate" if template else "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"spec": spec} if template else spec,
    }


def pod(name: str, claim: Obj, command: Sequence[str] = ("sleep", "600")) -> dict[str, Any]:
    kind = "resourceClaimTemplateName" if claim["kind"] == "ResourceClaimTemplate" else "resourceClaimName"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "x",
                    "command": list(command),
                    "resources": {"claims": [{"name": "gpu"}]},
                }
            ],
            "resourceClaims": [{"name": "gpu", kind: claim["metadata"]["name"]}],
        },
    }


def phase(sandbox: Sandbox, name: str, namespace: str = "default") -> str:
    found = sandbox.api.get("pods", name, namespace) or {}
    return str((found.get("status") or {}).get("phase"))


def runs(sandbox: Sandbox, name: str, namespace: str = "default") -> None:
    until(lambda: phase(sandbox, name, namespace) == "Running")


def holders(sandbox: Sandbox) -> list[tuple[int, int]]:
    """Index of the card and cores of all that claims hold."""
    cards = sandbox.graph()["cards"]
    return [(card["index"], held["cores"]) for card in cards for held in card["holders"] if held.get("claim")]


def cards_of_pods(sandbox: Sandbox) -> set[int]:
    """Cards of which a pod holds a part by extended resources."""
    cards = sandbox.graph()["cards"]
    return {card["index"] for card in cards for held in card["holders"] if not held.get("claim")}


def waits(sandbox: Sandbox, name: str) -> str:
    found = sandbox.api.get("pods", name) or {}
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((str(c.get("message")) for c in conditions if c.get("status") == "False"), "")


def test_a_pod_with_a_template_runs_within_its_share_and_its_claim_goes_with_it(sandbox: Sandbox) -> None:
    template = request_of(template=True, name="third", **PART)
    commands.apply(sandbox.api, [template, pod("train", template, ["cuda-spin", "600"])])
    runs(sandbox, "train")
    [claim] = sandbox.api.list("resourceclaims")
    assert claim["metadata"]["name"].startswith("train-gpu-")
    [(_, cores)] = holders(sandbox)
    assert cores == 30
    assert f"claim {claim['metadata']['name']} holds 30 cores, 4 GiB" in sandbox.explain("default", "train")
    if sandbox.native.complete:
        until(lambda: 0.2 < used(sandbox) < 0.4)
    sandbox.api.delete("pods", "train", grace=0)
    until(lambda: not sandbox.api.list("resourceclaims"))


def test_status_says_which_cards_are_given_by_claims_and_what_is_free_of_them(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = request_of(**PART)
    commands.apply(sandbox.api, [claim, pod("a", claim)])
    runs(sandbox, "a")
    assert status(sandbox.metrics_url.removesuffix("/metric")) == 0
    shown = capsys.readouterr().out.splitlines()
    by_claims = [line for line in shown if "given by ResourceClaims" in line]
    assert len(by_claims) == sum(bool(card.get("held")) for card in sandbox.graph()["cards"])
    ours = by_claims or shown  # a node of claims alone has no other cards to tell them from
    assert [line for line in ours if "70 cores, 10.5 GiB" in line], shown
    assert [line for line in ours if "100 cores, 14.5 GiB" in line], shown


def test_a_pod_whose_claim_is_refused_has_the_reason_as_an_event(sandbox: Sandbox) -> None:
    template = request_of(template=True, name="first", **PART)
    parameters = {"apiVersion": f"{DRA_DRIVER}/v1", "kind": "ShareParameters", "priority": "protected"}
    devices = template["spec"]["spec"]["devices"]
    devices["config"] = [{"opaque": {"driver": DRA_DRIVER, "parameters": parameters}}]
    commands.apply(sandbox.api, [template, pod("service", template)])

    def told() -> list[str]:
        events = (one for one in sandbox.api.list("events") if one["involvedObject"]["name"] == "service")
        return [one["message"] for one in events if one["reason"] == "FailedResourceClaimCreation"]

    until(lambda: any("protected shares" in one and "are not granted to it" in one for one in told()))
    assert told()[0].startswith("PodResourceClaim gpu: failed to create ResourceClaim: admission webhook ")
    log = sandbox.directory / "admission.log"
    until(lambda: log.read_text().count('"name": "service-gpu-') >= 3)
    assert len(told()) == len(set(told())), "once for each reason, however often it is tried"


def used(sandbox: Sandbox) -> float:
    line = "vcuda_container_core_usage_ratio{"
    return sum(float(x.rpartition(" ")[2]) for x in sandbox.ask("/metric").splitlines() if x.startswith(line))


def test_two_pods_share_a_claim_and_one_that_ends_by_itself_leaves_it_to_the_other(sandbox: Sandbox) -> None:
    claim = request_of(**PART)
    commands.apply(sandbox.api, [claim, pod("a", claim), pod("b", claim, ["sleep", "1"])])
    runs(sandbox, "a")
    until(lambda: phase(sandbox, "b") == "Succeeded")
    until(lambda: [len(users(one)) for one in sandbox.api.list("resourceclaims")] == [1])
    assert len(holders(sandbox)) == 1


def test_a_claim_without_room_waits_is_explained_and_runs_once_there_is_room(sandbox: Sandbox) -> None:
    cards = len(sandbox.cards) if sandbox.settings.front is Front.DRA else len(sandbox.cards) // 2
    whole = request_of(name="whole", count=cards)
    late = request_of(name="late", **PART)
    commands.apply(sandbox.api, [whole, pod("first", whole)])
    runs(sandbox, "first")
    commands.apply(sandbox.api, [late, pod("second", late)])
    until(lambda: "cannot allocate all claims" in waits(sandbox, "second"))
    until(lambda: "held by claim default/whole" in sandbox.explain("default", "second"))
    sandbox.api.delete("pods", "first", grace=0)
    runs(sandbox, "second")


def test_a_claim_that_is_not_there_and_a_class_that_nobody_made_are_said_or_wait(sandbox: Sandbox) -> None:
    commands.apply(sandbox.api, [pod("early", request_of(name="later"))])
    until(lambda: 'resourceclaim "later" not found' in waits(sandbox, "early"))
    odd = request_of(name="odd")
    odd["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "vcuda.tencent.con"
    commands.apply(sandbox.api, [odd, pod("typo", odd)])
    until(lambda: "cannot allocate all claims" in waits(sandbox, "typo"))
    commands.apply(sandbox.api, [request_of(name="later", **PART)])
    runs(sandbox, "early")


def test_a_killed_agent_and_a_restarted_kubelet_find_claims_as_they_were(sandbox: Sandbox) -> None:
    claim, more = request_of(**PART), request_of(name="more", **PART)
    commands.apply(sandbox.api, [claim, pod("stays", claim)])
    runs(sandbox, "stays")
    before = holders(sandbox)
    commands.fault(sandbox, "agent kill")
    commands.fault(sandbox, "kubelet restart")
    commands.apply(sandbox.api, [more, pod("comes", more)])
    runs(sandbox, "comes")
    until(lambda: len(holders(sandbox)) == 2)
    assert before[0] in holders(sandbox)


def test_selectors_choose_the_card_and_what_cannot_be_read_takes_none(sandbox: Sandbox) -> None:
    card = sandbox.cards[3]
    by = f"device.attributes['{DRA_DRIVER}'].uuid == '{card.uuid}'"
    this = request_of(name="this", selectors=[{"cel": {"expression": by}}], **PART)
    odd = request_of(name="odd", selectors=[{"cel": {"expression": "device.capacity.size() > 1"}}], **PART)
    commands.apply(sandbox.api, [this, odd, pod("this", this), pod("odd", odd)])
    runs(sandbox, "this")
    until(lambda: "cannot allocate all claims" in waits(sandbox, "odd"))
    assert [index for index, _ in holders(sandbox)] == [3]


def test_old_manifests_are_turned_in_a_labelled_namespace(sandbox: Sandbox) -> None:
    assert sandbox.admission is not None, "nobody turns them without it"
    commands.apply(
        sandbox.api,
        [
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": "team", "labels": {FRONT_LABEL: "dra"}},
            }
        ],
    )
    until(lambda: sandbox.api.get("namespaces", "team"))
    commands.apply(sandbox.api, [by_resources("train", "team")])
    runs(sandbox, "train", "team")
    [claim] = sandbox.api.list("resourceclaims")
    [result] = claim["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"]["cores"] == "30"


def by_resources(name: str, namespace: str = "default") -> dict[str, Any]:
    limits = {CORE: 30, MEMORY: 8}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "main", "image": "x", "command": ["sleep", "600"], "resources": {"limits": limits}}
            ],
        },
    }


def test_extended_resources_wait_on_a_node_of_claims_and_have_cards_of_their_own_on_a_split_one(
    sandbox: Sandbox,
) -> None:
    claim = request_of(**PART)
    commands.apply(sandbox.api, [claim, pod("claims", claim), by_resources("resources")])
    runs(sandbox, "claims")
    if sandbox.settings.front is Front.DRA:
        until(lambda: f"Insufficient {CORE}" in waits(sandbox, "resources"))
        return
    runs(sandbox, "resources")
    [(card, _)] = holders(sandbox)
    assert cards_of_pods(sandbox)
    assert card not in cards_of_pods(sandbox)
    fronts = [x for x in sandbox.ask("/metric").splitlines() if x.startswith("vcuda_card_front{")]
    assert sum('front="dra"' in x for x in fronts) == len(sandbox.cards) // 2


@pytest.mark.parametrize("name", ["parts-of-two-cards.yaml", "look-at-cards.yaml"])
def test_the_examples_run(sandbox: Sandbox, name: str) -> None:
    objects = [obj for _, obj in load(f"{EXAMPLES}/{name}", read_objects)]
    [made] = [obj for obj in objects if obj["kind"] == "Pod"]
    made["spec"]["containers"][0]["command"] = ["sleep", "600"]
    commands.apply(sandbox.api, objects)
    runs(sandbox, made["metadata"]["name"], made["metadata"].get("namespace", "default"))


def test_a_node_of_one_card_is_not_split() -> None:
    with short_directory() as directory, pytest.raises(RequestInvalid, match="half the cards"):
        Sandbox(SandboxSettings(directory / "s", "one", front=Front.SPLIT))


def test_the_node_is_the_one_that_the_slice_names(sandbox: Sandbox) -> None:
    assert {one["spec"]["nodeName"] for one in sandbox.api.list("resourceslices")} == {NODE}

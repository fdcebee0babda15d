"""``kubectl vcuda resize`` over the API stand-in: what it writes, and what it says of the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.adapters.kube.changes import change_size
from gpu_manager.adapters.kube.connection import connect_person
from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import ALLOCATION, ASSIGNED, RESIZE, RESIZED, Assignment, encode_assignment
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resize.sizes import ResizeAnswer, digest, encode_answer, with_size
from gpu_manager.domain.resources import GIB, Amount
from sandbox.api import StandInApi
from tests.fakes.kubectl import a_node, a_share, said
from tests.fakes.node import container, pod

pytestmark = pytest.mark.usefixtures("kubectl_login")

SIZE = Amount(50, 8 * GIB)
WAITS = "the scheduler has not answered yet; kubectl describe pod shows its Events"


@pytest.fixture
def there(api: StandInApi) -> None:
    a_node(api)
    a_share(api, "one", 30)


def annotations(api: StandInApi) -> Mapping[str, str]:
    found: Mapping[str, str] = api.get("pods", "one")["metadata"]["annotations"]
    return found


def annotate(api: StandInApi, **written: str) -> None:
    keys = {"resized": RESIZED, "allocation": ALLOCATION, "assigned": ASSIGNED}
    api.patch(
        "pods", "one", {"metadata": {"annotations": {keys[k]: v for k, v in written.items()}}}, "default"
    )


def answer(api: StandInApi, size: Amount | None, refused: str = "") -> None:
    there = parse_pod(api.get("pods", "one"))
    annotate(
        api,
        resized=encode_answer(ResizeAnswer(there.uid, digest(there), {"c": size} if size else {}, refused)),
    )


def resize(*words: str) -> int:
    return run(["resize", "one", *words, "--wait", "0"])


@pytest.mark.usefixtures("there")
def test_a_request_is_written_and_its_way_is_told(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resize("--cores", "50", "--memory", "8Gi") == 0
    assert json.loads(annotations(api)[RESIZE]) == {
        "v": 1,
        "containers": {"c": {"cores": 50, "memory": "8Gi"}},
    }
    assert "the scheduler has not answered yet" in said(capsys)[0]
    answer(api, SIZE)
    assert resize("--cores", "50", "--memory", "8Gi") == 0
    assert "has reserved 50 cores, 8 GiB, the agent has booked none of it yet" in said(capsys)[0]
    uid = api.get("pods", "one")["metadata"]["uid"]
    held = encode_assignment(Assignment("n1", uid, {"c": ((CardUuid("GPU-0"), SIZE),)}))
    annotate(api, allocation=held, assigned="true")
    assert resize("--cores", "50", "--memory", "8Gi") == 0
    assert said(capsys)[0] == 'container "c" of default/one: 50 cores, 8 GiB\n'


@pytest.mark.usefixtures("there")
def test_a_refusal_is_told_and_ends_with_1(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    resize("--cores", "90")
    answer(api, None, "at most 70 cores")
    assert resize("--cores", "90") != 0
    text = said(capsys)[1]
    assert "default/one keeps its size: at most 70 cores. The request stands" in text
    assert "ask for a size that fits, or --reset" in text


@pytest.mark.usefixtures("there")
def test_a_request_waits_for_an_admission_service_that_starts_again(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.faults.fail(1, 500, match="patch pods")
    assert run(["resize", "one", "--cores", "50", "--wait", "0.6"]) == 0
    assert json.loads(annotations(api)[RESIZE])["containers"] == {"c": {"cores": 50}}
    api.faults.fail(1, 500, match="patch pods")
    assert resize("--cores", "60") == 1
    assert "Is the admission service up?" in said(capsys)[1]
    api.faults.fail(1, 403, match="patch pods")
    assert run(["resize", "one", "--cores", "60", "--wait", "30"]) == 1
    assert "you lack this right" in said(capsys)[1]


@pytest.mark.usefixtures("there")
def test_reset_takes_the_request_away(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    resize("--cores", "50")
    assert resize("--reset") == 0
    assert RESIZE not in annotations(api)
    assert said(capsys)[0].endswith("default/one has the size of its spec\n")


@pytest.mark.usefixtures("there")
def test_what_is_not_typed_stays_as_it_was_asked_for(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    resize("--cores", "50")
    resize("--memory", "8Gi")
    assert json.loads(annotations(api)[RESIZE])["containers"] == {"c": {"cores": 50, "memory": "8Gi"}}
    resize("--cores", "60")
    assert json.loads(annotations(api)[RESIZE])["containers"] == {"c": {"cores": 60, "memory": 8 * GIB}}
    resize("--reset")
    resize("--memory", "1Gi")
    assert json.loads(annotations(api)[RESIZE])["containers"] == {"c": {"memory": "1Gi"}}
    said(capsys)


@pytest.mark.usefixtures("there")
def test_what_a_pod_was_given_for_its_workload_stays_where_it_is_not_typed(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    there = parse_pod(api.get("pods", "one"))
    given = ResizeAnswer(there.uid, "of its owner's request", {"c": Amount(50, 8 * GIB)})
    annotate(api, resized=encode_answer(given))
    resize("--cores", "60")
    assert json.loads(annotations(api)[RESIZE])["containers"] == {"c": {"cores": 60, "memory": 8 * GIB}}
    resize("--reset")
    assert RESIZE not in annotations(api)
    said(capsys)


def test_what_is_not_there_is_bad_input_and_no_refusal(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    for target, says in (("train", 'no Pod "train" in'), ("deployment/web", 'no Deployment "web" in')):
        assert run(["resize", target, "--cores", "50"]) == 2
        assert says in capsys.readouterr().err


def test_a_pod_without_a_part_of_a_card_is_told_so(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    given: dict[str, Any] = pod("one", container("w", 200, 0))
    api.create({**given, "metadata": {"name": "one", "namespace": "default"}})
    assert resize("--cores", "50") == 2
    assert "pod default/one has no container with a part of a card" in said(capsys)[1]


def test_two_requests_at_once_for_two_containers_both_stand(api: StandInApi, tmp_path: Path) -> None:
    given: dict[str, Any] = pod("one", container("a", 30, 8), container("b", 10, 4))
    api.create({**given, "metadata": {"name": "one", "namespace": "default"}})
    connection = connect_person(str(api.kubeconfig(tmp_path / "other")))
    meanwhile = iter([with_size(None, "b", {"cores": 5})])

    def change(there: Mapping[str, Any]) -> str | None:
        if (other := next(meanwhile, None)) is not None:
            api.patch("pods", "one", {"metadata": {"annotations": {RESIZE: other}}}, "default")
        return with_size(there["metadata"].get("annotations", {}).get(RESIZE), "a", {"cores": 7})

    change_size(connection, "Pod", "default", "one", change, 0)
    connection.close()
    asked = json.loads(annotations(api)[RESIZE])["containers"]
    assert asked == {"a": {"cores": 7}, "b": {"cores": 5}}


@pytest.mark.usefixtures("there")
def test_whoever_is_always_overtaken_is_told(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.faults.fail(3, 409, match="patch pods")
    assert resize("--cores", "50") == 0
    api.faults.fail(100, 409, match="patch pods")
    assert resize("--cores", "60") == 1
    assert "(409)" in said(capsys)[1]


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give --cores, --memory or both, or --reset"),
        (["--reset", "--cores", "5"], "give --cores, --memory or both, or --reset"),
        (["--memory", "lots"], '--memory is "lots": write a quantity such as 8Gi'),
        (["--cores", "100"], "99"),
    ],
)
def test_what_is_no_size_is_not_written(
    api: StandInApi, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert resize(*words) == 2
    assert says in said(capsys)[1]
    assert RESIZE not in annotations(api)


def test_the_container_is_named_where_several_have_a_fraction(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    given: dict[str, Any] = pod("one", container("a", 30, 8), container("b", 10, 4))
    api.create({**given, "metadata": {"name": "one", "namespace": "default"}})
    assert resize("--cores", "50") == 2
    assert "has 2 containers with a part of a card (a, b): name one with --container" in said(capsys)[1]
    assert resize("--cores", "50", "-c", "a") == 0
    assert resize("--memory", "1Gi", "-c", "b") == 0
    assert json.loads(annotations(api)[RESIZE])["containers"] == {"a": {"cores": 50}, "b": {"memory": "1Gi"}}
    assert resize("--reset", "-c", "a") == 0
    assert list(json.loads(annotations(api)[RESIZE])["containers"]) == ["b"]


def test_pods_are_chosen_by_their_labels_and_one_that_has_no_fraction_keeps_no_other_from_it(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    for name in ("one", "two"):
        a_share(api, name, 30, labels={"app": "web"})
    a_share(api, "other", 30)
    a_share(api, "whole", 100, card=None, labels={"app": "web"})
    words = ["resize", "-l", "app=web", "--cores", "50", "--wait", "0"]
    assert run([*words, "--dry-run", "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)["pods"]
    assert [(one["name"], one["refused"], one["dryRun"]) for one in told] == [
        ("one", False, True),
        ("two", False, True),
        ("whole", True, True),
    ]
    assert RESIZE not in annotations(api)
    assert run(words) == 1
    assert "whole has no container with a part of a card" in said(capsys)[0]
    asking = [name for name in ("one", "other", "two", "whole") if _asks(api, name)]
    assert asking == ["one", "two"]


def _asks(api: StandInApi, name: str) -> bool:
    return RESIZE in api.get("pods", name)["metadata"].get("annotations", {})


def a_deployment(api: StandInApi, *containers: dict[str, Any]) -> None:
    template = {"spec": {"containers": list(containers)}}
    api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"template": template},
        }
    )


def test_a_workloads_size_stands_in_its_own_metadata(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_deployment(api, container("c", 30, 8))
    template = api.get("deployments", "web")["spec"]
    assert run(["resize", "deploy/web", "--cores", "50"]) == 0
    assert said(capsys)[0] == (
        'container "c" of Deployment default/web: 50 cores; no pod of it runs now, new ones start so\n'
    )
    there = api.get("deployments", "web")
    assert json.loads(there["metadata"]["annotations"][RESIZE])["containers"] == {"c": {"cores": 50}}
    assert there["spec"] == template, "a change of the template would replace every pod"
    assert run(["resize", "deployments/web", "--reset"]) == 0
    assert "go back to the template's size" in said(capsys)[0]
    assert RESIZE not in api.get("deployments", "web")["metadata"].get("annotations", {})


def replica(api: StandInApi, name: str, **written: str) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-x", "uid": "1", "controller": True}
    a_share(
        api,
        name,
        30,
        labels={"pod-template-hash": "x"},
        ownerReferences=[owner],
        annotations=written,
    )


def answered(api: StandInApi, name: str, asked: str, cores: int, refused: str = "") -> None:
    """The scheduler's answer to the owner's request, which the agent has followed."""
    there, size = parse_pod(api.get("pods", name)), Amount(cores, 2 * GIB)
    asking = replace(there, annotations={**there.annotations, RESIZE: asked})
    held = Assignment("n1", there.uid, {"c": ((CardUuid("GPU-0"), size),)})
    written = {
        RESIZED: encode_answer(ResizeAnswer(there.uid, digest(asking), {"c": size}, refused)),
        ALLOCATION: encode_assignment(held),
        ASSIGNED: "true",
    }
    api.patch("pods", name, {"metadata": {"annotations": written}}, "default")


def test_a_workloads_pods_are_told_of_one_by_one(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    a_deployment(api, container("c", 30, 8))
    a_node(api)
    for name in ("web-1", "web-2", "web-3", "web-4", "other"):
        own = {RESIZE: with_size(None, "c", {"cores": 9}) or ""} if name == "web-4" else {}
        replica(api, name, **own)
    api.patch("pods", "other", {"metadata": {"labels": {"pod-template-hash": "y"}}}, "default")
    asked = with_size(None, "c", {"cores": 50}) or ""
    answered(api, "web-1", asked, 50)
    answered(api, "web-2", asked, 30, refused="at most 40 cores")
    assert run(["resize", "deploy/web", "--cores", "50", "--wait", "0"]) == 1
    assert said(capsys)[0].splitlines() == [
        'container "c" of Deployment default/web: 50 cores; 1 of 4 running pods has it, new ones start so',
        "default/web-2 keeps its size: at most 40 cores",
        'container "c" of default/web-3: ' + WAITS,
        "default/web-4 has a request of its own, which stands over its workload's",
    ]
    answered(api, "web-2", asked, 50)
    answered(api, "web-3", asked, 50)
    api.patch("pods", "web-4", {"metadata": {"annotations": {RESIZE: None}}}, "default")
    answered(api, "web-4", asked, 50)
    assert run(["resize", "deploy/web", "--cores", "50"]) == 0
    assert said(capsys)[0].splitlines() == [
        'container "c" of Deployment default/web: 50 cores; 4 running pods have it, new ones start so'
    ]


def test_of_many_pods_that_wait_ten_are_named(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    a_deployment(api, container("c", 30, 8))
    a_node(api)
    for number in range(13):
        replica(api, f"web-{number:02}")
    assert run(["resize", "deploy/web", "--cores", "50", "--wait", "0"]) == 0
    lines = said(capsys)[0].splitlines()
    assert (len(lines), lines[-1]) == (12, "and 3 more")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (403, "running pods follow in place, as Events of each say"),
        (410, "which pods follow cannot be seen"),
    ],
)
def test_who_may_not_list_pods_resizes_a_workload_all_the_same(
    api: StandInApi, capsys: pytest.CaptureFixture[str], code: int, says: str
) -> None:
    a_deployment(api, container("c", 30, 8))
    api.faults.fail(9, code, match="list pods")
    assert run(["resize", "deploy/web", "--cores", "50"]) == 0
    assert says in said(capsys)[0]
    assert RESIZE in api.get("deployments", "web")["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("job/web", '"job" is none of pod, deployment, statefulset, daemonset: write KIND/NAME'),
        ("deployment/none", "none"),
        ("deployment/we b", "use lower-case letters"),
        ("deployment/web", "the template has 2 containers with a part of a card (a, b): name one"),
    ],
)
def test_what_is_no_workload_with_a_size_is_refused(
    api: StandInApi, capsys: pytest.CaptureFixture[str], target: str, says: str
) -> None:
    a_deployment(api, container("a", 30, 8), container("b", 10, 4))
    assert run(["resize", target, "--cores", "50"]) != 0
    assert says in said(capsys)[1]


@pytest.mark.usefixtures("there")
def test_a_reset_tells_of_the_size_that_the_owner_asks_for(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    resize("--cores", "60")
    answer(api, Amount(60, 2 * GIB))
    before = api.get("pods", "one")["metadata"]["annotations"][RESIZED]
    assert resize("--reset") == 0
    assert "has not answered yet" in said(capsys)[0].splitlines()[-1]
    assert annotations(api)[RESIZED] == before


@pytest.mark.usefixtures("there")
def test_graph_and_top_show_the_size_in_force_of_a_pod_below_its_spec(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    resize("--cores", "10", "--memory", "256Mi")
    small = Amount(10, GIB // 4)
    answer(api, small)
    uid = api.get("pods", "one")["metadata"]["uid"]
    held = encode_assignment(Assignment("n1", uid, {"c": ((CardUuid("GPU-0"), small),)}))
    annotate(api, allocation=held, assigned="true")
    said(capsys)
    assert run(["graph"]) == 0
    drawn = said(capsys)[0]
    assert "default/one c: 10 cores, 256 MiB\n" in drawn
    assert "90 of 100 cores free" in drawn
    assert drawn.startswith("n1: 2 cards; 20 cores, 1.75 GiB free without device ids: ")
    assert run(["top"]) == 0
    assert said(capsys)[0].splitlines()[1].split() == [
        "default",
        "one",
        "c",
        "n1",
        "0",
        "10",
        "-",
        "256",
        "MiB",
        "-",
    ]


@pytest.mark.usefixtures("there")
def test_a_resize_past_a_resource_quota_is_warned_of(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    hard = {"requests.tencent.com/vcuda-core": "40"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "default"}}
    api.create({**quota, "spec": {"hard": hard}})
    api.patch(
        "resourcequotas", "q", {"status": {"used": {"requests.tencent.com/vcuda-core": "30"}}},
        subresource="status",
    )  # fmt: skip
    assert resize("--cores", "40") == 0
    assert "warning" not in said(capsys)[1]
    assert resize("--cores", "50") == 0
    warned = said(capsys)[1]
    assert (
        'warning: ResourceQuota "q" grants 40 of requests.tencent.com/vcuda-core, and pods come to 50'
        in warned
    )

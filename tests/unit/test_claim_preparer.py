"""A ResourceClaim from the kubelet's first call to its last: booked once, made ready each time, released."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_manager.domain.contract import DRA_DRIVER, EVENT_REFUSED
from gpu_manager.domain.dra.parameters import API_VERSION, KIND
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.control_pages import TenantUse
from gpu_manager.services.allocation.books import Books
from gpu_manager.services.allocation.books_format import decode
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.claims.prepare import ClaimPreparer, PreparedDevice
from gpu_manager.services.recovery.repairs import InjectionKeeper
from tests.fakes.claims import FakeClaims, claim_object, result
from tests.fakes.metrics import counts, service_metrics
from tests.fakes.ports import FakeClock, FakeInjector, FakePods, FakeProcesses, FakeStore, FakeTenants, cards
from tests.fakes.state import node_of

STATES = cards(3)
GPU0, GPU1 = "gpu-00000000", "gpu-00000001"
WHOLE = {"consumedCapacity": {"cores": "100", "memory": str(16 * GIB)}}


class Node:
    """The preparer over fakes. ``restart`` is a new agent that finds what the dead one left on the disk."""

    def __init__(self) -> None:
        self.claims, self.pods, self.store = FakeClaims(), FakePods(), FakeStore()
        self.pages, self.injector, self.processes = FakeTenants(), FakeInjector(), FakeProcesses()
        self.states = STATES
        self.metrics = service_metrics()
        self.restart()

    def restart(self) -> None:
        grants, _ = decode(self.store.state) if self.store.state else ((), ())
        self.state = NodeState(Books(node_of(self.states), grants), self.store, service_metrics())
        self.preparer = ClaimPreparer(
            self.state,
            self.claims,
            self.pods,
            self.pages,
            self.injector,
            self.processes,
            self.metrics,
        )

    def prepare(self, name: str, uid: str = "") -> tuple[PreparedDevice, ...]:
        return self.preparer.prepare("ml", uid or f"claim-{name}", name)

    def unprepare(self, name: str) -> None:
        self.preparer.unprepare("ml", f"claim-{name}", name)

    @property
    def lingering(self) -> float:
        return self.metrics.lingering_claims.collect()[0].samples[0].value

    @property
    def directories(self) -> list[str]:
        return [grant.directory for grant in self.state.view.grants.values()]

    def booked(self, card: int) -> int:
        return self.state.view.ledger.booked(self.states[card].card.uuid).cores


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_claim_is_booked_and_its_pages_and_devices_are_made(node: Node) -> None:
    node.claims.add(claim_object("a", result(GPU0)))
    [device] = node.prepare("a")
    [name] = node.directories
    assert device == PreparedDevice("gpu", "n1", GPU0, "s-1", (f"tencent.com/vcuda=a-{name}",))
    [limit] = node.pages.limits[name]
    assert (limit.cores, limit.memory) == (30, 4 * GIB)
    assert node.booked(0) == 30


def user_of(*claims: dict[str, str]) -> Pod:
    names = sorted({claim["name"] for claim in claims})
    return parse_pod(
        {
            "metadata": {"name": "train-0", "namespace": "ml", "uid": "uid-train-0"},
            "spec": {
                "containers": [{"name": "c", "resources": {"claims": list(claims)}}],
                "resourceClaims": [{"name": name, "resourceClaimName": name} for name in names],
            },
        }
    )


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("used", [[{"name": "a"}], [{"name": "a", "request": n} for n in ("gpu", "more")]])
def test_two_requests_in_one_container_are_refused_by_name(
    node: Node, used: list[dict[str, str]], watched: bool
) -> None:
    node.pods.bind(user_of(*used), watched=watched)
    node.claims.add(claim_object("a", result(GPU0), result(GPU1, request="more")))
    with pytest.raises(RequestInvalid, match=r'container "c" of pod ml/train-0 .* \(a/gpu, a/more\)'):
        node.prepare("a")
    assert node.state.view.ledger.claims == ()


def test_two_claims_in_one_container_are_refused_with_the_second(node: Node) -> None:
    node.pods.bind(user_of({"name": "a"}, {"name": "b"}))
    for name in ("a", "b"):
        node.claims.add(claim_object(name, result(GPU0)))
    node.prepare("a")
    with pytest.raises(RequestInvalid, match=r"uses 2 requests of this driver \(a/gpu, b/gpu\)"):
        node.prepare("b")
    assert node.booked(0) == 30


def test_one_request_of_two_and_other_pods_claims_are_no_matter(node: Node) -> None:
    node.pods.bind(user_of({"name": "a", "request": "gpu"}, {"name": "other-drivers"}))
    node.claims.add(claim_object("a", result(GPU0), result(GPU1, request="more")))
    node.claims.add(claim_object("other-drivers", result(GPU0), pods=("train-1",)))
    node.prepare("other-drivers")
    assert len(node.prepare("a")) == 2


def test_pods_that_cannot_be_read_are_waited_for(node: Node) -> None:
    node.pods.away = True
    node.claims.add(claim_object("a", result(GPU0)))
    with pytest.raises(NodeUnready):
        node.prepare("a")


def test_the_ceiling_of_a_claims_parameters_is_in_its_pages(node: Node) -> None:
    claim = claim_object("a", result(GPU0))
    told = {"apiVersion": API_VERSION, "kind": KIND, "coreLimit": 80}
    opaque = {"driver": DRA_DRIVER, "parameters": told}
    claim["status"]["allocation"]["devices"]["config"] = [{"source": "FromClaim", "opaque": opaque}]
    node.claims.add(claim)
    node.prepare("a")
    node.restart()
    node.preparer.restore()
    [name] = node.directories
    [limit] = node.pages.limits[name]
    assert (limit.cores, limit.ceiling) == (30, 80)
    claim["metadata"] |= {"name": "b", "uid": "claim-b"}
    told["coreLimit"] = 20
    node.claims.add(claim)
    with pytest.raises(RequestInvalid, match="coreLimit is 20, below the 30 cores"):
        node.prepare("b")


def with_parameters(*results: dict[str, Any], source: str = "FromClaim", **said: object) -> dict[str, Any]:
    claim = claim_object("a", *results)
    opaque = {"driver": DRA_DRIVER, "parameters": {"apiVersion": API_VERSION, "kind": KIND, **said}}
    claim["status"]["allocation"]["devices"]["config"] = [{"source": source, "opaque": opaque}]
    return claim


@pytest.mark.parametrize("source", ["FromClaim", "FromClass"])
def test_priority_and_preload_of_parameters_reach_page_and_injection_and_outlive_the_agent(
    node: Node, source: str
) -> None:
    node.claims.add(with_parameters(result(GPU0), source=source, priority="best-effort", preload=False))
    for _ in range(2):
        node.prepare("a")
        [name] = node.directories
        [limit] = node.pages.limits[name]
        assert limit.priority is Priority.BEST_EFFORT
        assert node.injector.said == {name: (Priority.BEST_EFFORT, False)}
        node.injector.said.clear()
        node.pages.limits.clear()
        node.restart()  # from what is stored
    clock, restarted = FakeClock(), list[str]()
    keeper = InjectionKeeper(node.state, node.pods, node.injector, clock, lambda: restarted.append("agent"))
    keeper.look()
    [held] = node.injector.restored.values()
    assert (held.by_claim, held.priority, held.preload) == (True, Priority.BEST_EFFORT, False)


def test_a_row_of_a_claim_without_parameters_is_as_earlier_agents_wrote_it(node: Node) -> None:
    node.claims.add(claim_object("a", result(GPU0)))
    node.prepare("a")
    assert node.store.state is not None
    assert b"preload" not in node.store.state
    assert b"priority" not in node.store.state


def test_a_priority_of_whole_cards_is_refused_with_its_field_and_the_way_out(node: Node) -> None:
    node.claims.add(with_parameters(result(GPU0, **WHOLE), priority="protected"))
    with pytest.raises(RequestInvalid, match=r"priority is protected, but request .* leave priority out"):
        node.prepare("a")
    assert node.directories == []


def test_each_request_has_pages_of_its_own_and_each_card_a_device(node: Node) -> None:
    node.claims.add(
        claim_object(
            "a",
            result(GPU0, request="many/big", shareID="x"),
            result(GPU1, request="many/big", shareID="y"),
            result(GPU1, request="one", shareID="z"),
        )
    )
    made = node.prepare("a")
    assert [(d.request, d.device, d.share_id) for d in made] == [
        ("many", GPU0, "x"),
        ("many", GPU1, "y"),
        ("one", GPU1, "z"),
    ]
    assert len({d.cdi for d in made}) == 3
    assert sorted(len(limits) for limits in node.pages.limits.values()) == [1, 2]


def test_a_whole_card_has_no_pages(node: Node) -> None:
    node.claims.add(claim_object("a", result(GPU0, **WHOLE)))
    node.prepare("a")
    assert node.pages.limits == {}
    assert node.booked(0) == 100


def test_what_is_booked_is_made_again_without_the_api_server(node: Node) -> None:
    """As after a reboot: pages and specs are on file systems that it empties."""
    node.claims.add(claim_object("a", result(GPU0)))
    first = node.prepare("a")
    node.restart()
    node.pages.limits.clear()
    node.injector.claimed.clear()
    node.claims.away = True
    assert node.prepare("a") == first
    assert list(node.pages.limits) == list(node.injector.claimed) == node.directories
    assert node.booked(0) == 30


def test_pages_are_there_before_the_kubelet_is_told_of_the_driver(node: Node) -> None:
    node.claims.add(claim_object("a", result(GPU0)))
    node.prepare("a")
    node.restart()
    node.pages.limits.clear()
    node.preparer.restore()
    assert list(node.pages.limits) == node.directories


def test_a_claim_that_took_the_name_of_another_is_not_given_its_cards(node: Node) -> None:
    node.claims.add(claim_object("a", result(GPU0), uid="new"))
    with pytest.raises(RequestInvalid, match=r"claim ml/a was replaced: it has UID new and not old"):
        node.prepare("a", uid="old")
    assert node.booked(0) == 0


def test_a_claim_that_is_gone_is_refused(node: Node) -> None:
    with pytest.raises(RequestInvalid, match="does not exist any more"):
        node.prepare("a")


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (result("gpu-99"), RequestInvalid, "no such card"),
        (result(GPU0, pool="n2"), RequestInvalid, 'of pool "n2"'),
        (result(GPU0, cores=100), RequestInvalid, "leave the capacity out"),
        (result(GPU0, memory=17 * GIB), DoesNotFit, "100 cores, 16 GiB are free"),
        (result(GPU0, memory=1), RequestInvalid, "a multiple of"),
    ],
)
def test_what_cannot_be_given_is_refused_and_the_pod_is_told(node: Node, wrong, error, says) -> None:
    node.claims.add(claim_object("a", wrong))
    waiting = {"metadata": {"uid": "uid-train-0", "namespace": "ml", "name": "train-0"}, "spec": {}}
    node.pods.bind(parse_pod(waiting))
    with pytest.raises(error, match=says):
        node.prepare("a")
    assert node.directories == []
    told = [(pod, reason) for pod, reason, _ in node.pods.events]
    assert told == ([] if "multiple" in says else [("ml/train-0", EVENT_REFUSED)])


@pytest.mark.parametrize("closed", [{"cordoned": True}, {"healthy": False, "reason": "XID 79"}])
def test_a_closed_card_is_not_given_to_a_claim_that_tolerates_its_taint(node: Node, closed) -> None:
    node.states = (replace(STATES[0], **closed), *STATES[1:])
    node.restart()
    node.claims.add(claim_object("a", result(GPU0)))
    with pytest.raises(DoesNotFit, match="card 0, which is closed"):
        node.prepare("a")


def test_a_claim_on_a_card_that_was_closed_since_is_prepared_again(node: Node) -> None:
    node.claims.add(claim_object("a", result(GPU0)))
    node.prepare("a")
    node.states = (replace(STATES[0], cordoned=True), *STATES[1:])
    node.restart()
    assert node.prepare("a")


def test_a_claim_of_an_older_slice_that_has_no_room_is_refused(node: Node) -> None:
    node.claims.add(claim_object("a", result(GPU0, cores=60)))
    node.claims.add(claim_object("b", result(GPU0, cores=60)))
    node.prepare("a")
    with pytest.raises(
        DoesNotFit, match=r"60 cores, 4 GiB of card 0, and 40 cores, 12 GiB are free.* claim ml/a"
    ):
        node.prepare("b")
    node.unprepare("a")
    node.prepare("b")
    assert node.booked(0) == 60


@pytest.mark.parametrize("step", ["books", "specs"])
def test_a_step_that_fails_leaves_what_the_next_call_completes(node: Node, step: str) -> None:
    node.claims.add(claim_object("a", result(GPU0)))
    node.store.broken, node.injector.broken = step == "books", "no space" if step == "specs" else ""
    with pytest.raises(NodeUnready):
        node.prepare("a")
    node.restart()
    node.store.broken, node.injector.broken = False, ""
    node.prepare("a")
    assert node.booked(0) == 30
    assert len(node.injector.claimed) == len(node.directories) == 1


def test_a_claim_is_released_when_its_last_process_has_ended(node: Node) -> None:
    node.claims.add(claim_object("a", result(GPU0)))
    node.prepare("a")
    node.processes.living.add(PodUid("uid-train-0"))
    with pytest.raises(NodeUnready, match="processes of pod train-0 still run"):
        node.unprepare("a")
    assert node.booked(0) == 30
    node.processes.living.clear()
    node.unprepare("a")
    assert node.booked(0) == 0
    assert node.pages.limits == {}
    node.unprepare("a")  # and an unknown claim is released already


def test_a_claim_that_processes_alone_hold_is_counted_until_they_end_or_a_pod_comes_back(node: Node) -> None:
    def leave(*names: str) -> None:
        node.processes.living.add(PodUid("uid-train-0"))
        for name in names:
            with pytest.raises(NodeUnready):
                node.unprepare(name)

    for number, name in enumerate(("a", "b")):
        node.claims.add(claim_object(name, result((GPU0, GPU1)[number])))
        node.prepare(name)
    assert node.lingering == 0
    leave("a", "b", "a")
    assert node.lingering == 2
    node.prepare("b")
    assert node.lingering == 1
    leave("b")
    node.processes.living.clear()
    node.unprepare("a")
    node.unprepare("b")
    assert node.lingering == 0
    assert counts(node.metrics.claims) == {"prepared": 3, "lingering": 4, "released": 2}


def test_a_refused_claim_is_counted_by_its_reason(node: Node) -> None:
    with pytest.raises(RequestInvalid):
        node.prepare("a")
    node.claims.add(claim_object("a", result(GPU0, **WHOLE)))
    node.claims.add(claim_object("b", result(GPU0)))
    node.prepare("a")
    with pytest.raises(DoesNotFit):
        node.prepare("b")
    node.injector.broken = "no space is left"
    with pytest.raises(NodeUnready):
        node.prepare("a")
    refused = {"refused invalid": 1, "refused no-room": 1, "refused not-ready": 1}
    assert counts(node.metrics.claims) == {"prepared": 1, **refused}


def test_a_container_that_was_never_started_does_not_hold_its_claim(node: Node) -> None:
    """A killed kubelet leaves it behind, and ends it only once the pod has gone, which waits for the claim."""
    node.claims.add(claim_object("a", result(GPU0)))
    node.prepare("a")
    node.processes.living.add(PodUid("uid-train-0"))
    node.processes.waiting.add(PodUid("uid-train-0"))
    node.unprepare("a")
    assert node.booked(0) == 0


def test_a_process_of_a_pod_that_came_to_the_claim_later_holds_it(node: Node) -> None:
    """The kubelet prepares a claim for its first pod alone."""
    node.claims.add(claim_object("a", result(GPU0)))
    node.prepare("a")
    node.claims.add(claim_object("a", result(GPU0), pods=("train-0", "late")))
    node.preparer.round()
    node.claims.away = True
    node.restart()
    node.processes.living.add(PodUid("uid-late"))
    with pytest.raises(NodeUnready, match="pod late"):
        node.unprepare("a")


def test_without_the_hosts_processes_the_pages_say_who_lives(node: Node) -> None:
    node.claims.add(claim_object("a", result(GPU0)))
    node.prepare("a")
    node.processes.blind = True
    [name] = node.directories
    node.pages.uses[name] = (TenantUse(STATES[0].card.uuid, 0, 0.0, 0.0, 0, processes=1),)
    with pytest.raises(NodeUnready, match="its pods"):
        node.unprepare("a")
    node.pages.uses.clear()
    node.unprepare("a")
    assert node.booked(0) == 0


def test_a_claim_that_the_kubelet_forgot_is_released_once_it_is_gone_and_idle(node: Node) -> None:
    node.claims.add(claim_object("a", result(GPU0)))
    node.prepare("a")
    node.claims.there.clear()
    node.processes.living.add(PodUid("uid-train-0"))
    assert [node.preparer.round() for _ in range(3)] == [(), (), ()]
    node.processes.living.clear()
    [released] = node.preparer.round()
    assert released.pod_key == "claim ml/a"
    assert node.booked(0) == 0


@pytest.mark.parametrize("there", ["away", "deallocated", "there"])
def test_a_claim_that_may_be_there_is_never_released_by_itself(node: Node, there: str) -> None:
    node.claims.add(claim_object("a", result(GPU0)))
    node.prepare("a")
    node.claims.away = there == "away"
    if there == "deallocated":
        node.claims.add(claim_object("a"))
    assert [node.preparer.round() for _ in range(4)] == [()] * 4
    assert node.booked(0) == 30


def test_a_look_at_cards_has_neither_ceiling_nor_priority(node: Node) -> None:
    look = result(GPU0, adminAccess=True, consumedCapacity={})
    node.claims.add(with_parameters(look, coreLimit=80, priority="protected", preload=False))
    node.prepare("a")
    [grant] = node.state.view.grants.values()
    assert (grant.ceiling, grant.allocation.priority) == (0, Priority.NORMAL)
    assert node.injector.said == {grant.directory: (Priority.NORMAL, False)}

"""ResourceClaims in the books of the cluster: charged per card once allocated, before that at the most."""

from __future__ import annotations

from typing import Any

import pytest

from admission.cluster.claims import CLAIMS, CLASSES, slim_claim, slim_class
from admission.cluster.snapshot import NODES
from gpu_manager.adapters.kube.reading import cluster_of
from gpu_manager.domain.card import Card
from gpu_manager.domain.cluster.claims import read_claim
from gpu_manager.domain.cluster.node_books import added, models_of, one_of
from gpu_manager.domain.cluster.quota_map import parse_quota
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.device import device_names
from gpu_manager.domain.resources import GIB, ZERO, Amount
from tests.fakes.claims import result
from tests.fakes.extender import UNIT, World, node, pod, uuid

CLASS = {
    "metadata": {"name": "vcuda.tencent.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'vcuda.tencent.com'"}}]},
}
T4, V100 = "Tesla-T4", "Tesla-V100"


def device(where: str, index: int, cards: int = 2) -> str:
    names = device_names([Card(n, uuid(where, n), T4, 16 * GIB) for n in range(cards)])
    return names[uuid(where, index)]


def claim(
    name: str,
    *results: dict[str, Any],
    namespace: str = "ml",
    asks: dict[str, Any] | None = None,
    pods: tuple[str, ...] = ("train-0",),
    allocated: bool | None = None,
) -> dict[str, Any]:
    """A ResourceClaim; without results it waits, and asks for 30 cores and 4 GiB."""
    exactly = {"deviceClassName": "vcuda.tencent.com", **(part() if asks is None else asks)}
    done = bool(results) if allocated is None else allocated
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"claim-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {
            **({"allocation": {"devices": {"results": list(results)}}} if done else {}),
            "reservedFor": [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in pods],
        },
    }


def part(cores: object = 30, memory: object = "4Gi") -> dict[str, Any]:
    return {"capacity": {"requests": {"cores": str(cores), "memory": str(memory)}}}


def held(where: str, index: int, cores: object = 30, memory: object = 4 * GIB, **more: Any) -> dict[str, Any]:
    return result(device(where, index), cores, memory, pool=where, **more)


def world(*nodes: dict[str, Any]) -> World:
    made = World(nodes or [node("n1", claimed=[0, 1])])
    made.cluster.replace(CLASSES, [slim_class(CLASS)])
    made.cluster.replace(CLAIMS, [])
    return made


def show(made: World, *claims: dict[str, Any]) -> None:
    for one in claims:
        made.cluster.apply(CLAIMS, "MODIFIED", slim_claim(one))


def used(made: World, namespace: str = "ml") -> dict[str, Amount]:
    return dict(made.cluster.snapshot().used.get(namespace, {}))


def test_an_allocated_claim_is_charged_on_its_card() -> None:
    made = world()
    show(made, claim("c", held("n1", 1)))
    assert made.booked("n1") == [(0, 0), (30, 16)]
    assert used(made) == {T4: Amount(30, 4 * GIB)}
    (allocation,) = made.cluster.snapshot().nodes["n1"].ledger.claims
    assert allocation.pod_key == "claim ml/c"
    assert (allocation.container, allocation.pod_name) == ("c/gpu", "train-0")


def test_one_request_on_several_cards_and_several_requests_on_one_add_up() -> None:
    made = world()
    more = {**held("n1", 1, 20, GIB), "request": "other/first"}
    show(made, claim("c", held("n1", 0), held("n1", 1), more))
    assert made.booked("n1") == [(30, 16), (50, 20)]
    assert {a.container for a in made.cluster.snapshot().nodes["n1"].ledger.claims} == {"c/gpu", "c/other"}


def test_a_claim_of_several_pods_counts_once() -> None:
    made = world()
    show(made, claim("c", held("n1", 0), pods=("a", "b", "c")))
    assert used(made) == {T4: Amount(30, 4 * GIB)}


def test_a_claim_that_goes_leaves_its_card() -> None:
    made = world()
    show(made, claim("c", held("n1", 0)), claim("d", held("n1", 0)))
    made.cluster.apply(CLAIMS, "DELETED", slim_claim(claim("c", held("n1", 0))))
    assert made.booked("n1") == [(30, 16), (0, 0)]
    made.cluster.replace(CLAIMS, [])
    assert made.booked("n1") == [(0, 0), (0, 0)]
    assert used(made) == {}


def test_a_claim_that_is_allocated_elsewhere_moves() -> None:
    made = world(node("n1", claimed=[0, 1]), node("n2", claimed=[0, 1], model=V100))
    show(made, claim("c", held("n1", 0)))
    show(made, claim("c"))  # its allocation was taken back
    assert used(made) == {one_of([T4, V100]): Amount(30, 4 * GIB)}
    show(made, claim("c", held("n2", 1)))
    assert (made.booked("n1"), made.booked("n2")) == ([(0, 0), (0, 0)], [(0, 0), (30, 16)])
    assert used(made) == {V100: Amount(30, 4 * GIB)}


@pytest.mark.parametrize(
    ("consumed", "booked"),
    [
        ({"cores": "30"}, (30, 64)),
        ({"memory": "4Gi"}, (100, 16)),
        ({"cores": "-8", "memory": "-8Ei"}, (100, 64)),
        ({"cores": "1e9", "memory": "8Ei"}, (100, 64)),
        ({"cores": "2500m", "memory": "many"}, (3, 64)),
        ({"cores": [], "memory": "0"}, (100, 64)),
    ],
)
def test_an_amount_that_cannot_be_counted_counts_as_the_whole_card(
    consumed: dict[str, Any], booked: tuple[int, int]
) -> None:
    made = world()
    show(made, claim("c", {**held("n1", 0), "consumedCapacity": consumed}))
    assert made.booked("n1")[0] == booked


def test_a_card_that_is_not_known_counts_for_the_namespace_under_every_model() -> None:
    made = world()
    show(made, claim("c", {**held("n1", 0), "device": "gpu-other"}), claim("d", held("gone", 0)))
    assert used(made) == {"": Amount(60, 8 * GIB)}
    assert made.booked("n1") == [(0, 0), (0, 0)]
    made.cluster.apply(NODES, "DELETED", node("n1"))
    assert used(made) == {"": Amount(60, 8 * GIB)}
    show(made, claim("d"), claim("c"))
    assert set(made.cluster.snapshot().nodes) == set()


def test_a_claim_of_two_nodes_holds_of_each_what_is_there() -> None:
    """Kubernetes allocates on one node; whatever is written is counted."""
    made = world(node("n1", claimed=[0, 1]), node("n2", claimed=[0, 1]))
    show(made, claim("c", held("n1", 0), held("n2", 1, 20, GIB)))
    assert (made.booked("n1"), made.booked("n2")) == ([(30, 16), (0, 0)], [(0, 0), (20, 4)])
    assert used(made) == {T4: Amount(50, 5 * GIB)}


def test_a_node_that_is_deleted_and_comes_back_keeps_the_claims() -> None:
    made = world()
    show(made, claim("c", held("n1", 0)))
    assert made.booked("n1") == [(30, 16), (0, 0)]
    made.cluster.apply(NODES, "DELETED", node("n1"))
    assert used(made) == {"": Amount(30, 4 * GIB)}, "under every model, as for a service that starts now"
    made.cluster.apply(NODES, "ADDED", node("n1", claimed=[0, 1]))
    assert made.booked("n1") == [(30, 16), (0, 0)]


def test_devices_of_other_drivers_and_admin_access_count_for_nothing() -> None:
    made = world()
    other = {**held("n1", 0), "driver": "gpu.nvidia.com"}
    show(made, claim("c", other, allocated=True), claim("d", {**held("n1", 1), "adminAccess": True}))
    assert made.booked("n1") == [(0, 0), (0, 0)]
    assert used(made) == {}


def test_a_waiting_claim_counts_until_it_turns_out_to_be_another_drivers() -> None:
    made = world()
    show(made, claim("c", asks={"deviceClassName": "not-known-yet"}))
    assert used(made) == {T4: Amount(100, 16 * GIB)}
    show(made, claim("c", {**held("n1", 0), "driver": "other"}, allocated=True))
    assert used(made) == {}


def test_a_class_that_changes_changes_what_waits() -> None:
    made = world()
    show(made, claim("c"))
    assert used(made) == {T4: Amount(30, 4 * GIB)}
    made.cluster.apply(
        CLASSES,
        "MODIFIED",
        {**CLASS, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'a'"}}]}},
    )
    assert used(made) == {}
    made.cluster.apply(CLASSES, "DELETED", CLASS)
    assert used(made) == {T4: Amount(30, 4 * GIB)}


def test_cards_that_come_are_open_to_what_waits() -> None:
    made = world(node("n1", claimed=[0]))
    show(made, claim("c"))
    made.cluster.apply(NODES, "ADDED", node("n2", claimed=[0], model=V100))
    assert used(made) == {one_of([T4, V100]): Amount(30, 4 * GIB)}
    made.cluster.apply(NODES, "DELETED", node("n2"))
    assert used(made) == {T4: Amount(30, 4 * GIB)}


def test_a_claim_that_was_let_pass_counts_until_it_is_shown_or_its_time_is_over() -> None:
    made = world()
    first, second = read_claim(claim("a")), read_claim(claim("b"))
    assert first is not None
    assert second is not None
    made.cluster.change_claims(lambda claims: claims.admit(first, 75.0))
    made.cluster.change_claims(lambda claims: claims.admit(second, 80.0))
    assert used(made) == {T4: Amount(60, 8 * GIB)}
    show(made, claim("a"))
    made.cluster.change_claims(lambda claims: claims.admit(first, 90.0))
    assert used(made) == {T4: Amount(60, 8 * GIB)}
    assert made.cluster.claims.admitted == 1
    made.cluster.expire_claims(80.0)
    assert used(made) == {T4: Amount(30, 4 * GIB)}


def test_a_copy_is_changed_apart() -> None:
    made = world()
    show(made, claim("a"), claim("c", held("n1", 0)))
    twin = made.cluster.copy()
    twin.apply(CLAIMS, "DELETED", slim_claim(claim("c", held("n1", 0))))
    twin.apply(CLAIMS, "DELETED", slim_claim(claim("a")))
    assert used(made) == {T4: Amount(60, 8 * GIB)}
    assert twin.snapshot().used == {}


def test_the_cluster_read_by_commands_has_the_same_books() -> None:
    made = world()
    claims = [claim("c", held("n1", 0)), claim("d", held("n1", 1), held("n1", 0))]
    told = {"apiVersion": f"{DRA_DRIVER}/v1", "kind": "ShareParameters", "priority": "protected"}
    config = {"source": "FromClaim", "requests": [], "opaque": {"driver": DRA_DRIVER, "parameters": told}}
    claims[0]["status"]["allocation"]["devices"]["config"] = [config]
    show(made, *claims)
    known = [one for obj in claims if (one := read_claim(obj))]
    reader = cluster_of([node("n1", claimed=[0, 1])], [], known)
    (books,) = reader.with_cards
    snapshot = made.cluster.snapshot()
    assert reader.used == snapshot.used == {"ml": {T4: Amount(90, 12 * GIB)}}
    assert reader.protected == snapshot.protected == {"ml": {T4: Amount(30, 4 * GIB)}}
    view = snapshot.nodes["n1"]
    assert [books.ledger.booked(uuid("n1", n)) for n in (0, 1)] == [
        view.ledger.booked(uuid("n1", n)) for n in (0, 1)
    ]
    assert set(books.ledger) == set(view.ledger)


def test_pods_without_a_known_card_go_where_claims_leave_room() -> None:
    made = world(node("n1"))
    show(made, claim("c", held("n1", 0, 80)))
    made.create(pod("a", 60, on="n1"))
    assert made.booked("n1") == [(80, 16), (60, 4)]


def test_a_claim_is_found_by_name_while_it_may_be_ours() -> None:
    made = world()
    show(made, claim("c"))
    claims = made.cluster.claims
    assert claims.named("ml", "c") is not None
    assert claims.named("other", "c") is None
    assert made.cluster.knows_claims


def test_what_cannot_be_read_counts_for_nothing() -> None:
    made = world()
    made.cluster.apply(CLAIMS, "ADDED", {"metadata": {"name": "without-uid"}})
    odd = {"metadata": {"uid": "u"}, "spec": {"devices": {"requests": [{"name": "a"}]}}, "status": "none"}
    made.cluster.apply(CLAIMS, "ADDED", odd)
    assert made.cluster.snapshot().used == {}


def test_a_claim_knows_the_pod_that_it_was_made_for() -> None:
    obj = claim("c")
    obj["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j"}, {"kind": "Pod", "name": "train-0"}]
    obj["status"]["reservedFor"].append({"resource": "podgroups", "name": "g", "uid": "u"})
    found = read_claim(obj)
    assert found is not None
    assert (found.owner, [name for _, name in found.pods]) == ("train-0", ["train-0"])


def test_a_key_of_several_models_counts_once_under_every_model_it_names() -> None:
    key = one_of([V100, T4])
    assert models_of(key) == (T4, V100)
    assert models_of("") == ()
    quota = parse_quota('{"ml": {"quota": {"T4": 1, "V100": 2, "*": 2, "A100": 1}}}').of("ml")
    assert quota is not None
    lines = {line.key: line.used.cores for line in quota.lines({key: Amount(50, 0), T4: Amount(10, 0)})}
    assert lines == {"T4": 60, "V100": 50, "*": 60, "A100": 0}
    assert quota.passed({}, {key: Amount(150, 0)}) == {
        key: "1 card of T4, 0 used or being bound, 1.5 asked: 1 would still fit"
    }
    assert quota.passed({}, {"": Amount(100, 0)}) == {}
    assert "of T4" in quota.passed({}, {"": Amount(150, 0)})[""]
    narrow = parse_quota('{"ml": {"quota": {"T4": 1}}}').of("ml")
    assert narrow is not None
    mixed = one_of([T4, "H100"])
    assert narrow.passed({}, {mixed: ZERO})[mixed] == 'model "H100" is not among its models (T4)'


def test_sums_are_added_by_namespace_and_model() -> None:
    one, two = (
        {"a": {T4: Amount(1, 2)}},
        {"a": {T4: Amount(3, 4), V100: Amount(5, 6)}, "b": {T4: Amount(7, 8)}},
    )
    assert added(one, {}) is one
    assert added(one, two) == {"a": {T4: Amount(4, 6), V100: Amount(5, 6)}, "b": {T4: Amount(7, 8)}}
    assert one == {"a": {T4: Amount(1, 2)}}


def test_trimming_changes_no_charge() -> None:
    for obj in (
        claim("a"),
        claim("b", held("n1", 0)),
        claim("c", {**held("n1", 0), "driver": "x"}, allocated=True),
    ):
        before, after = read_claim(obj), read_claim(slim_claim(obj))
        assert before is not None
        assert after is not None
        assert (before.devices, before.allocated, before.pods) == (after.devices, after.allocated, after.pods)
    assert DRA_DRIVER in str(slim_class(CLASS))
    assert UNIT

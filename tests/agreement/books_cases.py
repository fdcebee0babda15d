"""What the agent relies on of a kubelet's books: PodResources, the checkpoint file, restarts."""

from __future__ import annotations

from typing import Any

from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2
from gpu_manager.pb.podresources.v1 import api_pb2 as resources
from tests.agreement.node import NodeWorld, letters, refusing, verdict
from tests.agreement.world import NAMESPACE, PODS, Table
from tests.fakes.plugin import device
from tests.fakes.waiting import PATIENCE

BOOKS = Table()


# PodResources and the checkpoint.


@BOOKS.case(
    "List has apps and sidecars with their ids, and no ordinary init container",
    {"s": 2, "x": 3},
)
def listing(n: NodeWorld) -> object:
    plugin = n.plugin("a", 12)
    n.run("listed", {"x": {"a": 3}}, init={"i": {"a": 4}, "s": {"a": 2}}, sidecars=["s"])
    _, side, app = (set(ids) for ids in plugin.asked("A"))
    found = n.listed()["listed"]
    assert found == {"s": {"a": side}, "x": {"a": app}}
    return {name: len(held["a"]) for name, held in found.items()}


@BOOKS.case(
    "Get has what List has of one pod, and says when there is none",
    ({"s": 2, "x": 3}, ("UNKNOWN", "pod nobody in namespace agreement not found")),
    since=34,
)
def get_one(n: NodeWorld) -> object:
    n.plugin("a", 12)
    n.run("one", {"x": {"a": 3}}, init={"i": {"a": 4}, "s": {"a": 2}}, sidecars=["s"])

    def get(name: str) -> Any:
        request = resources.GetPodResourcesRequest(pod_name=name, pod_namespace=NAMESPACE)
        return n.ask(lambda stub: stub.Get(request, timeout=PATIENCE))

    found = n.holds(get("one").pod_resources)
    assert found == n.listed()["one"]
    return {name: len(held["a"]) for name, held in found.items()}, get("nobody")


@BOOKS.case("a pod that was rejected, and one that has ended, is not listed", ["l-runs"], since=34)
def not_listed(n: NodeWorld) -> object:
    plugin = n.plugin("a")
    n.create("l-ended", {"c": {"a": 1}}, script="true")
    n.ended("l-ended")
    plain_answer, plugin.answer = plugin.answer, refusing("no")
    n.run("l-rejected", {"c": {"a": 1}})
    plugin.answer = plain_answer
    n.run("l-runs", {"c": {"a": 1}})
    n.world.until(lambda: len(n.listed()) == 1, f"{list(n.listed())}")
    return list(n.listed())


@BOOKS.case(
    "during admission a List shows the pod with what its earlier containers got, and not what it is getting now",
    {"x": {"a": 2}, "y": {}},
)
def listed_meanwhile(n: NodeWorld) -> object:
    plugin = n.plugin("a")
    seen: list[Any] = []
    plain_answer = plugin.answer

    def answer(ids: Any) -> Any:
        seen.append(n.listed().get("meanwhile"))
        return plain_answer(ids)

    plugin.answer = answer
    n.run("meanwhile", {"x": {"a": 2}, "y": {"a": 3}})
    return {name: {short: len(ids) for short, ids in held.items()} for name, held in seen[1].items()}


@BOOKS.case("GetAllocatableResources has the healthy devices, given away or not", {"a0", "a1", "a3"})
def allocatable(n: NodeWorld) -> object:
    n.plugin("a", [device("a0"), device("a1"), device("a2", healthy=False), device("a3")])
    n.run("some", {"c": {"a": 2}})
    answer = n.ask(
        lambda stub: stub.GetAllocatableResources(resources.AllocatableResourcesRequest(), timeout=PATIENCE)
    )
    return {one for entry in answer.devices if entry.resource_name == n("a") for one in entry.device_ids}


@BOOKS.case(
    "the checkpoint has each container's ids by NUMA node (-1 for none) and the plugin's answer, ordinary init "
    "containers too, before the container starts; and the healthy ids of each resource",
    {
        "keys": ["Checksum", "Data"],
        "sum": True,
        "data": ["PodDeviceEntries", "RegisteredDevices"],
        "row": ["AllocResp", "ContainerName", "DeviceIDs", "PodUID", "ResourceName"],
        "rows": {("i", "a"): {"-1": 2}, ("x", "a"): {"-1": 1}, ("x", "b"): {"0": 1}},
        "answers": True,
        "at start": True,
        "registered": {"a": 7, "b": 2},
    },
)
def checkpoint(n: NodeWorld) -> object:
    first = n.plugin("a", [device(f"a{i}", healthy=i > 0) for i in range(8)])
    n.plugin("b", [device(f"b{i}", nodes=[0]) for i in range(2)])
    first.answer = lambda ids: api_pb2.ContainerAllocateResponse(envs={"IDS": ",".join(sorted(ids))})
    at_start: list[bool] = []

    def start(ids: Any) -> None:
        rows = n.checkpoint()["Data"]["PodDeviceEntries"]
        held = [{one for some in row["DeviceIDs"].values() for one in some} for row in rows]
        at_start.append(set(ids) in held)

    first.start = start
    n.create("saved", {"x": {"a": 1, "b": 1}}, init={"i": {"a": 2}})
    n.settled("saved")
    whole = n.checkpoint()
    found = n.entries(n.world.get(f"{PODS}/saved")["metadata"]["uid"])
    registered = whole["Data"]["RegisteredDevices"]
    return {
        "keys": sorted(whole),
        "sum": isinstance(whole["Checksum"], int) and whole["Checksum"] > 0,
        "data": sorted(whole["Data"]),
        "row": sorted(whole["Data"]["PodDeviceEntries"][0]),
        "rows": {key: {numa: len(ids) for numa, ids in held.items()} for key, (held, _) in found.items()},
        "answers": all(
            answer.envs["IDS"] == ",".join(sorted(held["-1"]))
            for key, (held, answer) in found.items()
            if key[1] == "a"
        ),
        "at start": at_start == [True, True],
        "registered": {short: len(registered[n(short)]) for short in "ab"},
    }


# Restarts.


@BOOKS.case(
    "a kubelet that starts removes the plugins' sockets and no other file, and counts nothing until they register "
    "again; a running pod keeps its ids and is not allocated again",
    {
        "socket": False,
        "file": True,
        "early": (
            "Failed",
            "UnexpectedAdmissionError",
            (
                "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {a}, "
                "which is unexpected"
            ),
        ),
        "ids kept": True,
        "calls since": "",
        "next": ("Running", "", ""),
    },
)
def kubelet_restarts(n: NodeWorld) -> object:
    plugin = n.plugin("a", 4)
    n.run("kept", {"c": {"a": 3}})
    before = n.listed()["kept"]
    other = n.sockets / f"{n.case}.txt"
    other.write_text("mine", "utf-8")
    n.restart()
    found: dict[str, object] = {"socket": (n.sockets / plugin.endpoint).exists(), "file": other.exists()}
    other.unlink()
    n.offers(n("a"), 0)
    plugin.stop()
    found["early"] = tuple(text.replace(n("a"), "{a}") for text in verdict(n.run("early", {"c": {"a": 1}})))
    again = n.serve("a", 4)
    n.register(again)
    found["ids kept"] = n.listed().get("kept") == before
    found["calls since"] = letters(again)
    n.delete("kept")
    found["next"] = verdict(n.run("next", {"c": {"a": 4}}))
    return found


@BOOKS.case(
    "while its plugin is away a pod is refused",
    (
        "Failed",
        "UnexpectedAdmissionError",
        (
            "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {a}, "
            "which is unexpected"
        ),
    ),
)
def plugin_away(n: NodeWorld) -> object:
    n.plugin("a", 4).stop()
    n.offers(n("a"), 0, 4)
    return tuple(text.replace(n("a"), "{a}") for text in verdict(n.run("early", {"c": {"a": 1}})))

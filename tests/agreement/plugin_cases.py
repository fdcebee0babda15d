"""What the agent relies on of a kubelet as a device plugin: what it is asked and when, and what becomes of a pod."""

from __future__ import annotations

from typing import Any

import grpc

from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from tests.agreement.node import NodeWorld, letters, refusing, verdict
from tests.agreement.world import Table
from tests.fakes.kubelet_node import lowest
from tests.fakes.plugin import Plugin, device
from tests.fakes.waiting import PATIENCE

PLUGINS = Table()


# Registration.


@PLUGINS.case(
    "Register is refused for another version, for a name that is none, and where the options cannot be had",
    {
        "version": 'requested API version "v9" is not supported by kubelet. Supported version is ["v1beta1"]',
        "name": 'the ResourceName "no-domain" is invalid',
        "options": "failed to get device plugin options: rpc error: code = Unknown desc = Exception calling "
        "application: none today",
    },
)
def register_refused(n: NodeWorld) -> object:
    plugin = n.serve("a")
    plugin.describe = lambda: refusing("none today")(None)
    tries = {"version": ("v9", n("a")), "name": ("v1beta1", "no-domain"), "options": ("v1beta1", n("a"))}
    return {name: _refused(n, plugin, *words) for name, words in tries.items()}


def _refused(n: NodeWorld, plugin: Plugin, version: str, resource: str) -> str:
    request = api_pb2.RegisterRequest(version=version, endpoint=plugin.endpoint, resource_name=resource)
    target = f"unix://{(n.sockets / 'kubelet.sock').absolute()}"
    with grpc.insecure_channel(target, options=(("grpc.default_authority", "localhost"),)) as channel:
        try:
            api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            return str(error.details())
    return "taken"


@PLUGINS.case("the options that count are the plugin's own, not those of Register", "PAS")
def own_options(n: NodeWorld) -> object:
    plugin = n.serve("a")
    wanted, plugin.options = plugin.options, api_pb2.DevicePluginOptions()
    plugin.describe = lambda: wanted
    n.register(plugin)
    n.run("options", {"c": {"a": 1}})
    return letters(plugin)


@PLUGINS.case(
    "unhealthy devices are capacity and not allocatable, and come back; a pod that wants more is refused",
    (
        "Failed",
        "UnexpectedAdmissionError",
        (
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for {a}. Requested: 3, "
            "Available: 2, which is unexpected"
        ),
    ),
)
def unhealthy(n: NodeWorld) -> object:
    plugin = n.plugin("a", 3)
    plugin.send([device("a0"), device("a1"), device("a2", healthy=False)])
    n.offers(n("a"), 2, 3)
    found = verdict(n.run("greedy", {"c": {"a": 3}}))
    plugin.send([device("a0"), device("a1"), device("a2")])
    n.offers(n("a"), 3, 3)
    return tuple(text.replace(n("a"), "{a}") for text in found)


@PLUGINS.case(
    "a plugin that ends leaves capacity and nothing allocatable; one that registers again brings it back",
    ("gone", "back", "Running"),
)
def plugin_ends(n: NodeWorld) -> object:
    plugin = n.plugin("a", 4)
    plugin.stop()
    n.offers(n("a"), 0, 4)
    n.register(n.serve("a", 4))
    n.offers(n("a"), 4, 4)
    return "gone", "back", verdict(n.run("after", {"c": {"a": 4}}))[0]


@PLUGINS.case(
    "the end of an old stream disconnects the plugin that has registered since: a client is found by its name",
    "disconnected",
)
def successor(n: NodeWorld) -> object:
    old = n.plugin("a", 4)
    new = Plugin(n("a"), [device(f"a{i}") for i in range(5)], endpoint=f"{n.case}-second.sock").serve(
        n.sockets
    )
    n.plugins.append(new)
    n.register(new)
    old.stop()
    n.offers(n("a"), 0, 5)
    return "disconnected"


# Admission.


@PLUGINS.case(
    "a container is asked for, allocated and started with the same ids, each offered and none that must be",
    ("PAS", 8, 0, 3, True, True),
)
def one_container(n: NodeWorld) -> object:
    plugin = n.plugin("a")
    n.run("one", {"c": {"a": 3}})
    [asked], [given], [started] = plugin.asked("P"), plugin.asked("A"), plugin.asked("S")
    offered = set(asked.available_deviceIDs)
    return (
        letters(plugin),
        len(offered),
        len(asked.must_include_deviceIDs),
        asked.allocation_size,
        given < offered,
        started == given,
    )


@PLUGINS.case(
    "a preference decides wholly when it names enough; ids that were not offered are ignored and the rest is filled",
    ({"a0", "a1", "a2"}, True, 3),
)
def preference(n: NodeWorld) -> object:
    plugin = n.plugin("a")
    plugin.prefer = lowest
    n.run("whole", {"c": {"a": 3}})
    plugin.prefer = lambda _request: ["a7", "elsewhere", "a7"]
    n.run("part", {"c": {"a": 3}})
    whole, part = plugin.asked("A")
    return set(whole), "a7" in part, len(part)


@PLUGINS.case("the plugin is asked for its preference even where every id is needed", ("PAS", 8))
def all_needed(n: NodeWorld) -> object:
    plugin = n.plugin("a")
    n.run("all", {"c": {"a": 8}})
    return letters(plugin), len(plugin.asked("P")[0].available_deviceIDs)


@PLUGINS.case(
    "init containers, sidecars, then apps; what an init container held is used again without asking where it "
    "suffices, and must be included where it does not; sidecars and apps share nothing",
    {
        "sizes": [5, 2, 2, 3],
        "asked": [(5, 0), (3, 1)],
        "sidecar of init": True,
        "app of the rest": True,
        "must is of init": True,
        "apart": True,
        "starts": [5, 2, 2, 3],
    },
)
def reuse(n: NodeWorld) -> object:
    plugin = n.plugin("a", 12)
    shape = {"i": {"a": 5}, "s": {"a": 2}}
    n.run("reuse", {"x": {"a": 2}, "y": {"a": 3}}, init=shape, sidecars=["s"])
    init, side, one, two = (set(ids) for ids in plugin.asked("A"))
    asked = plugin.asked("P")
    must = set(asked[1].must_include_deviceIDs)
    return {
        "sizes": [len(ids) for ids in (init, side, one, two)],
        "asked": [(p.allocation_size, len(p.must_include_deviceIDs)) for p in asked],
        "sidecar of init": side < init,
        "app of the rest": one < init - side,
        "must is of init": must == init - side - one
        and must < two
        and must < set(asked[1].available_deviceIDs),
        "apart": not (side & one or side & two or one & two),
        "starts": [len(ids) for ids in plugin.asked("S")],
    }


@PLUGINS.case(
    "a container gets the variables of all its resources, and both answers are merged",
    ("Succeeded", "PAS", "PAS"),
)
def merged(n: NodeWorld) -> object:
    first, second = n.plugin("a"), n.plugin("b")
    first.answer = lambda ids: api_pb2.ContainerAllocateResponse(envs={"FIRST": "1"})
    second.answer = lambda ids: api_pb2.ContainerAllocateResponse(envs={"SECOND": "2"})
    n.create("merged", {"c": {"a": 1, "b": 1}}, script='test "$FIRST$SECOND" = 12')
    return n.ended("merged"), letters(first), letters(second)


@PLUGINS.case("a container that starts again is announced again and not allocated again", "PASS")
def started_again(n: NodeWorld) -> object:
    plugin = n.plugin("a")
    n.create("again", {"c": {"a": 2}}, script="exit 3", restartPolicy="OnFailure")
    n.world.until(lambda: len(plugin.asked("S")) > 1, "it does not start again")
    return letters(plugin)[:4]


@PLUGINS.case(
    "an Allocate that fails, or that has no answer for the container, and a preference that fails, reject the pod "
    "with these words; what a failed preference had picked is not free before a pod of the books has gone",
    {
        "allocate": (
            "Failed",
            "UnexpectedAdmissionError",
            (
                "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = Exception calling application: "
                "no card, which is unexpected"
            ),
        ),
        "empty": (
            "Failed",
            "UnexpectedAdmissionError",
            "Pod was rejected: Allocate failed due to no containers return in allocation response , which is unexpected",
        ),
        "preference": (
            "Failed",
            "UnexpectedAdmissionError",
            (
                "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: "
                "code = Unknown desc = Exception calling application: no idea, which is unexpected"
            ),
        ),
        "next": (
            "Failed",
            "UnexpectedAdmissionError",
            (
                "Pod was rejected: Allocate failed due to requested number of devices unavailable for {a}. Requested: 8, "
                "Available: 6, which is unexpected"
            ),
        ),
        "smaller": ("Running", "", ""),
        "later": ("Running", "", ""),
    },
)
def refused(n: NodeWorld) -> object:
    plugin = n.plugin("a")
    plain_answer = plugin.answer
    plugin.answer = refusing("no card")
    found = {"allocate": verdict(n.run("r-allocate", {"c": {"a": 2}}))}
    older = "&AllocateResponse{ContainerResponses:[]*ContainerAllocateResponse{},}"
    plugin.answer = lambda _ids: None
    found["empty"] = verdict(n.run("r-empty", {"c": {"a": 2}}))
    plugin.answer = plain_answer
    plugin.prefer = refusing("no idea")
    found["preference"] = verdict(n.run("r-preference", {"c": {"a": 2}}))
    plugin.prefer = lambda _request: ()
    found["next"] = verdict(n.run("r-next", {"c": {"a": 8}}))
    found["smaller"] = verdict(n.run("r-smaller", {"c": {"a": 6}}))
    n.delete("r-smaller")
    found["later"] = verdict(n.run("r-later", {"c": {"a": 8}}))
    return {
        name: (*said[:2], said[2].replace(n("a"), "{a}").replace(older, "")) for name, said in found.items()
    }


@PLUGINS.case(
    "devices come first and the node's sums last: a pod whose second container finds too few was allocated for its "
    "first, and one that passes the sum alone was allocated whole",
    {
        "second": ("Failed", "UnexpectedAdmissionError", "PA"),
        "sum": (
            "Failed",
            "OutOf{a}",
            "Pod was rejected: Node didn't have enough resource: {a}, requested: 2, used: 3, capacity: 4",
            "PA",
        ),
    },
)
def sums_last(n: NodeWorld) -> object:
    n.run("unknown", {"c": {"a": 3}})  # the node does not have it yet: admitted without, and counted
    plugin = n.plugin("a", 4)
    second = verdict(n.run("second", {"c": {"a": 1}, "d": {"a": 4}}))
    after, plugin.calls = letters(plugin), []
    found = verdict(n.run("sum", {"c": {"a": 2}}))
    return {
        "second": (*second[:2], after),
        "sum": (*(text.replace(n("a"), "{a}") for text in found), letters(plugin)),
    }


@PLUGINS.case(
    "a PreStartContainer that fails keeps the container from starting, with its words, and is tried again; nothing "
    "is allocated again",
    (
        (
            "CreateContainerConfigError",
            (
                "device plugin PreStartContainer rpc failed with err: rpc error: code = Unknown desc = Exception calling "
                "application: not yet"
            ),
        ),
        "Running",
        1,
    ),
)
def pre_start(n: NodeWorld) -> object:
    plugin = n.plugin("a")
    plugin.start = refusing("not yet")
    n.create("start", {"c": {"a": 2}})

    def waits() -> Any:
        rows = n.status("start").get("containerStatuses") or ({},)
        state = rows[0].get("state", {}).get("waiting", {})
        return state if state.get("message") else None

    state = n.world.until(waits, "nothing is said")
    plugin.start = lambda _ids: None
    return (state["reason"], state["message"]), verdict(n.settled("start"))[0], len(plugin.asked("A"))


@PLUGINS.case("a pod that asks for what the node never had is admitted and runs without it", "Running")
def never_had(n: NodeWorld) -> object:
    return verdict(n.run("without", {"c": {"z": 3}}))[0]


@PLUGINS.case("ids are free again once a pod has ended, been deleted or been rejected", ["Running"] * 3)
def freed(n: NodeWorld) -> object:
    plugin = n.plugin("a", 4)
    n.create("f-ended", {"c": {"a": 4}}, script="true")
    n.ended("f-ended")
    found = [verdict(n.run("f-deleted", {"c": {"a": 4}}))[0]]
    n.delete("f-deleted")
    plain_answer, plugin.answer = plugin.answer, refusing("no")
    n.run("f-rejected", {"c": {"a": 4}})
    plugin.answer = plain_answer
    found.append(verdict(n.run("f-next", {"c": {"a": 4}}))[0])
    n.delete("f-next")
    found.append(verdict(n.run("f-last", {"c": {"a": 4}}))[0])
    return found

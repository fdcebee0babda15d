"""What the extender relies on of a scheduler: what it asks, when, and what it makes of the answers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tests.agreement.extender import MANAGED, Scheduling
from tests.agreement.world import MERGE, PODS, Table

SCHEDULER = Table()


@SCHEDULER.case(
    "filter comes with the pod and names of nodes alone: those that the scheduler's own plugins take",
    (
        ["NodeNames", "Nodes", "Pod"],
        None,
        ["filter-form-a", "filter-form-b"],
        {MANAGED: "1"},
        "filter-form-b",
    ),
)
def filter_form(s: Scheduling) -> object:
    s.node("a")
    s.node("b")
    s.node("small", cards=0)
    s.extender.plan["filter"] = lambda q: {"NodeNames": ["filter-form-b"]}
    s.pod("ff")
    place = s.bound("ff")
    [asked] = s.extender.asked("filter", "ff")
    limits = asked["Pod"]["spec"]["containers"][0]["resources"]["limits"]
    return sorted(asked), asked["Nodes"], sorted(asked["NodeNames"]), limits, place


@SCHEDULER.case(
    "only pods that ask for a managed resource reach the extender; an init container counts", [0, 1]
)
def managed(s: Scheduling) -> object:
    s.node("a")
    s.pod("without", cards=0)
    s.pod("within", where="initContainers")
    for name in ("without", "within"):
        s.bound(name)
    return [len(s.extender.asked("filter", name)) for name in ("without", "within")]


@SCHEDULER.case(
    "prioritize comes in filter's form with the nodes that are left; the 10 wins over the 8",
    (["NodeNames", "Nodes", "Pod"], None, ["prioritized-a", "prioritized-b"], "prioritized-b"),
)
def prioritized(s: Scheduling) -> object:
    for name in ("a", "b", "c"):
        s.node(name)
    s.extender.plan["filter"] = lambda q: {"NodeNames": ["prioritized-a", "prioritized-b"]}
    s.extender.plan["prioritize"] = lambda q: [
        {"Host": name, "Score": 10 if name.endswith("b") else 8} for name in q["NodeNames"]
    ]
    s.pod("pr")
    place = s.bound("pr")
    [asked] = s.extender.asked("prioritize", "pr")
    return sorted(asked), asked["Nodes"], sorted(asked["NodeNames"]), place


@SCHEDULER.case("of one node that fits nobody asks for a priority", ("only-one-a", 0))
def only_one(s: Scheduling) -> object:
    s.node("a")
    s.pod("oo")
    return s.bound("oo"), len(s.extender.asked("prioritize", "oo"))


@SCHEDULER.case("a prioritize that fails is as if nothing was worth more", True)
def priorities_lost(s: Scheduling) -> object:
    nodes = [s.node(name) for name in ("a", "b")]
    s.extender.plan["prioritize"] = lambda q: 500
    s.pod("pl")
    return s.bound("pl") in nodes


@SCHEDULER.case(
    "bind names pod, UID and node; the extender binds, and the scheduler says where",
    (["Node", "PodName", "PodNamespace", "PodUID"], True, "bound-by-us-a", True),
)
def bound_by_us(s: Scheduling) -> object:
    s.node("a")
    made = s.pod("ours")
    place = s.bound("ours")
    [asked] = s.extender.asked("bind", "ours")
    said = "Scheduled", "Successfully assigned agreement/ours to bound-by-us-a"
    s.world.until(lambda: said in s.events("ours"), "nothing is said")
    return sorted(asked), asked["PodUID"] == made["metadata"]["uid"], place, said in s.events("ours")


@SCHEDULER.case(
    "the extender's reasons stand behind the scheduler's own, each with the number of its nodes, in Event and condition",
    (
        "Unschedulable",
        "0/<n> nodes are available: 1 Insufficient example.test/card, 1 lasting words, 2 no room.",
        True,
    ),
)
def reasons(s: Scheduling) -> object:
    nodes = [s.node(name) for name in ("a", "b", "c")]
    s.node("small", cards=0)
    s.extender.plan["filter"] = lambda q: {
        "NodeNames": [],
        "FailedNodes": dict.fromkeys(nodes[:2], "no room"),
        "FailedAndUnresolvableNodes": {nodes[2]: "lasting words"},
    }
    s.pod("rs", priorityClassName=s.priority("meek", 1, preemptionPolicy="Never"))
    found = s.condition("rs")
    text = found["message"]
    s.world.until(lambda: s.events("rs"), "no Event")
    return found["reason"], of_the_case(text), any(e == ("FailedScheduling", text) for e in s.events("rs"))


def of_the_case(text: str) -> str:
    """Without what other nodes of the cluster fail for, and what is said of preemption."""
    head, _, tail = text.partition(": ")
    told = tail.partition(". ")[0].removesuffix(".").split(", ")
    mine = [part for part in told if "affinity/selector" not in part and "taint" not in part]
    return f"0/<n>{head[head.index(' ') :]}: {', '.join(mine)}."


@SCHEDULER.case("an answer without any list takes no node", "Unschedulable")
def no_list(s: Scheduling) -> object:
    s.node("a")
    s.extender.plan["filter"] = lambda q: {}
    s.pod("nl")
    return s.condition("nl")["reason"]


@SCHEDULER.case(
    "an Error of filter, an HTTP error and a name that was not offered keep the pod, and it is asked about again",
    {
        "error": ("SchedulerError", True),
        "http": ("SchedulerError", True),
        "stranger": ("SchedulerError", True),
    },
)
def filter_fails(s: Scheduling) -> object:
    s.node("a")
    plans: dict[str, Any] = {
        "error": {"Error": "not today"},
        "http": 503,
        "stranger": {"NodeNames": ["elsewhere"]},
    }
    s.extender.plan["filter"] = lambda q: plans[q["Pod"]["metadata"]["name"]]
    found = {}
    for name in plans:
        s.pod(name)
    for name in plans:
        s.extender.wait("filter", name, 2)
        found[name] = s.condition(name)["reason"], True
    return found


@SCHEDULER.case(
    "a bind that is refused keeps the pod, is told, and is tried again after a pause of a second and more",
    (True, True, "bind-fails-a"),
)
def bind_fails(s: Scheduling) -> object:
    s.node("a")
    answers = iter([{"Error": "somebody was quicker"}])
    s.extender.plan["bind"] = lambda q: next(answers, None) or s.bind(q)
    s.pod("bf")
    place = s.bound("bf")
    told = [text for reason, text in s.events("bf") if reason == "FailedScheduling"]
    first, second = s.extender.times("bind", "bf")
    return "somebody was quicker" in told, second - first > 0.9, place


@SCHEDULER.case(
    "a refused pod is asked about once more as its own condition is written, then not before something happens: "
    "an annotation of its own or of a node, at once and whatever pause it is in",
    {"at first": 2, "nothing": 0, "its annotation": 1, "a node's annotation": 1},
)
def asked_again(s: Scheduling) -> object:
    node = s.node("a")
    s.extender.plan["filter"] = lambda q: {"NodeNames": [], "FailedNodes": {node: "no room"}}
    meek = s.priority("meek", 1, preemptionPolicy="Never")
    found: object = None
    for name in ("aa", "ab", "ac", "ad"):  # with another pod as long as a node of somebody's has changed
        before = s.others()
        found = _asked_again(s, name, node, meek)
        if s.others() == before:
            break
    return found


def _asked_again(s: Scheduling, name: str, node: str, meek: str) -> object:
    s.pod(name, priorityClassName=meek)
    s.condition(name)
    found = {"at first": _more(s, name, 0, 2), "nothing": _more(s, name, 2, 0)}
    count = len(s.extender.asked("filter", name))
    change = {"metadata": {"annotations": {"example.test/a": name}}}
    s.world.ask("PATCH", f"{PODS}/{name}", change, MERGE).ok()
    found["its annotation"] = _more(s, name, count, 1)
    s.world.ask("PATCH", f"/api/v1/nodes/{node}", change, MERGE).ok()
    found["a node's annotation"] = _more(s, name, count + 1, 1)
    return found


def _more(s: Scheduling, name: str, before: int, expected: int, seconds: float = 0.8) -> int:
    """How often the pod was asked about since, once nobody has for a while. What is expected is waited for: a
    scheduler on a busy machine may take longer than that while.
    """
    with suppress(AssertionError):
        s.extender.wait("filter", name, before + expected)
    count = -1
    while count != (count := len(s.extender.asked("filter", name))):
        with suppress(AssertionError):
            s.extender.wait("filter", name, count + 1, seconds)
    return count - before


@SCHEDULER.case(
    "preempt comes with UIDs of victims by node, of nodes that evicting may help; who is answered goes, and the "
    "place is kept",
    (["NodeNameToMetaVictims", "NodeNameToVictims", "Pod"], {"preempts-a": [1, 0]}, "preempts-a", 404, True),
)
def preempts(s: Scheduling) -> object:
    low, high = s.priority("low", 1), s.priority("high", 1000)
    node, lasting = s.node("a", cards=1), s.node("b", cards=1)
    s.extender.plan["filter"] = lambda q: {
        "NodeNames": [n for n in q["NodeNames"] if n != lasting],
        "FailedAndUnresolvableNodes": {lasting: "never"},
    }
    victim = s.pod("lesser", priorityClassName=low)
    s.bound("lesser")
    s.extender.plan["preempt"] = lambda q: {"NodeNameToMetaVictims": q["NodeNameToMetaVictims"]}
    s.pod("greater", priorityClassName=high)
    [asked, *_] = s.extender.wait("preempt", "greater")
    s.world.until(
        lambda: s.world.get(f"{PODS}/lesser")["metadata"].get("deletionTimestamp"), "nobody is evicted"
    )
    s.world.until(
        lambda: s.world.get(f"{PODS}/greater")["status"].get("nominatedNodeName"), "no place is kept"
    )
    nominated = s.world.get(f"{PODS}/greater")["status"]["nominatedNodeName"]
    meta = asked["NodeNameToMetaVictims"]
    s.world.ask("DELETE", f"{PODS}/lesser", {"gracePeriodSeconds": 0}).ok()
    s.bound("greater")
    uids = [p["UID"] for p in meta[node]["Pods"]]
    counted = {n: [len(v["Pods"] or ()), v["NumPDBViolations"]] for n, v in meta.items()}
    gone = s.world.ask("GET", f"{PODS}/lesser").code
    return sorted(asked), counted, nominated, gone, uids == [victim["metadata"]["uid"]]


@SCHEDULER.case(
    "an empty answer to preempt evicts nobody",
    (False, None),
)
def spares(s: Scheduling) -> object:
    low, high = s.priority("low", 1), s.priority("high", 1000)
    s.node("a", cards=1)
    s.pod("spared", priorityClassName=low)
    s.bound("spared")
    s.extender.plan["preempt"] = lambda q: {"NodeNameToMetaVictims": {}}
    s.pod("denied", priorityClassName=high)
    s.extender.wait("preempt", "denied")
    s.condition("denied")
    gone = "deletionTimestamp" in s.world.get(f"{PODS}/spared")["metadata"]
    return gone, s.world.get(f"{PODS}/denied")["status"].get("nominatedNodeName")

"""What the product relies on of an WRITES server that it writes to: patches, conflicts, bindings, evictions."""

from __future__ import annotations

from typing import Any

from tests.agreement.world import (
    JSON_PATCH,
    MERGE,
    NAMESPACE,
    PODS,
    STRATEGIC,
    Table,
    World,
    asking,
    pod,
)

WRITES = Table()
GPU = "example.test/gpu"
STORAGE = f"StorageError: invalid object, Code: 4, Key: /registry/pods/{NAMESPACE}"
OTHER = (
    "ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: other, "
    "UID in object meta: <uid>"
)


def annotated(w: World, name: str) -> Any:
    return w.get(f"{PODS}/{name}")["metadata"].get("annotations")


# Patches.


@WRITES.case(
    "a merge patch adds, changes and removes annotations, and null for what is not there is no fault",
    {"b": "2", "c": "3"},
)
def merge_patch(w: World) -> object:
    w.pod("merge", annotations={"a": "1", "b": "1"})
    change = {"metadata": {"annotations": {"a": None, "b": "2", "c": "3", "d": None}}}
    w.ask("PATCH", f"{PODS}/merge", change, MERGE).ok()
    return annotated(w, "merge")


@WRITES.case("a patch that changes nothing leaves the version alone", (True, False))
def unchanged(w: World) -> object:
    versions = [w.pod("same", annotations={"a": "1"})["metadata"]["resourceVersion"]]
    for value in ("1", "2"):
        found = w.ask("PATCH", f"{PODS}/same", {"metadata": {"annotations": {"a": value}}}, MERGE).ok()
        versions.append(found["metadata"]["resourceVersion"])
    return versions[0] == versions[1], versions[1] == versions[2]


@WRITES.case(
    "a namesake is never written: another UID is 422 to a patch, of the status too, and a conflict to a PUT",
    [
        (
            422,
            "Invalid",
            'Pod "namesake" is invalid: metadata.uid: Invalid value: "other": field is immutable',
        ),
        (
            422,
            "Invalid",
            'Pod "namesake" is invalid: metadata.uid: Invalid value: "other": field is immutable',
        ),
        (
            409,
            "Conflict",
            f'Operation cannot be fulfilled on pods "namesake": {STORAGE}/namesake, {OTHER}',
        ),
    ],
)
def other_uid(w: World) -> object:
    made = w.pod("namesake")
    other = {"metadata": {"uid": "other"}}
    patches = [w.ask("PATCH", f"{PODS}/namesake{sub}", other, MERGE) for sub in ("", "/status")]
    meta = {k: v for k, v in made["metadata"].items() if k != "resourceVersion"}
    put = w.ask("PUT", f"{PODS}/namesake", {**made, "metadata": {**meta, "uid": "other"}})
    return [answer.refusal() for answer in (*patches, put)]


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


@WRITES.case(
    "a patch and a PUT with an old version are conflicts",
    [(409, "Conflict", f'Operation cannot be fulfilled on pods "stale": {MODIFIED}')] * 2,
)
def old_version(w: World) -> object:
    old = w.pod("stale")
    w.ask("PATCH", f"{PODS}/stale", {"metadata": {"annotations": {"a": "1"}}}, MERGE).ok()
    stamped = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"], "annotations": {"a": "2"}}}
    return [
        w.ask("PATCH", f"{PODS}/stale", stamped, MERGE).refusal(),
        w.ask("PUT", f"{PODS}/stale", old).refusal(),
    ]


@WRITES.case("a JSON patch tests, adds and removes", {"a/b": "2", "c": "3"})
def json_patch(w: World) -> object:
    w.pod("operations", annotations={"a/b": "1", "gone": "1"})
    operations = [
        {"op": "test", "path": "/metadata/annotations/a~1b", "value": "1"},
        {"op": "replace", "path": "/metadata/annotations/a~1b", "value": "2"},
        {"op": "add", "path": "/metadata/annotations/c", "value": "3"},
        {"op": "remove", "path": "/metadata/annotations/gone"},
    ]
    w.ask("PATCH", f"{PODS}/operations", operations, JSON_PATCH).ok()
    return annotated(w, "operations")


@WRITES.case(
    "a JSON patch whose test fails, or that removes what is not there, is refused", [(422, "Invalid")] * 2
)
def json_patch_refused(w: World) -> object:
    w.pod("untouched", annotations={"a": "1"})
    test = [{"op": "test", "path": "/metadata/annotations/a", "value": "2"}]
    remove = [{"op": "remove", "path": "/metadata/annotations/b"}]
    found = [w.ask("PATCH", f"{PODS}/untouched", operations, JSON_PATCH) for operations in (test, remove)]
    return [answer.refusal()[:2] for answer in found]


@WRITES.case("an unknown patch format is 415", (415, "UnsupportedMediaType"))
def patch_format(w: World) -> object:
    w.pod("format")
    return w.ask("PATCH", f"{PODS}/format", {}, "application/json").refusal()[:2]


@WRITES.case(
    "a strategic patch of a status merges conditions by type, and keeps the others",
    {"A": "False", "B": "True"},
)
def strategic(w: World) -> object:
    w.pod("conditions")
    for condition in (
        {"type": "A", "status": "True"},
        {"type": "B", "status": "True"},
        {"type": "A", "status": "False"},
    ):
        change = {"status": {"conditions": [condition]}}
        w.ask("PATCH", f"{PODS}/conditions/status", change, STRATEGIC).ok()
    found = w.get(f"{PODS}/conditions")["status"]["conditions"]
    return {c["type"]: c["status"] for c in found}


@WRITES.case(
    "a patch of the status changes annotations too, but nothing of the spec", ("Running", {"a": "1"}, None)
)
def status_patch(w: World) -> object:
    w.pod("status")
    change = {
        "metadata": {"annotations": {"a": "1"}},
        "spec": {"nodeName": "nowhere"},
        "status": {"phase": "Running"},
    }
    w.ask("PATCH", f"{PODS}/status/status", change, MERGE).ok()
    found = w.get(f"{PODS}/status")
    return found["status"]["phase"], found["metadata"]["annotations"], found["spec"].get("nodeName")


@WRITES.case("a patch of the pod changes nothing of its status", "Pending")
def spec_patch(w: World) -> object:
    w.pod("spec")
    w.ask("PATCH", f"{PODS}/spec", {"status": {"phase": "Running"}}, MERGE).ok()
    return w.get(f"{PODS}/spec")["status"]["phase"]


@WRITES.case("a pod's requests, node and priority may not be changed", [(422, "Invalid")] * 3)
def fixed_spec(w: World) -> object:
    w.pod("fixed", containers=asking({GPU: "1"}))
    changes: list[dict[str, Any]] = [
        {"nodeName": "nowhere"},
        {"priority": 7},
        {"containers": list(asking({GPU: "2"}))},
    ]
    return [w.ask("PATCH", f"{PODS}/fixed", {"spec": c}, MERGE).refusal()[:2] for c in changes]


# Creation.


@WRITES.case(
    "a name that is taken, and a namespace that is not there",
    [
        (409, "AlreadyExists", 'pods "twice" already exists'),
        (404, "NotFound", 'namespaces "no-such" not found'),
    ],
)
def create_refused(w: World) -> object:
    w.pod("twice")
    taken = w.ask("POST", PODS, pod("twice"))
    nowhere = w.ask("POST", PODS.replace(NAMESPACE, "no-such"), pod("one"))
    return [taken.refusal(), nowhere.refusal()]


@WRITES.case("requests default to limits, as text, for extended resources too", {GPU: "2", "cpu": "500m"})
def defaults(w: World) -> object:
    made = w.pod("defaults", containers=asking({GPU: 2, "cpu": "500m"}))
    return made["spec"]["containers"][0]["resources"]["requests"]


@WRITES.case(
    "what an extended resource may not be",
    {
        "half": (422, f"spec.containers[0].resources.limits[{GPU}]", "must be an integer"),
        "unequal": (422, "spec.containers[0].resources.requests", f"must be equal to {GPU} limit of 2"),
        "request alone": (
            422,
            "spec.containers[0].resources.limits",
            "Limit must be set for non overcommitable resources",
        ),
        "negative": (
            422,
            f"spec.containers[0].resources.limits[{GPU}]",
            "must be greater than or equal to 0",
        ),
    },
)
def extended(w: World) -> object:
    tries = {
        "half": asking({GPU: "0.5"}),
        "unequal": asking({GPU: "2"}, {GPU: "1"}),
        "request alone": asking({}, {GPU: "1"}),
        "negative": asking({GPU: "-1"}),
    }
    found = {}
    for name, containers in tries.items():
        answer = w.ask("POST", PODS, pod("refused", containers=list(containers)))
        cause = answer.body["details"]["causes"][0]
        # Between field and rule stands the value, written in other ways by other versions.
        found[name] = answer.code, cause["field"], cause["message"].rpartition(": ")[2]
    return found


@WRITES.case(
    "a pod's priority is its class's; a number of its own and a class that is not there are refused",
    {
        "of a class": (7, "Never"),
        "of none": (0, "PreemptLowerPriority"),
        "of the system": 2_000_001_000,
        "own number": (
            403,
            "Forbidden",
            (
                'pods "p-own" is forbidden: the integer value of priority (7) must not be provided in pod spec; '
                "priority admission controller computed 0 from the given PriorityClass name"
            ),
        ),
        "no such class": (
            403,
            "Forbidden",
            'pods "p-lost" is forbidden: no PriorityClass with name agreement-lost was found',
        ),
    },
)
def priority(w: World) -> object:
    body = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "agreement-seven"},
    }
    place = "/apis/scheduling.k8s.io/v1/priorityclasses"
    w.make(place, {**body, "value": 7, "preemptionPolicy": "Never"})
    classed = w.pod("p-class", priorityClassName="agreement-seven")["spec"]
    plain = w.pod("p-plain")["spec"]
    system = w.pod("p-system", priorityClassName="system-node-critical")["spec"]
    return {
        "of a class": (classed["priority"], classed["preemptionPolicy"]),
        "of none": (plain["priority"], plain["preemptionPolicy"]),
        "of the system": system["priority"],
        "own number": w.ask("POST", PODS, pod("p-own", priority=7)).refusal(),
        "no such class": w.ask("POST", PODS, pod("p-lost", priorityClassName="agreement-lost")).refusal(),
    }


@WRITES.case("a dry run judges and keeps nothing", (201, 409, 404))
def dry_run(w: World) -> object:
    w.pod("there")
    codes = [w.ask("POST", PODS, pod(name), dryRun="All").code for name in ("not-there", "there")]
    return *codes, w.ask("GET", f"{PODS}/not-there").code


@WRITES.case("a generated name begins as asked", ("like-this-", 5))
def generated(w: World) -> object:
    body = pod("x")
    body["metadata"] = {"generateName": "like-this-"}
    name = w.make(PODS, body)["metadata"]["name"]
    return name[:10], len(name[10:])


# Binding.


@WRITES.case(
    "a Binding brings node and annotations in one version, and says so with 201",
    (201, "Status", "Success", "nowhere", {"mine": "1", "card": "3"}, {"PodScheduled": "True"}),
)
def binding(w: World) -> object:
    uid = w.pod("bound", annotations={"mine": "1"})["metadata"]["uid"]
    with w.watching(PODS, fieldSelector="metadata.name=bound", timeoutSeconds=20) as events:
        first = next(events)
        answer = w.bind("bound", uid=uid, annotations={"card": "3"})
        second = next(events)
    assert [first["type"], second["type"]] == ["ADDED", "MODIFIED"]
    found = second["object"]
    conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    spec, meta = found["spec"], found["metadata"]
    said = answer.code, answer.body["kind"], answer.body["status"]
    return *said, spec["nodeName"], meta["annotations"], conditions


@WRITES.case(
    "a Binding is refused for another UID, an old version, a bound pod, a gated one, one that goes, and nobody",
    {
        "uid": (
            409,
            "Conflict",
            f'Operation cannot be fulfilled on pods "b-uid": {STORAGE}/b-uid, {OTHER}',
        ),
        "version": (409, "Conflict", ""),
        "bound": (
            409,
            "Conflict",
            'Operation cannot be fulfilled on pods/binding "b-bound": pod b-bound is already assigned to node "nowhere"',
        ),
        "gated": (
            409,
            "Conflict",
            'Operation cannot be fulfilled on pods/binding "b-gated": pod b-gated has non-empty .spec.schedulingGates',
        ),
        "going": (
            409,
            "Conflict",
            (
                'Operation cannot be fulfilled on pods/binding "b-going": pod b-going is being deleted, cannot be '
                "assigned to a host"
            ),
        ),
        "nobody": (404, "NotFound", 'pods "b-nobody" not found'),
        "no target": (500, "None", "target.name: Required value"),
    },
)
def binding_refused(w: World) -> object:
    w.pod("b-uid")
    w.pod("b-version")
    w.pod("b-bound")
    w.bind("b-bound").ok()
    w.pod("b-gated", schedulingGates=[{"name": "example.test/wait"}])
    going = pod("b-going")
    going["metadata"]["finalizers"] = ["example.test/hold"]
    w.make(PODS, going)
    w.ask("DELETE", f"{PODS}/b-going").ok()
    found = {
        "uid": w.bind("b-uid", uid="other"),
        "version": w.bind("b-version", resourceVersion="1"),
        "bound": w.bind("b-bound", "elsewhere"),
        "gated": w.bind("b-gated"),
        "going": w.bind("b-going"),
        "nobody": w.bind("b-nobody"),
        "no target": w.bind("b-uid", ""),
    }
    w.ask("PATCH", f"{PODS}/b-going", {"metadata": {"finalizers": None}}, MERGE).ok()
    said = {name: answer.refusal() for name, answer in found.items()}
    return {n: (*s[:2], s[2] if n != "version" else "") for n, s in said.items()}


@WRITES.case("a dry run of a Binding binds nobody", (201, None))
def binding_dry_run(w: World) -> object:
    w.pod("unbound")
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "unbound"},
        "target": {"name": "nowhere"},
    }
    answer = w.ask("POST", f"{PODS}/unbound/binding", body, dryRun="All")
    return answer.code, w.get(f"{PODS}/unbound")["spec"].get("nodeName")


# Deletion and eviction.


@WRITES.case(
    "a bound pod stays until its kubelet confirms; an unbound one goes at once; another UID is a conflict",
    {
        "other": (
            409,
            "Conflict",
            (
                'Operation cannot be fulfilled on Pod "d-free": the UID in the precondition (other) does not match '
                "the UID in record (<uid>). The object might have been deleted and then recreated"
            ),
        ),
        "unbound": 404,
        "bound": (200, True, 7),
        "confirmed": 404,
    },
)
def deletion(w: World) -> object:
    w.pod("d-free")
    w.pod("d-bound", terminationGracePeriodSeconds=7)
    w.bind("d-bound").ok()
    other = w.ask("DELETE", f"{PODS}/d-free", {"preconditions": {"uid": "other"}}).refusal()
    w.ask("DELETE", f"{PODS}/d-free").ok()
    w.ask("DELETE", f"{PODS}/d-bound").ok()
    still = w.ask("GET", f"{PODS}/d-bound")
    meta = still.body["metadata"]
    w.ask("DELETE", f"{PODS}/d-bound", {"gracePeriodSeconds": 0}).ok()
    return {
        "other": other,
        "unbound": w.ask("GET", f"{PODS}/d-free").code,
        "bound": (still.code, "deletionTimestamp" in meta, meta.get("deletionGracePeriodSeconds")),
        "confirmed": w.ask("GET", f"{PODS}/d-bound").code,
    }


def evict(w: World, name: str) -> Any:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
    return w.ask("POST", f"{PODS}/{name}/eviction", body)


@WRITES.case(
    "an eviction that a disruption budget refuses is 429 and names the budget as its cause; one of a pod that "
    "does not run yet is granted",
    {
        "running": (
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
            [("DisruptionBudget", "The disruption budget keep needs 1 healthy pods and has 1 currently")],
        ),
        "pending": (201, "Success"),
    },
)
def eviction(w: World) -> object:
    labels = {"matchLabels": {"budget": "keep"}}
    place = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep"}}
    w.make(place, {**budget, "spec": {"minAvailable": 1, "selector": labels}})
    for name in ("e-runs", "e-waits"):
        body = pod(name)
        body["metadata"]["labels"] = labels["matchLabels"]
        w.make(PODS, body)
        w.bind(name).ok()
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    w.ask("PATCH", f"{PODS}/e-runs/status", {"status": ready}, STRATEGIC).ok()
    w.until(lambda: evict(w, "e-runs").code == 429 and _says(w), "the budget is not held")
    refused = evict(w, "e-runs")
    granted = evict(w, "e-waits")
    causes = [(c["reason"], c["message"]) for c in refused.body["details"]["causes"]]
    return {
        "running": (*refused.refusal(), causes),
        "pending": (granted.code, granted.body["status"]),
    }


def _says(w: World) -> bool:
    """The real server's controller has counted: before that the cause is another."""
    causes = evict(w, "e-runs").body["details"].get("causes") or ({},)
    return "healthy pods" in causes[0].get("message", "") or "allows no more" in causes[0].get("message", "")

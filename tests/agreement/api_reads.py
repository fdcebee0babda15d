"""What the product relies on of an API server that it reads from: lists, watches, Leases, rights."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from tests.agreement.world import MERGE, NAMESPACE, NOBODY, PODS, Obj, Table, World, pod

READS = Table()


# Lists and watches.


@READS.case("pods are selected by node, phase and labels", [["s-1"], ["s-2"], ["s-2"], ["s-1"]])
def selectors(w: World) -> object:
    for name in ("s-1", "s-2"):
        w.pod(name)
    w.bind("s-1").ok()
    w.ask("PATCH", f"{PODS}/s-2/status", {"status": {"phase": "Succeeded"}}, MERGE).ok()
    queries: list[dict[str, str]] = [
        {"fieldSelector": "spec.nodeName=nowhere"},
        {"fieldSelector": "spec.nodeName=,status.phase!=Pending"},
        {"labelSelector": "case in (s-2,s-3)"},
        {"labelSelector": "case,case!=s-2"},
    ]
    found = [w.ask("GET", PODS, **query).ok()["items"] for query in queries]
    return [sorted(p["metadata"]["name"] for p in items) for items in found]


@READS.case(
    "a list comes in pages of limit objects by its continue token, each of which may ask for another limit",
    [["p-1"], ["p-2", "p-3"], ["p-4"]],
)
def pages(w: World) -> object:
    for name in ("p-1", "p-2", "p-3", "p-4"):
        w.pod(name)
    found, query = [], {}
    for limit in (1, 2, 100):
        answer = w.ask("GET", PODS, labelSelector="case in (p-1,p-2,p-3,p-4)", limit=limit, **query).ok()
        found.append([item["metadata"]["name"] for item in answer["items"]])
        query = {"continue": answer["metadata"].get("continue", "")}
    assert not query["continue"]
    return found


@READS.case(
    "a list whose version is forgotten is 410 with a token by which the rest comes, as it is then",
    (410, "Expired", ["x-2", "x-3"], True),
)
def list_expired(w: World) -> object:
    w.pod("x-1")
    w.pod("x-2")
    query = {"labelSelector": "case in (x-1,x-2,x-3)"}
    first = w.ask("GET", PODS, **query, limit=1).ok()["metadata"]
    w.pod("x-3")
    w.forget()
    refused = w.ask("GET", PODS, **query, limit=1, **{"continue": first["continue"]})
    more = refused.body["metadata"]["continue"]
    rest = w.ask("GET", PODS, **query, **{"continue": more}).ok()
    newer = int(rest["metadata"]["resourceVersion"]) > int(first["resourceVersion"])
    return *refused.refusal()[:2], [item["metadata"]["name"] for item in rest["items"]], newer


# What authors of objects may write that not every decoder reads: deeper than most go, and no UTF-8.
FIELDS = {
    "deep": b'{"f:a":' * 1_500 + b"{}" + b"}" * 1_500,
    "deepest": b'{"f:a":' * 9_000 + b"{}" + b"}" * 9_000,
    "byte": b'{"f:\xff":{}}',
    "surrogate": b'{"f:\xed\xa0\x80":{}}',
}
PARAMETERS = {
    "deep": b'{"a":' * 1_500 + b"1" + b"}" * 1_500,
    "arrays": b'{"a":%b}' % (b"[" * 5_000 + b"]" * 5_000),
    "many": b'{"a":[%b]}' % b",".join([b"[]"] * 3_000),
    "byte": b'{"\xff":1}',
}
_KEPT = (201, True, True, True)


def _hostile(w: World, place: str, forms: Mapping[str, bytes], body: Obj) -> object:
    """Per form: the code of its creation, and whether it is there when it is read, listed, watched."""
    found = {}
    for form, text in forms.items():
        name = f"h-{form}"
        body["metadata"] |= {"name": name, "labels": {"case": name}}
        code = w.ask("POST", place, json.dumps(body).encode().replace(b'"here"', text)).code
        w.made(f"{place}/{name}")
        selected = {"fieldSelector": f"metadata.name={name}", "timeoutSeconds": 1}
        read = (w.written(f"{place}/{name}"), w.written(place, labelSelector=f"case={name}"))
        watched = w.until(
            lambda text=text, selected=selected: text in w.written(place, watch="true", **selected),
            f"{name} is not watched",
        )
        found[form] = (code, *(text in one for one in read), watched)
    return found


def _with_fields(body: Obj) -> Obj:
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    body["metadata"]["managedFields"] = [{**entry, "time": "2026-01-01T00:00:00Z", "fieldsV1": "here"}]
    return body


@READS.case(
    "managedFields of pods that nest 9,000 deep or hold bytes that are no UTF-8 are stored, read, listed, watched",
    dict.fromkeys(FIELDS, _KEPT),
)
def hostile_pods(w: World) -> object:
    return _hostile(w, PODS, FIELDS, _with_fields(pod("h")))


@READS.case("so are those of nodes", dict.fromkeys(FIELDS, _KEPT))
def hostile_nodes(w: World) -> object:
    return _hostile(
        w, "/api/v1/nodes", FIELDS, _with_fields({"apiVersion": "v1", "kind": "Node", "metadata": {}})
    )


@READS.case(
    "opaque parameters of claims that nest 1,500 deep or hold bytes that are no UTF-8 are so, too",
    dict.fromkeys(PARAMETERS, _KEPT),
    since=34,
)
def hostile_claims(w: World) -> object:
    request = {"name": "r", "exactly": {"deviceClassName": "c"}}
    config = {"opaque": {"driver": "x.example.com", "parameters": "here"}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {},
        "spec": {"devices": {"requests": [request], "config": [config]}},
    }
    return _hostile(w, f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims", PARAMETERS, body)


@READS.case("a field that cannot be selected by is 400", (400, "BadRequest"))
def unknown_field(w: World) -> object:
    return w.ask("GET", PODS, fieldSelector="spec.containers=x").refusal()[:2]


@READS.case(
    "a watch from a version shows every later change once; entering the selection is ADDED, leaving it DELETED",
    [("ADDED", "w-1", "nowhere"), ("MODIFIED", "w-1", "nowhere"), ("DELETED", "w-1", "nowhere")],
)
def watch(w: World) -> object:
    w.pod("w-1")
    version = w.ask("GET", PODS).ok()["metadata"]["resourceVersion"]
    w.bind("w-1").ok()
    w.ask("PATCH", f"{PODS}/w-1", {"metadata": {"annotations": {"a": "1"}}}, MERGE).ok()
    w.ask("PATCH", f"{PODS}/w-1/status", {"status": {"phase": "Failed"}}, MERGE).ok()
    query = {"resourceVersion": version, "timeoutSeconds": 20}
    selected = "spec.nodeName=nowhere,status.phase!=Failed"
    with w.watching(PODS, fieldSelector=selected, **query) as events:
        found = list(itertools.islice(events, 3))
    return [(e["type"], e["object"]["metadata"]["name"], e["object"]["spec"].get("nodeName")) for e in found]


@READS.case("a watch ends by itself after its timeout, with whole lines", ["ADDED"])
def watch_ends(w: World) -> object:
    w.pod("w-end")
    with w.watching(PODS, fieldSelector="metadata.name=w-end", timeoutSeconds=1) as events:
        return [e["type"] for e in events]


@READS.case(
    "a watch that is about to end by its timeout sends a bookmark, with a version and nothing else of a pod",
    (["MODIFIED", "BOOKMARK"], "Pod", "v1", True, None),
)
def bookmark(w: World) -> object:
    version = w.pod("w-mark")["metadata"]["resourceVersion"]
    query = {"fieldSelector": "metadata.name=w-mark", "allowWatchBookmarks": "true", "timeoutSeconds": 5}
    with w.watching(PODS, resourceVersion=version, **query) as events:
        w.ask("PATCH", f"{PODS}/w-mark", {"metadata": {"annotations": {"a": "1"}}}, MERGE).ok()
        found = list(events)
    before, mark = found[0]["object"], found[-1]["object"]
    newer = int(mark["metadata"]["resourceVersion"]) >= int(before["metadata"]["resourceVersion"])
    kinds = list(dict.fromkeys(e["type"] for e in found))  # it may be more than one
    return kinds, mark["kind"], mark["apiVersion"], newer, mark["metadata"].get("name")


@READS.case(
    "a watch from a version that is forgotten is one ERROR event: a Status with 410",
    [("ERROR", "Status", 410, "Expired", True)],
)
def watch_expired(w: World) -> object:
    w.pod("w-old")
    w.forget()
    with w.watching(PODS, resourceVersion="1", timeoutSeconds=5) as events:
        found = list(events)
    return [
        (
            e["type"],
            *(e["object"].get(k) for k in ("kind", "code", "reason")),
            "too old resource version" in e["object"]["message"],
        )
        for e in found
    ]


@READS.case(
    "a pod that goes at once is shown going before it is shown gone, bound or not",
    [("MODIFIED", 0), ("DELETED", 0)] * 2,
)
def watch_deletion(w: World) -> object:
    found = []
    for name, bound in (("w-free", False), ("w-bound", True)):
        version = w.pod(name)["metadata"]["resourceVersion"]
        if bound:
            w.bind(name).ok()
            version = w.get(f"{PODS}/{name}")["metadata"]["resourceVersion"]
        w.ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0}).ok()
        query = {"fieldSelector": f"metadata.name={name}", "timeoutSeconds": 20}
        with w.watching(PODS, resourceVersion=version, **query) as events:
            found += list(itertools.islice(events, 2))
    return [(e["type"], e["object"]["metadata"].get("deletionGracePeriodSeconds")) for e in found]


# Leases: who leads.


@READS.case(
    "of two that take a Lease over by the same version the second is told so",
    (200, 409, "Conflict", "a"),
)
def lease(w: World) -> object:
    place = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    made = w.make(
        place, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lead"}}
    )
    first = w.ask("PUT", f"{place}/lead", {**made, "spec": {"holderIdentity": "a"}})
    second = w.ask("PUT", f"{place}/lead", {**made, "spec": {"holderIdentity": "b"}})
    return first.code, *second.refusal()[:2], w.get(f"{place}/lead")["spec"]["holderIdentity"]


# Rights.


@READS.case(
    "who may not is told 403, and in which words",
    [
        (
            403,
            "Forbidden",
            (
                f'pods is forbidden: User "{NOBODY}" cannot list resource "pods" in API group "" in the namespace '
                f'"{NAMESPACE}"'
            ),
        ),
        (
            403,
            "Forbidden",
            (
                f'pods "mine" is forbidden: User "{NOBODY}" cannot create resource "pods/binding" in API group "" in '
                f'the namespace "{NAMESPACE}"'
            ),
        ),
        (
            403,
            "Forbidden",
            (
                f'nodes "n1" is forbidden: User "{NOBODY}" cannot patch resource "nodes/status" in API group "" at the '
                "cluster scope"
            ),
        ),
    ],
)
def forbidden(w: World) -> object:
    return [
        w.ask("GET", PODS, user=NOBODY).refusal(),
        w.ask("POST", f"{PODS}/mine/binding", {}, user=NOBODY).refusal(),
        w.ask("PATCH", "/api/v1/nodes/n1/status", {}, MERGE, user=NOBODY).refusal(),
    ]


@READS.case("a token that nobody has is 401", (401, "Unauthorized", "Unauthorized"))
def unauthorized(w: World) -> object:
    return w.ask("GET", PODS, headers={"Authorization": "Bearer none-such"}).refusal()


@READS.case(
    "a TokenReview of such a token is an answer, not a fault; an access review says whether somebody may",
    (201, False, [False, True]),
)
def reviews(w: World) -> object:
    body: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    token = w.ask(
        "POST", "/apis/authentication.k8s.io/v1/tokenreviews", {**body, "spec": {"token": "none-such"}}
    )
    access = {"namespace": NAMESPACE, "verb": "list", "resource": "pods"}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    allowed = []
    for who in ({"user": NOBODY}, {"user": "admin", "groups": ["system:masters"]}):
        spec = {**who, "resourceAttributes": access}
        answer = w.ask("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {**body, "spec": spec})
        allowed.append(answer.ok()["status"]["allowed"])
    return token.code, bool(token.ok()["status"].get("authenticated")), allowed

"""Which resources the stand-in serves, and what a request path means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from sandbox.api.status import ApiError


@dataclass(frozen=True, slots=True)
class Resource:
    """One served resource. ``subresources`` are the part after the name."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version


NO_CONTROLLERS: Final = "the sandbox has no controllers: apply the pods themselves"
WORKLOADS: Final = ("Deployment", "StatefulSet")  # kept for what is said of them; nothing makes their pods

RESOURCES: tuple[Resource, ...] = (
    Resource("", "v1", "namespaces", "Namespace", namespaced=False, subresources=frozenset({"status"})),
    Resource("", "v1", "nodes", "Node", namespaced=False, subresources=frozenset({"status"})),
    Resource("", "v1", "pods", "Pod", subresources=frozenset({"status", "binding", "eviction"})),
    Resource("", "v1", "events", "Event"),
    Resource("", "v1", "configmaps", "ConfigMap"),
    Resource("", "v1", "resourcequotas", "ResourceQuota", subresources=frozenset({"status"})),
    Resource("", "v1", "limitranges", "LimitRange"),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "services", "Service"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    Resource("", "v1", "bindings", "Binding"),
    *(
        Resource("apps", "v1", f"{kind.lower()}s", kind, subresources=frozenset({"status"}))
        for kind in ("DaemonSet", *WORKLOADS)
    ),
    Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    Resource(
        "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", subresources=frozenset({"status"})
    ),
    Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False),
    Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", subresources=frozenset({"status"})),
    Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False),
    Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
    *(
        Resource("admissionregistration.k8s.io", "v1", f"{word}webhookconfigurations", kind, namespaced=False)
        for word, kind in (
            ("mutating", "MutatingWebhookConfiguration"),
            ("validating", "ValidatingWebhookConfiguration"),
        )
    ),
    # Reviews: they can be created, and are answered at once and never stored.
    Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False),
    Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False),
    Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False),
    Resource(
        "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
    ),
)
REVIEW_GROUPS = frozenset({"authentication.k8s.io", "authorization.k8s.io"})

_BY_PATH = {(r.group, r.version, r.plural): r for r in RESOURCES}
_BY_KIND = {(r.api_version, r.kind): r for r in RESOURCES}
_BY_PLURAL = {r.plural: r for r in RESOURCES}


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about. Empty strings mean: all namespaces, a collection, the object itself."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def path(self) -> str:
        """``pods`` or ``pods/binding``, as RBAC spells it."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


def resource_of(obj: dict[str, Any]) -> Resource:
    """The resource an object with ``apiVersion`` and ``kind`` belongs to."""
    found = _BY_KIND.get((str(obj.get("apiVersion")), str(obj.get("kind"))))
    if found is None:
        raise ApiError(404, "NotFound", f"no resource serves {obj.get('apiVersion')}, kind {obj.get('kind')}")
    return found


def resource_named(plural: str) -> Resource:
    """The resource with this plural name (they are unique here)."""
    found = _BY_PLURAL.get(plural)
    if found is None:
        raise ApiError(404, "NotFound", f"the server could not find the requested resource ({plural})")
    return found


def parse_path(path: str) -> Target | None:
    """Read ``/api/v1/…`` or ``/apis/<group>/<version>/…``; None if the path names no served resource."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and (group, version, rest[2]) in _BY_PATH:
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        return None
    resource = _BY_PATH.get((group, version, rest[0]))
    name, subresource = (*rest[1:], "", "")[:2]
    if resource is None or (subresource and subresource not in resource.subresources):
        return None
    if resource.namespaced and name and not namespace:
        return None
    return Target(resource, namespace, name, subresource)


def discovery(path: str) -> dict[str, Any] | None:
    """The documents by which clients find out what is served; None if ``path`` is none of them."""
    parts = [part for part in path.split("/") if part]
    groups = sorted({(r.group, r.version) for r in RESOURCES if r.group})
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["apis"]:
        served = []
        for group, version in groups:
            best = {"groupVersion": f"{group}/{version}", "version": version}
            served.append({"name": group, "versions": [best], "preferredVersion": best})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": served}
    api_version = "/".join(parts[1:])
    resources = [r for r in RESOURCES if r.api_version == api_version]
    if not resources or parts[0] not in ("api", "apis"):
        return None
    entries: list[dict[str, Any]] = []
    for resource in resources:
        names = (resource.plural, *(f"{resource.plural}/{sub}" for sub in sorted(resource.subresources)))
        entries.extend(
            {
                "name": name,
                "singularName": resource.kind.lower() if "/" not in name else "",
                "shortNames": [_SHORT[name]] if name in _SHORT else [],
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": _VERBS if "/" not in name else ["get", "patch", "update"],
            }
            for name in names
        )
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": entries}


_SHORT = {
    "pods": "po",
    "nodes": "no",
    "namespaces": "ns",
    "events": "ev",
    "configmaps": "cm",
    "services": "svc",
}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def is_name(name: str) -> bool:
    """True for an RFC 1123 subdomain of at most 253 characters."""
    return _NAME.fullmatch(name) is not None and ".." not in name

"""What the API server does with objects: create, change, delete, bind, evict; each one step in the store."""

from __future__ import annotations

import base64
import copy
import datetime as dt
import json
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sandbox.api import admission, pods
from sandbox.api.access import User
from sandbox.api.kinds import NO_CONTROLLERS, WORKLOADS, Target, is_name, resource_named
from sandbox.api.patches import apply_patch
from sandbox.api.priority import set_priority
from sandbox.api.rules import check_identity, prepare_create, prepare_update
from sandbox.api.selectors import Predicate
from sandbox.api.status import ApiError, already_exists, bad_request, invalid, not_found, success
from sandbox.api.storage import Key, Storage, Stored

Obj = dict[str, Any]
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # the letters of generated names: no vowels, no words


@dataclass(frozen=True, slots=True)
class Call:
    """By whom and how a verb is called."""

    user: User
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """What of a list is asked for: the first ``limit`` objects (0: all) ``after`` a key, as of a version."""

    limit: int = 0
    version: int = 0
    after: Key = ("", "")

    @classmethod
    def asked(cls, limit: str, token: str) -> Page:
        """By the parameters of a request. Raises ApiError."""
        if limit and not limit.isdigit():
            raise bad_request(f"strconv.ParseInt: parsing {limit!r}: invalid syntax")
        try:
            version, *after = json.loads(base64.b64decode(token, validate=True)) if token else (0, "", "")
            return cls(int(limit or 0), int(version), (str(after[0]), str(after[1])))
        except (ValueError, TypeError, LookupError):
            raise bad_request("continue key is not valid") from None

    def token(self) -> str:
        """The parameter that asks for what comes after it."""
        return base64.b64encode(json.dumps([self.version, *self.after]).encode()).decode()


WHOLE = Page()
_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new "
    "list without the continue parameter, or use the continue token in this response to retrieve the rest."
)


@dataclass(frozen=True, slots=True)
class VerbOutcome:
    """An object or Status to answer with, and the warnings of the hooks."""

    obj: Mapping[str, Any]
    code: int = 200
    text: bytes | None = None
    warnings: tuple[str, ...] = ()


def timestamp(offset: float = 0.0) -> str:
    """Now, as Kubernetes writes it: UTC, whole seconds."""
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=offset)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


class Verbs:
    """The verbs over one store. Hooks are asked without holding its lock, as they may ask back."""

    def __init__(self, storage: Storage, hooks: tuple[admission.Hook, ...] = ()) -> None:
        self.storage = storage
        self.hooks = hooks

    def get(self, target: Target) -> VerbOutcome:
        """The object, or 404."""
        stored = self._find(target)
        return VerbOutcome(stored.obj, text=stored.text)

    def listing(self, target: Target, matches: Predicate, page: Page = WHOLE) -> VerbOutcome:
        """The objects of a namespace (or all) that match, with the version of the listing.

        A page that continues another has its version, and the objects as they are now. Raises ApiError: that
        version has been compacted away.
        """
        stored, version = self.storage.all(target.resource)
        if 0 < page.version < self.storage.compacted:
            raise ApiError(410, "Expired", _EXPIRED, more=Page(0, version, page.after).token())
        namespace = target.namespace
        wanted = (
            s
            for s in stored
            if (not namespace or s.obj["metadata"].get("namespace") == namespace)
            and _key_of(s) > page.after
            and matches(s.obj)
        )
        chosen = list(islice(wanted, page.limit + 1 if page.limit else None))
        meta = {"resourceVersion": str(page.version or version)}
        if 0 < page.limit < len(chosen):
            chosen.pop()
            meta["continue"] = Page(0, int(meta["resourceVersion"]), _key_of(chosen[-1])).token()
        head = f'{{"kind":"{target.resource.kind}List","apiVersion":"{target.resource.api_version}",'
        head += f'"metadata":{json.dumps(meta, separators=(",", ":"))},"items":['
        return VerbOutcome({}, text=head.encode() + b",".join(s.text for s in chosen) + b"]}")

    def create(self, target: Target, body: Obj, call: Call) -> VerbOutcome:
        """A new object, or one of the subresources that are created: binding, eviction."""
        if target.resource.plural == "bindings":
            name = str((body.get("metadata") or {}).get("name") or "")
            return self.bind(Target(resource_named("pods"), target.namespace, name, "binding"), body, call)
        if target.subresource == "binding":
            return self.bind(target, body, call)
        if target.subresource == "eviction":
            return self.evict(target, body, call)
        obj, target = self._new(target, body)
        if target.resource.plural == "pods" and isinstance(obj.get("spec"), dict):
            set_priority(obj, [s.obj for s in self.storage.all(resource_named("priorityclasses"))[0]])
        prepare_create(target.resource, obj)
        changed, warnings = self._admit("CREATE", target, call, obj, None)
        if target.resource.kind in WORKLOADS:
            warnings = (*warnings, NO_CONTROLLERS)
        obj = changed or obj
        prepare_create(target.resource, obj, judge=True)
        key = (target.namespace, target.name)
        with self.storage.lock:
            if self.storage.get(target.resource, key):
                raise already_exists(target.resource.plural, target.name)
            stored = None if call.dry_run else self.storage.put(target.resource, key, obj)
        return VerbOutcome(obj, 201, stored.text if stored else None, warnings)

    def _new(self, target: Target, body: Obj) -> tuple[Obj, Target]:
        resource = target.resource
        obj = copy.deepcopy(body)
        meta = obj.setdefault("metadata", {})
        if (obj.setdefault("kind", resource.kind), obj.setdefault("apiVersion", resource.api_version)) != (
            resource.kind,
            resource.api_version,
        ):
            raise bad_request(f"{obj['apiVersion']}, kind {obj['kind']} was sent to {resource.plural}")
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"][:58] + "".join(random.choices(_SUFFIX, k=5))
        name = meta.get("name")
        if not name or not isinstance(name, str):
            raise invalid(
                resource.kind, "", "metadata.name", "Required value: name or generateName is required"
            )
        if not is_name(name):
            raise invalid(resource.kind, name, "metadata.name", "must be a lowercase RFC 1123 subdomain")
        if meta.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if resource.namespaced:
            if meta.setdefault("namespace", target.namespace) != target.namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace of the request"
                )
            if self.storage.get(resource_named("namespaces"), ("", target.namespace)) is None:
                raise not_found("namespaces", target.namespace)
        else:
            meta.pop("namespace", None)
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            meta.pop(key, None)
        if not isinstance(meta.get("managedFields"), str):  # such as cannot be decoded
            meta.pop("managedFields", None)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        return obj, Target(resource, target.namespace if resource.namespaced else "", name)

    def update(self, target: Target, body: Obj, call: Call) -> VerbOutcome:
        """PUT."""
        return self._change(target, lambda _: copy.deepcopy(body), call)

    def patch(self, target: Target, patch: Any, content_type: str, call: Call) -> VerbOutcome:
        """PATCH in one of the three formats."""

        def change(old: Mapping[str, Any]) -> Obj:
            new = apply_patch(old, patch, content_type)
            check_identity(target, old, new)
            return new

        return self._change(target, change, call)

    def _change(self, target: Target, change: Callable[[Mapping[str, Any]], Obj], call: Call) -> VerbOutcome:
        while True:
            old = self._find(target)
            new = prepare_update(target, old.obj, change(old.obj))
            changed, warnings = self._admit("UPDATE", target, call, new, old.obj)
            if changed is not None and changed is not new:
                new = prepare_update(target, old.obj, changed)
            with self.storage.lock:
                if self._find(target) is not old:
                    continue  # someone was quicker: judge again, preconditions included
                if new == old.obj or call.dry_run:
                    return VerbOutcome(new, warnings=warnings)
                meta = new["metadata"]
                waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
                if meta.get("deletionTimestamp") and not waits:  # the last finalizer has gone
                    stored = self.storage.remove(target.resource, _key(target), new)
                else:
                    stored = self.storage.put(target.resource, _key(target), new)
                return VerbOutcome(stored.obj, text=stored.text, warnings=warnings)

    def delete(self, target: Target, options: Mapping[str, Any], call: Call) -> VerbOutcome:
        """Graceful for a pod that a kubelet must end first; at once otherwise, if there are no finalizers."""
        _, warnings = self._admit("DELETE", target, call, None, self._find(target).obj)
        plural, key = target.resource.plural, _key(target)
        with self.storage.lock:
            old = self._find(target)
            meta = dict(old.obj["metadata"])
            pods.check_deletion(target.resource.kind, target.name, meta, options.get("preconditions") or {})
            if call.dry_run:
                return VerbOutcome(old.obj, text=old.text, warnings=warnings)
            grace = pods.grace_seconds(old.obj, options.get("gracePeriodSeconds")) if plural == "pods" else 0
            if meta.get("deletionTimestamp") and grace >= meta["deletionGracePeriodSeconds"] > 0:
                return VerbOutcome(old.obj, text=old.text, warnings=warnings)
            if plural == "pods" or meta.get("finalizers"):  # a pod is marked first even if it goes at once
                meta |= {"deletionTimestamp": timestamp(grace), "deletionGracePeriodSeconds": grace}
                stored = self.storage.put(target.resource, key, {**old.obj, "metadata": meta})
                if grace or meta.get("finalizers"):
                    return VerbOutcome(stored.obj, text=stored.text, warnings=warnings)
            stored = self.storage.remove(target.resource, key)
            if plural == "namespaces":
                self._empty(target.name)
        if plural == "pods":
            return VerbOutcome(stored.obj, text=stored.text, warnings=warnings)
        return VerbOutcome(success(plural, target.name), warnings=warnings)

    def delete_collection(
        self, target: Target, matches: Predicate, options: Mapping[str, Any], call: Call
    ) -> VerbOutcome:
        """Delete every object that matches."""
        for stored in self.storage.all(target.resource)[0]:
            meta = stored.obj["metadata"]
            if target.namespace in ("", meta.get("namespace")) and matches(stored.obj):
                self.delete(Target(target.resource, meta.get("namespace", ""), meta["name"]), options, call)
        return VerbOutcome(success(target.resource.plural))

    def bind(self, target: Target, binding: Obj, call: Call) -> VerbOutcome:
        """POST of a Binding: node and annotations in one write."""
        meta = binding.get("metadata") or {}
        if (
            meta.get("name", target.name) != target.name
            or meta.get("namespace", target.namespace) != target.namespace
        ):
            raise bad_request("name in URL does not match name in Binding object")
        _, warnings = self._admit("CREATE", target, call, binding, None)
        with self.storage.lock:
            pod = pods.bound(self._find(target).obj, binding, timestamp())
            if not call.dry_run:
                self.storage.put(target.resource, _key(target), {**pod, "metadata": dict(pod["metadata"])})
        return VerbOutcome(success(code=201), 201, warnings=warnings)

    def evict(self, target: Target, eviction: Obj, call: Call) -> VerbOutcome:
        """POST of an Eviction: a delete that disruption budgets may refuse."""
        if (eviction.get("metadata") or {}).get("name", target.name) != target.name:
            raise bad_request("name in URL does not match name in Eviction object")
        _, warnings = self._admit("CREATE", target, call, eviction, None)
        options = eviction.get("deleteOptions") or {}
        with self.storage.lock:
            pod = self._find(target).obj
            pods.check_deletion("Pod", target.name, pod["metadata"], options.get("preconditions") or {})
            pods.refuse_eviction(
                pod, self._in_namespace("poddisruptionbudgets", target), self._in_namespace("pods", target)
            )
            self.delete(Target(target.resource, target.namespace, target.name), options, call)
        return VerbOutcome(success(code=201), 201, warnings=warnings)

    def _admit(
        self, operation: str, target: Target, call: Call, obj: Obj | None, old: Mapping[str, Any] | None
    ) -> tuple[Obj | None, tuple[str, ...]]:
        if not self.hooks:
            return obj, ()
        changed, warnings = admission.admit(
            self.hooks, operation, target, call.user, obj, old, dry_run=call.dry_run
        )
        return changed, tuple(warnings)

    def _find(self, target: Target) -> Stored:
        stored = self.storage.get(target.resource, _key(target))
        if stored is None:
            raise not_found(target.resource.plural, target.name)
        return stored

    def _in_namespace(self, plural: str, target: Target) -> list[Mapping[str, Any]]:
        found = self.storage.all(resource_named(plural))[0]
        return [s.obj for s in found if s.obj["metadata"].get("namespace") == target.namespace]

    def _empty(self, namespace: str) -> None:
        for plural in (
            "pods",
            "events",
            "configmaps",
            "secrets",
            "services",
            "serviceaccounts",
            "leases",
            "poddisruptionbudgets",
        ):
            resource = resource_named(plural)
            for stored in self.storage.all(resource)[0]:
                if stored.obj["metadata"].get("namespace") == namespace:
                    self.storage.remove(resource, (namespace, stored.obj["metadata"]["name"]))


def _key_of(stored: Stored) -> Key:
    meta = stored.obj["metadata"]
    return meta.get("namespace", ""), meta["name"]


def _key(target: Target) -> Key:
    return target.namespace, target.name

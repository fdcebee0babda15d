"""AdmissionReview v1, parsed into values and written from values; no JSON travels further in.

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers has the format. A
malformed review is refused with a sentence; a parsed one may still contain anything a tenant can write.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.untrusted import strict_list, strict_mapping, strict_text

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
# The API server cuts a warning to 256 characters once all together pass 4096; we never make it choose.
_LONGEST_WARNING: Final = 256
_MOST_WARNINGS: Final = 16
_LONGEST_MESSAGE: Final = 8192


@dataclass(frozen=True, slots=True)
class Review:
    """A review to judge. ``obj`` and ``old`` are the objects as JSON, None if the operation has none.

    ``resource`` is in RBAC's form (``pods``, ``pods/status``); ``group`` is empty for the core group.
    """

    uid: str
    operation: str
    group: str
    resource: str
    kind: str
    namespace: str = ""
    name: str = ""
    user: str = ""
    groups: frozenset[str] = frozenset()
    obj: Mapping[str, Any] | None = None
    old: Mapping[str, Any] | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a JSON patch (RFC 6902)."""

    op: str
    path: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class ReviewVerdict:
    """The answer. ``code`` and ``reason`` classify a refusal; ``rules`` are the ids behind it."""

    allowed: bool = True
    message: str = ""
    code: int = 200
    reason: str = ""
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    rules: tuple[str, ...] = field(default=())

    @property
    def result(self) -> str:
        """One word for metric and log."""
        if not self.allowed:
            return "denied"
        if self.patch:
            return "patched"
        return "warned" if self.warnings else "allowed"


ALLOWED: Final = ReviewVerdict()


def parse_review(body: bytes) -> Review:
    """Read an AdmissionReview with a request.

    Raises:
        RequestInvalid: it is malformed, or of an unsupported version.
    """
    data = _json(body)
    if not isinstance(data, dict):
        raise RequestInvalid(f"the body is {quoted(data)}: POST an {KIND} of {API_VERSION}")
    if data.get("apiVersion") != API_VERSION or data.get("kind") != KIND:
        raise RequestInvalid(
            f"the body is {quoted(data.get('kind'))} of {quoted(data.get('apiVersion'))}: "
            f"this webhook reads {KIND} of {API_VERSION}"
        )
    request = strict_mapping(data.get("request"), "request")
    if not request:
        raise RequestInvalid("request is missing: there is nothing to judge")
    uid = strict_text(request.get("uid"), "request.uid")
    if not uid:
        raise RequestInvalid("request.uid is missing: the answer could not name its question")
    resource, kind, user = (strict_mapping(request.get(key), key) for key in ("resource", "kind", "userInfo"))
    plural = strict_text(resource.get("resource"), "resource")
    sub = strict_text(request.get("subResource"), "subResource")
    obj, old = (_object(request.get(key), key) for key in ("object", "oldObject"))
    return Review(
        uid=uid,
        operation=strict_text(request.get("operation"), "operation"),
        group=strict_text(resource.get("group"), "resource.group"),
        resource=f"{plural}/{sub}" if sub else plural,
        kind=strict_text(kind.get("kind"), "kind.kind"),
        namespace=strict_text(request.get("namespace"), "namespace"),
        name=strict_text(request.get("name"), "name"),
        user=strict_text(user.get("username"), "userInfo.username"),
        groups=_texts(user.get("groups")),
        obj=obj,
        old=old,
        dry_run=request.get("dryRun") is True,
    )


def _json(body: bytes) -> object:
    try:
        return json.loads(body, parse_float=str, parse_constant=_no_constant)
    except RecursionError as error:
        raise RequestInvalid("the body is nested too deeply for a Kubernetes object") from error
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are such
        raise RequestInvalid(f"the body is not JSON: {_cut(str(error), 120)}") from error


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _object(value: object, where: str) -> Mapping[str, Any] | None:
    return None if value is None else strict_mapping(value, f"request.{where}")


def _texts(value: object) -> frozenset[str]:
    entries = strict_list(value, "userInfo.groups")
    return frozenset(strict_text(entry, "userInfo.groups") for entry in entries)


def encode_answer(uid: str, verdict: ReviewVerdict) -> bytes:
    """The AdmissionReview that answers ``uid``."""
    response: dict[str, Any] = {"uid": uid, "allowed": verdict.allowed}
    if not verdict.allowed:
        response["status"] = {
            "code": verdict.code,
            "reason": verdict.reason,
            "message": _cut(verdict.message, _LONGEST_MESSAGE),
        }
    if verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(encode_patch(verdict.patch)).encode()).decode()
    if verdict.warnings:
        response["warnings"] = _bounded(verdict.warnings)
    if verdict.rules:
        response["auditAnnotations"] = {"rules": ",".join(verdict.rules)}
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": response}).encode()


def encode_patch(patch: Sequence[Operation]) -> list[dict[str, Any]]:
    """The patch as RFC 6902 writes it."""
    return [{"op": o.op, "path": o.path} | ({} if o.op == "remove" else {"value": o.value}) for o in patch]


def pointer(*steps: str | int) -> str:
    """A JSON pointer (RFC 6901) to the field at ``steps``."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def _bounded(warnings: Sequence[str]) -> list[str]:
    shown = [_cut(text, _LONGEST_WARNING) for text in dict.fromkeys(warnings)]
    if len(shown) <= _MOST_WARNINGS:
        return shown
    return [*shown[: _MOST_WARNINGS - 1], f"and {len(shown) - _MOST_WARNINGS + 1} warnings more"]


def _cut(text: str, longest: int) -> str:
    text = printable(text[: longest + 1])  # names and keys of a tenant's are in it
    return text if len(text) <= longest else text[: longest - 1] + "…"


# The same, for the OpenAPI document.

REVIEW_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["apiVersion", "kind", "request"],
    "properties": {
        "apiVersion": {"const": API_VERSION},
        "kind": {"const": KIND},
        "request": {
            "type": "object",
            "required": ["uid"],
            "properties": {
                "uid": {"type": "string", "minLength": 1},
                "operation": {"type": "string"},
                "resource": {
                    "type": "object",
                    "properties": {"group": {"type": "string"}, "resource": {"type": "string"}},
                },
                "kind": {"type": "object", "properties": {"kind": {"type": "string"}}},
                "subResource": {"type": "string"},
                "namespace": {"type": "string"},
                "name": {"type": "string"},
                "userInfo": {
                    "type": "object",
                    "properties": {
                        "username": {"type": "string"},
                        "groups": {"type": "array", "items": {"type": "string"}},
                    },
                },
                "object": {"type": ["object", "null"]},
                "oldObject": {"type": ["object", "null"]},
                "dryRun": {"type": ["boolean", "null"]},
            },
        },
    },
}
ANSWER_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["apiVersion", "kind", "response"],
    "properties": {
        "apiVersion": {"const": API_VERSION},
        "kind": {"const": KIND},
        "response": {
            "type": "object",
            "required": ["uid", "allowed"],
            "properties": {
                "uid": {"type": "string"},
                "allowed": {"type": "boolean"},
                "status": {
                    "type": "object",
                    "properties": {
                        "code": {"type": "integer"},
                        "reason": {"type": "string"},
                        "message": {"type": "string"},
                    },
                },
                "patchType": {"const": "JSONPatch"},
                "patch": {"type": "string", "format": "byte"},
                "warnings": {"type": "array", "items": {"type": "string"}},
                "auditAnnotations": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
    },
}

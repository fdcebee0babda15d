"""Admission hooks: what stands between a request and the store, called as the API server calls webhooks."""

from __future__ import annotations

import base64
import json
import ssl
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_manager.adapters.http import IDEMPOTENT, HttpClient, HttpLimits, NoAnswer
from sandbox.api.access import User
from sandbox.api.kinds import Target
from sandbox.api.patches import json_patch
from sandbox.api.status import REASONS, ApiError

Review = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hook:
    """One webhook. ``call`` takes an ``AdmissionReview`` with a request and returns one with a response.

    ``resources`` are paths as RBAC spells them (``pods``, ``pods/binding``). An answer with a patch makes it
    a mutating hook: list those first. ``concerns`` stands for ``matchConditions``: it says of a request (the
    review's own part) whether to ask at all.
    """

    name: str
    call: Callable[[Review], Review]
    resources: frozenset[str] = frozenset({"pods"})
    operations: frozenset[str] = frozenset({"CREATE", "UPDATE"})
    fail_open: bool = False
    concerns: Callable[[Review], bool] = lambda _request: True


def https_hook(url: str, ca_file: str | None = None, timeout: float = 10.0) -> Callable[[Review], Review]:
    """A ``call`` that POSTs the review to a webhook's URL, trusting the authority in ``ca_file``.

    Raises:
        RequestInvalid: ``url`` is none.
    """
    base, slash, path = url.partition("://")[2].partition("/")
    client = HttpClient(
        f"{url.partition('://')[0]}://{base}",
        limits=HttpLimits(timeout, timeout),
        tls=ssl.create_default_context(cafile=ca_file) if url.startswith("https") else None,
        repeatable=IDEMPOTENT | {"POST"},
    )

    def call(review: Review) -> Review:
        body, kind = json.dumps(review).encode(), {"Content-Type": "application/json"}
        try:
            answer = client.ask("POST", slash + path, body=body, headers=kind)
            found = json.loads(answer.body) if answer.status == 200 else answer.status
        except (NoAnswer, ValueError, RecursionError) as error:
            raise ApiError(500, "InternalError", f'failed calling webhook: Post "{url}": {error}') from error
        if not isinstance(found, dict):
            raise ApiError(
                500, "InternalError", f"failed calling webhook: {found!r:.80} is no AdmissionReview"
            )
        return found

    return call


def admit(
    hooks: tuple[Hook, ...],
    operation: str,
    target: Target,
    user: User,
    obj: dict[str, Any] | None,
    old: Mapping[str, Any] | None,
    *,
    dry_run: bool = False,
) -> tuple[dict[str, Any] | None, list[str]]:
    """Ask every hook that wants to be asked; returns the object, patched, and the warnings.

    Raises:
        ApiError: a hook refuses, or cannot be asked and does not fail open.
    """
    warnings: list[str] = []
    for hook in hooks:
        if target.path not in hook.resources or operation not in hook.operations:
            continue
        review = _review(operation, target, user, obj, old, dry_run=dry_run)
        if not hook.concerns(review["request"]):
            continue
        try:
            response = hook.call(review).get("response") or {}
        except ApiError:
            if hook.fail_open:
                continue
            raise
        if response.get("uid") != review["request"]["uid"]:
            raise ApiError(
                500, "InternalError", f'failed calling webhook "{hook.name}": expected response.uid'
            )
        warnings += [str(warning) for warning in response.get("warnings") or ()]
        if not response.get("allowed"):
            raise _denied(hook.name, response.get("status") or {})
        if response.get("patch") and obj is not None:
            # The caller's object must stay as it is, so the patch works on a copy.
            obj = json_patch(json.loads(json.dumps(obj)), json.loads(base64.b64decode(response["patch"])))
    return obj, warnings


def _review(
    operation: str,
    target: Target,
    user: User,
    obj: Mapping[str, Any] | None,
    old: Mapping[str, Any] | None,
    *,
    dry_run: bool,
) -> Review:
    resource = target.resource
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    plural = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    request = {
        "uid": str(uuid.uuid4()),
        "kind": kind,
        "resource": plural,
        "subResource": target.subresource,
        "requestKind": kind,
        "requestResource": plural,
        "requestSubResource": target.subresource,
        "name": target.name,
        "namespace": target.namespace,
        "operation": operation,
        "userInfo": user.info(),
        "object": obj,
        "oldObject": old,
        "dryRun": dry_run,
        "options": None,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _denied(name: str, status: Mapping[str, Any]) -> ApiError:
    code = int(status.get("code") or 0)
    code = code if code >= 400 else 400  # noqa: FURB136 - a fallback, not a bound
    why = status.get("message") or status.get("reason")
    text = f'admission webhook "{name}" denied the request' + (f": {why}" if why else " without explanation")
    return ApiError(code, str(status.get("reason") or REASONS.get(code, "Unknown")), text)

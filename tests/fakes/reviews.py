"""AdmissionReviews as the API server sends them: one whole by hand, the others made from it."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

from admission.config import ClusterTerms
from admission.webhook.admission_review import encode_answer, parse_review
from admission.webhook.admit import mutate, validate
from gpu_manager.domain.contract import CORE, MEMORY
from sandbox.api.patches import json_patch

CREATE_POD = Path(__file__).parents[1] / "data" / "admission" / "create-pod.json"
NODE_GROUPS = ["system:nodes", "system:authenticated"]


def container(name: str = "train", core: object = None, memory: object = None, **more: Any) -> dict[str, Any]:
    """A container as the API server shows it before a webhook: requests are filled from limits."""
    limits = {k: v for k, v in ((CORE, core), (MEMORY, memory)) if v is not None}
    resources = {"limits": limits, "requests": dict(limits)} if limits else {}
    return {"name": name, "image": "train:1", "resources": more.pop("resources", resources), **more}


def pod(
    *containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """The pod of the fixture with other containers."""
    made: dict[str, Any] = json.loads(CREATE_POD.read_text())["request"]["object"]
    made["metadata"]["annotations"] = dict(annotations or {})
    made["spec"] |= {"containers": list(containers), **spec}
    return made


def review(obj: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The fixture with another object and other fields of the request (``user`` and ``groups`` too)."""
    made: dict[str, Any] = json.loads(CREATE_POD.read_text())
    request = made["request"]
    if obj is not None:
        request["object"] = copy.deepcopy(obj)
    user = {"username": changes.pop("user", None), "groups": changes.pop("groups", None)}
    request["userInfo"] |= {k: v for k, v in user.items() if v is not None}
    request |= changes
    return made


def update(old: dict[str, Any], new: dict[str, Any], subresource: str = "", **changes: Any) -> dict[str, Any]:
    """An UPDATE of a pod."""
    more = {"subResource": subresource} if subresource else {}
    return review(new, oldObject=copy.deepcopy(old), operation="UPDATE", name="train-x", **more, **changes)


def workload(
    kind: str, group: str, plural: str, obj: dict[str, Any], old: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A CREATE (an UPDATE with ``old``) of an object that makes pods."""
    return review(
        obj,
        kind={"group": group, "version": "v1", "kind": kind},
        resource={"group": group, "version": "v1", "resource": plural},
        operation="CREATE" if old is None else "UPDATE",
        oldObject=old,
    )


def patched(obj: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """The object as the API server has it after the answer."""
    if "patch" not in response:
        return copy.deepcopy(obj)
    assert response["patchType"] == "JSONPatch"
    changed = json_patch(copy.deepcopy(obj), json.loads(base64.b64decode(response["patch"])))
    assert isinstance(changed, dict)
    return changed


def ask(judge: Any, sent: dict[str, Any], terms: ClusterTerms | None = None, **more: Any) -> dict[str, Any]:
    """The response as it stands on the wire."""
    asked = parse_review(json.dumps(sent).encode())
    answer = json.loads(encode_answer(asked.uid, judge(asked, terms or ClusterTerms(), **more)))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert answer["response"]["uid"] == sent["request"]["uid"]
    return dict(answer["response"])


def admit(obj: dict[str, Any], terms: ClusterTerms | None = None, **more: Any) -> tuple[bool, str, list[str]]:
    """Both webhooks in their order; (allowed, message, warnings)."""
    first = ask(mutate, review(obj, **more), terms)
    warnings = first.get("warnings", [])
    if not first["allowed"]:
        return False, first["status"]["message"], warnings
    second = ask(validate, review(patched(obj, first), **more), terms)
    return (
        second["allowed"],
        second.get("status", {}).get("message", ""),
        warnings + second.get("warnings", []),
    )

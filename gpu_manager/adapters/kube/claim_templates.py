"""ResourceClaimTemplates at the API server (resource.k8s.io/v1), for pods that are turned into claims."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from gpu_manager.adapters.kube.connection import JSON_BODY, MERGE_PATCH, Connection, Refused
from gpu_manager.adapters.kube.path_segment import segment
from gpu_manager.adapters.kube.reading import list_all
from gpu_manager.domain.untrusted import mapping, mappings, text

_API: Final = "/apis/resource.k8s.io/v1"
_LIVING: Final = "status.phase!=Succeeded,status.phase!=Failed"


class KubeClaimTemplates:
    """``admission.cluster.claim_templates.TemplateApi``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, namespace: str, body: Mapping[str, Any]) -> bool:
        """See ``TemplateApi.create``."""
        template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", **body}
        what = f"create a ResourceClaimTemplate in namespace {namespace}"
        return self._written(what, "POST", _templates(namespace), template, missed=409)

    def annotate(self, namespace: str, name: str, annotations: Mapping[str, str]) -> bool:
        """See ``TemplateApi.annotate``."""
        what = f"annotate the ResourceClaimTemplate {namespace}/{name}"
        body = {"metadata": {"annotations": dict(annotations)}}
        return self._written(what, "PATCH", _template(namespace, name), body, missed=404)

    def delete(self, namespace: str, name: str, uid: str, version: str) -> bool:
        """See ``TemplateApi.delete``."""
        what = f"delete the ResourceClaimTemplate {namespace}/{name}"
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": version},
        }
        try:
            return self._written(what, "DELETE", _template(namespace, name), body, missed=409)
        except Refused as refusal:
            if refusal.code != 404:
                raise
            return False

    def named_by_pods(self, namespace: str) -> Collection[str]:
        """See ``TemplateApi.named_by_pods``."""
        path = f"/api/v1/namespaces/{segment(namespace)}/pods"
        pods = list_all(self._connection, f"list the pods of {namespace}", path, {"fieldSelector": _LIVING})
        return {
            text(one.get("resourceClaimTemplateName"))
            for pod in pods
            for one in mappings(mapping(pod.get("spec")).get("resourceClaims"))
        }

    def _written(self, what: str, method: str, path: str, body: Mapping[str, Any], missed: int) -> bool:
        """False where the answer is ``missed``."""
        kind = MERGE_PATCH if method == "PATCH" else JSON_BODY
        try:
            self._connection.request(what, method, path, body=body, content_type=kind)
        except Refused as refusal:
            if refusal.code != missed:
                raise
            return False
        return True


def _templates(namespace: str) -> str:
    return f"{_API}/namespaces/{segment(namespace)}/resourceclaimtemplates"


def _template(namespace: str, name: str) -> str:
    return f"{_templates(namespace)}/{segment(name)}"

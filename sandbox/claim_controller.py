"""What kube-controller-manager does for ResourceClaims: makes those of templates, frees and deletes them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from gpu_manager.domain.errors import VcudaError
from gpu_manager.runtime import threads
from sandbox.api import ApiError, StandInApi
from sandbox.claim_kubelet import ClaimKubelet
from sandbox.claims import ClaimScheduler
from sandbox.events import tell

log = structlog.get_logger(__name__)

_SECONDS: Final = 0.25
_COMPONENT: Final = "resource_claim"  # as Kubernetes' controller calls itself in Events
_ENDED: Final = ("Succeeded", "Failed")
Obj = Mapping[str, Any]


class ClaimController:
    """Started and stopped once. It also has the kubelet look for drivers and for pods that have ended."""

    def __init__(self, api: StandInApi, scheduler: ClaimScheduler, kubelet: ClaimKubelet) -> None:
        self._api, self._scheduler, self._kubelet = api, scheduler, kubelet
        self._refused: dict[tuple[str, str], str] = {}  # pod's UID, entry of its claims → what its Event says
        self._stop = threading.Event()
        self._thread = threads.every(_SECONDS, "claims", self.look, self._stop)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def look(self) -> None:
        """Reconcile once: drivers, claims to be made from templates, claims of pods that have ended."""
        try:
            self._kubelet.find_drivers()
            # Pods last: one that is not among them has gone, and did not come in the meantime.
            prepared, claims = self._kubelet.prepared(), self._api.list("resourceclaims")
            pods = {str(pod["metadata"]["uid"]): pod for pod in self._api.list("pods")}
            self._refused = {key: said for key, said in self._refused.items() if key[0] in pods}
            for pod in pods.values():
                self._make_claims(pod)
            living = {uid for uid, pod in pods.items() if _lives(pod)}
            self._kubelet.unprepare(prepared - living)
            for claim in claims:
                self._free(claim, pods, living)
        except (VcudaError, ApiError) as error:
            log.warning("claims_round_failed", reason=str(error))

    def _make_claims(self, pod: Obj) -> None:
        """The claims of the pod's templates, named in its status."""
        meta, status = pod["metadata"], pod.get("status") or {}
        asked = [
            one for one in pod["spec"].get("resourceClaims") or () if one.get("resourceClaimTemplateName")
        ]
        made: Sequence[Obj] = status.get("resourceClaimStatuses") or ()
        missing = [one for one in asked if one["name"] not in {claim["name"] for claim in made}]
        if not missing or not _lives(pod):
            return
        new = [
            {"name": one["name"], "resourceClaimName": name}
            for one in missing
            if (name := self._make(pod, one))
        ]
        if new:
            change = {"metadata": {"uid": meta["uid"]}, "status": {"resourceClaimStatuses": [*made, *new]}}
            self._api.patch("pods", meta["name"], change, meta["namespace"], subresource="status")

    def _make(self, pod: Obj, entry: Obj) -> str:
        """The name of a new claim; empty while its template is not there, or it is refused."""
        meta = pod["metadata"]
        template = self._api.get(
            "resourceclaimtemplates", entry["resourceClaimTemplateName"], meta["namespace"]
        )
        if template is None:
            return ""
        inner = template["spec"].get("metadata") or {}
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": f"{meta['name']}-{entry['name']}-",
                "namespace": meta["namespace"],
                "labels": dict(inner.get("labels") or {}),
                "annotations": {
                    **(inner.get("annotations") or {}),
                    "resource.kubernetes.io/pod-claim-name": entry["name"],
                },
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "name": meta["name"],
                        "uid": meta["uid"],
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
            "spec": template["spec"]["spec"],
        }
        try:
            return str(self._api.create(claim, meta["namespace"])["metadata"]["name"])
        except ApiError as error:
            log.info("claim_not_created", pod=meta["name"], reason=error.message)
            self._tell(pod, str(entry["name"]), error.message)
            return ""

    def _tell(self, pod: Obj, entry: str, reason: str) -> None:
        """An Event of a pod whose claim is refused, once for each reason: four times a second it is tried."""
        key = str(pod["metadata"]["uid"]), entry
        if self._refused.get(key) == reason:
            return
        self._refused[key] = reason
        message = f"PodResourceClaim {entry}: failed to create ResourceClaim: {reason}"
        tell(self._api, _COMPONENT, pod, "FailedResourceClaimCreation", message, warning=True)

    def _free(self, claim: Obj, pods: Mapping[str, Obj], living: set[str]) -> None:
        meta = claim["metadata"]
        reserved = [str(one["uid"]) for one in (claim.get("status") or {}).get("reservedFor") or ()]
        held = self._kubelet.pods_of(str(meta["uid"]))
        for uid in set(reserved) - living - held:
            self._scheduler.release(meta["namespace"], meta["name"], uid)
        owners = [one["uid"] for one in meta.get("ownerReferences") or () if one.get("kind") == "Pod"]
        if owners and not held and not any(uid in pods for uid in owners):
            self._api.delete("resourceclaims", meta["name"], meta["namespace"])


def _lives(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") not in _ENDED

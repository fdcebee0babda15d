"""TokenReview and SubjectAccessReview (serves :class:`gpu_manager.runtime.inbound.Reviews`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_manager.adapters.kube.connection import Connection

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class KubeReviews:
    """Sends every review to the API server; nothing is cached."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def who(self, token: str) -> Mapping[str, Any] | None:
        """The user's info (username, uid, groups, extra); None if the token is invalid. Raises
        NodeUnready.
        """
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = self._ask("review a token", _TOKENS, body)
        user = status.get("user")
        if status.get("authenticated") is not True or not isinstance(user, dict) or not user.get("username"):
            return None
        return user

    def may(self, user: Mapping[str, Any], right: tuple[str, str], namespace: str) -> bool:
        """True if the user has the right (verb, resource) there (empty: everywhere). Raises NodeUnready."""
        verb, resource = right
        wanted = {"verb": verb, "resource": resource, "version": "v1", "namespace": namespace}
        spec = {
            "user": user["username"],
            "uid": user.get("uid") or "",
            "groups": list(user.get("groups") or ()),
            "extra": user.get("extra") or {},
            "resourceAttributes": wanted,
        }
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        status = self._ask("review what a user may do", _ACCESS, {**kind, "spec": spec})
        return status.get("allowed") is True and status.get("denied") is not True

    def _ask(self, what: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        status = self._connection.request(what, "POST", path, body=body).get("status")
        return status if isinstance(status, dict) else {}

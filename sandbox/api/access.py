"""Who asks: tokens, what was used by whom, and the reviews that answer questions about both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sandbox.api.status import ApiError


@dataclass(frozen=True, slots=True)
class User:
    """A caller, as a token or its absence names it."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    uid: str = ""

    def info(self) -> dict[str, Any]:
        """The ``UserInfo`` object of reviews."""
        return {"username": self.name, "uid": self.uid or self.name, "groups": list(self.groups)}


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))


def service_account(namespace: str, name: str) -> User:
    """The user a service account's token stands for."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


@dataclass(frozen=True, slots=True, order=True)
class AccessRules:
    """One right, as RBAC counts them. ``resource`` includes the subresource; ``namespace`` is "" for all."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str = ""


Authorize = Callable[[User, AccessRules], bool]


class AccessGate:
    """Knows the tokens, asks ``authorize``, and remembers which rights were used."""

    def __init__(self, tokens: Mapping[str, User], authorize: Authorize | None) -> None:
        self.tokens = dict(tokens)
        self._authorize = authorize
        self._lock = threading.Lock()
        self._used: set[AccessRules] = set()

    def user(self, authorization: str) -> User:
        """The user of an ``Authorization`` header.

        Raises:
            ApiError: 401, the token is unknown.
        """
        scheme, _, token = authorization.partition(" ")
        if not authorization:
            return ANONYMOUS
        user = self.tokens.get(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    def allows(self, user: User, access: AccessRules) -> bool:
        """True unless the configured judge says no."""
        return self._authorize is None or self._authorize(user, access)

    def enter(self, user: User, access: AccessRules, name: str) -> None:
        """Note the use, and refuse it with 403 where the judge says no."""
        with self._lock:
            self._used.add(access)
        if not self.allows(user, access):
            where = f' in the namespace "{access.namespace}"' if access.namespace else " at the cluster scope"
            what = f'cannot {access.verb} resource "{access.resource}" in API group "{access.group}"{where}'
            plural = access.resource.partition("/")[0]
            subject = f'{plural} "{name}"' if name else plural
            raise ApiError(403, "Forbidden", f'{subject} is forbidden: User "{user.name}" {what}')

    def used(self) -> frozenset[AccessRules]:
        """Every right that was used so far."""
        with self._lock:
            return frozenset(self._used)

    def review(self, kind: str, body: Mapping[str, Any], user: User) -> dict[str, Any]:
        """Answer a TokenReview, SelfSubjectReview, SubjectAccessReview or SelfSubjectAccessReview."""
        spec = body.get("spec") or {}
        status: dict[str, Any]
        if kind == "TokenReview":
            found = self.tokens.get(str(spec.get("token") or ""))
            status = {"authenticated": found is not None}
            status |= {"user": found.info()} if found else {"error": "the token is unknown"}
        elif kind == "SelfSubjectReview":
            status = {"userInfo": user.info()}
        else:
            subject = user
            if kind == "SubjectAccessReview":
                subject = User(str(spec.get("user") or ""), tuple(map(str, spec.get("groups") or ())))
            allowed = self._allows_review(subject, spec.get("resourceAttributes"))
            status = {"allowed": allowed, **({} if allowed else {"reason": "no rule allows it"})}
        return {**body, "kind": kind, "metadata": body.get("metadata") or {}, "status": status}

    def _allows_review(self, user: User, attributes: Mapping[str, Any] | None) -> bool:
        if attributes is None:  # non-resource paths are open to all
            return True
        words = {
            key: str(attributes.get(key) or "")
            for key in ("verb", "group", "resource", "subresource", "namespace")
        }
        resource = "/".join(filter(None, (words["resource"], words["subresource"])))
        return self.allows(
            user, AccessRules(user.name, words["verb"], words["group"], resource, words["namespace"])
        )

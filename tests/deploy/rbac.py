"""What the chart's roles allow, as RBAC counts it, beside what the API stand-in saw used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sandbox.api.access import AccessRules, User
from tests.deploy.chart import objects


class Right(NamedTuple):
    """``namespace`` is empty for the whole cluster."""

    verb: str
    group: str
    resource: str
    namespace: str = ""


def rules_of(name: str, account: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(namespace or empty, rule) of every role of the render that is bound to the account."""
    roles = {(o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in objects(name)}
    for (kind, namespace, _), binding in roles.items():
        if kind not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        if account not in [s["name"] for s in binding["subjects"]]:
            continue
        ref = binding["roleRef"]
        role = roles.get((ref["kind"], namespace if ref["kind"] == "Role" else "", ref["name"]))
        if role is not None:  # else one of Kubernetes' own, for the scheduler beside us
            yield from ((namespace, rule) for rule in role["rules"])


def granted(name: str, account: str) -> set[Right]:
    """Every single right. Names of objects are left out: the stand-in does not record them."""
    return {
        Right(verb, group, resource, namespace)
        for namespace, rule in rules_of(name, account)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


class Judge:
    """RBAC for the API stand-in: who is not in ``accounts`` may do everything."""

    def __init__(self, name: str, accounts: dict[str, str]) -> None:
        """``accounts``: user name → service account of the chart."""
        self._rights = {user: granted(name, account) for user, account in accounts.items()}
        self.refused: set[AccessRules] = set()

    def __call__(self, user: User, access: AccessRules) -> bool:
        rights = self._rights.get(user.name)
        if rights is None:
            return True
        right = Right(access.verb, access.group, access.resource, access.namespace)
        if right in rights or right._replace(namespace="") in rights:
            return True
        self.refused.add(access)
        return False


def used(found: frozenset[AccessRules], user: str, rights: set[Right]) -> set[Right]:
    """What the user did, each right in the scope in which it is granted."""
    seen = {Right(a.verb, a.group, a.resource, a.namespace) for a in found if a.user == user}
    return {r if r in rights else r._replace(namespace="") for r in seen}

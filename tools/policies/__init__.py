"""The static rules as ValidatingAdmissionPolicies: judged inside the API server, without this service
running.

Generated from the rulebook's own texts and the cluster's terms. Rules that need the cluster's state (quota,
existing cards) stay with the webhook, and nothing is completed here. A rule is skipped if it would keep an
existing object from changing, or hide a static pod that runs already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from admission.config import ClusterTerms
from tools.policies.checks import (
    EPHEMERAL_VARIABLES,
    GUARDED_VARIABLES,
    NOT_MIRROR,
    VARIABLES,
    PolicyCheck,
    annotation_checks,
    ephemeral_checks,
    guarded_checks,
    mentions,
    privileged_checks,
    request_checks,
    strangers,
)


def render(terms: ClusterTerms) -> str:
    """All policies and their bindings, as one YAML file."""
    header = (
        "# Written by `python -m tools.policies`; a test keeps the two equal.\n"
        "# The rules and their cures: docs/errors.md.\n"
    )
    return header + yaml.dump_all(
        policies(terms), Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True, explicit_start=True
    )


class _Dumper(yaml.SafeDumper):
    """Expressions as folded blocks: CEL is full of quotes."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = ">" if len(text) > 60 or "'" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    def ignore_aliases(self, data: object) -> bool:
        """Written out each time."""
        return data is not None


_Dumper.add_representer(str, _Dumper.represent_text)


def policies(terms: ClusterTerms) -> Sequence[Mapping[str, Any]]:
    """The objects of :func:`render`."""
    pods = _rule("pods", "CREATE")
    changes = _rule("pods", "CREATE", "UPDATE")
    guarded = [
        {**changes, "resources": ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]},
        {**pods, "resources": ["pods/binding", "bindings"]},
    ]
    return [
        *_policy("vcuda-requests", [pods], mentions("limits", "requests"), VARIABLES, request_checks(terms)),
        *_policy(
            "vcuda-ephemeral",
            [_rule("pods/ephemeralcontainers", "UPDATE")],
            mentions("limits"),
            EPHEMERAL_VARIABLES,
            ephemeral_checks(),
        ),
        *_policy(
            "vcuda-ephemeral-privileged",
            [_rule("pods/ephemeralcontainers", "UPDATE")],
            mentions("limits"),
            EPHEMERAL_VARIABLES,
            privileged_checks(),
            "Warn",
        ),
        *_policy("vcuda-annotations", [changes], mentions("limits"), VARIABLES, annotation_checks()),
        *_policy("vcuda-guarded", guarded, strangers(terms), GUARDED_VARIABLES, guarded_checks()),
    ]


def _rule(resource: str, *operations: str) -> dict[str, Any]:
    return {"apiGroups": [""], "apiVersions": ["v1"], "operations": list(operations), "resources": [resource]}


def _policy(
    name: str,
    rules: Sequence[Mapping[str, Any]],
    conditions: Mapping[str, str],
    variables: Mapping[str, str],
    checks: Iterator[PolicyCheck],
    action: str = "Deny",
) -> Iterator[Mapping[str, Any]]:
    version = "admissionregistration.k8s.io/v1"
    yield {
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": list(rules)},
            "matchConditions": _named({**conditions, "not-a-static-pod": NOT_MIRROR}),
            "variables": _named(variables),
            "validations": [
                {
                    "expression": check.holds,
                    "messageExpression": check.says,
                    "message": f"rule {check.rule.id}: see docs/errors.md",
                    "reason": "Forbidden" if name == "vcuda-guarded" else "Invalid",
                }
                for check in checks
            ],
        },
    }
    yield {
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": [action]},
    }


def _named(expressions: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]

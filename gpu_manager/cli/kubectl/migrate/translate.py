"""Translates one document of another system: a tree of maps and lists. No I/O.

Translated pods are checked by the rules of ``gpu-manager check``; a pod that breaks one is left unchanged and
reported, and so is every name of another system elsewhere in the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_manager.cli.kubectl.migrate.left_over import left_over
from gpu_manager.cli.kubectl.migrate.model import FindingKind, MigrationFinding, MigrationTerms, System
from gpu_manager.cli.kubectl.migrate.pod_template import PodTemplate
from gpu_manager.cli.kubectl.migrate.templates import object_name, pod_templates
from gpu_manager.domain.contract import QUOTA_KEY
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.pod import parse_pod
from gpu_manager.domain.rules.legal_values import check_pod


def translate(
    document: Any, terms: MigrationTerms, system: System | None = None
) -> tuple[Any, list[MigrationFinding]]:
    """Return the translated document and the findings. ``system`` None: it is detected for each pod."""
    findings: list[MigrationFinding] = []
    refused = set()
    new = _unshared(document)
    for template in pod_templates(new):
        pod = template.as_pod()
        try:
            found = PodTemplate(pod, template.where, terms).translate(system)
            if found is None:
                continue
            _judge(pod, terms)
        except RequestInvalid as error:
            findings.append(MigrationFinding(FindingKind.REFUSED, template.where, str(error)))
            refused.add(id(template.tree))
            continue
        template.put(pod)
        findings += found
    findings += _quotas(document)
    findings += left_over(new, refused)
    return new, findings


def _unshared(tree: Any) -> Any:
    """Return a copy without shared objects, which YAML's aliases make."""
    if isinstance(tree, dict):
        return {key: _unshared(value) for key, value in tree.items()}
    return [_unshared(entry) for entry in tree] if isinstance(tree, list) else tree


def _judge(pod: dict[str, Any], terms: MigrationTerms) -> None:
    faults = check_pod(parse_pod(pod), terms.unit)
    if faults:
        raise RequestInvalid("; ".join(f"{fault.message}  [{fault.rule.id}]" for fault in faults))


def _quotas(document: Any) -> Iterator[MigrationFinding]:
    """Yield a finding for each quota ConfigMap of the predecessor, which is used unchanged."""
    objects = document.get("items") if isinstance(document, dict) else None
    for entry in objects if isinstance(objects, list) else [document]:
        if not isinstance(entry, dict) or not isinstance(entry.get("metadata"), dict):
            continue
        if entry.get("kind") == "ConfigMap" and QUOTA_KEY in (entry.get("data") or {}):
            where = object_name("ConfigMap", entry["metadata"])
            yield MigrationFinding(FindingKind.KEPT, where, "the quota is read as it stands")

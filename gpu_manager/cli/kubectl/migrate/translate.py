"""Translates one document of another system: a tree of maps and lists. No I/O.

A changed document is patched in place (:mod:`~gpu_manager.cli.kubectl.migrate.patch`), so that comments and
anchors stay. If that is impossible or does not yield the wanted value, the document is rewritten and its
comments are lost.

Translated pods are checked by the rules of ``gpu-manager check``; a pod that breaks one is left unchanged and
reported, and so is every name of another system that is still in the document afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpu_manager.adapters.manifests import read_documents
from gpu_manager.cli.files import FoundTemplate, object_name, pod_templates
from gpu_manager.cli.kubectl.migrate.left_over import QUEUE_NAME, UNCOVERED, left_over
from gpu_manager.cli.kubectl.migrate.model import FindingKind, MigrationFinding, MigrationTerms, System
from gpu_manager.cli.kubectl.migrate.patch import patched
from gpu_manager.cli.kubectl.migrate.pod_template import PodTemplate
from gpu_manager.domain.contract import CORE, QUOTA_KEY
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.pod import ContainerKind, parse_pod
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.rules.legal_values import check_pod
from gpu_manager.domain.untrusted import mapping


def translate(
    document: Any, terms: MigrationTerms, system: System | None = None
) -> tuple[Any, list[MigrationFinding]]:
    """Return the translated document and the findings. ``system`` None: it is detected for each pod."""
    findings: list[MigrationFinding] = []
    refused = set()
    changed = set()
    new = _unshared(document)
    for template in pod_templates(new):
        pod = template.as_pod()
        try:
            found = PodTemplate(pod, template.where, terms, tolerates=template.tolerates).translate(system)
            if found is None:
                continue
            _judge(pod, terms)
        except RequestInvalid as error:
            findings.append(MigrationFinding(FindingKind.REFUSED, template.where, str(error)))
            refused.add(id(template.tree))
            continue
        template.put(pod)
        found += _ray_cards(template, pod)
        if found:
            changed.add(template.where)
        findings += found
    findings += _quotas(document)
    findings += _queues(new, changed)
    findings += left_over(new, refused, terms)
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


def _ray_cards(template: FoundTemplate, pod: Mapping[str, Any]) -> Iterator[MigrationFinding]:
    """Write the number of cards into the start parameters of a Ray group: Ray counts resources whose names
    end in ``gpu`` and would give our pods no work.
    """
    if template.ray is None:
        return
    asked = (c for c in parse_pod(pod).containers if c.core and c.kind is ContainerKind.APP)
    cards = sum(c.parts if c.is_part else int(c.core or 0) // CORES_PER_CARD for c in asked)
    if not isinstance(template.ray["rayStartParams"], dict):
        template.ray["rayStartParams"] = {}
    parameters = template.ray["rayStartParams"]
    if cards and "num-gpus" not in parameters:
        parameters["num-gpus"] = str(cards)
        told = f'rayStartParams: num-gpus "{cards}" added: Ray does not count {CORE}'
        yield MigrationFinding(FindingKind.CHANGED, template.where, told)


def _quotas(document: Any) -> Iterator[MigrationFinding]:
    """Yield a finding for each quota ConfigMap of the predecessor, which is used unchanged."""
    for entry in _objects(document):
        if entry.get("kind") == "ConfigMap" and QUOTA_KEY in mapping(entry.get("data")):
            where = object_name("ConfigMap", entry["metadata"])
            yield MigrationFinding(FindingKind.KEPT, where, "the quota is read as it stands")


def _queues(document: Any, changed: set[str]) -> Iterator[MigrationFinding]:
    """Yield a finding for each changed workload that waits in a queue of Kueue."""
    for entry in _objects(document):
        where = object_name(str(entry.get("kind")), entry["metadata"])
        queue = mapping(entry["metadata"].get("labels")).get(QUEUE_NAME)
        if queue is not None and where in changed:
            told = f"{QUEUE_NAME} at metadata.labels: {UNCOVERED} of queue {quoted(str(queue))}"
            yield MigrationFinding(FindingKind.LEFT, where, told)


def _objects(document: Any) -> Iterator[dict[str, Any]]:
    items = document.get("items") if isinstance(document, dict) else None
    for entry in items if isinstance(items, list) else [document]:
        if isinstance(entry, dict) and isinstance(entry.get("metadata"), dict):
            yield entry


_WIDE = 1 << 20
_BLANKS = re.compile(r"\s*")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: its number from 1 on, its text and its value."""

    number: int
    text: str
    value: Any
    is_json: bool = False


def documents(data: bytes) -> list[Document]:
    """Split a file into documents; their texts together are the file.

    Raises:
        RequestInvalid: the file is no Kubernetes manifest.
    """
    values = read_documents(data)
    text = data.decode("utf-8-sig")
    if text.lstrip().startswith("{"):
        try:
            return list(_json_documents(text))
        except (ValueError, RecursionError):
            pass  # flow YAML
    events = [e for e in yaml.parse(text, Loader=_Loader) if isinstance(e, yaml.DocumentStartEvent)]
    starts = [event.start_mark.index for event in events if event.start_mark is not None]
    edges = [0, *starts[1:], len(text)]
    return [
        Document(number, text[edges[number - 1] : edges[number]], value)
        for number, value in enumerate(values, 1)
    ]


def _json_documents(text: str) -> Iterator[Document]:
    """Yield JSON documents. Raises ValueError or RecursionError if the text is no JSON or too deep."""
    decoder = json.JSONDecoder()
    start, number = len(text) - len(text.lstrip()), 1
    while start < len(text):
        value, end = decoder.raw_decode(text, start)
        yield Document(number, text[start:end], value, is_json=True)
        start, number = _BLANKS.match(text, end).end(), number + 1  # type: ignore[union-attr]  # always matches


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A document's new text and value. ``anew`` is true if it was rewritten, which loses its comments;
    ``comments`` are those that were removed with lines of it.
    """

    text: str
    value: Any
    anew: bool = False
    comments: tuple[str, ...] = ()


def rewrite(document: Document, new: Any, *, strict: bool = True) -> Rewritten:
    """Return the document with a new value.

    If only some aliases of a value change, all of them do, unless ``strict``: then the document is rewritten.
    """
    if document.is_json:
        return Rewritten(json_text(new), new)
    try:
        made = patched(document.text, document.value, new)
        [read] = read_documents(made.text.encode())
        if read == new or (not strict and made.is_meant(read)):
            return Rewritten(made.text, read, comments=made.comments)
    except RequestInvalid:  # not in place, or not as was meant
        pass
    head = "---\n" if document.text.lstrip().startswith("---") else ""
    text = yaml.safe_dump(new, sort_keys=False, allow_unicode=True, width=_WIDE)
    return Rewritten(head + str(text), new, anew="#" in document.text or "&" in document.text)


def json_text(value: Any) -> str:
    """Return JSON in the layout that the command writes, so that a diff shows only changed values."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

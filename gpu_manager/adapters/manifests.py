"""Kubernetes manifests in YAML or JSON, with several objects, read within bounds of size and depth.

Reads text as ``kubectl`` does: numbers keep the digits they were written with, dates stay text. What no
manifest has (tags of other types, references in a circle, a thousand levels) is refused before it is built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpu_manager.domain.dra.claim import is_claim
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.untrusted import mapping

LONGEST_BYTES = 4 << 20  # etcd takes 1.5 MiB an object
_DEEPEST = 100
_MOST_NODES = 500_000  # once every reference is followed


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object of a file; ``document`` counts from 1. ``namespaced`` is False where it names no namespace.

    ``runs_pods`` says whether its kind does; ``pod`` is the pod or the template, None if there is none.
    ``annotations`` are the object's own, and ``place`` is where its template stands, empty for a pod.
    ``copies`` is how many of them it wants at once: its replicas, or a job's parallelism. ``claim`` is the
    object itself if it is a ResourceClaim or a ResourceClaimTemplate, ``limit_range`` if it is a LimitRange.
    """

    document: int
    kind: str
    namespace: str
    name: str
    runs_pods: bool
    pod: Mapping[str, object] | None
    copies: int = 1
    claim: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)
    place: tuple[str, ...] = ()
    namespaced: bool = True
    limit_range: Mapping[str, Any] | None = None

    def within(self, usual: str) -> str:
        """The namespace in which a user with the namespace ``usual`` would create it."""
        return self.namespace if self.namespaced else usual


def read_manifests(data: bytes) -> tuple[Manifest, ...]:
    """Every object of a file, lists taken apart.

    Raises:
        RequestInvalid: this is no Kubernetes manifest; the text says where it is malformed.
    """
    return tuple(manifest_of(number, entry) for number, entry in read_objects(data))


def read_objects(data: bytes) -> tuple[tuple[int, Mapping[str, Any]], ...]:
    """Every object of a file as it stands there, with the number of its document; lists taken apart.

    Raises:
        RequestInvalid: as :func:`read_manifests`.
    """
    parsed = read_documents(data)
    objects = tuple(
        (number, entry)
        for number, document in enumerate(parsed, 1)
        if document is not None
        for entry in objects_of(number, document)
    )
    if not objects:
        raise RequestInvalid("empty: no Kubernetes object in it")
    return objects


def read_documents(data: bytes) -> list[object]:
    """The documents of a file as they are, empty ones (None) included.

    Raises:
        RequestInvalid: neither YAML nor JSON, or larger or deeper than any manifest.
    """
    if len(data) > LONGEST_BYTES:
        raise RequestInvalid(f"larger than {LONGEST_BYTES >> 20} MiB: no Kubernetes object is")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestInvalid(f"not UTF-8 text (byte {error.start}): not a manifest") from error
    return _documents(text)


# Which objects run pods, by kind: the API groups that define it, and where the pod stands in it.
_TEMPLATE = ("spec", "template")
_KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Pod": (("",), ()),
    "PodTemplate": (("",), ("template",)),
    "ReplicationController": (("",), _TEMPLATE),
    "Deployment": (("apps", "extensions"), _TEMPLATE),
    "DaemonSet": (("apps", "extensions"), _TEMPLATE),
    "ReplicaSet": (("apps", "extensions"), _TEMPLATE),
    "StatefulSet": (("apps",), _TEMPLATE),
    "Job": (("batch",), _TEMPLATE),
    "CronJob": (("batch",), ("spec", "jobTemplate", "spec", "template")),
}


def objects_of(number: int, document: object) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a document that :func:`read_documents` found in this place; lists are taken apart.

    Raises:
        RequestInvalid: it is no Kubernetes object; the text says why.
    """
    waiting = [(document, "")]
    while waiting:
        entry, default_kind = waiting.pop()
        if not isinstance(entry, dict):
            raise RequestInvalid(f"document {number} is {quoted(entry)}, not a Kubernetes object")
        kind = entry.get("kind", default_kind)
        if not isinstance(kind, str) or not kind:
            raise RequestInvalid(f"document {number} has no kind: not a Kubernetes object")
        items = entry.get("items")
        if kind.endswith("List") and isinstance(items, list):
            waiting.extend((item, kind[: -len("List")]) for item in reversed(items))
        else:
            yield {**entry, "kind": kind}


def manifest_of(number: int, entry: Mapping[str, Any]) -> Manifest:
    """The facts about one object of :func:`read_objects`."""
    kind, meta = entry["kind"], entry.get("metadata")
    names = meta if isinstance(meta, dict) else {}
    groups, path = _KINDS.get(kind, ((), ()))
    version = entry.get("apiVersion")
    runs_pods = bool(groups) and (version is None or _name(version).rpartition("/")[0] in groups)
    return Manifest(
        document=number,
        kind=kind,
        namespace=_name(names.get("namespace")) or "default",
        name=_name(names.get("name")) or _name(names.get("generateName")) or "(no name)",
        runs_pods=runs_pods,
        pod=_at(entry, path) if runs_pods else None,
        copies=_copies(entry, path) if runs_pods else 1,
        claim=entry if is_claim(entry) else None,
        annotations=mapping(names.get("annotations")),
        place=path,
        namespaced=bool(_name(names.get("namespace"))),
        limit_range=entry if kind == "LimitRange" else None,
    )


def _copies(entry: Mapping[str, Any], path: tuple[str, ...]) -> int:
    """Number of replicas beside the template; 1 if it is absent or no number."""
    beside = _at(entry, path[:-1]) if path else None
    value = (beside or {}).get("replicas", (beside or {}).get("parallelism"))
    try:
        return max(0, int(str(value))) if value is not None else 1  # numbers keep their digits here
    except ValueError:
        return 1


def _name(value: object) -> str:
    return value if isinstance(value, str) else ""


def _at(entry: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, object] | None:
    found: Any = entry
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _documents(text: str) -> list[object]:
    if text.lstrip().startswith("{"):
        documents = _json_documents(text)
        if documents is not None:
            return documents
    try:
        _bound(text)
        return list(yaml.load_all(text, Loader=_Loader))  # a SafeLoader with fewer types
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        cure = (
            "; render a Helm template before (helm template … | gpu-manager check -)" if "{{" in text else ""
        )
        problem = printable(error.problem or error.context or "cannot be read")
        raise RequestInvalid(f"neither YAML nor JSON: {line}{problem}{cure}") from error
    except yaml.YAMLError as error:  # the reader: characters that YAML does not allow
        raise RequestInvalid("not a text file: it holds control characters") from error
    except ValueError as error:
        raise RequestInvalid("holds a number of thousands of digits") from error


def _json_documents(text: str) -> list[object] | None:
    """The JSON objects that make up the text; None if it is not JSON (flow YAML, too, starts so)."""
    decoder = json.JSONDecoder(parse_float=str)
    documents, position = [], 0
    try:
        while (position := _next(text, position)) < len(text):
            document, position = decoder.raw_decode(text, position)
            documents.append(document)
    except RecursionError as error:
        raise RequestInvalid("nested too deeply for a Kubernetes object") from error
    except ValueError:
        return None
    return documents


def _next(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = (None, "!", f"{_TAG}str", f"{_TAG}map", f"{_TAG}seq")
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]  # its base is chosen by what PyYAML was built with
    """YAML as Kubernetes knows it: numbers with a point stay text, and so do dates and 12:30."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's own protocol
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag in {f"{_TAG}bool", f"{_TAG}null", f"{_TAG}merge"}
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    f"{_TAG}int",
    re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0[0-7_]+|0b[01_]+|0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)


def _bound(text: str) -> None:
    """Refuse what would overflow the stack or the memory once built: libyaml recurses, references multiply.

    Raises:
        RequestInvalid: too deep, too large, in a circle, or with a tag that manifests do not have.
    """
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = []  # collections: their anchor, and the count when they began
    count = 0
    for event in yaml.parse(text, Loader=_Base):
        tag = getattr(event, "tag", None)
        if tag not in _PLAIN_TAGS:
            raise RequestInvalid(f"uses the YAML tag {quoted(tag)}, which no manifest has")
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_):
                raise RequestInvalid(f"refers to {quoted(event.anchor)} inside itself")
            count += sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor:
                sizes[event.anchor] = 1
        if len(open_) > _DEEPEST:
            raise RequestInvalid(f"nested more than {_DEEPEST} levels deep: no Kubernetes object is")
        if count > _MOST_NODES:
            raise RequestInvalid(f"holds more than {_MOST_NODES} values (references followed)")

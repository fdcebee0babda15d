"""From one document of another system's manifests to ours: which pods, what becomes of them, what is lost.

Pure. A document is any tree of maps and lists; every pod template in it is found wherever it stands, so that
workloads of other API groups (a Rollout, a PyTorchJob) are translated like a Deployment. What comes out was
judged by the rules of ``gpu-manager check``; a pod that breaks one is left as it was, and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from fractions import Fraction
from typing import Any

from gpu_manager.cli.kubectl.migrate.model import (
    Becomes,
    Fate,
    FindingKind,
    Lost,
    MigratedShare,
    MigrationFinding,
    MigrationTerms,
    System,
)
from gpu_manager.cli.kubectl.migrate.systems import MIG, PREDECESSOR, SYSTEMS, TIME_SLICING
from gpu_manager.domain.contract import CORE, CORE_LIMIT, MEMORY, NVIDIA, QUOTA_KEY
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.pod import parse_pod
from gpu_manager.domain.resources import CORES_PER_CARD, format_bytes, format_number, parse_quantity
from gpu_manager.domain.rules.legal_values import check_pod

_GROUPS = ("initContainers", "containers")


def translate(
    document: Any, terms: MigrationTerms, system: System | None = None
) -> tuple[Any, list[MigrationFinding]]:
    """The document in our words, and what there is to tell; ``system`` None finds out for each pod."""
    findings: list[MigrationFinding] = []
    new = _unshared(document)
    for where, pod in _templates(new, "object"):
        changed = deepcopy(pod)
        try:
            found = _Pod(changed, where, terms).translate(system)
            if found is None:
                continue
            _judge(changed, terms)
        except RequestInvalid as error:
            findings.append(MigrationFinding(FindingKind.REFUSED, where, str(error)))
            continue
        pod.clear()
        pod.update(changed)
        findings += found
    findings += _beside(document)
    return new, findings


def _unshared(tree: Any) -> Any:
    """A copy in which no two places are one object, as YAML's references make them."""
    if isinstance(tree, dict):
        return {key: _unshared(value) for key, value in tree.items()}
    return [_unshared(entry) for entry in tree] if isinstance(tree, list) else tree


def _judge(pod: dict[str, Any], terms: MigrationTerms) -> None:
    faults = check_pod(parse_pod(pod), terms.unit)
    if faults:
        raise RequestInvalid("; ".join(f"{fault.message}  [{fault.rule.id}]" for fault in faults))


def _templates(tree: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod and pod template, with the name of the object that it belongs to."""
    if isinstance(tree, list):
        for entry in tree:
            yield from _templates(entry, where)
    if not isinstance(tree, dict):
        return
    kind, meta = tree.get("kind"), tree.get("metadata")
    if isinstance(kind, str) and isinstance(meta, dict) and not kind.endswith("List"):
        where = _named(kind, meta)
    spec = tree.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if isinstance(containers, list) and containers and all(isinstance(c, dict) for c in containers):
        yield where, tree
        return
    for value in tree.values():
        yield from _templates(value, where)


def _named(kind: str, meta: Mapping[str, Any]) -> str:
    name = meta.get("name") or meta.get("generateName") or "(no name)"
    return f"{kind} {meta.get('namespace') or 'default'}/{name}"


class _Pod:
    """One pod template while it is changed in place."""

    def __init__(self, pod: dict[str, Any], where: str, terms: MigrationTerms) -> None:
        self._pod = pod
        self._where = where
        self._terms = terms
        self._spec: dict[str, Any] = pod["spec"]
        self._findings: list[MigrationFinding] = []
        self._containers = [c for group in _GROUPS for c in self._list(self._spec, group)]
        self._ceilings: list[int | None] = []

    def translate(self, system: System | None) -> list[MigrationFinding] | None:
        """Change it; None if it asks for nothing of the system. Raises RequestInvalid where it cannot be."""
        names = {name for c in self._containers for limits in self._amounts(c) for name in limits}
        for mig in sorted(name for name in names if name.startswith(MIG)):
            raise RequestInvalid(f"{mig} asks for a MIG slice: cards in MIG mode are left to NVIDIA's plugin")
        found = system or self._system(names)
        if found is None or not names & set(found.resources):
            return None
        for container in self._containers:
            self._container(container, found)
        self._wishes(found)
        self._remove_state(found)
        self._scheduling(found)
        self._ceiling()
        if self._spec.get("resourceClaims"):
            self._tell(
                FindingKind.LOST,
                "resourceClaims are left as they are: devices of a claim are not ours to share",
            )
        return self._findings

    def _system(self, names: set[str]) -> System | None:
        annotations = self._map(self._map(self._pod, "metadata"), "annotations")
        shared = set(TIME_SLICING.resources)
        sure = [
            s
            for s in SYSTEMS
            if names & (set(s.resources) - (shared if s is not TIME_SLICING else {NVIDIA}))
            or (names & set(s.resources) and self._spec.get("schedulerName") in s.schedulers)
            or (names & set(s.resources) and s.marks and any(str(a).startswith(s.marks) for a in annotations))
        ]
        plain = names & shared and not any(names & shared & set(s.resources) for s in sure)
        if len(sure) + bool(plain) > 1:
            titles = " and ".join([*(s.title for s in sure), *([TIME_SLICING.title] if plain else [])])
            raise RequestInvalid(f"asks by the names of {titles} at once: which is meant? say it with --from")
        return sure[0] if sure else (TIME_SLICING if plain else None)

    # Containers.

    def _container(self, container: dict[str, Any], system: System) -> None:
        name, (limits, requests) = container.get("name"), self._amounts(container)
        asked = {
            resource: self._quantity(limits.get(resource, requests.get(resource)), resource, name)
            for resource in system.resources
            if limits.get(resource, requests.get(resource)) is not None
        }
        self._environment(container, system)
        if not asked:
            return
        try:
            share = system.share(asked, self._terms)
        except RequestInvalid as error:
            raise RequestInvalid(f"container {quoted(name)}: {error}") from error
        before = {k: v for k, v in {**requests, **limits}.items() if k in system.resources}
        self._write(container, system, share)
        after = {k: v for k, v in self._amounts(container)[0].items() if k in (CORE, MEMORY)}
        if before != after or any(k in requests and k not in self._amounts(container)[1] for k in before):
            was = ", ".join(f"{k.partition('/')[2]} {v}" for k, v in before.items())
            self._tell(FindingKind.CHANGED, f"container {quoted(name)}: {self._shown(share)} (was {was})")
        for note in share.notes if share else ():
            self._tell(FindingKind.CHANGED, f"container {quoted(name)}: {note}")
        if share and 0 < share.cores < CORES_PER_CARD:
            self._ceilings.append(share.ceiling)

    def _write(self, container: dict[str, Any], system: System, share: MigratedShare | None) -> None:
        resources = _made(container, "resources")
        ours: dict[str, Any] = {}
        if share is not None:
            limits, requests = self._amounts(container)
            told = {**requests, **limits} if system is PREDECESSOR else {}
            for resource, value in ((CORE, share.cores), (MEMORY, share.units)):
                if value:
                    ours[resource] = told.get(resource, _number(value))
        for group in ("limits", "requests"):
            amounts = resources.get(group)
            if not isinstance(amounts, dict):
                continue
            for resource in system.resources:
                if resource not in ours:
                    amounts.pop(resource, None)
            if not amounts and group == "requests":
                del resources[group]
        if ours:
            _made(resources, "limits").update(ours)

    def _shown(self, share: MigratedShare | None) -> str:
        if share is None:
            return "asks for no card"
        if share.units is None:
            return f"{format_number(Fraction(share.cores))} cores, whole cards with all their memory"
        size = format_bytes(int(share.units * self._terms.unit))
        cores, units = (format_number(Fraction(value)) for value in (share.cores, share.units))
        return f"{cores} cores, {units} units ({size})"

    def _environment(self, container: dict[str, Any], system: System) -> None:
        kept, name = [], container.get("name")
        for entry in self._list(container, "env"):
            fate = system.variables.get(str(entry.get("name")))
            if fate is None:
                kept.append(entry)
                continue
            self._tell(_kind(fate), f"container {quoted(name)}: {entry['name']} removed: {_why(fate)}")
        if isinstance(container.get("env"), list) and len(kept) < len(container["env"]):
            container["env"] = kept
            if not kept:
                del container["env"]
        texts = [
            *(str(container.get(group) or "") for group in ("command", "args")),
            *(str(entry.get("value", "")) for entry in kept),
        ]
        for path, why in system.paths.items():
            if any(path in text for text in texts):
                self._tell(FindingKind.LOST, f"container {quoted(name)} uses {path}: {why}")

    # The pod.

    def _wishes(self, system: System) -> None:
        for holder, group, fates in (
            (self._pod.get("metadata"), "annotations", system.annotations),
            (self._pod.get("metadata"), "labels", system.labels),
            (self._spec, "nodeSelector", system.selectors),
        ):
            values = self._map(holder, group)
            for key in [key for key in values if key in fates]:
                self._wish(values, key, fates[key])
            if isinstance(holder, dict) and group in holder and not values:
                del holder[group]
        affinity = str(self._spec.get("affinity") or "")
        for key in system.selectors:
            if f"'{key}'" in affinity:
                self._tell(
                    FindingKind.LOST,
                    f"affinity names {key}: take it out, or say it with tencent.com/gpu-model",
                )

    def _wish(self, values: dict[str, Any], key: str, fate: Fate) -> None:
        text = str(values.pop(key))
        if not isinstance(fate, Becomes):
            self._tell(_kind(fate), f"{key} removed: {_why(fate)}")
            return
        value = fate.change(text) if fate.values is None else fate.values.get(text)
        if value is None:
            known = ", ".join(fate.values or ())
            self._tell(FindingKind.LOST, f"{key}: {quoted(text)} removed (what has an equivalent: {known})")
        elif not value:
            self._tell(FindingKind.CHANGED, f"{key}: {quoted(text)} removed: it is always so here")
        else:
            self._annotate(fate, key, text, value)

    def _annotate(self, fate: Becomes, key: str, text: str, value: str) -> None:
        annotations = _made(_made(self._pod, "metadata"), "annotations")
        if annotations.get(fate.key, value) != value:
            has = quoted(annotations[fate.key])
            self._tell(FindingKind.LOST, f"{key}: {quoted(text)} removed: {fate.key} is {has} already")
            return
        annotations[fate.key] = value
        if (key, text) != (fate.key, value):
            was = f"{key}: {quoted(text)}" if key == fate.key else key
            note = f"; {fate.note}" if fate.note else ""
            self._tell(FindingKind.CHANGED, f"{was} is now {fate.key}: {quoted(value)}{note}")

    def _remove_state(self, system: System) -> None:
        meta = self._map(self._pod, "metadata")
        gone = []
        for group in ("annotations", "labels"):
            values = self._map(meta, group)
            keys = [k for k in values if system.state and str(k).startswith(system.state)]
            for key in keys:
                del values[key]
            if keys and not values:
                del meta[group]
            gone += keys
        if self._pod.get("metadata") == {}:
            del self._pod["metadata"]
        if gone:
            self._tell(
                FindingKind.CHANGED,
                f"removed what the scheduler or agent of old had written: {', '.join(gone)}",
            )

    def _scheduling(self, system: System) -> None:
        scheduler = self._spec.get("schedulerName")
        if scheduler in system.schedulers:
            del self._spec["schedulerName"]
            self._tell(FindingKind.CHANGED, f"schedulerName {scheduler} removed: our webhook writes ours")
        if system.drops_runtime_class and self._spec.get("runtimeClassName") == "nvidia":
            del self._spec["runtimeClassName"]
            self._tell(
                FindingKind.CHANGED,
                "runtimeClassName nvidia removed: our webhook writes one where nodes need it",
            )

    def _ceiling(self) -> None:
        wanted = [ceiling for ceiling in self._ceilings if ceiling is not None]
        if not wanted:
            return
        if len(wanted) < len(self._ceilings):
            told = (
                f"{CORE_LIMIT} not written: it holds for the whole pod, and some of its containers have a "
                "fixed share"
            )
            self._tell(FindingKind.LOST, told)
            return
        annotations = _made(_made(self._pod, "metadata"), "annotations")
        annotations.setdefault(CORE_LIMIT, str(max(wanted)))

    # Reading, with care: people wrote it.

    def _amounts(self, container: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        resources = self._map(container, "resources")
        return self._map(resources, "limits"), self._map(resources, "requests")

    def _quantity(self, value: object, resource: str, name: object) -> Fraction:
        try:
            return parse_quantity(value.strip() if isinstance(value, str) else value)
        except RequestInvalid as error:
            raise RequestInvalid(f"container {quoted(name)}: {resource}: {error}") from error

    @staticmethod
    def _map(holder: object, key: str) -> dict[str, Any]:
        found = holder.get(key) if isinstance(holder, dict) else None
        return found if isinstance(found, dict) else {}

    @staticmethod
    def _list(holder: dict[str, Any], key: str) -> list[dict[str, Any]]:
        found = holder.get(key)
        return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []

    def _tell(self, kind: FindingKind, text: str) -> None:
        self._findings.append(MigrationFinding(kind, self._where, text))


def _made(holder: dict[str, Any], key: str) -> dict[str, Any]:
    """The map under the key, new where there was none."""
    found = holder.get(key)
    if not isinstance(found, dict):
        found = holder[key] = {}
    return found


def _number(value: Fraction | int) -> int | str:
    exact = Fraction(value)
    return int(exact) if exact.denominator == 1 else format_number(exact)


def _kind(fate: Fate) -> FindingKind:
    return FindingKind.LOST if isinstance(fate, Lost) else FindingKind.CHANGED


def _why(fate: Fate) -> str:
    return fate.note if isinstance(fate, Becomes) else fate.why


def _beside(document: Any) -> Iterator[MigrationFinding]:
    """What stands beside pods and speaks of cards: quotas."""
    objects = document.get("items") if isinstance(document, dict) else None
    for entry in objects if isinstance(objects, list) else [document]:
        if not isinstance(entry, dict) or not isinstance(entry.get("metadata"), dict):
            continue
        kind, where = entry.get("kind"), _named(str(entry.get("kind")), entry["metadata"])
        if kind == "ConfigMap" and QUOTA_KEY in (entry.get("data") or {}):
            yield MigrationFinding(FindingKind.KEPT, where, "the quota is read as it stands")
        if kind in ("ResourceQuota", "LimitRange"):
            text = str(entry.get("spec"))
            foreign = {n for s in SYSTEMS if s is not PREDECESSOR for n in s.resources if f"{n}'" in text}
            for name in sorted(foreign):
                yield MigrationFinding(
                    FindingKind.LOST,
                    where,
                    f"it counts {name}, which pods no longer ask for: see docs/quota.md for ours",
                )

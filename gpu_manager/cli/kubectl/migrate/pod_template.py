"""Translates one pod template of another system, and reports what has no equivalent. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
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
    Needless,
    System,
    fate_of,
    fitting,
)
from gpu_manager.cli.kubectl.migrate.systems.nvidia import (
    MIG,
    PRODUCT,
    TIME_SLICING,
    product_of,
    profile_of_resource,
)
from gpu_manager.cli.kubectl.migrate.systems.others import PREDECESSOR, SYSTEMS
from gpu_manager.domain.contract import (
    CARDS,
    CORE,
    CORE_LIMIT,
    GPU_MODEL,
    GPU_UUID,
    MEMORY,
    NO_VISIBLE_DEVICES,
    NVIDIA,
    VISIBLE_ENV,
)
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.mig import names_instances
from gpu_manager.domain.resources import CORES_PER_CARD, format_bytes, format_number, parse_quantity

_GROUPS = ("initContainers", "containers")


class PodTemplate:
    """One pod template while it is changed in place."""

    def __init__(
        self, pod: dict[str, Any], where: str, terms: MigrationTerms, *, tolerates: bool = True
    ) -> None:
        self._pod = pod
        self._where = where
        self._terms = terms
        self._tolerates = tolerates
        self._spec: dict[str, Any] = pod["spec"]
        self._findings: list[MigrationFinding] = []
        self._containers = [c for group in _GROUPS for c in self._list(self._spec, group)]
        self._ceilings: list[int | None] = []
        self._shared = False  # a container asks for a share now
        self._parts: dict[str, int] = {}  # container → its number of cards, where it has a part of each
        for amounts in (a for c in self._containers for a in self._amounts(c) if terms.hami_count in a):
            amounts[NVIDIA] = amounts.pop(terms.hami_count)

    def translate(self, system: System | None) -> list[MigrationFinding] | None:
        """Translate it; None if it does not use the system. Raises RequestInvalid if it cannot be
        translated.
        """
        names = {name for c in self._containers for limits in self._amounts(c) for name in limits}
        instances = self._instances({name for name in names if name.startswith(MIG)}, names)
        found = system or self._system(names) or (TIME_SLICING if instances else None)
        if found is None or not (names & set(found.resources) or self._annotated(found) or instances):
            return None
        self._check_annotated_container(found)
        for container in self._containers:
            self._container(container, found)
        self._wishes(found)
        self._remove_state(found)
        self._scheduling(found)
        if NVIDIA in names and NVIDIA in found.resources and self._shared and self._tolerates:
            self._tolerate()
        self._ceiling()
        self._cards()
        if self._spec.get("resourceClaims"):
            self._tell(
                FindingKind.LOST,
                "resourceClaims are left as they are: devices of a claim are not ours to share",
            )
        return self._findings

    def _instances(self, asked: set[str], names: set[str]) -> bool:
        """Translate requests for whole MIG instances; True if there are any.

        Their profile goes into the annotation that allows models, which counts for the whole pod. Raises
        RequestInvalid for what that cannot say, and for several instances in a container.
        """
        if not asked:
            return False
        profile = profile_of_resource(min(asked))
        beside = sorted(names & {name for system in SYSTEMS for name in system.resources})
        if len(asked) > 1 or beside:
            raise RequestInvalid(
                f"{', '.join([*sorted(asked), *beside])} in one pod: {GPU_MODEL}, which names the profile of "
                "an instance, counts for all containers of a pod"
            )
        for container in self._containers:
            if any(asked & set(amounts) for amounts in self._amounts(container)):
                self._whole_instance(container, min(asked), profile)
        self._name_profile(min(asked), profile)
        return True

    def _whole_instance(self, container: dict[str, Any], name: str, profile: str) -> None:
        limits, requests = self._amounts(container)
        shown = quoted(container.get("name"))
        count = self._quantity(limits.get(name, requests.get(name)), name, container.get("name"))
        if count > 1:
            raise RequestInvalid(f"container {shown}: {name} is {format_number(count)}: a container gets one")
        for amounts in (limits, requests):
            amounts.pop(name, None)
        if not requests:
            container["resources"].pop("requests", None)
        if count == 1:
            self._shared = True
            _made(container["resources"], "limits")[CORE] = CORES_PER_CARD
            told = f"container {shown}: 100 cores, a whole instance of profile {profile} (was {name} 1)"
            self._tell(FindingKind.CHANGED, told)

    def _name_profile(self, name: str, profile: str) -> None:
        """Write the allow list: with the card's product too, where a node selector names one."""
        selectors = self._map(self._spec, "nodeSelector")
        product = str(selectors.get(PRODUCT, ""))
        wanted = profile
        if product and not names_instances(product):
            wanted = f"{product_of(product)}-MIG-{profile}"
            selectors.pop(PRODUCT)
            if not selectors:
                del self._spec["nodeSelector"]
        self._annotate(Becomes(GPU_MODEL), name, "1", wanted)

    def _system(self, names: set[str]) -> System | None:
        annotations = self._annotations
        shared = set(TIME_SLICING.resources)
        sure = [
            s
            for s in SYSTEMS
            if names & (set(s.resources) - (shared if s is not TIME_SLICING else {NVIDIA}))
            or (names & set(s.resources) and self._spec.get("schedulerName") in s.schedulers)
            or (names & set(s.resources) and s.marks and any(str(a).startswith(s.marks) for a in annotations))
            or self._annotated(s)
        ]
        plain = names & shared and not any(names & shared & set(s.resources) for s in sure)
        if len(sure) + bool(plain) > 1:
            titles = " and ".join([*(s.title for s in sure), *([TIME_SLICING.title] if plain else [])])
            raise RequestInvalid(f"asks by the names of {titles} at once: which is meant? say it with --from")
        return sure[0] if sure else (TIME_SLICING if plain else None)

    # Amounts that stand in annotations.

    @property
    def _annotations(self) -> dict[str, Any]:
        return self._map(self._map(self._pod, "metadata"), "annotations")

    def _annotated(self, system: System) -> bool:
        return any(
            name in system.annotation_amounts or system.amount(name) is not None
            for name in map(str, self._annotations)
        )

    def _check_annotated_container(self, system: System) -> None:
        wanted = self._annotations.get(system.container_annotation)
        named = [(a, found[0]) for a in map(str, self._annotations) if (found := system.amount(a))]
        for key, name in [(system.container_annotation, wanted), *named]:
            if name is not None and all(c.get("name") != name for c in self._containers):
                raise RequestInvalid(f"{key}: there is no container {quoted(name)}")

    def _of_annotations(self, container: dict[str, Any], system: System) -> dict[str, Fraction]:
        """Return what the pod's annotations request for this container."""
        asked = {
            found[1]: self._read(found[2], value, str(key))
            for key, value in self._annotations.items()
            if (found := system.amount(str(key))) and found[0] == container.get("name")
        }
        wanted = self._annotations.get(system.container_annotation)
        first = self._list(self._spec, "containers")[0]
        if container is not first if wanted is None else container.get("name") != wanted:
            return asked
        return asked | {
            name: self._read(read, self._annotations[name], name)
            for name, read in system.annotation_amounts.items()
            if name in self._annotations
        }

    def _of_variables(self, container: dict[str, Any], system: System) -> dict[str, Fraction]:
        """Return what the container's environment variables request."""
        found = {}
        for entry in self._list(container, "env"):
            name = str(entry.get("name"))
            if read := system.variable_amounts.get(name):
                if not isinstance(entry.get("value"), str):
                    raise RequestInvalid(f"{name} has no value in the manifest: write it there")
                found[name] = self._read(read, entry["value"], name)
        return found

    @staticmethod
    def _read(read: Callable[[str], Fraction], value: object, name: str) -> Fraction:
        try:
            return read(str(value))
        except RequestInvalid as error:
            raise RequestInvalid(f"{name}: {error}") from error

    # Containers.

    def _container(self, container: dict[str, Any], system: System) -> None:
        name, (limits, requests) = container.get("name"), self._amounts(container)
        asked = {
            resource: self._quantity(limits.get(resource, requests.get(resource)), resource, name)
            for resource in system.resources
            if limits.get(resource, requests.get(resource)) is not None
        }
        try:
            asked |= self._of_annotations(container, system)
            if asked:
                asked |= self._of_variables(container, system)
        except RequestInvalid as error:
            raise RequestInvalid(f"container {quoted(name)}: {error}") from error
        self._environment(container, system)
        if not asked:
            return
        before = {k: v for k, v in {**requests, **limits}.items() if k in system.resources}
        before |= {k: format_number(v) for k, v in asked.items() if k not in system.resources}
        was = ", ".join(f"{k.rpartition('/')[2]} {v}" for k, v in before.items())
        try:
            share = system.share(asked, self._terms)
        except RequestInvalid as error:
            plain = all(str(value).isdigit() for value in before.values())
            written = "" if plain else f" (written: {was})"
            raise RequestInvalid(f"container {quoted(name)}: {error}{written}") from error
        was_written = dict(limits), dict(requests)
        self._write(container, system, share)
        if self._amounts(container) != was_written:
            self._tell(FindingKind.CHANGED, f"container {quoted(name)}: {self._shown(share)} (was {was})")
        for note in (*share.notes, *filter(None, [fitting(share, self._terms)])) if share else ():
            self._tell(FindingKind.CHANGED, f"container {quoted(name)}: {note}")
        if share and 0 < share.cores < CORES_PER_CARD:
            self._ceilings.append(share.ceiling)
            self._parts[str(name)] = share.parts

    def _write(self, container: dict[str, Any], system: System, share: MigratedShare | None) -> None:
        resources = _made(container, "resources")
        ours: dict[str, Any] = {}
        if share is not None:
            limits, requests = self._amounts(container)
            told = {**requests, **limits} if system is PREDECESSOR else {}
            for resource, value in ((CORE, share.cores), (MEMORY, share.units)):
                if value:
                    ours[resource] = told.get(resource, _number(value * share.parts))
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
            self._shared = True
            _made(resources, "limits").update(ours)

    def _shown(self, share: MigratedShare | None) -> str:
        if share is None:
            return "asks for no card"
        if share.units is None:
            return f"{format_number(Fraction(share.cores))} cores, whole cards with all their memory"
        size = format_bytes(int(share.units * share.parts * self._terms.unit))
        totals = (share.cores * share.parts, share.units * share.parts)
        cores, units = (format_number(Fraction(value)) for value in totals)
        parts = f" in equal parts of {share.parts} cards" if share.parts > 1 else ""
        return f"{cores} cores, {units} units ({size}){parts}"

    def _environment(self, container: dict[str, Any], system: System) -> None:
        kept, name = [], container.get("name")
        for entry in self._list(container, "env"):
            fate = fate_of(system.variables, str(entry.get("name"))) or _shown_cards(entry)
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
            for key in list(values):
                if fate := fate_of(fates, str(key), values[key]):
                    self._wish(values, key, fate)
            if isinstance(holder, dict) and group in holder and not values:
                del holder[group]

    def _wish(self, values: dict[str, Any], key: str, fate: Fate) -> None:
        text = str(values.pop(key))
        if not isinstance(fate, Becomes):
            self._tell(_kind(fate), f"{key} removed: {_why(fate)}")
            return
        value = fate.change(text) if fate.values is None else fate.values.get(text)
        if value is None:
            known = ", ".join(fate.values or ())
            why = f"; {fate.note}" if fate.note else ""
            self._tell(
                FindingKind.LOST, f"{key}: {quoted(text)} removed (what has an equivalent: {known}){why}"
            )
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
        if node := self._spec.pop("nodeName", None):
            told = f"nodeName {node} removed: it passes every scheduler by; select a node by its labels"
            self._tell(FindingKind.CHANGED, told)
        if system.drops_runtime_class and self._spec.get("runtimeClassName") == "nvidia":
            del self._spec["runtimeClassName"]
            self._tell(
                FindingKind.CHANGED,
                "runtimeClassName nvidia removed: our webhook writes one where nodes need it",
            )

    def _tolerate(self) -> None:
        """Tolerate the taint of nodes with cards: where the API server did that for the old name by itself
        (ExtendedResourceToleration), it does not for ours.
        """
        there = self._spec.get("tolerations") or []
        if not isinstance(there, list):
            return
        keys = [one.get("key") for one in there if isinstance(one, dict)]
        if NVIDIA in keys or any(key in (None, "") for key in keys):  # without a key every taint is tolerated
            return
        self._spec["tolerations"] = [*there, {"key": NVIDIA, "operator": "Exists"}]
        self._tell(FindingKind.CHANGED, f"tolerates the taint {NVIDIA}, as it did by asking for that name")

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

    def _cards(self) -> None:
        """Say on how many cards each container lies: by its name where not all lie on as many."""
        numbers = set(self._parts.values())
        if numbers <= {1}:
            return
        apart = ",".join(f"{name}={count}" for name, count in self._parts.items() if count > 1)
        value = str(numbers.pop()) if len(numbers) == 1 and self._alone() else apart
        _made(_made(self._pod, "metadata"), "annotations")[CARDS] = value
        self._tell(
            FindingKind.CHANGED, f"annotation {CARDS}: {quoted(value)} added: amounts are totals of all cards"
        )

    def _alone(self) -> bool:
        """True if no other container asks for cores: the number would count for it too."""
        return len(self._parts) == sum(CORE in limits for limits, _ in map(self._amounts, self._containers))

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


def _shown_cards(variable: dict[str, Any]) -> Fate | None:
    """Return what becomes of the variable that shows a container cards; None for others, and for no cards."""
    value = variable.get("value")
    if variable.get("name") != VISIBLE_ENV or value in NO_VISIBLE_DEVICES:
        return None
    if re.fullmatch(r"all|[0-9, ]*", str(value or "")):
        return Needless("the agent writes it, for the container's own cards")
    return Lost(f"the agent writes it; to have certain cards, name them in the annotation {GPU_UUID}")


def _made(holder: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the map under the key, created if absent."""
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

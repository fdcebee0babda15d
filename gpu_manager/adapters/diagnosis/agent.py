"""Facts about the running agent, from its status pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpu_manager.domain.doctor.facts import AgentFacts
from gpu_manager.domain.errors import NodeUnready, printable
from gpu_manager.domain.untrusted import json_object

Read = Callable[[str], str]  # path → text; raises NodeUnready


def gather_agent(url: str, read: Read) -> AgentFacts:
    """The agent behind ``read``. Raises NodeUnready: it does not answer, or something else does."""
    ready = _object(read("/readyz"), url)
    version = str(_object(read("/version"), url).get("version") or "of an unknown version")
    graph = _object(read("/graph"), url)
    why = str(ready.pop("why", ""))
    checks = {name: holds for name, holds in ready.items() if isinstance(holds, bool)}
    closed, whole_only = tuple(_closed(graph)), tuple(_whole_only(graph))
    policy = printable(str(graph.get("numa_policy") or ""))
    facts = AgentFacts(
        url, printable(version), checks, printable(why), closed, whole_only=whole_only, numa_policy=policy
    )
    try:
        samples = _samples(read("/metric"))
    except (NodeUnready, ValueError):
        return facts

    def by(name: str, label: str) -> dict[str, int]:
        return {labels[label]: int(count) for labels, count in samples.get(name, ())}

    def number(name: str) -> float | None:
        return next((value for _, value in samples.get(name, ())), None)

    def flag(name: str) -> bool:
        return any(value for _, value in samples.get(name, ()))

    stranded = number("vcuda_stranded_containers")
    return replace(
        facts,
        outside={
            f"{labels.get('card')} ({printable(labels.get('uuid', ''))})": int(value)
            for labels, value in samples.get("vcuda_card_memory_outside_bytes", ())
        },
        enforced=dict(_named(samples, "vcuda_container_enforcement", "state")),
        evading=tuple(f"{who}: {how}" for who, how in _named(samples, "vcuda_container_evading", "reason")),
        blind=tuple(
            labels["lacks"] for labels, value in samples.get("vcuda_evasion_detection_blind", ()) if value
        ),
        unwitnessed=tuple(
            (printable(labels.get("card", "")), printable(labels.get("lacks", "")))
            for labels, value in samples.get("vcuda_card_without_witness", ())
            if value
        ),
        notes=by("vcuda_library_messages_total", "kind"),
        unreadable=by("vcuda_watch_unreadable_objects_total", "resource"),
        pages_among_others=int(number("vcuda_pages_on_node_file_system") or 0),
        kubelet_unverified=flag("vcuda_kubelet_unverified"),
        evicts_itself=flag("vcuda_evicts_itself"),
        not_injected=tuple(who for who, _ in _named(samples, "vcuda_container_not_injected", "container")),
        stranded=None if stranded is None else int(stranded),
        sample_age_seconds=number("vcuda_sample_age_seconds"),
    )


Samples = Mapping[str, list[tuple[Mapping[str, str], float]]]


def _samples(text: str) -> Samples:
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def _named(samples: Samples, name: str, label: str) -> Iterator[tuple[str, str]]:
    for labels, value in samples.get(name, ()):
        if value:
            who = f"{labels.get('namespace')}/{labels.get('pod')} {labels.get('container')}"
            yield printable(who), printable(labels.get(label, ""))


def _cards(graph: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The cards with how each is named."""
    cards = graph.get("cards")
    for card in cards if isinstance(cards, list) else ():
        if isinstance(card, dict):
            yield f"card {card.get('index')} ({printable(str(card.get('uuid')))})", card


def _whole_only(graph: Mapping[str, Any]) -> Iterator[str]:
    for name, card in _cards(graph):
        if why := card.get("whole_only"):
            yield f"{name}: {printable(str(why))}"


def _closed(graph: Mapping[str, Any]) -> Iterator[str]:
    for name, card in _cards(graph):
        if card.get("mig"):
            continue
        if not card.get("healthy", True):
            yield f"{name} is unhealthy: {printable(str(card.get('reason') or 'no reason given'))}"
        elif card.get("cordoned"):
            yield f"{name} is cordoned"


def _object(text: str, url: str) -> dict[str, Any]:
    data = json_object(text)
    if data is None:
        raise NodeUnready(f"{url} answers with something else: is that the agent?")
    return data

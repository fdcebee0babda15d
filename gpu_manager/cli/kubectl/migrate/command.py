"""The command: reads files, prints a diff or the new manifests, and reports what has no equivalent."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import Annotated, Final

from gpu_manager.adapters.manifests import read_documents, read_objects
from gpu_manager.cli.files import Filenames, Files, chosen_files, load, shown
from gpu_manager.cli.kubectl.migrate.left_over import left_over
from gpu_manager.cli.kubectl.migrate.model import (
    CardSize,
    FindingKind,
    MigrationFinding,
    MigrationTerms,
    System,
)
from gpu_manager.cli.kubectl.migrate.systems.nvidia import agreed
from gpu_manager.cli.kubectl.migrate.systems.others import SYSTEMS
from gpu_manager.cli.kubectl.migrate.translate import Rewritten, documents, json_text, rewrite, translate
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access
from gpu_manager.cli.output import painted
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.resources import GIB, MIB
from gpu_manager.runtime.arguments import Option, whole_bytes

_BAD = (FindingKind.LOST, FindingKind.LEFT, FindingKind.REFUSED)


class MigrateOutput(Enum):
    """The form of the output."""

    DIFF = "diff"
    YAML = "yaml"


class From(Enum):
    """The system that the manifests were written for."""

    AUTO = "auto"
    GPU_MANAGER = "gpu-manager"
    HAMI = "hami"
    VOLCANO = "volcano"
    KAI = "kai"
    GPUSHARE = "gpushare"
    NVIDIA = "nvidia"
    VGPU_MANAGER = "vgpu-manager"


@dataclass(frozen=True, slots=True)
class Migrated:
    """One file before and after the migration, and the findings about it."""

    name: str
    old: str
    new: str
    findings: tuple[MigrationFinding, ...]


def command(
    files: Files = None,
    filenames: Filenames = None,
    output: Annotated[
        MigrateOutput, Option("--output", "-o", help="A diff with what was found, or the new manifests.")
    ] = MigrateOutput.DIFF,
    source: Annotated[From, Option("--from", help="System that the manifests were written for.")] = From.AUTO,
    cores: Annotated[
        int, Option(min=1, max=99, help="Cores for a container that asked for memory alone.")
    ] = 10,
    card_memory: Annotated[
        str, Option(help="Memory of a card, such as 40Gi: what parts in percent or turns are parts of.")
    ] = "",
    card_model: Annotated[str, Option(help="Model of the card instead, such as A100-SXM4-40GB or T4.")] = "",
    like: Annotated[
        str, Option(metavar="NODE", help="Take the card's size from this node of the cluster, or profile.")
    ] = "",
    replicas: Annotated[
        int, Option(min=0, max=100, help="Users of a card under NVIDIA time-slicing; 0: whole cards.")
    ] = 0,
    gpushare_unit: Annotated[str, Option(help="What one aliyun.com/gpu-mem counts: 1Gi or 1Mi.")] = "1Gi",
    hami_count: Annotated[
        str, Option(metavar="NAME", help="Resource by which HAMi counts cards, if it is not nvidia.com/gpu.")
    ] = "",
    access: Access = BY_KUBECONFIG,
) -> int:
    """Translate manifests of gpu-manager, HAMi, Volcano, KAI, Run:ai, Aliyun gpushare, NVIDIA time-slicing
    and MPS, and vgpu-manager.

    Every pod template of any kind of workload is translated and checked by the rules of `gpu-manager check`;
    one that breaks a rule is left unchanged. Names of these systems anywhere else are reported. Comments and
    anchors are kept, except in a document that has to be rewritten, which is reported. With -o yaml the new
    manifests go to standard output and everything else to standard error.
    Exit code: 0 all translated, 1 something has no equivalent, is left or was refused, 2 bad input.

    Examples:
      kubectl vcuda migrate -f manifests/
      kubectl vcuda migrate --from hami --card-memory 40Gi -o yaml pod.yaml
    """
    terms = MigrationTerms(
        cores=cores,
        card=_card(card_memory, card_model, like, access),
        hami_count=_resource("--hami-count", hami_count),
        replicas=replicas or None,
        gpushare_unit=whole_bytes("--gpushare-unit", gpushare_unit, "1Gi"),
    )
    if terms.replicas and terms.card is None:
        raise RequestInvalid(
            "--replicas needs --card-memory, --card-model or --like: a turn comes with its part of the memory"
        )
    system = next((s for s in SYSTEMS if s.name == source.value), None)
    given = [(name, load(name, bytes)) for name in chosen_files(files, filenames)]
    terms = replace(terms, shared=agreed([data.decode(errors="replace") for _, data in given]))

    def migrated(name: str, data: bytes) -> Migrated:
        return load(name, lambda data: migrate(shown(name), data, terms, system, alone=len(given) == 1), data)

    done = [migrated(name, data) for name, data in given]
    report = [line for one in done for line in _report(one, several=len(done) > 1)]
    if output is MigrateOutput.DIFF:
        for one in done:
            print("".join(_coloured(_diff(one))), end="")
        print("\n".join(report))
    else:
        texts = [one.new if one.new.endswith("\n") else one.new + "\n" for one in done]
        print(texts[0], *(t if t.startswith("---") else "---\n" + t for t in texts[1:]), sep="", end="")
        print("\n".join(report), file=sys.stderr)
    return 1 if any(f.kind in _BAD for one in done for f in one.findings) else 0


def _card(memory: str, model: str, like: str, access: Access) -> CardSize | None:
    if sum(map(bool, (memory, model, like))) > 1:
        raise RequestInvalid("give one of --card-memory, --card-model and --like: each names the card's size")
    if not like and access != BY_KUBECONFIG:
        raise RequestInvalid("options of kubectl go with --like, which alone asks the cluster")
    if like:
        return of_node(like, access)
    if model:
        return of_model(model)
    return of_memory(whole_bytes("--card-memory", memory, "40Gi")) if memory else None


def _resource(option: str, name: str) -> str:
    if name and not re.fullmatch(r"[a-z0-9.-]+/[A-Za-z0-9._-]+", name):
        raise RequestInvalid(
            f"{option} is {quoted(name)}: use the name of a resource, such as nvidia.com/vgpu"
        )
    return name


def migrate(
    name: str, data: bytes, terms: MigrationTerms, system: System | None = None, *, alone: bool = True
) -> Migrated:
    """Translate one file. Raises RequestInvalid if it cannot be read, or holds no Kubernetes object: beside
    others, or with names of another system, it is left as it was then.
    """
    try:
        read_objects(data)  # the same refusals as check's
    except RequestInvalid:
        named = [one for value in read_documents(data) for one in left_over(value, (), terms)]
        if alone and not named:
            raise
        text = data.decode("utf-8-sig")  # the values of a chart, or a part of a manifest
        return Migrated(name, text, text, tuple(named))
    texts, findings, old = [], [], []
    for document in documents(data):
        new, found = translate(document.value, terms, system)
        text = old_text = json_text(document.value) if document.is_json else document.text
        if new != document.value:
            is_refused = any(f.kind is FindingKind.REFUSED for f in found)
            made = rewrite(document, new, strict=is_refused)
            text = made.text
            if made.value != new:  # a value that others refer to changed with them
                found = [f for f in found if f.kind is not FindingKind.LEFT]
                found += left_over(made.value, (), terms)
            found += [
                MigrationFinding(FindingKind.CHANGED, f"document {document.number}", told)
                for told in _of_the_text(made)
            ]
        texts.append(text)
        old.append(old_text)
        findings += found
    return Migrated(name, "".join(old), "".join(texts), tuple(findings))


def _of_the_text(made: Rewritten) -> Iterator[str]:
    if made.anew:
        yield "written anew, for the change cannot be made in place: its comments and anchors are lost"
    if made.comments:
        yield f"comments removed with their lines: {', '.join(made.comments)}"


# What people see.


def _diff(one: Migrated) -> Iterator[str]:
    old, new = one.old.splitlines(keepends=True), one.new.splitlines(keepends=True)
    for line in difflib.unified_diff(old, new, one.name, f"{one.name} (migrated)"):
        yield line if line.endswith("\n") else line + "\n"


def _coloured(lines: Iterator[str]) -> Iterator[str]:
    plain = not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR"))
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in lines:
        text = printable(line.rstrip("\r\n")) + "\n"
        colour = None if line.startswith(("+++", "---")) else colours.get(line[:1])
        yield text if plain or colour is None else painted(text, colour)


def _report(one: Migrated, *, several: bool) -> Iterator[str]:
    if several:
        yield printable(f"{one.name}:")
    if not one.findings:
        yield "nothing to translate: no pod here asks for cards by the names of another system"
        return
    for where, findings in groupby(one.findings, key=lambda finding: finding.where):
        yield printable(where)
        yield from (printable(f"  {found.kind.value:13} {found.text}") for found in findings)
    counts = {kind: sum(f.kind is kind for f in one.findings) for kind in _BAD}
    bad = ", ".join(f"{count} {kind.value}" for kind, count in counts.items() if count)
    yield f"{bad}: see docs/migration" if bad else "everything has its equivalent"


_GB: Final = 10**9
# Model: (GB in its name, MiB that it has, MiB that the driver keeps), as ``nvidia-smi`` reports them, with
# error correction where the card has it. A node's own figures are better: ``--like NODE``.
_CARDS: Final = {
    "T4": (16, 15_360, 449),
    "P4": (8, 7_680, 200),
    "P100-PCIE-16GB": (16, 16_384, 250),
    "V100-SXM2-16GB": (16, 16_384, 256),
    "V100-SXM2-32GB": (32, 32_768, 256),
    "A2": (16, 15_356, 400),
    "A10": (24, 23_028, 500),
    "A16": (16, 15_356, 400),
    "A30": (24, 24_576, 512),
    "A40": (48, 46_068, 600),
    "A100-SXM4-40GB": (40, 40_960, 580),
    "A100-SXM4-80GB": (80, 81_920, 750),
    "A800-SXM4-80GB": (80, 81_920, 750),
    "L4": (24, 23_034, 500),
    "L20": (48, 46_068, 600),
    "L40": (48, 46_068, 600),
    "L40S": (48, 46_068, 600),
    "H20": (96, 97_871, 600),
    "H100-80GB-HBM3": (80, 81_559, 600),
    "H800": (80, 81_559, 600),
    "H200": (141, 143_771, 603),
    "GH200-480GB": (96, 97_871, 600),
    "B200": (180, 183_359, 1_000),
    "GeForce-RTX-3090": (24, 24_576, 350),
    "GeForce-RTX-4090": (24, 24_564, 350),
    "GeForce-RTX-5090": (32, 32_607, 400),
    "RTX-6000-Ada": (48, 49_140, 600),
}


def of_memory(size: int) -> CardSize:
    """Return the card of a nominal size, the one that offers least; of another size, exactly that."""
    same = [name for name, (gb, _, _) in _CARDS.items() if size in (gb * GIB, gb * _GB)]
    if not same:
        return CardSize(size, size, "--card-memory")
    least = min((of_model(name) for name in same), key=lambda card: card.offered)
    return CardSize(least.offered, max(size, least.nominal), f"{least.title}, the least of that size")


def of_model(words: str) -> CardSize:
    """Return the card whose model has all these words. Raises RequestInvalid if not one size has."""
    asked = set(_words(words))
    found = {name: one for name, one in _CARDS.items() if asked and asked <= set(_words(name))}
    sizes = {total - kept for _, total, kept in found.values()}
    if len(sizes) != 1:
        known = ", ".join(found or _CARDS)
        raise RequestInvalid(f"--card-model is {quoted(words)}: use one of {known}, or --like NODE")
    name, (gb, total, kept) = next(iter(found.items()))
    return CardSize((total - kept) * MIB, max(gb * GIB, total * MIB), name)


def of_node(name: str, access: Access) -> CardSize:
    """Return the smallest card of a node of the cluster, or of a profile. Raises RequestInvalid."""
    from gpu_manager.cli.kubectl import cluster_view  # noqa: PLC0415  # only for --like

    view = cluster_view.read_view("", access)
    cards = [state.card for state in cluster_view.kind_of_node(name, view).cards if not state.card.mig]
    if not cards:
        raise RequestInvalid(f"--like is {quoted(name)}: the node publishes no card that can be shared")
    least = min(cards, key=lambda card: card.memory - card.reserved)
    return CardSize(least.memory - least.reserved, least.memory, f"{least.model} of {name}")


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower().replace("nvidia", "").replace("tesla", ""))

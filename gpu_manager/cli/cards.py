"""Commands on the cards of a machine: ``gpu-manager cordon``, ``uncordon``, ``forget`` and ``topology``."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated

from gpu_manager.cli.output import TABLE, Printing
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid, quoted
from gpu_manager.domain.placement.card_sets import best_set
from gpu_manager.domain.topology import Affinity, ParsedTopology, Topology, format_topology, parse_topology
from gpu_manager.runtime.arguments import Argument, Option

# `gpu-manager topology FILE --pick N`: the best-joined cards of a machine, from the matrix it prints.
# Needs no node and no GPU: any `nvidia-smi topo -m` text will do, so that people can try the judgement that
# the agent makes on a machine they only have the matrix of.


MAX_BYTES = 1 << 20  # the largest real matrix is 10 KiB
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # what a redirect in PowerShell writes


def topology(
    file: Annotated[Path, Argument(help="Output of `nvidia-smi topo -m`; - reads standard input.")],
    pick: Annotated[int, Option(help="How many whole cards to choose.")],
    busy: Annotated[str, Option(help="Cards that are taken, such as 0,2.")] = "",
    printing: Printing = TABLE,
) -> None:
    """Choose the best-joined cards of a machine.

    JSON and YAML are {"cards": indices, "score": the sum of the weights of their pairs, "links": the matrix
    among the chosen cards, in their order}. Exit status: 0, 1 if too few cards are free, 2 for bad input.

    Examples:
      gpu-manager topology topo.txt --pick 4
      gpu-manager topology topo.txt --pick 2 --busy 0,3
    """
    parsed = parse_topology(_read(file))
    cards = _pick(parsed, pick, busy)
    links = tuple(tuple(parsed.topology.link(i, j) for j in cards) for i in cards)
    if printing.for_program:
        cells = [[str(link) for link in row] for row in links]
        printing.emit({"cards": list(cards), "score": parsed.topology.sum(cards), "links": cells})
        return
    print(f"{_names(cards)}, score {parsed.topology.sum(cards)}\n")
    print(_table(Topology(links), cards, parsed.affinities), end="")


def _read(file: Path) -> str:
    """The text, whatever wrote it.

    Raises:
        RequestInvalid: it cannot be read, or it is too long to be a matrix.
    """
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with file.open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise RequestInvalid(f"cannot read {str(file)!r}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise RequestInvalid(f"{file}: more than {MAX_BYTES >> 20} MiB, this is no matrix of cards")
    return data.decode("utf-16" if data.startswith(_UTF16_MARKS) else "utf-8", errors="replace")


def _pick(parsed: ParsedTopology, pick: int, busy: str) -> tuple[int, ...]:
    topology, numa = parsed.topology, parsed.nodes
    taken = frozenset(_index(part, topology.size) for part in busy.split(",") if part.strip())
    if not 1 <= pick <= topology.size:
        raise RequestInvalid(f"--pick {pick}: the machine has {topology.size} cards, ask for 1 to that many")
    free = frozenset(range(topology.size)) - taken
    cards = best_set(topology, free, pick, numa)
    if cards is None:
        raise DoesNotFit(f"--pick {pick}: {len(free)} of {topology.size} cards are free")
    return cards


def _index(text: str, size: int) -> int:
    word = text.strip()
    if not (word.isascii() and word.isdigit() and len(word) < 5 and int(word) < size):
        raise RequestInvalid(f"--busy {word!r}: there are cards 0 to {size - 1}")
    return int(word)


def _names(cards: tuple[int, ...]) -> str:
    return f"card{'s' if len(cards) > 1 else ''} {', '.join(map(str, cards))}"


def _table(picked: Topology, cards: tuple[int, ...], affinities: tuple[Affinity, ...]) -> str:
    """The matrix among the chosen cards, under their own names, in columns."""
    text = format_topology(ParsedTopology(picked, tuple(affinities[card] for card in cards)))
    header, *rows = (line.split("\t") for line in text.splitlines())
    names = [f"GPU{card}" for card in cards]
    header[1 : 1 + len(cards)] = names
    lines = [header, *([name, *row[1:]] for name, row in zip(names, rows, strict=True))]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(cell.strip().ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


def _command(
    text: str, key: str, shown: str, change: Callable[..., Collection[CardUuid]]
) -> Callable[..., None]:
    """A command that changes one of a node's lists of cards.

    ``text`` is its help, ``key`` names the list in JSON and YAML, and ``shown`` is the line above it for
    people. ``change`` gets :mod:`gpu_manager.adapters.kube.changes`, the connection, the node and the cards,
    and returns what is then in the list.
    """

    def command(
        uuids: Annotated[
            list[str], Argument(metavar="UUID...", help="Cards, as `nvidia-smi -L` names them.")
        ],
        node_name: Annotated[
            str, Option("--node-name", envvar="NODE_NAME", help="The cards' node; default: this host's name.")
        ] = "",
        kubeconfig: Annotated[Path | None, Option(help="Default: as a pod of the cluster.")] = None,
        api_url: Annotated[str | None, Option(help="API server by address, for the sandbox.")] = None,
        printing: Printing = TABLE,
    ) -> None:
        from gpu_manager.adapters.kube import changes as lists  # noqa: PLC0415  # heavy; completions must not wait
        from gpu_manager.adapters.kube.connection import connect  # noqa: PLC0415  # same

        for uuid in uuids:
            if (
                not uuid.isprintable() or not uuid.strip() or "," in uuid
            ):  # the annotation separates by commas
                raise RequestInvalid(f"{quoted(uuid)} is no card's UUID: `nvidia-smi -L` names them")
        node = node_name or socket.gethostname().lower()
        connection = connect(kubeconfig=kubeconfig, url=api_url)
        try:
            cards = sorted(change(lists, connection, node, [CardUuid(uuid) for uuid in uuids]))
        finally:
            connection.close()
        if printing.for_program:
            printing.emit({"node": node, key: cards})
        else:
            print("\n  ".join((shown.format(node=node, count=len(cards)), *cards)))

    command.__doc__ = text
    return command


cordon = _command(
    """Close cards: what runs there runs on, nothing new is placed.

    Examples:
      gpu-manager cordon GPU-27810000-0000-4000-8000-000000000000
    """,
    "cordoned",
    "{node}: {count} cordoned",
    lambda lists, *of: lists.cordon(*of, close=True),
)
uncordon = _command(
    """Open cards that were closed.

    Examples:
      gpu-manager uncordon GPU-27810000-0000-4000-8000-000000000000
    """,
    "cordoned",
    "{node}: {count} cordoned",
    lambda lists, *of: lists.cordon(*of, close=False),
)
forget = _command(
    """Stop missing cards that have vanished: their series and their alert end, within seconds.

    A card that a pod still holds is forgotten once the pod has gone. One that comes back is a new card.

    Examples:
      gpu-manager forget GPU-27810000-0000-4000-8000-000000000000
    """,
    "to_forget",
    "{node}: its agent forgets",
    lambda lists, *of: lists.forget(*of),
)

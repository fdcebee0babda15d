"""Names on a command line, as kubectl takes them: KIND/NAME, cards by their place or the start of a UUID, and
the names that a shell completes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpu_manager.cli.files import SUFFIXES
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Login, kubeconfig_of, log_in, object_name
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import RequestInvalid, VcudaError, quoted
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.runtime.arguments import Seconds

if TYPE_CHECKING:
    from gpu_manager.adapters.kube.changes import CardPlace

_SHORT: Final = {
    "po": "Pod", "deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet", "rs": "ReplicaSet",
    "no": "Node", "ns": "Namespace",
}  # fmt: skip
WORKLOADS: Final = ("Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job")
_LIST: Final = "/api/v1/{}"
_LEAST: Final = 4  # characters of a UUID that stand for a card
_SHOWN: Final = 5
_PATIENCE: Final = Seconds(2)  # of somebody who has pressed the tabulator


@dataclass(frozen=True, slots=True)
class NamedObject:
    """An object that was named; ``kind`` as Kubernetes writes it."""

    kind: str
    name: str

    def is_of(self, pod: str, owner: str, node: str) -> bool:
        """True for the pod of that name, of the workload ``owner`` (``Deployment/web``), on that node."""
        if self.kind == "Node":
            return node == self.name
        return pod == self.name if self.kind == "Pod" else owner == f"{self.kind}/{self.name}"


def kind_of(word: str, kinds: Collection[str]) -> str:
    """One of ``kinds`` as people write it: in any case, in the plural, or short. Raises RequestInvalid."""
    lower = word.lower().partition(".")[0]
    known = next((k for k in kinds if lower in (k.lower(), f"{k.lower()}s")), _SHORT.get(lower, ""))
    if known not in kinds:
        raise RequestInvalid(
            f"{quoted(word)} is none of {', '.join(k.lower() for k in kinds)}: write KIND/NAME"
        )
    return known


def read_target(word: str, kinds: Sequence[str], what: str = "the name") -> NamedObject:
    """``NAME`` or ``KIND/NAME``; the first of ``kinds`` is meant by a name alone. Raises RequestInvalid."""
    kind, slash, name = word.partition("/")
    if not slash:
        return NamedObject(kinds[0], object_name(word, what))
    return NamedObject(kind_of(kind, kinds), object_name(name, what))


def is_file(word: str) -> bool:
    """True if a word that may be an object's name is meant as a file."""
    if word == "-" or word.endswith(SUFFIXES) or word.count("/") > 1 or word.startswith(("/", ".")):
        return True
    kind = word.partition("/")[0].lower()
    is_kind = kind in _SHORT or kind.removesuffix("s") in map(str.lower, WORKLOADS)
    return "/" in word and not is_kind and Path(word).exists()


def labelled(login: Login, selector: str, *, everywhere: bool) -> frozenset[str]:
    """UIDs of the pods that the selector finds. Raises RequestInvalid: it is malformed."""
    pods = selected(login, "pods", selector, everywhere=everywhere)
    return frozenset(text(mapping(pod.get("metadata")).get("uid")) for pod in pods)


def selected(
    login: Login, kind: str, selector: str, *, everywhere: bool = True
) -> Sequence[Mapping[str, Any]]:
    """The pods or nodes that the selector finds; pods of the namespace or of all. Raises RequestInvalid: it
    is malformed.
    """
    from gpu_manager.adapters.kube.connection import Refused, pods_path  # noqa: PLC0415  # as in log_in
    from gpu_manager.adapters.kube.reading import list_all  # noqa: PLC0415  # as above

    path = _LIST.format(kind) if everywhere else pods_path(login.namespace)
    try:
        return list(list_all(login.connection, f"list {kind}", path, {"labelSelector": selector}))
    except Refused as error:
        if error.code == 400:
            raise RequestInvalid(
                f"--selector is {quoted(selector)}: write it like app=web,tier!=db"
            ) from error
        raise


def find_cards(cards: Sequence[CardPlace], words: Iterable[str]) -> Mapping[str, list[CardUuid]]:
    """The cards that the words name, by node: a UUID or its start, ``NODE/INDEX``, or a node for all of its
    cards. Raises RequestInvalid: a word names none, or several that it must not.
    """
    found: dict[str, dict[CardUuid, None]] = {}
    for word in words:
        for place in _places(cards, word):
            found.setdefault(place.node, {})[place.uuid] = None
    return {node: list(uuids) for node, uuids in found.items()}


def _places(cards: Sequence[CardPlace], word: str) -> list[CardPlace]:
    if exact := [place for place in cards if place.uuid == word]:
        return [_only(exact)]
    nodes = dict.fromkeys(place.node for place in cards)
    node, slash, index = word.rpartition("/")
    if slash and node.lower() in ("node", "nodes", "no"):
        node, slash, index = index, "", ""
    elif not slash:
        node, index = (next(iter(nodes)), word) if word.isdecimal() and len(nodes) == 1 else (word, "")
    if node in nodes:
        here = [place for place in cards if place.node == node]
        if not index:
            return here
        number = int(index) if index.isdecimal() and len(index) < _LEAST else None
        if number is not None and (at := [place for place in here if place.at == number]):
            return at
        has = ", ".join(map(str, sorted(place.at for place in here if place.at is not None)))
        raise RequestInvalid(f"node {node} has no card {quoted(index)}; it has {has}")
    start = word.lower().removeprefix("gpu-")
    begun = [place for place in cards if place.uuid.lower().removeprefix("gpu-").startswith(start)]
    uuids = list(dict.fromkeys(place.uuid for place in begun))
    if len(uuids) == 1 and len(start) >= _LEAST:
        return [_only(begun)]
    if begun and len(word) >= _LEAST:
        raise RequestInvalid(
            f"{len(uuids)} cards begin with {quoted(word)}: {_some(uuids)}; write more of it"
        )
    raise RequestInvalid(
        f"no node shows a card {quoted(word)}: name it by UUID or its first letters, as NODE/INDEX, or all "
        f"of a node by its name; kubectl vcuda graph shows them. Nodes: {_some(nodes)}"
    )


def _only(places: list[CardPlace]) -> CardPlace:
    """The place of one card: where it is shown, before where it is only listed as closed."""
    shown = [place for place in places if place.at is not None] or places
    if len(shown) > 1:
        who = _some(place.node for place in shown)
        raise RequestInvalid(
            f"{who} all say that they have {quoted(shown[0].uuid)}: name it as NODE/INDEX, and find out why"
        )
    return shown[0]


def _some(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more if every else "none"


def completed(kind: str, before: Sequence[str]) -> Iterator[str]:
    """Names of that kind of things in the cluster that the words before choose; none if it is silent."""
    try:
        yield from _names(kind, before)
    except VcudaError:
        return


def _names(kind: str, before: Sequence[str]) -> Iterable[str]:
    said = dict(pairwise(before))
    access = replace(
        BY_KUBECONFIG,
        kubeconfig=said.get("--kubeconfig", ""),
        context=said.get("--context", ""),
        request_timeout=_PATIENCE,
    )
    if kind == "contexts":
        from gpu_manager.adapters.kube.kubeconfig import context_names  # noqa: PLC0415  # as in log_in

        return context_names(kubeconfig_of(access))
    with log_in(access, said.get("-n", said.get("--namespace", ""))) as login:
        return _listed(kind, login)


def _listed(kind: str, login: Login) -> list[str]:
    from gpu_manager.adapters.kube.changes import places_of_cards  # noqa: PLC0415  # as in log_in
    from gpu_manager.adapters.kube.connection import pods_path  # noqa: PLC0415  # as above
    from gpu_manager.adapters.kube.reading import list_all  # noqa: PLC0415  # as above

    if kind == "cards":
        cards = places_of_cards(login.connection)
        places = [f"{place.node}/{place.at}" for place in cards if place.at is not None]
        return [*places, *dict.fromkeys(str(place.uuid) for place in cards)]
    path = pods_path(login.namespace) if kind == "pods" else _LIST.format(kind)
    objects = list_all(login.connection, f"list {kind}", path)
    return [text(mapping(one.get("metadata")).get("name")) for one in objects]

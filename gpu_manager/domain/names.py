"""Names of pods: which of them an agent's pages give a caller, and pseudonyms for those in a report.

An agent answers every caller that reaches its port, and names pods only to callers whose rights the API
server has confirmed. For others a container is the UID of its pod and a digest of its name: only readers of
pods can tell which container that is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.domain.contract import CAPABILITIES_ENV, OUR_PREFIX, VISIBLE_ENV
from gpu_manager.domain.kube.pod import Pod

# Pseudonyms for what a report names, so that it can be shown to others and still be judged again. Pure.
# Equal names have equal pseudonyms, and those sort as the names do, since ties among nodes, pods and cards
# are broken by name, UID and UUID. A UUID becomes another UUID, for ids are made from its beginning. What
# is part of a card's model keeps its words, for requests name models by them. Figures and times stay.
# Nothing is assumed of a text: what is no word of this program's own sources becomes a pseudonym, and so do
# all names wherever they stand in a sentence.


WORD: Final = re.compile(r"[^\W_](?:[\w.-]*[^\W_])?|_\w+")
"""A word, as texts and the sources are cut into words."""

_TOKEN: Final = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)?"  # a time
    r"|[0-9A-Fa-f]*(?::[0-9A-Fa-f]*){2,}[\d.]*"  # an address of IPv6, of a network card or of PCI
    r"|" + WORD.pattern
)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT.*|\d\d:\d\d:\d\d(?:\.\d+)?")
_FIGURE: Final = re.compile(
    r"\d+(?:\.\d+){0,2}(?:[KMGTPE]iB?|[kMGTPEmunB]|[eE]\d+|[mun]?s|min|h|d|W|th)?|NV\d+|v\d+(?:\.\d+){1,2}"
)
_UUID: Final = re.compile(r"(GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_PARTS: Final = re.compile(r"[^/,\s]+")
_NUMBERED: Final = re.compile(r"-?\d+$")

_NAMES: Final = frozenset(
    {"add", "card", "card_uuid", "container", "gang", "hostname", "name", "namespace", "node", "nodeName"}
    | {
        "lending",
        "meant",
        "nominated",
        "owner",
        "pod",
        "podName",
        "pod_name",
        "pool",
        "pools",
        "twin",
        "uid",
        "uids",
        "uuid",
        "uuids",
    }
)
"""Fields that hold a name, or a list of names."""
_BY_NAME: Final = frozenset(
    {"assigned", "placement", "numa_ids", "drained", "containers", "labels", "by_node", "sides", "sizes"}
)
"""Objects whose keys are names. In ``labels`` the values are names as well."""
_OPAQUE: Final = frozenset({"names", "codes", "fits", "priced", "answer"})
"""Where these are texts, they are numbers of nodes."""
_MODELS: Final = frozenset({"model", "models"})
_VARIABLES: Final = frozenset({VISIBLE_ENV, CAPABILITIES_ENV})
"""Environment variables that are judged; no object of Kubernetes can have their name."""
_WIDTH: Final = 5

Way = Callable[[str], str]


class Pseudonyms:
    """Show every document to :meth:`see`, then have each written anew by :meth:`replaced`.

    ``words``: those that may stay, such as those of the program's own texts.
    """

    def __init__(self, words: Container[str]) -> None:
        self._words = words
        self._models: set[str] = set()
        self._names: set[str] = set()
        self._found: set[str] = set()
        self._given: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def see(self, document: Any) -> None:
        """Collect what the document names."""
        self._walk(document, "", self._note_name, self._note_text)

    def replaced(self, document: Any) -> Any:
        """Return a copy of the document with each name replaced by its pseudonym.

        Every document of the archive must have been given to :meth:`see` before the first call.
        """
        if not self._given:
            found = sorted(self._found | self._names)
            width = max(_WIDTH, len(str(len(found))))
            self._given = {name: _pseudonym(name, rank, width) for rank, name in enumerate(found)}
        return self._walk(document, "", self._as_name, self._as_text)

    def _walk(self, value: Any, key: str, name: Way, text: Way) -> Any:
        if isinstance(value, dict):
            of_key = name if key in _BY_NAME else self._as_key if text == self._as_text else text
            of_value = "name" if key == "labels" else "" if key in _BY_NAME else None
            return {
                of_key(each): self._walk(one, each if of_value is None else of_value, name, text)
                for each, one in value.items()
            }
        if isinstance(value, list):
            return [self._walk(one, "" if isinstance(one, dict) else key, name, text) for one in value]
        if not isinstance(value, str) or not value or key in _OPAQUE:
            return value
        if key.removeprefix(OUR_PREFIX).removeprefix("predicate-") in _NAMES:
            return name(value)
        if key in _MODELS:
            self._models |= {part for word in WORD.findall(value) for part in (word, *word.split("-"))}
            return value
        if value[0] in "{[":
            try:
                inner_document = json.loads(value)
            except (ValueError, RecursionError):
                return text(value)
            return json.dumps(self._walk(inner_document, key, name, text), separators=(",", ":"))
        return text(value)

    def _note_name(self, value: str) -> str:
        self._names |= set(_PARTS.findall(value)) - _VARIABLES
        return value

    def _note_text(self, value: str) -> str:
        self._found |= {word for word in _TOKEN.findall(value) if not self._stays(word)}
        return value

    def _as_name(self, value: str) -> str:
        return _PARTS.sub(lambda part: part[0] if part[0] in _VARIABLES else self._of(part[0]), value)

    def _as_key(self, value: str) -> str:
        tail = value.removeprefix(OUR_PREFIX)
        if tail != value and _NUMBERED.sub("", tail) in self._words:
            return value
        return self._as_text(value)

    def _as_text(self, value: str) -> str:
        known = self._texts.get(value)
        if known is None:
            alone = not re.search(r"\s", value)  # a word of its own is one of a few, such as a policy

            def other(found: re.Match[str]) -> str:
                word = found[0]
                stays = (alone or word not in self._names) and self._stays(word)
                return word if stays or _is_figure(word) else self._of(word)

            known = self._texts[value] = _TOKEN.sub(other, value)
        return known

    def _of(self, word: str) -> str:
        found = self._given.get(word)
        return "unseen" if found is None else found

    def _stays(self, word: str) -> bool:
        return word in self._words or word in self._models or _is_figure(word)


def _is_figure(word: str) -> bool:
    return bool(_FIGURE.fullmatch(word) or _TIME.fullmatch(word))


def _pseudonym(name: str, rank: int, width: int) -> str:
    """In the shape of the name, and as long where that is possible, for texts are cut at a length."""
    if uuid := _UUID.fullmatch(name):
        return f"{uuid[1] or ''}{rank:08x}-0000-4000-8000-{rank:012x}"
    if _DIGEST.fullmatch(name):
        return f"{rank:032x}"
    return f"n{rank:0{width}d}".ljust(len(name), "x")


_PSEUDONYM: Final = re.compile(r"n\d{5,}x*")


def alike(recorded: str, now: str) -> bool:
    """True if two texts are equal but for words of which one is a pseudonym: a name that is also a word of
    the sentence was replaced in the recorded text in both meanings.
    """
    pairs = list(zip(WORD.findall(recorded), WORD.findall(now), strict=False))
    return WORD.sub("", recorded) == WORD.sub("", now) and all(
        one == other or _PSEUDONYM.fullmatch(one) or _PSEUDONYM.fullmatch(other) for one, other in pairs
    )


_MARK: Final = "~"  # no container's name contains it


@dataclass(frozen=True, slots=True)
class NameScope:
    """The one namespace whose pods may be named: empty for all, None for none."""

    namespace: str | None

    def covers(self, namespace: str) -> bool:
        """True if the pods of that namespace may be named."""
        return self.namespace in ("", namespace)


NO_NAMES: Final = NameScope(None)
ALL_NAMES: Final = NameScope("")


def container_digest(uid: str, container: str) -> str:
    """The digest in place of a container's name, for callers that may not see the name."""
    return _MARK + hashlib.sha256(f"{uid}/{container}".encode()).hexdigest()[:16]


def container_name(uid: str, told: str, pod: Pod) -> str:
    """The name of the pod's container from an agent's answer, plain or as a digest; unchanged if unknown.

    ``uid``: the pod's, in the agent's answer.
    """
    if not told.startswith(_MARK):
        return told
    return next((c.name for c in pod.containers if container_digest(uid, c.name) == told), told)

"""The attacks of a container's root on its pages and on its card's gate, each with what should come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Any, Final


class Outcome(Enum):
    """What comes of an attack."""

    REFUSED = "the kernel refuses it"
    NAMED = "the container is named, as far as the kernel lets it"
    HARMLESS = "it changes nothing for anybody"


class Phase(Enum):
    """Who is away while the container attacks, and returns afterwards."""

    SERVED = "nobody is away"
    AGENT = "the agent is away"
    WATCHER = "the watcher is away"
    BOTH = "agent, keeper and watcher are away"


@dataclass(frozen=True, slots=True)
class Attack:
    """``file`` is ``usage``, ``limits`` or ``gate``; ``orders`` are those of the hostile tenant, in this order."""

    name: str
    file: str
    orders: tuple[tuple[str, Mapping[str, Any]], ...]
    outcome: Outcome
    phase: Phase = Phase.SERVED

    def __str__(self) -> str:
        return f"{self.name}, {self.phase.value}"


def _one(name: str, file: str, outcome: Outcome, order: str, **how: Any) -> Attack:
    return Attack(name, file, ((order, how),), outcome)


def _call(name: str, file: str, outcome: Outcome, function: str, *arguments: Any) -> Attack:
    return _one(name, file, outcome, "call", function=function, arguments=list(arguments))


def _of(attack: Attack, phase: Phase, outcome: Outcome) -> Attack:
    return Attack(attack.name, attack.file, attack.orders, outcome, phase)


REFUSED, NAMED, HARMLESS = Outcome.REFUSED, Outcome.NAMED, Outcome.HARMLESS
_LEASES: Final = tuple(
    _one(f"a {kind} lease on its {file}", file, REFUSED, "lease", kind=kind, writable=file == "usage")
    for file, kind in (
        ("usage", "write"),
        ("limits", "read"),
        ("limits", "write"),
        ("gate", "read"),
        ("gate", "write"),
    )
)
_READ_LEASE: Final = _one("a read lease on its usage page", "usage", REFUSED, "lease", kind="read")
_FALLOCATE: Final = {"keep size": 1, "punch": 3, "collapse": 8, "zero": 16, "insert": 32, "unshare": 64}
_LOCKS: Final = Attack(
    "a thousand slots and 4,000 locks",
    "usage",
    (
        ("write_slots", {}),
        ("locks", {"count": 1, "start": 1023}),
        ("locks", {"count": 4000, "start": 1 << 20}),
    ),
    NAMED,
)
_LASTING: Final = (
    _LOCKS,
    _call("the mode taken away", "usage", NAMED, "chmod", 0),
    _call("another owner", "usage", NAMED, "chown", 1000, 1000),
    _call("no bytes", "usage", NAMED, "truncate", 0),
    _one("2,000 extended attributes", "usage", NAMED, "attributes", names=2000, bytes_each=1000),
    _one("an access list", "usage", NAMED, "access_list"),
)
_ON_USAGE: Final = (
    *_LASTING,
    _READ_LEASE,
    _one("the page run as a program", "usage", NAMED, "execute"),  # it is no page any more
    _one("a lease of uid 1000, given the page", "usage", NAMED, "lease_of_another_uid"),
    _one("a lock on the whole page", "usage", HARMLESS, "locks", count=1, start=0, length=0),
    _one("attributes with long names", "usage", NAMED, "attributes", names=24, bytes_each=1, long=240),
    _call(
        "a file's capabilities",
        "usage",
        NAMED,
        "setxattr",
        "security.capability",
        "\x00\x00\x00\x02" + "\0" * 16,
    ),
    _call("all bits of the mode", "usage", NAMED, "chmod", 0o7777),
    _call("a terabyte", "usage", NAMED, "truncate", 1 << 40),
    _call("one byte more", "usage", NAMED, "truncate", 327681),
    _one("all space of the file system", "usage", NAMED, "fallocate", size=500 << 10),
    _one(
        "space kept past its end", "usage", NAMED, "fallocate", size=500 << 10, mode=_FALLOCATE["keep size"]
    ),
    _one("holes in all of the page", "usage", NAMED, "fallocate", size=320 << 10, mode=_FALLOCATE["punch"]),
    _one("another magic", "usage", NAMED, "write", offset=0, words=[7]),
    _one("another version", "usage", NAMED, "write", offset=8, words=[99]),
    _one("bits that say nothing", "usage", NAMED, "write", offset=0, words=[0xFFFFFFFF], times=81920),
    _one(
        "the largest numbers of its cards",
        "usage",
        HARMLESS,
        "write",
        offset=4096,
        words=[0xFFFFFFFF],
        times=128,
    ),
    _one("slots that are nobody's", "usage", HARMLESS, "write_slots"),
    _one("more slots than there are", "usage", HARMLESS, "write", offset=32, words=[0xFFFFFFFF]),
    _one("a watch, and times that change", "usage", HARMLESS, "watch", touches=5000),
    _call("the page removed", "usage", REFUSED, "unlink"),
    _call("the page renamed", "usage", REFUSED, "rename", "elsewhere"),
    _call("a second name of the page", "usage", REFUSED, "link", "elsewhere"),
    _one("the page made immutable", "usage", REFUSED, "immutable"),
    _one("the page sealed", "usage", REFUSED, "seal"),
    _one("the page unmounted", "usage", REFUSED, "mount", undo=True),
    _one("a file of its own over the limits", "limits", REFUSED, "mount", source="/etc/hostname"),
)
_ON_READ_ONLY: Final = tuple(
    _call(f"{what} of its {file}", file, REFUSED, function, *arguments)
    for file in ("limits", "gate")
    for what, function, arguments in (
        ("the mode", "chmod", (0o666,)),
        ("the owner", "chown", (1000, 1000)),
        ("the size", "truncate", (0,)),
        ("the times", "utime", ()),
        ("an attribute", "setxattr", ("user.x", "y")),
        ("the name", "unlink", ()),
    )
)
_WRITES: Final = tuple(
    _one(f"words in its {file}", file, REFUSED, "write", offset=0, words=[0]) for file in ("limits", "gate")
)
_AWAY: Final = (
    *(_of(a, Phase.AGENT, REFUSED) for a in (*_LEASES, _READ_LEASE)),
    *(_of(a, Phase.WATCHER, REFUSED) for a in _LEASES if a.file == "gate"),
    *(_of(a, Phase.BOTH, NAMED) for a in (*_LEASES, _READ_LEASE)),
    *(_of(a, Phase.AGENT, NAMED) for a in _LASTING),
    _of(_one("the page run as a program", "usage", NAMED, "execute"), Phase.AGENT, NAMED),
)
ATTACKS: Final = tuple(chain(_LEASES, _ON_USAGE, _ON_READ_ONLY, _WRITES, _AWAY))
UNANSWERED: Final = tuple(
    Attack(f"{a.name}, kept when asked", a.file, (*a.orders, ("keep_lease", {})), NAMED, Phase.BOTH)
    for a in _LEASES
    if a.file in ("limits", "gate")
)
"""The kernel ends such a lease after ``fs.lease-break-time``, 45 s: what waits so long is the container's own
limit, and protection on that card."""


@dataclass(slots=True)
class Judged:
    """What came of an attack: the seconds that others waited, by what they waited for."""

    attack: Attack
    seconds: dict[str, float] = field(default_factory=dict)
    named: bool = False
    errno: int = 0

    @property
    def wrong(self) -> str:
        """Why it is not as it should be; empty if it is."""
        late = [f"{what} after {seconds:.1f} s" for what, seconds in self.seconds.items() if seconds > 1.0]
        if late:
            return ", ".join(late)
        if self.attack.outcome is not NAMED and (self.attack.outcome is REFUSED) != bool(self.errno):
            return f"errno {self.errno}, although {self.attack.outcome.value}"
        if self.named != (self.attack.outcome is NAMED):
            return "named" if self.named else "not named within 5 s"
        return ""

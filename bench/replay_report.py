"""``report_leaks``, ``report_mib``: what a report says of the cluster that it is from, and its size.

Names of 1,000 things are planted where tenants and operators write names, and looked for in the archive,
whose decisions must still be judged as before.
"""

from __future__ import annotations

import json
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from admission.config import ClusterTerms
from admission.replay.judges import Judges, Player
from admission.replay.recorder import DecisionRecorder
from admission.replay.reviews import VERBS, judged
from admission.webhook.admission_review import parse_review
from admission.webhook.admit import SILENT
from bench.rows import Row
from gpu_manager.adapters.record_ring import RecordRing, segments
from gpu_manager.cli.kubectl.report import Lines, write
from gpu_manager.domain.cluster.node_json import node_json
from gpu_manager.domain.contract import GPU_MODEL, PLACEMENT
from gpu_manager.domain.records import encode
from gpu_manager.domain.resources import GIB
from tests.fakes.extender import UNIT, Obj, World, node, pod
from tests.fakes.ports import FakeClock
from tests.fakes.reviews import review

_PLANTED: Final = 1000
_MIB: Final = 1 << 20
_MOST_RECORDS: Final = 16  # MiB of them, compressed, that a report takes
_GANG: Final = "kueue.x-k8s.io/pod-group-name"
_GANG_SIZE: Final = "kueue.x-k8s.io/pod-group-total-count"


class Planted:
    """Draws what is planted: no word of these is one of the program's own. ``all`` has them by kind."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.all: dict[str, str] = {}

    @property
    def enough(self) -> bool:
        """True once there are so many as are looked for."""
        return len(self.all) >= _PLANTED

    def word(self, kind: str) -> str:
        """A name, or a value."""
        letters = "bcdfghjklmnpqrstvwxz"
        found = "".join(self.dice.choices(letters, k=self.dice.randint(6, 14)))
        return self._keep(found + self.dice.choice(("", "-7", ".corp", "-a-0", "00")), kind)

    def uuid(self, kind: str) -> str:
        """A UUID, of a pod or of a card."""
        digits = "".join(self.dice.choices("0123456789abcdef", k=32))
        cuts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return self._keep("-".join(cuts), kind)

    def address(self) -> str:
        """An address of IPv4 or IPv6."""
        four = ".".join(str(self.dice.randint(11, 250)) for _ in range(4))
        parts = [f"{self.dice.randrange(4096, 1 << 16):x}" for _ in range(3)]
        six = f"fd00:{parts[0]}:{parts[1]}::{parts[2]}"
        return self._keep(self.dice.choice((four, six)), "address")

    def _keep(self, text: str, kind: str) -> str:
        self.all[text] = kind
        return text


def leaks(*, full: bool) -> Iterator[Row]:
    """The planted names that the archive has, and whether its decisions are judged as before."""
    planted = Planted(random.Random(7))
    with tempfile.TemporaryDirectory(prefix="vcuda-report-") as text:
        place = Path(text)
        world, say = _named_cluster(place / "ring", planted)
        while not planted.enough:
            say()
        files = {**_records(place / "ring"), "nodes.jsonl": _pages(world), **_words(planted)}
        write(place / "hidden.tar.gz", files, plain=False)
        write(place / "plain.tar.gz", files, plain=True)
        hidden, plain = _files(place / "hidden.tar.gz"), _files(place / "plain.tar.gz")
    whole, open_ = b"".join(hidden.values()).decode(), b"".join(plain.values()).decode()
    found = [f"{kind} {one}" for one, kind in planted.all.items() if one in whole]
    shown = sum(one in open_ for one in planted.all)
    player = Player(Judges().judge)
    decided = [one.same for name in hidden if name.startswith("records/") for one in player.play(
        hidden[name].splitlines())]  # fmt: skip
    note = f"of {len(planted.all):,} planted names, values, UUIDs and addresses; {shown:,} are in the same"
    note += f" report with names; {len(decided)} decisions in it are judged again"
    note += f"; found: {', '.join(found[:8])}" if found else ""
    yield Row("report_leaks", len(found), "count", "= 0", shown, full=full, note=note)
    differ = decided.count(False) + player.passed.total()
    yield Row(
        "report_differences", differ, "count", "= 0", full=full, note=f"of {len(decided)} in that report"
    )


def size(*, full: bool) -> Iterator[Row]:
    """The archive of 5,000 nodes, with as many records as a report takes."""
    nodes, dice = (5000 if full else 500), random.Random(3)
    with tempfile.TemporaryDirectory(prefix="vcuda-report-") as text:
        place = Path(text)
        recorder = _recorder(place / "ring")
        world = World([node(f"gpu-node-{n:05d}.example", 8, memory=40 * GIB) for n in range(nodes)],
                      expecting=True, recorder=recorder, deployed=True)  # fmt: skip
        names = world.nodes
        for at in range(nodes // 25):
            core = dice.choice((10, 30, 50, 100, 200))
            asking = pod(f"job-{at}", core, 4 if core < 100 else None, namespace=f"team-{at % 40}")
            world.create(asking)
            dice.shuffle(names)
            world.filter(asking, names)
            given = world.prioritize(asking, names)
            world.bind(asking, max(given, key=given.__getitem__))
        recorder.write()
        records, rest = _records(place / "ring"), {"nodes.jsonl": _pages(world), "events.jsonl": _events()}
        of_rest = write(place / "rest.tar.gz", rest, plain=False)
        plain = write(place / "plain.tar.gz", records, plain=True)
        hidden = write(place / "hidden.tar.gz", records, plain=False)
    most = (of_rest + _MOST_RECORDS * _MIB * hidden / plain) / _MIB
    note = (
        f"MiB at most: {of_rest / _MIB:.1f} of {nodes:,} nodes' pages and 2,000 Events, and the records that"
    )
    note += f" a report takes ({_MOST_RECORDS} MiB as stored, {hidden / plain:.2f} of that under pseudonyms)"
    yield Row("report_mib", round(most, 1), "MiB", "≤ 20", None, full, note)


def _recorder(directory: Path) -> DecisionRecorder:
    terms = {"unit": UNIT, "minimum_cores": 1, "terms": encode(ClusterTerms, ClusterTerms())}
    return DecisionRecorder(RecordRing(directory, 256 * _MIB), FakeClock(), terms)


def _named_cluster(directory: Path, planted: Planted) -> tuple[World, Callable[[], None]]:
    """A recorded cluster in which all has a planted name, and what has one more pod come."""
    recorder, nodes = _recorder(directory), []
    for _ in range(12):
        name = planted.word("node")
        made = json.dumps(
            node(name, 4, memory=16 * GIB, labels={planted.word("label"): planted.word("value")})
        )
        for card in range(4):
            made = made.replace(f"GPU-{name}-{card}", f"GPU-{planted.uuid('card')}")
        nodes.append(json.loads(made))
    spaces = [planted.word("namespace") for _ in range(9)]
    quota = {spaces[0]: {"quota": {"*": 1}}, spaces[1]: {"containerMax": {"cores": 30}}}
    world = World(nodes, quota=quota, expecting=True, recorder=recorder, deployed=True)

    def say() -> None:
        dice, gang = planted.dice, planted.word("gang") if planted.dice.random() < 0.2 else ""
        space = dice.choice(spaces)
        members = [_pod(planted, space, gang) for _ in range(3 if gang else 1)]
        world.create(*members)
        for one in members:
            for verb in VERBS:
                sent = json.dumps(review(one, namespace=space, name=one["metadata"]["name"])).encode()
                judged(verb, parse_review(sent), ClusterTerms(), SILENT, recorder.decided)
            world.schedule(one)
        recorder.write()

    return world, say


def _pod(planted: Planted, space: str, gang: str) -> Obj:
    """A pod with planted names in all that a tenant can write; some are illegal, and some fit nowhere."""
    dice = planted.dice
    core = dice.choice((10, 30, 60, 100, 400, 800))
    asking = pod(
        planted.word("pod"), core, 8 if core < 100 else None, namespace=space, uid=planted.uuid("pod")
    )
    meta, (main,) = asking["metadata"], asking["spec"]["containers"]
    meta["labels"] = {planted.word("label"): planted.word("value")}
    meta["annotations"] = {planted.word("annotation"): planted.word("value")}
    if gang:
        meta["labels"][_GANG], meta["annotations"][_GANG_SIZE] = gang, "3"
    if dice.random() < 0.2:
        meta["annotations"][dice.choice((PLACEMENT, GPU_MODEL))] = planted.word("wrong value")
    meta["ownerReferences"] = [{"kind": "ReplicaSet", "name": planted.word("owner"), "controller": True}]
    main["name"] = planted.word("container")
    main["image"] = f"{planted.word('registry')}/{planted.word('image')}:1"
    main["args"] = [f"--token={planted.word('argument')}"]
    main["env"] = [{"name": planted.word("variable"), "value": planted.word("value")}]
    asking["spec"]["nodeSelector"] = {planted.word("label"): planted.word("value")}
    return asking


def _words(planted: Planted) -> dict[str, Lines]:
    """Doctor's findings and Events whose sentences name what is planted."""
    some = list(planted.all)
    documents = []
    for at in range(0, len(some) - 4, 4):
        a, b, c, d = some[at : at + 4]
        address = planted.address() if at % 40 == 0 else d
        message = f'bound to node {a}: 30 cores of card 0; container "{b}" of {c}/{d} had waited'
        documents += [
            {"about": {"kind": "Pod", "namespace": c, "name": d, "uid": b}, "message": message},
            {"check": "agents", "text": f"connect to {address} failed ({a}={b}); pods {c}, {d} and 3 more"},
        ]
    return {"events.jsonl": lambda: iter(documents), "doctor.json": lambda: iter(documents[::7])}


def _events() -> Lines:
    def each() -> Iterator[Any]:
        for at in range(2000):
            about = {"kind": "Pod", "namespace": f"team-{at % 40}", "name": f"job-{at}", "uid": f"u-{at}"}
            message = f"bound to node gpu-node-{at:05d}.example: 30 cores, 5 GiB of card {at % 8}"
            yield {"about": about, "reason": "Placed", "message": message, "last": 1.7e9 + at, "count": 1}

    return each


def _pages(world: World) -> Lines:
    """The page ``/graph`` of every node."""

    def more(*_about: Any) -> Mapping[str, Any]:
        return {"planned": False, "ended": False, "memory_used": 1 << 30, "core_used": 20, "refusals": 0}

    views = world.cluster.snapshot().nodes.values()
    return lambda: (node_json(v.name, v.node.cards, v.node.topology, v.ledger, more) for v in views)


def _records(directory: Path) -> dict[str, Lines]:
    def lines(path: Path) -> Lines:
        return lambda: map(json.loads, path.read_bytes().splitlines())

    return {f"records/0/{path.name}": lines(path) for path in segments(directory)}


def _files(place: Path) -> dict[str, bytes]:
    with tarfile.open(place) as archive:
        streams = ((member.name, archive.extractfile(member)) for member in archive)
        return {name: stream.read() for name, stream in streams if stream is not None}

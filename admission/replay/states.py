"""The states that decisions were judged by, built from the lines of one segment."""

from __future__ import annotations

from dataclasses import replace

from admission.cluster.node_view import KeptFor, NodeFacts
from admission.cluster.nodes import OnNode
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.fragmentation_score import Epoch
from admission.extender.many_nodes import FITS, chosen
from admission.extender.node_names import NodeNames
from admission.extender.node_rooms import NodeRooms
from admission.replay.lines import Line, of_order, unpacked
from gpu_manager.domain.cluster.claims import KnownClaim
from gpu_manager.domain.cluster.node_books import added
from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.records import decode
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.domain.score.fragmentation import RollOutRoutine
from gpu_manager.domain.score.request_mix import Mix, Stock
from gpu_manager.domain.score.scorer import Scorer


class RecordedStates:
    """``turn`` is the generation of the state at present; ``rooms`` are cached results for its nodes.

    ``pseudonyms``: names were replaced, also in texts.
    """

    def __init__(self, ring: Line) -> None:
        """``ring``: the line that begins the segment."""
        self.pseudonyms = bool(ring.get("pseudonyms"))
        self.unit = int(ring.get("unit", DEFAULT_UNIT))
        self.minimum_cores = int(ring.get("minimum_cores", 1))
        self.turn = int(ring.get("turn", 0))
        self.cluster = ClusterState(self.unit)
        self.rooms = NodeRooms()
        self._raw: dict[int, Line] = {}  # each pod's fields, by its number
        self._pods: dict[int, PodView] = {}
        self._facts: dict[str, NodeFacts] = {}
        self._reserved: dict[str, list[PodView]] = {}
        self._names: list[str] = []
        self._epochs: dict[int, Line] = {}
        self._epoch: tuple[int, Epoch] | None = None

    def take(self, line: Line) -> None:
        """Take in a line that is no decision. Raises RequestInvalid: it cannot be read."""
        try:
            self._take(line)
        except (KeyError, TypeError, ValueError) as error:
            raise RequestInvalid(f"a line of the kind {quoted(line['k'])} is malformed: {error!r}") from error

    def _take(self, line: Line) -> None:
        kind = line["k"]
        if kind == "pod":
            raw, base = line["v"], self._raw.get(line.get("of", 0), {})
            raw = self._raw[line["n"]] = {**base, **raw, "pod": {**base.get("pod", {}), **raw["pod"]}}
            self._pods[line["n"]] = decode(PodView, raw)
        elif kind == "names":
            self._names += line["add"]
        elif kind == "epoch":
            self._epochs[line["n"]] = line
        elif kind == "node":
            self._take_node(line)

    def pod(self, line: Line) -> PodView:
        """The pod that a decision is about."""
        return self._pods[line["pod"]]

    def names(self, line: Line) -> NodeNames:
        """The nodes that a decision was asked about."""
        if (offered := line.get("offered")) is None:
            return NodeNames(map(self._names.__getitem__, of_order(line["names"])))
        answer = offered["answer"]
        fits = unpacked(answer["fits"]) if "fits" in answer else chosen(unpacked(answer["codes"]), FITS)
        return self.names(offered).among(fits)

    def snapshot(self, line: Line) -> Snapshot:
        """The cluster by which a decision was judged."""
        found = self.cluster.snapshot()
        held = {pod.uid: name for name, pods in self._reserved.items() for pod in pods}
        namespace, claimed = self.pod(line).pod.namespace, line.get("claimed")
        if claimed is None:
            return replace(found, reserved=held)
        used, protected = ({namespace: decode(dict[str, Amount], one)} for one in claimed)
        return replace(
            found,
            reserved=held,
            used=added(found.used, used),
            protected=added(found.protected, protected),
        )

    def epoch(self, line: Line, routine: RollOutRoutine | None) -> Epoch:
        """The scorer that a decision was priced by."""
        number = line["epoch"]
        if self._epoch is None or self._epoch[0] != number:
            if number not in self._epochs:
                raise RequestInvalid("the prices that it was judged by are not in the record")
            known = self._epochs[number]
            mix, stock = decode(Mix, known["mix"]), decode(dict[str, Stock], known["stock"])
            self._epoch = number, Epoch(Scorer(mix, stock, routine=routine), self.rooms)
        return self._epoch[1]

    def _take_node(self, line: Line) -> None:
        name, facts = line["name"], None
        if line.get("gone"):
            self._facts.pop(name, None)
        else:
            if "facts" in line:
                self._facts[name] = decode(NodeFacts, line["facts"])
            facts = self._facts[name]
        pods = [self._pods[number] for number in line["pods"]]
        on_node = OnNode(
            pods,
            line.get("cpu", 0),
            tuple(decode(TerminatingShare, one) for one in line.get("deleted", ())),
            tuple(decode(KnownClaim, one) for one in line.get("claims", ())),
            decode(KeptFor, line["kept"]) if "kept" in line else None,
            line.get("away", False),
        )
        self.cluster.rebuild({name: (facts, on_node)})
        self._reserved.pop(name, None)
        if held := [pod for pod in pods if pod.reserved and pod.pod.node == name]:
            self._reserved[name] = held
        self.turn = max(self.turn, line["turn"])

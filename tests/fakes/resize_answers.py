"""A node whose scheduler answers requests for another size, and whose agent follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from admission.cluster.snapshot import PODS
from admission.extender.binding import BindRules
from admission.extender.resizing import PAUSE_SECONDS, ResizeAnswers
from gpu_manager.domain.contract import ALLOCATION, ASSIGNED, RESIZE, Assignment, encode_assignment
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.resize.judgement import NamespaceLimits
from gpu_manager.domain.resize.sizes import ResizeAnswer, answer_of
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from tests.fakes.extender import World, node, pod

UNIT = DEFAULT_UNIT
Obj = dict[str, Any]


class Cluster(World):
    """A node with two cards, and the leader's answers. ``agent`` is the node's agent: it follows at once."""

    def __init__(self, **given: Any) -> None:
        super().__init__([given.pop("node", node("n1"))], **given)
        self.events: list[tuple[str, str]] = []

        def event(_pod: Pod, reason: str, text: str) -> None:
            self.events.append((reason, text))

        rules = BindRules(leads=lambda _seconds: self.leads)
        self.limits: NamespaceLimits | None = None
        self.answers = ResizeAnswers(
            self.cluster,
            self.quota,
            self.api,
            self.clock,
            rules,
            event,
            self.counted,
            self._limits,
            self.recorded,
        )
        self.results: list[str] = []

    def _limits(self, _namespace: str) -> NamespaceLimits:
        if self.limits is None:
            return NamespaceLimits()
        if not self.limits.quotas:
            raise NodeUnready("the API server is away")
        return self.limits

    def counted(self, step: str, result: str) -> None:
        assert step == "resize"
        self.results.append(result)

    def run(self, name: str, core: int = 30, memory: int = 4, **given: Any) -> Obj:
        """A pod that is scheduled and started."""
        obj = pod(name, core, memory, **given)
        self.create(obj)
        where = self.schedule(obj)
        assert where
        return self.agent(name, core, memory)

    def there(self, name: str) -> Obj:
        return self.api.pods["default", name]

    def annotate(self, name: str, annotations: Mapping[str, str | None]) -> Obj:
        """The pod's annotations are changed, and the watch shows it."""
        obj = self.there(name)
        meta = obj["metadata"]
        merged = {**meta["annotations"], **annotations}
        done = {
            **obj,
            "metadata": {**meta, "annotations": {k: v for k, v in merged.items() if v is not None}},
        }
        self.api.put(done)
        self.cluster.apply(PODS, "MODIFIED", done)
        return done

    def agent(self, name: str, core: int, memory: int) -> Obj:
        """The agent has booked this much, on the card of the pod's annotation."""
        obj = self.there(name)
        said = json.loads(obj["metadata"]["annotations"][ALLOCATION])
        share = said["containers"]["main"][0]
        held = {"main": ((share["uuid"], Amount(core, memory * UNIT)),)}
        text = encode_assignment(Assignment(said["node"], said["pod"], held))
        return self.annotate(name, {ALLOCATION: text, ASSIGNED: "true"})

    def ask(self, name: str, **size: Any) -> ResizeAnswer | None:
        """Ask for a size, and let a second pass; the answer on the pod."""
        wanted = json.dumps({"v": 1, "containers": {"main": size}}) if size else None
        self.annotate(name, {RESIZE: wanted})
        self.clock.pass_(PAUSE_SECONDS)
        self.answers.tick()
        return self.answered(name)

    def answered(self, name: str) -> ResizeAnswer | None:
        return answer_of(parse_pod(self.there(name)))


@pytest.fixture
def world() -> Cluster:
    return Cluster(node=node("n1", cards=1))

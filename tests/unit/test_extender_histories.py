"""Whatever came before, the extender answers as a service that begins this moment over the same objects would.

It remembers much between two questions: the last answer, answers by kind of request, what nodes of one state
say. Random histories of nodes, pods, claims, quotas and choices that were never bound ask it again and again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from admission.cluster.claims import CLAIMS, CLASSES, slim_claim
from admission.cluster.node_view import KeptFor
from admission.cluster.snapshot import NODES
from admission.extender.many_nodes import SEVERAL
from admission.extender.verbs import Reply
from gpu_manager.domain.contract import PLACEMENT
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.topology import NumaPolicy
from tests.fakes.extender import UNIT, World, args, container, node, on_numa_nodes, pod
from tests.seeds import seeds
from tests.unit.test_cluster_claims import CLASS, claim, held, part

STEPS = 60
_QUOTAS: tuple[dict[str, Any], ...] = (
    {},
    {"team": {"quota": {"*": 2}}},
    {"team": {"quota": {"A10": 1, "T4": 3}}, "*": {"quota": {"*": 6}}},
    {"x": {"quota": {"*": 4}, "pool": ["p"]}},
)


class History:
    """A cluster in which things happen, drawn from one seed; ``wrong`` is the first answer that a service
    begun afresh does not give, ``compared`` the number of those that agree.
    """

    def __init__(self, seed: int, *, nodes: int, expecting: bool, **how: Any) -> None:
        self._dice = Random(seed)
        self._nodes = {f"n{at}": self._node(f"n{at}") for at in range(nodes)}
        self._most_nodes = nodes + 3
        self._claims: dict[str, dict[str, Any]] = {}
        self._quota: dict[str, Any] | None = None
        self._kept: tuple[str, KeptFor | None] = ("", None)
        self._expecting = expecting
        self.world = World(list(self._nodes.values()), expecting=expecting, **how)
        self.world.cluster.replace(CLASSES, [CLASS])
        self.world.cluster.replace(CLAIMS, [])
        self._alike = [self._pod("alike") for _ in range(3)]
        self._pods = 0
        self.compared = 0
        self.fitting = 0
        self.wrong: object = None

    def go_on(self) -> None:
        """A pod is scheduled, or something else happens."""
        self.world.clock.pass_(self._dice.choice((0.1, 0.5, 5.0, 300.0)))
        if self._chance(0.6):
            self._schedule()
        else:
            self._happen()

    def _happen(self) -> None:
        happens: dict[Callable[[], None], int] = {
            self._node_changes: 12,
            self._node_goes: 4,
            self._quota_changes: 8,
            self._pod_changes: 10,
            self._pod_comes: 10,
            self._claim_changes: 6,
            self._another_is_closed: 5,
        }
        self._dice.choices(list(happens), list(happens.values()))[0]()

    def _chance(self, share: float) -> bool:
        return self._dice.random() < share

    # What happens.

    def _node(self, name: str) -> dict[str, Any]:
        dice, cards = self._dice, self._dice.choice((1, 2, 4, 4))
        found = node(
            name,
            cards,
            model=dice.choice(("A10", "T4")),
            link=dice.choice(("PHB", "NV1", "SYS")),
            closed=[0] if self._chance(0.2) else (),
            unhealthy=[cards - 1] if self._chance(0.2) else (),
            claimed=[0] if self._chance(0.3) else (),
            serving=not self._chance(0.1),
            labels={"zone": dice.choice("ab")} if self._chance(0.3) else None,
        )
        if self._chance(0.4):
            found = on_numa_nodes(
                found, dice.choice(list(NumaPolicy)), *(dice.randrange(2) for _ in range(cards))
            )
        elif self._chance(0.1):
            found["metadata"]["annotations"] = {}
        if self._chance(0.1):
            found["spec"] = {"unschedulable": True}
        elif self._chance(0.15):
            found["spec"] = {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}
        return found

    def _pod(self, name: str) -> dict[str, Any]:
        dice, core = self._dice, self._dice.choice((10, 30, 50, 70, 100, 200, 400))
        two = [container("a", dice.choice((20, 100)), 4), container("b", dice.choice((30, 200)), 4)]
        found = pod(
            name,
            core,
            4 if core < 100 else None,
            namespace=dice.choice(("default", "team", "x")),
            containers=two if self._chance(0.2) else None,
            priority=dice.choice((0, 0, 10)),
            nominated=dice.choice(("n1", "n2")) if self._chance(0.05) else "",
            annotations={PLACEMENT: dice.choice(("spread", "topology"))} if self._chance(0.2) else None,
        )
        if self._chance(0.2):
            found["spec"]["nodeSelector"] = {"zone": "a"}
        return found

    def _node_changes(self) -> None:
        name = f"n{self._dice.randrange(self._most_nodes)}"
        event = "MODIFIED" if name in self._nodes else "ADDED"
        self._nodes[name] = self._node(name)
        self.world.cluster.apply(NODES, event, self._nodes[name])

    def _node_goes(self) -> None:
        """Its pods and claims are still there."""
        if len(self._nodes) <= 2:
            return
        name = self._dice.choice(sorted(self._nodes))
        self.world.cluster.apply(NODES, "DELETED", self._nodes.pop(name))

    def _quota_changes(self) -> None:
        self._quota = self._dice.choice(_QUOTAS)
        self.world.limit(self._quota)

    def _pod_changes(self) -> None:
        if not self.world.api.pods:
            return
        found = copy.deepcopy(self.world.api.pods[self._dice.choice(sorted(self.world.api.pods))])
        how = self._dice.choice(("goes", "goes", "ends", "is deleted", "is nominated"))
        if how == "goes":
            self.world.delete(found)
            return
        if how == "ends":
            found["status"]["phase"] = "Succeeded"
        elif how == "is deleted":
            found["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
        else:
            found["status"]["nominatedNodeName"] = self._dice.choice(("", "n1", "n3"))
        self.world.api.put(found)
        self.world.show(found)

    def _pod_comes(self) -> None:
        """One that somebody else has bound."""
        name, self._pods = f"bound-{self._pods}", self._pods + 1
        self.world.create(pod(name, 10, 1, on=self._dice.choice(sorted(self._nodes))))

    def _claim_changes(self) -> None:
        name, namespace = f"c{self._dice.randrange(6)}", self._dice.choice(("default", "team", "x"))
        event = "MODIFIED"
        if name in self._claims and self._chance(0.5):
            event, found = "DELETED", self._claims.pop(name)
        elif self._chance(0.4):
            found = self._claims[name] = slim_claim(claim(name, namespace=namespace, asks=part(60, "8Gi")))
        else:
            where = self._dice.choice(sorted(self._nodes))
            device = held(where, 0, self._dice.choice((20, 100)), 4 * UNIT)
            found = self._claims[name] = slim_claim(claim(name, device, namespace=namespace))
        self.world.cluster.apply(CLAIMS, event, found)

    def _another_is_closed(self) -> None:
        waits = parse_pod(pod("waits", 400, None, priority=5))
        self._kept = self._dice.choice(
            (("", None), *((name, KeptFor(waits, 4, 100)) for name in sorted(self._nodes)))
        )
        self.world.cluster.keep(*self._kept)

    # Questions.

    def _asking(self) -> dict[str, Any]:
        """A new pod, like one of before or not, or one that waits still and is asked about again."""
        waiting = [one for one in self.world.api.pods.values() if "nodeName" not in one["spec"]]
        if waiting and self._chance(0.2):
            return copy.deepcopy(self._dice.choice(waiting))
        name, self._pods = f"p{self._pods}", self._pods + 1
        asking = copy.deepcopy(self._dice.choice(self._alike)) if self._chance(0.7) else self._pod(name)
        asking["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        if self._chance(0.2):
            asking["spec"]["priority"] = 5
        if self._chance(0.8):
            self.world.create(asking)
        return asking

    def _schedule(self) -> None:
        asking, names = self._asking(), sorted(self._nodes)
        if self._chance(0.4):
            self._dice.shuffle(names)
        if self._chance(0.2):
            names = names[:-1]
        if self._chance(0.1):
            names.append("nobody-knows-it")
        fits = json.loads(self._ask("filter", asking, names))["NodeNames"]
        if self._chance(0.4):
            self._happen()
        if self._chance(0.1):
            self._dice.shuffle(fits)
        if self._chance(0.1):
            asking = {**asking, "spec": {**asking["spec"], "priority": 7}}
        if not fits:
            return
        self.fitting += 1
        given = json.loads(self._ask("prioritize", asking, fits))
        best = max(given, key=lambda each: each["Score"])["Host"]
        known = self.world.api.pods.get((asking["metadata"]["namespace"], asking["metadata"]["name"]))
        if known is not None and best in self._nodes and self._chance(0.7):
            self.world.bind(asking, best)

    def _ask(self, verb: str, asking: dict[str, Any], names: list[str]) -> bytes:
        other, body = self._afresh(), args(asking, names)
        reply: Reply = getattr(self.world.extender, verb)(body)
        expected: Reply = getattr(other.extender, verb)(body)
        if json.loads(reply.body) == json.loads(expected.body):
            self.compared += 1
        elif self.wrong is None:
            self.wrong = verb, asking, json.loads(reply.body), json.loads(expected.body)
        if reply.after is not None and self._chance(0.7):
            reply.after()
        return reply.body

    def _afresh(self) -> World:
        """A service that has seen nothing but what the API has now, and expects the same pods."""
        mine, pods = self.world.cluster, list(self.world.api.pods.values())
        now = self.world.clock.monotonic()
        mine.expire(now)
        other = World(list(self._nodes.values()), pods, quota=self._quota, expecting=self._expecting)
        other.cluster.replace(CLASSES, [CLASS])
        other.cluster.replace(CLAIMS, list(self._claims.values()))
        other.cluster.keep(*self._kept)
        snapshot = mine.snapshot()
        for uid, where in snapshot.reserved.items():
            assigned = snapshot.nodes[where].bound[uid].assigned or {}
            lies = {name: tuple(Share(*one) for one in shares) for name, shares in assigned.items()}
            other.cluster.expect(mine.pod(uid), where, lies, now)
        other.clock.time = self.world.clock.time
        return other


@pytest.mark.parametrize("expecting", [False, True])
@pytest.mark.parametrize(
    ("seed", "nodes"), [*zip(seeds(11), (3, 6, 9, 3, 6, 9, 3, 6, 9, SEVERAL + 8, 6), strict=True)]
)
def test_every_answer_is_that_of_a_service_begun_afresh(seed: int, nodes: int, expecting: bool) -> None:
    history = History(seed, nodes=nodes, expecting=expecting)
    for _ in range(STEPS):
        history.go_on()
        assert history.wrong is None
    assert history.compared > STEPS // 2
    assert history.fitting >= STEPS // 10

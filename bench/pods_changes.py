"""``change_tried_wrong``: the "smallest change" of a pod that waits is made, and the pod then has to run.

Random clusters: nodes of several models, cards closed and broken, taints and cordons; pods of three
namespaces, some of one Deployment's older template; quotas of cards and memory, by model, with a bound for
each container; pods with gates. What runs is what filter offers and bind takes on a node that nothing keeps
the pod off, and what the quota would let be created.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from admission.cluster.pod_view import pod_view
from admission.explain.explanation import FITS, Explanation, explain
from admission.quota.quota_book import quota_refusal
from bench.rows import Row
from gpu_manager.domain.contract import CORE, GPU_MODEL, GPU_UUID, PRIORITY
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import CORES_PER_CARD, GIB
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PodRequest
from tests.fakes.extender import UNIT, Obj, World, container, node, pod

QUICK: Final = 100  # clusters
FULL: Final = 1_000
_MODELS: Final = ("Tesla-T4", "A100", "A10")
_SIZES: Final = {"Tesla-T4": 16, "A100": 40, "A10": 24}
_SPACES: Final = ("a", "b", "c")
_OWN: Final[Mapping[str, Any]] = {}  # the cluster's own quota
_LEFT: Final = re.compile(r"node (\S+) takes it once (.+) (?:has|have) left$")
_OPEN: Final = re.compile(r"open node (\S+) to it")
_GRANTED: Final = re.compile(
    r"(let the quota grow|have the right granted)(?:, or [a-z ]+|, and (.+?))?(?:: .*)?$"
)


def rows(*, full: bool) -> Iterator[Row]:
    """The row."""
    seeds = FULL if full else QUICK
    wrong: list[str] = []
    kinds: dict[str, int] = {}
    for seed in range(seeds):
        for kind, fault in tried(seed):
            kinds[kind] = kinds.get(kind, 0) + 1
            wrong += [f"{seed}: {fault}"] if fault else []
    said = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    note = f"{seeds} clusters; changes by kind: {said}. {'; '.join(wrong[:3])}".rstrip(". ")
    yield Row("change_tried_wrong", len(wrong), "count", "= 0", full=full, note=note)


def tried(seed: int) -> Iterator[tuple[str, str]]:
    """Each pod of one cluster that waits: the kind of its change, and what is wrong with it, else empty."""
    dice = random.Random(seed)
    case = _Cluster(dice)
    for obj in case.waiting:
        found = case.explained(obj)
        if not found.counts.get(FITS) and found.change and found.asks:
            yield case.tried(obj, found)


class _Cluster:
    """A cluster as it is drawn, which can be made again and again, changed each time."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._nodes = [self._node(f"n{at}") for at in range(dice.randint(1, 4))]
        self._quota = self._drawn_quota()
        self._running: list[Obj] = []
        world = World(self._nodes)
        for at in range(dice.randint(0, 14)):
            one = self._pod(f"r{at}")
            world.create(one)
            if world.schedule(one):
                self._running.append(world.api.pods[one["metadata"]["namespace"], one["metadata"]["name"]])
            else:
                world.delete(one)
        self.waiting = [self._pod(f"w{at}", waits=True) for at in range(dice.randint(1, 3))]

    def _node(self, name: str) -> Obj:
        dice = self._dice
        cards = dice.choice((1, 2, 2, 4, 8))
        models = [dice.choice(_MODELS)] * cards
        if dice.random() < 0.3:
            models = [dice.choice(_MODELS) for _ in range(cards)]
        some = [at for at in range(cards) if dice.random() < 0.1]
        size = min(_SIZES[model] for model in models) * GIB
        made = node(name, cards, memory=size, model=models, unhealthy=some[:1], closed=some[1:])
        if dice.random() < 0.15:
            made["spec"] = {"unschedulable": True}
        elif dice.random() < 0.15:
            made["spec"] = {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}
        return made

    def _drawn_quota(self) -> Mapping[str, Any] | None:
        dice = self._dice
        if dice.random() < 0.3:
            return None
        found: dict[str, Any] = {}
        for space in dice.sample(_SPACES, dice.randint(1, 3)):
            entry: dict[str, Any] = {}
            if dice.random() < 0.8:
                names = dice.sample(("*", *_MODELS), dice.randint(1, 2))
                entry["quota"] = {name: dice.choice((0, 0.3, 0.5, 1, 2, 4)) for name in names}
            if dice.random() < 0.3:
                entry["memory"] = {dice.choice(("*", *_MODELS)): dice.choice((1024, 8192, 40960))}
            if dice.random() < 0.3:
                entry["containerMax"] = {
                    "cores": dice.choice((20, 50, 100)),
                    "memory": dice.choice((2048, 8192)),
                }
            if dice.random() < 0.3:
                entry["protected"] = {"*": dice.choice((0, 0.3, 1))}
            found[space] = entry or {"quota": {"*": 1}}
        return found

    def _pod(self, name: str, *, waits: bool = False) -> Obj:
        dice = self._dice
        annotations: dict[str, str] = {}
        if dice.random() < 0.2:
            annotations[GPU_MODEL] = dice.choice(_MODELS)
        elif dice.random() < 0.1:
            annotations[GPU_UUID] = f"GPU-n0-{dice.randint(0, 3)}"
        if dice.random() < 0.15:
            annotations[PRIORITY] = dice.choice(("protected", "best-effort"))
        containers = [self._container(f"c{at}") for at in range(dice.choice((1, 1, 1, 2)))]
        init = [self._container("i")] if len(containers) == 1 and dice.random() < 0.1 else []
        if init and any(int(c["resources"]["limits"][CORE]) >= CORES_PER_CARD for c in (*init, *containers)):
            init = []
        made = pod(
            name, namespace=dice.choice(_SPACES), annotations=annotations, containers=containers, init=init
        )
        if dice.random() < 0.3:
            template = "new" if waits else dice.choice(("old", "new"))
            made["metadata"]["labels"]["pod-template-hash"] = template
            made["metadata"]["ownerReferences"] = [
                {"kind": "ReplicaSet", "name": f"web-{template}", "controller": True}
            ]
        if waits and dice.random() < 0.1:
            made["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
        return made

    def _container(self, name: str) -> Obj:
        cores = self._dice.choice((5, 20, 30, 50, 80, 99, 100, 100, 200, 400, 800))
        return container(
            name, cores, None if cores >= CORES_PER_CARD else self._dice.choice((1, 8, 30, 70, 200))
        )

    # The judgement, and what is made of it.

    def world(
        self,
        *,
        nodes: list[Obj] | None = None,
        gone: Callable[[Obj], bool] = lambda _: False,
        quota: Mapping[str, Any] | None = _OWN,
    ) -> World:
        """A world of it, with these nodes, without these pods, and with this quota."""
        running = [one for one in self._running if not gone(one)]
        return World(nodes or self._nodes, running, quota=self._quota if quota is _OWN else quota)

    def explained(self, obj: Obj, world: World | None = None) -> Explanation:
        """What explain says of it."""
        world = world or self.world()
        view = pod_view(parse_pod(obj), obj)
        return explain(view, world.cluster.snapshot(), world.quota.current, world.judge, everywhere=True)

    def tried(self, obj: Obj, found: Explanation) -> tuple[str, str]:
        """The kind of the change, and what is wrong once it is made."""
        change = found.change
        if found.held == "gate":
            free = {**obj, "spec": {k: v for k, v in obj["spec"].items() if k != "schedulingGates"}}
            still = self.explained(free).held == "gate"
            return "gate", f"{change}: still held" if still else ""
        if ", or pods of the namespace end" in change:
            mine = obj["metadata"]["namespace"]
            ended = self.world(gone=lambda one: one["metadata"]["namespace"] == mine)
            if fault := self._runs(obj, ended, change, is_new=False):
                return "quota or", fault
        kind, changed, world = self._made(obj, found)
        if changed is None or world is None:
            return kind, f"nobody can follow {change!r}"
        return kind, self._runs(changed, world, change, is_new=changed is not obj)

    def _made(self, obj: Obj, found: Explanation) -> tuple[str, Obj | None, World | None]:
        change, quota = found.change, self._quota
        if found.held == "owner":
            hashes = (one["metadata"]["labels"].get("pod-template-hash") for one in self._running)
            return "owner", obj if "old" in hashes else None, self.world(gone=_older)
        kind = ""
        while match := _GRANTED.match(change):
            kind, change = "quota ", match[2] or ""
            quota = _with_right(None if match[1].startswith("let") else quota)
        if match := _LEFT.match(change):
            names = match[2].split(", ")
            return f"{kind}left", obj, self.world(gone=lambda one: _key(one) in names, quota=quota)
        if match := _OPEN.match(change):
            opened = [
                {**one, "spec": {}} if one["metadata"]["name"] == match[1] else one for one in self._nodes
            ]
            return f"{kind}open", obj, self.world(nodes=opened, quota=quota)
        if found.nearest is not None:
            waits = change.endswith("and wait for them")
            less = _asking(obj, found.nearest)
            return f"{kind}{'fewer' if waits else 'own'}", less, self.world(gone=lambda _: waits, quota=quota)
        if change.startswith("wait for pods to end") or (kind and not change):
            return f"{kind}wait", obj, self.world(gone=lambda _: bool(change), quota=quota)
        return "other", None, None

    def _runs(self, obj: Obj, world: World, change: str, *, is_new: bool) -> str:
        view = pod_view(parse_pod(obj), obj)
        snapshot = world.cluster.snapshot()
        request = judged_request(view.pod, UNIT)
        quota = world.quota.current
        kinds = tuple(snapshot.nodes.values())
        refused = quota_refusal(quota, snapshot, view.pod, request, kinds) if quota and is_new else ""
        if refused:
            return f"{change}: would not be created: {refused}"
        world.create(obj)
        free = [name for name, one in snapshot.nodes.items() if not one.constraints.bars(view.constraints)]
        fitting = world.filter(obj, free)["NodeNames"] if free else []
        if not fitting:
            return f"{change}: then no node takes it: {self.explained(obj, world).line}"
        error = world.bind(obj, fitting[0])
        return f"{change}: bind refuses: {error}" if error else ""


def _with_right(quota: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {
        space: {**(quota or {}).get(space, {"quota": {"*": 99}}), "protected": {"*": 99}} for space in _SPACES
    }


def _older(one: Obj) -> bool:
    return one["metadata"]["labels"].get("pod-template-hash") == "old"


def _key(one: Obj) -> str:
    return f"{one['metadata']['namespace']}/{one['metadata']['name']}"


def _asking(obj: Obj, nearest: PodRequest) -> Obj:
    """The pod with the amounts and wishes of a request."""
    sizes = {one.name: one.request for one in nearest.containers}
    kept = {**obj["metadata"]["annotations"]}
    for key, wish in ((GPU_MODEL, nearest.models), (GPU_UUID, nearest.uuids)):
        if not wish:
            kept.pop(key, None)
    if nearest.priority.value != kept.get(PRIORITY):
        kept.pop(PRIORITY, None)
    spec = dict(obj["spec"])
    for group in ("initContainers", "containers"):
        spec[group] = [
            container(c["name"], sizes[c["name"]].cores, sizes[c["name"]].memory // UNIT or None)
            for c in spec[group]
        ]
    return {**obj, "metadata": {**obj["metadata"], "annotations": kept}, "spec": spec}

"""What the nodes' agents report to the console: usage, a card's health history, a pod's advised size.

Each agent is asked for usage every five seconds while the console is open, in a cluster of more than a
hundred nodes less often, so that no more than twenty are asked a second. Where an agent does not answer, the
usage is unknown; an old answer expires. Health history and advice are asked for when a page shows them.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import structlog

from admission.cluster.snapshot import Snapshot
from gpu_manager.domain.cluster.node_past import STEP, named_frames, read_past
from gpu_manager.domain.cluster.usage_history import (
    HOUR_SECONDS,
    MINUTE,
    SECONDS,
    HistoryQuery,
    HistorySubject,
    ShareKey,
    ShareSum,
    UsageHistory,
    history_json,
    reach,
)
from gpu_manager.domain.cluster.usage_json import NodeUsage, named_usage, read_usage
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.names import container_name
from gpu_manager.domain.untrusted import mapping, mappings, text
from gpu_manager.ports.clock import Clock
from gpu_manager.runtime import threads

log = structlog.get_logger(__name__)

PERIOD_SECONDS: Final = 5.0  # between two questions to one agent
MOST_A_SECOND: Final = 20.0  # questions to all agents together
LOOKED_SECONDS: Final = 10.0  # how long somebody counts as looking after asking
LISTED_SECONDS: Final = 30.0  # how old the list of agents may be
OLD_PERIODS: Final = 3  # after so many periods without an answer nothing is known of a node
_AT_ONCE: Final = 8
_ALONE_SECONDS: Final = 0.1  # for which one thread asks before others help it


class Agents(Protocol):
    """The agents of the cluster."""

    def addresses(self) -> Mapping[str, str]:
        """Node → URL of its agent. Raises NodeUnready: the API server does not answer."""

    def page(self, url: str, path: str) -> bytes:
        """The agent's answer to a GET. Raises NodeUnready: no answer."""


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """An agent's answer, and the monotonic second of its arrival."""

    at: float
    usage: NodeUsage


class AgentsUsage:
    """Collects the agents' usage. Thread-safe; a part of the program that polls in a thread of its own."""

    def __init__(
        self, agents: Agents, clock: Clock, pods: Callable[[str], Mapping[str, Pod]] = lambda _: {}
    ) -> None:
        """``pods`` gives the pods of a node by UID, for agents name none to a caller without a token."""
        self._agents = agents
        self._pods = pods
        self._clock = clock
        self._ended = threading.Event()
        self._looked = threading.Event()
        self._looked_at = float("-inf")
        self._addresses: Mapping[str, str] = {}
        self._listed = float("-inf")
        self._asked: dict[str, float] = {}
        self._answers: dict[str, AgentAnswer] = {}
        self._named: dict[str, Mapping[str, Pod]] = {}  # node → pods of its last answer, also gone ones
        self._lock = threading.Lock()  # of the history, which several threads write
        self._history = UsageHistory()
        self._hour = UsageHistory(int(HOUR_SECONDS / MINUTE), HOUR_SECONDS)
        self._minute_at: dict[str, float] = {}  # node → when its last whole minute was noted
        self._thread = threads.forever("usage", self._run)

    def start(self) -> None:
        """Begin; nobody is asked before somebody looks."""
        self._thread.start()

    def ready(self) -> Mapping[str, bool]:
        """The service is ready without it."""
        return {}

    def stop(self) -> None:
        """End."""
        self._ended.set()
        self._looked.set()
        self._thread.join()

    def look(self) -> Mapping[str, AgentAnswer]:
        """Somebody looks: what is known now, by node."""
        now = self._clock.monotonic()
        self._looked_at = now
        self._looked.set()
        oldest = now - OLD_PERIODS * self._period
        return {node: said for node, said in self._answers.copy().items() if said.at > oldest}

    def history(self, query: HistoryQuery, *, hour: bool = False) -> Any:
        """JSON of the last minutes or the last hour, as ``/ui/history`` answers."""
        step = self._period * (2 if query.subject is HistorySubject.CLUSTER else 1)
        ring, step, span = (self._hour, MINUTE, HOUR_SECONDS) if hour else (self._history, step, SECONDS)
        now, epoch = self._clock.monotonic(), self._clock.now()
        with self._lock:
            series = ring.read(query, now, step)
            left_out = ring.left_out
        return history_json(series, epoch - reach(step, span), step, "agents", left_out)

    def trends(self, namespace: str = "") -> Any:
        """JSON of ``/ui/trends``: each card's use over the last minutes, by the namespace's containers, and
        those that waited for most of the last minute.
        """
        now = self._clock.monotonic()
        with self._lock:
            cards = self._history.trends(now, namespace)
            waiters = self._history.waiters(now - MINUTE, namespace)
        names = ("waited", "namespace", "pod", "container")
        return {"cards": cards, "waiting": [dict(zip(names, one, strict=True)) for one in waiters]}

    def page(self, node: str, path: str) -> Any:
        """The JSON that the node's agent answers now. Raises NodeUnready."""
        url = self._addresses.get(node)
        if url is None:
            raise NodeUnready(f"no agent of node {quoted(node)} is known: try again in a few seconds")
        try:
            return json.loads(self._agents.page(url, path))
        except (NodeUnready, ValueError, RecursionError) as error:
            raise NodeUnready(f"the agent of node {quoted(node)} does not answer: {error}") from error

    def sums(self) -> Mapping[ShareKey, ShareSum]:
        """What was used in the last hour; of what has no whole minute yet, in the last minutes."""
        now = self._clock.monotonic()
        with self._lock:
            return self._history.sums(now, self._period) | self._hour.sums(now, MINUTE)

    @property
    def _period(self) -> float:
        return max(PERIOD_SECONDS, len(self._addresses) / MOST_A_SECOND)

    def _run(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE, "usage") as pool:
            while not self._ended.is_set():
                if self._clock.monotonic() - self._looked_at > LOOKED_SECONDS:
                    self._looked.clear()
                    self._answers.clear()
                    if self._clock.monotonic() - self._looked_at > LOOKED_SECONDS:
                        self._looked.wait()
                    continue
                self.ask_due(lambda jobs: ask_all(jobs, pool))
                self._ended.wait(1.0)

    def ask_due(self, run: Callable[[list[Callable[[], None]]], object]) -> None:
        """Ask the agents whose turn it is, the longest not asked first; ``run`` does the questions."""
        now = self._clock.monotonic()
        if now - self._listed > LISTED_SECONDS:
            try:
                self._addresses, self._listed = self._agents.addresses(), now
            except NodeUnready as error:
                log.warning("agents_not_listed", reason=str(error))
        nodes = self._addresses
        self._asked = {node: at for node, at in self._asked.items() if node in nodes}
        self._answers = {node: said for node, said in self._answers.items() if node in nodes}
        self._named = {node: pods for node, pods in self._named.items() if node in nodes}
        with self._lock:
            self._history.forget(now)
            self._hour.forget(now)
        due = [node for node in nodes if now - self._asked.get(node, float("-inf")) >= self._period]
        due.sort(key=lambda node: self._asked.get(node, float("-inf")))
        due = due[: int(MOST_A_SECOND)]
        self._asked |= dict.fromkeys(due, now)
        run([lambda node=node: self._ask(node) for node in due])  # type: ignore[misc]

    def _ask(self, node: str) -> None:
        if node not in self._answers:
            self._remember(node)
        try:
            told = read_usage(json.loads(self._agents.page(self._addresses[node], "/usage")))
            uids = {uid for uid, _, _ in told}
            known = {**self._named.get(node, {}), **self._pods(node)}
            self._named[node] = {uid: pod for uid, pod in known.items() if uid in uids}
            usage = named_usage(told, self._named[node])
        except (NodeUnready, ValueError, RecursionError) as error:
            self._answers.pop(node, None)
            log.debug("agent_silent", node=node, reason=str(error))
            return
        before = self._answers.get(node)
        if before is not None and before.usage == usage:
            usage = before.usage  # the same object: nothing is drawn anew
        now = self._clock.monotonic()
        self._answers[node] = AgentAnswer(now, usage)
        with self._lock:
            self._history.record(node, now, usage)
            if now - self._minute_at.setdefault(node, now) >= MINUTE:
                self._minute_at[node] = now
                self._hour.record(node, now, self._history.means(node, now - MINUTE))

    def _remember(self, node: str) -> None:
        """Begin with what the node's agent remembers of the time in which nobody looked."""
        try:
            answer = json.loads(self._agents.page(self._addresses[node], "/usage/history"))
            minutes, hour = (read_past(answer, ring) for ring in ("seconds", "minutes"))
        except (NodeUnready, ValueError, RecursionError) as error:
            log.debug("agent_remembers_nothing", node=node, reason=str(error))
            return
        pods, now = self._pods(node), self._clock.monotonic()
        with self._lock:
            self._history.fill(node, now, STEP, named_frames(minutes, pods))
            self._hour.fill(node, now, MINUTE, named_frames(hour, pods))
            self._minute_at[node] = now


def ask_all(
    jobs: Iterable[Callable[[], object]], pool: Executor, *, alone_seconds: float = _ALONE_SECONDS
) -> None:
    """Do these jobs and wait for their end: one thread does all unless that takes longer than
    ``alone_seconds``, since threads that only compute wait for each other.
    """
    left = deque(jobs)

    def work() -> None:
        while True:
            try:
                job = left.popleft()
            except IndexError:
                return
            job()

    at_work = [pool.submit(work)]
    if wait(at_work, alone_seconds).not_done:  # an agent is slow, or away
        at_work += [pool.submit(work) for _ in range(_AT_ONCE - 1)]
    for one in at_work:
        one.result()


_MOST_EVENTS: Final = 20
_LONGEST_MESSAGE: Final = 200


def card_health(uuid: str, snapshot: Snapshot, agents: AgentsUsage) -> dict[str, Any]:
    """JSON of ``/ui/health``: the same as the agent's.

    Raises:
        RequestInvalid: no node has such a card.
        NodeUnready: its node's agent does not answer.
    """
    views = snapshot.nodes.values()
    node = next((v.name for v in views if any(s.card.uuid == uuid for s in v.node.cards)), None)
    if node is None:
        raise RequestInvalid(f"no node has a card {quoted(uuid)}")
    return read_health(agents.page(node, f"/ui/health?{urlencode({'card': uuid})}"), node)


def read_health(answer: Any, node: str) -> dict[str, Any]:
    """An agent's answer with nothing in it that does not belong there. Raises NodeUnready: it is another."""
    found = mapping(answer)
    if "events" not in found:
        raise NodeUnready(f"the agent of node {quoted(node)} does not tell of health: it is an older one")
    return {
        "since": _seconds(found.get("since")),
        "events": [
            {
                "event": text(one.get("event"))[:_LONGEST_MESSAGE],
                "text": text(one.get("text"))[:_LONGEST_MESSAGE],
                "first": _seconds(one.get("first")),
                "last": _seconds(one.get("last")),
                "count": int(_seconds(one.get("count")) or 1),
            }
            for one in mappings(found["events"])[:_MOST_EVENTS]
        ],
    }


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 << 40 else None


_MOST_CONTAINERS: Final = 50
_LONGEST_TEXT: Final = 400


def pod_advice(name: str, pod: Pod | None, agents: AgentsUsage) -> dict[str, Any]:
    """JSON of ``/ui/advice``: the agent's, with the names of the pod's containers.

    ``name``: the pod's namespace/name. ``pod``: what is known of it.

    Raises:
        RequestInvalid: no such pod is on a node.
        NodeUnready: the node's agent does not answer.
    """
    if pod is None or not pod.node:
        raise RequestInvalid(f"no pod {quoted(name)} is on a node")
    asked = urlencode({"uid": pod.uid, "name": name})  # an older agent reads the name alone
    found = read_advice(agents.page(pod.node, f"/ui/advice?{asked}"), pod.node)
    for one in found["containers"]:
        one["container"] = container_name(pod.uid, one["container"], pod)
    return found


def read_advice(answer: Any, node: str) -> dict[str, Any]:
    """An agent's answer with nothing in it that does not belong there. Raises NodeUnready: it is another."""
    found = mapping(answer)
    if "containers" not in found:
        raise NodeUnready(
            f"the agent of node {quoted(node)} does not tell of one pod's advice: it is an older one"
        )
    return {
        "containers": [
            {
                "container": text(one.get("container"))[:_LONGEST_TEXT],
                "given": {key: _amount(mapping(one.get("given")).get(key)) for key in ("cores", "memory")},
                **{key: _figure(mapping(one.get(key))) for key in ("cores", "memory")},
            }
            for one in mappings(found["containers"])[:_MOST_CONTAINERS]
        ]
    }


def _figure(said: Any) -> dict[str, Any]:
    return {"value": _amount(said.get("value")), "reason": text(said.get("reason"))[:_LONGEST_TEXT]}


def _amount(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 60 else None

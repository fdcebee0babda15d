"""What a node lost, made good: lost injections are made again, and pods whose containers have no devices any
more are replaced.

A kubelet gives device ids at a pod's admission alone. There are two ways to be without them:

- The pod was admitted before this node offered our resources: the kubelet drops a resource that the node
  never had before it checks whether a pod fits. It holds no card.
- The kubelet lost its checkpoint, or found it torn, and started with an empty one. What runs then keeps its
  card and limits, which our books have, but not a container that starts later.

Once the resource exists, a start of such a container fails (*no devices found allocated in local cache*), and
no plugin is asked. Only a new pod helps: the pod is reported as soon as its record is missing, long before a
container of it ends, and evicted if it has a controller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import is_

import structlog

from gpu_manager.domain.contract import EVENT_REFUSED, EVENT_WITHOUT_DEVICES, RESOURCES
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import MIRROR, Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import HeldInjection, Injector, Processes
from gpu_manager.ports.records import Kubelet, PodResourcesEntry
from gpu_manager.services.allocation.admission_window import AdmissionWindow
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)


# Keeps the injections of granted containers: what a reboot, a power cut or a hand takes is made again.
# A container that starts again is injected by what its allocation left on the node. Under CDI that is a
# spec in /var/run/cdi, without which it never starts.


PERIOD_SECONDS = 2.0
PATIENCE_SECONDS = 5.0  # of a directory that the node has removed, before the agent restarts


@dataclass(eq=False, repr=False)
class InjectionKeeper:
    """``look`` is called by one thread; ``trouble`` may be read by any.

    ``restart`` ends the agent, to be started again with its mounts made anew. ``outdated``: why the way
    of injection, which is chosen at the start, gives containers no cards any more.
    """

    state: NodeState
    pods: Pods
    injector: Injector
    clock: Clock
    restart: Callable[[], None]
    outdated: Callable[[], str] = str

    def __post_init__(self) -> None:
        self._left = False
        self._detached: float | None = None
        self._asked = False
        self._sources: tuple[object, object] = (None, None)
        self._found: Mapping[str, HeldInjection] = {}
        self.trouble = ""
        """Why a granted container could not start again, for /readyz; empty if each could."""

    def look(self) -> None:
        """Make again what is lost."""
        try:
            self.injector.restore(self._held())
        except NodeUnready as error:
            if self.trouble != str(error):
                log.error("injection_lost", reason=str(error))
            self.trouble = str(error)
        else:
            if self.trouble:
                log.info("injection_restored")
            self.trouble = ""
        self._follow_mount()
        if (why := self.outdated()) and not self._left:
            self._left = True
            log.warning("injection_chosen_anew", reason=why)
            self.restart()

    def _follow_mount(self) -> None:
        now = self.clock.monotonic()
        if not self.injector.detached():
            self._detached = None
            return
        self._detached = now if self._detached is None else self._detached
        if now - self._detached >= PATIENCE_SECONDS and not self._asked:
            self._asked = True
            log.error("restarting", reason=self.trouble)
            self.restart()

    def _held(self) -> Mapping[str, HeldInjection]:
        """Made anew only from other grants or pods: neither is ever changed in place."""
        grants, local = self.state.view.grants, self.pods.local()
        if self._sources[0] is not grants or self._sources[1] is not local:
            pods = {f.pod.uid: f.pod for found in local.values() for f in found}
            self._found = {
                grant.directory: _injection(grant.allocation, pods.get(uid))
                for (uid, _), grant in grants.items()
                if grant.directory
            }
            self._sources = grants, local
        return self._found


def _injection(held: Allocation, pod: Pod | None) -> HeldInjection:
    if held.claim is None:
        return HeldInjection(held.shares, pod)
    return HeldInjection(held.shares, pod, by_claim=True, priority=held.priority, preload=held.claim.preload)


# The kubelet's words for a pod that it admitted while the plugin was away; ours have other ones.
_UNSERVED = ("no healthy devices present", "unregistered device")
SEEN_ROUNDS = 2  # in a row: the checkpoint and the pods that are known are not of one moment
# A kubelet that has restarted admits its pods again for about that long; until then it is asked at each look,
# and a pod of which nothing runs may still be given its devices.
SETTLE_SECONDS = 60.0

Holders = Collection[tuple[PodUid, str, str]]  # pod, container and resource that have ids in the checkpoint

Listing = Mapping[tuple[str, str], Sequence[PodResourcesEntry]]  # as Kubelet.listing has it


@dataclass(frozen=True, slots=True)
class Stranded:
    """A pod with what its containers lack: (container, resource). ``lost``: they had devices, of which the
    kubelet has no record any more; otherwise they never had any.
    """

    pod: Pod
    lacking: tuple[tuple[str, str], ...]
    lost: bool

    @property
    def containers(self) -> tuple[str, ...]:
        """The containers that cannot start again."""
        return tuple(dict.fromkeys(name for name, _ in self.lacking))


@dataclass(eq=False, repr=False)
class PodsWithoutDevices:
    """Reports each such pod once. One thread calls :meth:`look`; others may read :attr:`uids`.

    ``seconds``: between two listings of the kubelet's pods, once these have settled.
    """

    state: NodeState
    window: AdmissionWindow
    kubelet: Kubelet
    pods: Pods
    processes: Processes
    clock: Clock
    metrics: ServiceMetrics
    seconds: float
    _: KW_ONLY
    evict: bool

    def __post_init__(self) -> None:
        self._listed_at = float("-inf")
        self._failed: set[PodUid] = set()
        self._seen: Mapping[PodUid, int] = {}
        self._named: Mapping[PodUid, Stranded] = {}
        # What was compared last, and the result: neither is ever changed in place.
        self._compared: tuple[tuple[object, ...], Mapping[PodUid, Stranded]] = ((), {})
        self._searched: object = None  # the API's pods, as :meth:`_name_failed` saw them last

    @property
    def uids(self) -> tuple[str, ...]:
        """The pods that were reported and are still there, by the UIDs of their objects."""
        return tuple(sorted(one.pod.api_uid for one in self._named.values()))

    def look(self) -> None:
        """Compare the pods' requests with the kubelet's checkpoint, and report whoever is without devices.

        The kubelet is asked for its pods only where the checkpoint lacks one that was not reported. A
        source that is missing proves nothing.
        """
        self._name_failed()
        found = self._found()
        if found is None:
            return
        for uid, one in self._named.items():
            if uid not in found and self.evict and one.pod.controlled:
                self.pods.evict(one.pod, None)
        self._named = {uid: found[uid] for uid in self._named if uid in found}
        if not found.keys() <= self._named.keys():
            self._confirm()
        else:
            self._seen = {}
        self.metrics.stranded_containers.set(sum(len(one.containers) for one in self._named.values()))

    def _name_failed(self) -> None:
        """Tell each pod once that failed for good because no agent served, as after a boot."""
        local = self.pods.local()
        if local is self._searched:
            return
        self._searched = local
        for pod in (known.pod for named in local.values() for known in named):
            if pod.asks and pod.uid not in self._failed and any(one in pod.refused for one in _UNSERVED):
                self._failed.add(pod.uid)
                cure = "its controller makes another one" if pod.controlled else "create it again"
                text = (
                    f"the kubelet admitted it while no agent served, as after a boot, and failed it: {cure}"
                )
                self.pods.event(pod, EVENT_REFUSED, text, warning=True)

    def _confirm(self) -> None:
        now = self.clock.monotonic()
        settling = now - self.window.registered_at < SETTLE_SECONDS
        if not settling and now - self._listed_at < self.seconds:
            return
        active = self._active()
        # Read after the listing: a pod that is listed while the kubelet admits none has its entries by now.
        found = self._found()
        if active is None or found is None:
            return
        self._listed_at = now
        self._seen = {
            uid: self._seen.get(uid, 0) + 1
            for uid, one in found.items()
            if _listed_without(active, one) and not (settling and self.processes.alive(uid) is False)
        }
        new = [
            found[uid]
            for uid, rounds in self._seen.items()
            if rounds >= SEEN_ROUNDS and uid not in self._named
        ]
        self._named = {**self._named, **{one.pod.uid: one for one in new}}
        # All are named before the first of them ends: each write takes its time on a busy node.
        for pod, text in [(one.pod, self._report(one)) for one in new]:
            if self.evict and pod.controlled:
                self.pods.evict(pod, text)

    def _active(self) -> Listing | None:
        try:
            return self.window.when_idle(self.kubelet.listing)
        except NodeUnready:
            return None

    def _found(self) -> Mapping[PodUid, Stranded] | None:
        """Whoever lacks devices by the checkpoint alone; None where it cannot be read."""
        entries = self.kubelet.checkpoint()
        if entries is None:
            return None
        local = self.pods.local()
        sources = (entries, local, self.state.view)
        if len(self._compared[0]) == len(sources) and all(map(is_, self._compared[0], sources)):
            return self._compared[1]
        holders = {(e.pod, e.container, e.resource) for e in entries if e.ids}
        known = (f.pod for named in local.values() for f in named if not f.tombstone)
        found = {pod.uid: one for pod in known if (one := self._stranded(pod, holders)) is not None}
        self._compared = sources, found
        return found

    def _stranded(self, pod: Pod, holders: Holders) -> Stranded | None:
        """The containers of an admitted pod that ask for devices and have none; None if there is none, or
        that is not known.
        """
        unknown = MIRROR in pod.annotations and not pod.static  # its resource is unknown
        if not pod.asks or not pod.started or pod.deleting or pod.terminal or unknown:
            return None
        booked = self.state.view.ledger.of_pod(pod.uid)
        lost = {name for name, held in booked.items() if held.granted and held.claim is None}
        lacking = tuple(
            (container.name, resource)
            for container in pod.containers
            if _starts_again(pod, container, given=bool(lost))
            and (container.name in lost or not (lost or container.claims))
            for resource in RESOURCES
            if container.wants(resource) and (pod.uid, container.name, resource) not in holders
        )
        return Stranded(pod, lacking, bool(lost)) if lacking else None

    def _report(self, stranded: Stranded) -> str:
        pod = stranded.pod
        evicted = self.evict and pod.controlled
        cure = "the pod is evicted" if evicted else "delete the pod"
        if pod.static:
            cure = "move the pod's manifest out of the kubelet's directory and back"
        text = f"{'; '.join(_why(stranded))}; {cure}, so that a new one is admitted in its place"
        self.metrics.pods_without_devices.inc()
        log.warning(
            "stranded", pod=pod.key, containers=stranded.containers, lost=stranded.lost, evicted=evicted
        )
        self.pods.event(pod, EVENT_WITHOUT_DEVICES, text, warning=True)
        return text


def _listed_without(active: Listing, stranded: Stranded) -> bool:
    """True if PodResources confirms the checkpoint: it lists the pod without the missing devices, too."""
    entries = active.get((stranded.pod.namespace, stranded.pod.name))
    return entries is not None and not any(
        entry.container == name and entry.ids.get(resource)
        for entry in entries
        for name, resource in stranded.lacking
    )


def _starts_again(pod: Pod, container: Container, *, given: bool) -> bool:
    """False for what the kubelet will not start again: ordinary init containers, whose pod would have to lose
    its sandbox; and of a pod that restarts nothing, a container that has started with what it was ``given``.
    """
    if container.kind is ContainerKind.INIT:
        return False
    return not (given and pod.restarts_never and container.runtime_id)


def _why(stranded: Stranded) -> Iterator[str]:
    quoted: Sequence[str] = [f'"{name}"' for name in stranded.containers]
    many = len(quoted) > 1
    who = f"container{'s' if many else ''} {', '.join(quoted)}"
    them = "they" if many else "it"
    if stranded.lost:
        yield f"the kubelet has lost its record of the devices of {who}"
        have = "they have" if many else "it has"
        yield f"what runs keeps its card and limits, but once {have} ended {them} cannot be started again"
    else:
        yield (
            f"{who} {'were' if many else 'was'} admitted before this node offered {stranded.lacking[0][1]}: "
            f"{them} {'hold' if many else 'holds'} no card and cannot be started again"
        )

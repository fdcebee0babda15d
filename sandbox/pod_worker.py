"""One admitted pod's life: init containers one by one, sidecars, apps, restarts, the end. A thread a pod."""

from __future__ import annotations

import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse
from gpu_manager.runtime import threads
from sandbox.runtime import START_ERROR, Runtime
from sandbox.statuses import ContainerRecord, pod_status, records_of

FIRST_PAUSE: Final = 1.0  # seconds; the kubelet begins with 10, too long to watch
LONGEST_PAUSE: Final = 60.0
CALM_SECONDS: Final = 600.0  # a container that ran so long begins with the first pause again
KUBELET_AWAY_SECONDS: Final = 0.5
KILL_SECONDS: Final = 5.0
SIDECAR_SECONDS: Final = 2.0  # what a sidecar gets once the last app has ended


class KubeletGrants(Protocol):
    """What a worker asks of the kubelet stand-in."""

    def start_container(self, uid: str, name: str, container_id: str = "") -> ContainerAllocateResponse:
        """Before each start: PreStartContainer, then what the container receives."""

    def stop_container(self, uid: str, name: str, exit_code: int = 0) -> None:
        """It ended."""

    def finish(self, uid: str, phase: str = "Succeeded") -> None:
        """All containers ended for good."""


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """How a worker reaches the world: ``publish`` a status; ``tell`` or ``warn`` a reason and a sentence."""

    kubelet: KubeletGrants
    runtime: Runtime
    publish: Callable[[Mapping[str, Any]], bool]
    tell: Callable[[str, str], None]
    warn: Callable[[str, str], None]
    pause: float = FIRST_PAUSE


@dataclass(frozen=True, slots=True)
class _Exit:
    container: str
    id: str
    code: int


@dataclass(frozen=True, slots=True)
class _End:
    """The pod is to go: ``seconds`` of grace, and what happens once nothing runs."""

    seconds: float
    then: Callable[[], None]
    phase: str = ""
    reason: str = ""
    message: str = ""


class PodWorker:
    """Thread-safe: each method leaves a note for the worker's thread and returns at once."""

    def __init__(self, pod: Mapping[str, Any], outside: WorkerPorts) -> None:
        self.uid = str(pod["metadata"]["uid"])
        self.pod = pod
        self._outside = outside
        self._policy = str(pod["spec"].get("restartPolicy") or "Always")
        self._records = records_of(pod)
        self._inbox: queue.Queue[_Exit | _End] = queue.Queue()
        self._began = time.time()
        self._initialized = not any(r.kind is not ContainerKind.APP for r in self._records)
        self._phase = "Pending"
        self._published: Mapping[str, Any] | None = None
        self._verdict: tuple[str, str] = ("", "")
        self._lock = threading.Lock()
        self.over = False
        name = pod["metadata"]["name"]
        self.thread = threads.once(f"pod-{name}", self._run)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def end(self, seconds: float, then: Callable[[], None]) -> None:
        """Stop every container, kill what is left after ``seconds``, call ``then`` once nothing runs.

        A later call may shorten the grace; its ``then`` is the one that counts.
        """
        with self._lock:
            if not self.over:
                self._inbox.put(_End(max(0.0, seconds), then))
                return
        then()

    def fail(self, reason: str, message: str) -> None:
        """The kubelet will not have it any more."""
        self._inbox.put(_End(0.0, lambda: None, "Failed", reason, message))

    # The worker's thread.

    def _run(self) -> None:
        while True:
            ends = self._step()
            self._publish()
            if ends:
                end = self._inbox_end()
                break
            note = self._next()
            if isinstance(note, _Exit):
                self._exited(note)
            elif note is not None:
                end = note
                break
        then = self._end(end)
        self._publish()
        with self._lock:
            self.over = True
            while not self._inbox.empty():
                note = self._inbox.get()
                then = note.then if isinstance(note, _End) else then
        then()

    def _next(self) -> _Exit | _End | None:
        now = time.monotonic()
        waits = [max(0.05, r.due - now) for r in self._records if r.due and not r.running]
        if self._published is None:
            waits.append(0.5)  # the API server is away: the status is told later
        try:
            return self._inbox.get(timeout=min(waits) if waits else None)
        except queue.Empty:
            return None

    def _inbox_end(self) -> _End:
        """After the last container: only the pod's deletion is still to come."""
        while True:
            try:
                note = self._inbox.get(timeout=0.5 if self._published is None else None)
            except queue.Empty:
                self._publish()
                continue
            if isinstance(note, _End):
                return note

    def _step(self) -> bool:
        """Start whatever is due. True once the pod has ended by itself."""
        for record in self._records:
            if record.kind is ContainerKind.APP or self._initialized:
                continue
            if record.kind is ContainerKind.SIDECAR:
                if not self._runs(record, again=True):
                    return False
            elif record.running or not self._done(record):
                return self._phase == "Failed"
        self._initialized = True
        if self._ended_well_or_not():
            return True
        for record in self._records:
            if record.kind is not ContainerKind.INIT:
                self._runs(record, again=record.kind is ContainerKind.SIDECAR or self._again(record))
        if any(r.began for r in self._records if r.kind is ContainerKind.APP):
            self._phase = "Running"
        return self._ended_well_or_not()

    def _done(self, record: ContainerRecord) -> bool:
        """An ordinary init container: True once it ended well; started, or started again, if it may."""
        if record.code == 0:
            return True
        if record.code is not None and self._policy == "Never":
            self._finish("Failed")
            return False
        self._runs(record, again=True)
        return False

    def _again(self, record: ContainerRecord) -> bool:
        return self._policy == "Always" or (self._policy == "OnFailure" and record.code != 0)

    def _ended_well_or_not(self) -> bool:
        apps = [r for r in self._records if r.kind is ContainerKind.APP]
        if self._phase in ("Succeeded", "Failed"):
            return True
        if any(r.running or r.code is None or self._again(r) for r in apps):
            return False
        sidecars = [r for r in self._records if r.kind is ContainerKind.SIDECAR]
        sooner = self._stop(sidecars, time.monotonic() + SIDECAR_SECONDS)
        if sooner is not None:
            self._inbox.put(sooner)
        self._finish("Succeeded" if all(r.code == 0 for r in apps) else "Failed")
        return True

    def _finish(self, phase: str) -> None:
        self._phase = phase
        for record in self._records:
            record.waiting = ("", "")
            record.due = 0.0
        self._outside.kubelet.finish(self.uid, phase)

    def _runs(self, record: ContainerRecord, *, again: bool) -> bool:
        """Start it if it does not run, may run and is due. True if it runs now."""
        if record.running:
            return True
        if (record.code is not None and not again) or time.monotonic() < record.due:
            return False
        try:
            response = self._outside.kubelet.start_container(self.uid, record.name)
        except NodeUnready as error:
            self._held_up(record, str(error))
            return False
        if record.began:
            record.restarts += 1
            record.earlier = record.end()
            self._outside.runtime.remove(record.id)
        self._start(record, response)
        return record.running

    def _start(self, record: ContainerRecord, response: ContainerAllocateResponse) -> None:
        container_id = secrets.token_hex(32)
        record.id, record.began, record.error, record.code = container_id, time.time(), "", None

        def ended(code: int) -> None:
            self._inbox.put(_Exit(record.name, container_id, code))

        try:
            started = self._outside.runtime.start(self.pod, record.spec, response, ended, container_id)
        except NodeUnready as error:
            record.error, record.ended = str(error), time.time()
            self._outside.warn("Failed", f"container {record.name}: {error}")
            self._after(record, START_ERROR)
            return
        record.running, record.waiting, record.due = True, ("", ""), 0.0
        self._outside.tell("Started", f"container {record.name}: process {started.pid}")

    def _held_up(self, record: ContainerRecord, reason: str) -> None:
        if "kubelet is not running" in reason:
            record.due = time.monotonic() + KUBELET_AWAY_SECONDS
            return
        self._back_off(record)
        record.waiting = ("CreateContainerConfigError", reason)
        self._outside.warn("Failed", f"container {record.name}: {reason}")

    def _back_off(self, record: ContainerRecord) -> None:
        if time.time() - record.began > CALM_SECONDS:
            record.pause = 0.0
        record.due = time.monotonic() + (record.pause or self._outside.pause)
        record.pause = min(LONGEST_PAUSE, 2 * (record.pause or self._outside.pause))

    def _exited(self, note: _Exit) -> None:
        record = next(r for r in self._records if r.name == note.container)
        if record.running and note.id == record.id:
            record.running, record.ended = False, time.time()
            self._after(record, note.code)

    def _after(self, record: ContainerRecord, code: int) -> None:
        record.code = code
        self._outside.kubelet.stop_container(self.uid, record.name, code)
        if record.kind is ContainerKind.SIDECAR or (
            self._again(record) if record.kind is ContainerKind.APP else code != 0 and self._policy != "Never"
        ):
            self._back_off(record)
            seconds = record.due - time.monotonic()
            text = f"back-off {seconds:.0f} s restarting failed container {record.name}"
            record.waiting = ("CrashLoopBackOff", f"{text} (exit code {code})")
        else:
            record.waiting = ("", "")

    # The end.

    def _end(self, end: _End) -> Callable[[], None]:
        """Apps first, then sidecars, the last one first, all within one grace.

        Since Kubernetes 1.27 a deleted pod gets its final phase before its object goes.
        """
        ends = time.monotonic() + end.seconds
        then = end.then
        apps = [r for r in self._records if r.kind is not ContainerKind.SIDECAR]
        sidecars = [r for r in self._records if r.kind is ContainerKind.SIDECAR][::-1]
        for group in (apps, *([r] for r in sidecars)):
            sooner = self._stop(group, ends)
            if sooner is not None:
                ends, then = min(ends, time.monotonic() + sooner.seconds), sooner.then
        for record in self._records:
            record.waiting = ("", "")
            if record.id and not end.phase:  # a failed pod's logs stay until it is deleted
                self._outside.runtime.remove(record.id)
        if end.phase:
            self._phase, self._verdict = end.phase, (end.reason, end.message)
        elif self._phase not in ("Succeeded", "Failed"):
            ended_well = all(r.code == 0 for r in self._records if r.kind is ContainerKind.APP)
            self._phase = "Succeeded" if ended_well else "Failed"
        return then

    def _stop(self, records: Sequence[ContainerRecord], ends: float) -> _End | None:
        """SIGTERM, then SIGKILL at ``ends``; returns when none runs, with a shorter order that came."""
        sooner: _End | None = None
        waiting = {r.id: r for r in records if r.running}
        for container_id in waiting:
            self._outside.runtime.signal(container_id, signal.SIGTERM)
        killed = False
        while waiting:
            left = ends - time.monotonic()
            if left <= 0 and not killed:
                for container_id in waiting:
                    self._outside.runtime.signal(container_id, signal.SIGKILL)
                killed, left = True, KILL_SECONDS
            elif left <= -KILL_SECONDS:
                return sooner
            try:
                note = self._inbox.get(timeout=max(0.01, left if not killed else KILL_SECONDS))
            except queue.Empty:
                continue
            if isinstance(note, _Exit):
                self._exited(note)
                waiting.pop(note.id, None)
            else:
                sooner, ends = note, min(ends, time.monotonic() + note.seconds)
        return sooner

    def _publish(self) -> None:
        status = pod_status(
            self.pod,
            self._records,
            phase=self._phase,
            started=self._began,
            initialized=self._initialized,
        )
        if self._verdict[0]:
            status |= {"reason": self._verdict[0], "message": self._verdict[1]}
        if status != self._published:
            self._published = status if self._outside.publish(status) else None

"""The sizes that workloads request in their own metadata, and the pods to which they apply."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from admission.cluster.pod_view import PodView
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.resize.sizes import effective_request, workload_key
from gpu_manager.domain.untrusted import annotations_of, mapping, text

Obj = Mapping[str, Any]


class WorkloadSizes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, str] = {}  # by workload
        self._pods: dict[str, set[PodUid]] = {}

    def replace(self, kind: str, objects: Iterable[Obj], take: Callable[[Obj], None]) -> None:
        """The workloads of one kind: a full list, which ``take`` brings to :meth:`change` one by one."""
        listed: set[str] = set()
        for obj in objects:
            listed.add(_key(kind, obj))
            take(obj)
        with self._lock:
            gone = [key for key in self._asked if key.split("/")[1] == kind and key not in listed]
            for key in gone:
                del self._asked[key]

    def change(self, kind: str, obj: Obj, *, gone: bool) -> bool:
        """Apply one workload's object; its pods keep existing if it is ``gone``.

        True: it requests another size than before.
        """
        key, asked = _key(kind, obj), "" if gone else _asked(obj)
        with self._lock:
            before = self._asked.pop(key, "")
            if asked:
                self._asked[key] = asked
            return asked != before

    def take(self, pod: Pod) -> None:
        """Know a pod by its workload."""
        with self._lock:
            self._pods.setdefault(workload_key(pod.namespace, pod.workload), set()).add(pod.uid)

    def forget(self, pod: Pod) -> None:
        """The pod is gone."""
        key = workload_key(pod.namespace, pod.workload)
        with self._lock:
            known = self._pods.get(key, set())
            known.discard(pod.uid)
            if not known:
                self._pods.pop(key, None)

    def asked_of(self, pod: Pod) -> str:
        """The size that the pod's owner requests; empty for none."""
        with self._lock:
            return self._asked.get(workload_key(pod.namespace, pod.workload), "")

    def pods(self) -> set[PodUid]:
        """The pods of workloads that request a size."""
        with self._lock:
            return {uid for key in self._asked for uid in self._pods.get(key, ())}

    def asking(self, occupant: PodView) -> PodView:
        """The pod with the request that counts for it as its own."""
        pod = occupant.pod
        request = effective_request(pod, self.asked_of(pod))
        if request == pod.annotations.get(RESIZE):
            return occupant
        others = {key: value for key, value in pod.annotations.items() if key != RESIZE}
        annotations = others if request is None else {**others, RESIZE: request}
        return replace(occupant, pod=replace(pod, annotations=annotations))


def _key(kind: str, obj: Obj) -> str:
    meta = mapping(obj.get("metadata"))
    return workload_key(text(meta.get("namespace")), f"{kind}/{text(meta.get('name'))}")


def _asked(obj: Obj) -> str:
    return text(annotations_of(obj).get(RESIZE))

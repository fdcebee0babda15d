"""Pods for the tests: built, created, waited for, looked into."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import (
    ALLOCATION,
    CORE,
    MEMORY,
    Assignment,
    decode_assignment,
    encode_assignment,
)
from gpu_manager.domain.resources import Amount
from tests.cluster import layout
from tests.cluster.api import ApiError
from tests.cluster.cluster import Cluster
from tests.cluster.images import WORKLOAD

NAMESPACE: Final = "default"
PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
EXTENDER: Final = "system:serviceaccount:kube-system:gpu-quota-admission"
STUBBORN: Final = ("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done")  # until it is killed
AWAY: Final = (  # why a pod failed that the kubelet admitted while it had no agent to ask
    "UnexpectedAdmissionError: Pod was rejected: Allocate failed due to no healthy devices present",
    "UnexpectedAdmissionError: Pod was rejected: Allocate failed due to rpc error",
    "UnexpectedAdmissionError: Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc",
)
SLEEP: Final = ("/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait")


def container(
    name: str, cores: int = 0, units: int = 0, *, args: Sequence[str] = SLEEP, **more: Any
) -> dict[str, Any]:
    """A container that asks for a share; without one it asks for nothing."""
    limits = {resource: count for resource, count in ((CORE, cores), (MEMORY, units)) if count}
    return {
        "name": name,
        "image": WORKLOAD,
        "imagePullPolicy": "Never",
        "args": list(args),
        "resources": {"limits": {key: str(value) for key, value in limits.items()}},
        **more,
    }


def sidecar(name: str, cores: int = 0, units: int = 0) -> dict[str, Any]:
    """An init container that goes on running."""
    return container(name, cores, units, restartPolicy="Always")


def pod(
    name: str,
    *containers: Mapping[str, Any],
    init: Sequence[Mapping[str, Any]] = (),
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod of these containers; the modelled cards' state is shared between all of them."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "containers": list(containers),
            "initContainers": list(init),
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **spec,
        },
    }


class Pods:
    """Creates pods and takes them all away again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._made: list[str] = []

    def create(self, *manifests: Mapping[str, Any]) -> list[str]:
        """Create; returns the names."""
        names = []
        for manifest in manifests:
            self._post(manifest)
            names.append(str(manifest["metadata"]["name"]))
            self._made.append(names[-1])
        return names

    def try_create(self, manifest: Mapping[str, Any]) -> None:
        """Create at once or not at all. Raises ApiError."""
        self.cluster.api.post(PATH, manifest)
        self._made.append(str(manifest["metadata"]["name"]))

    def _post(self, manifest: Mapping[str, Any]) -> None:
        """As a controller does: again for a while, as the API server or admission comes back."""
        ends = time.monotonic() + 90
        while True:
            try:
                self.cluster.api.post(PATH, manifest)
            except ApiError as error:
                if error.code not in (0, 500, 503) or time.monotonic() > ends:
                    raise
                self.cluster.mend()
                time.sleep(0.5)
            else:
                return

    def bind(self, name: str, shares: Mapping[str, Sequence[tuple[str, int, int]]]) -> None:
        """Bind to the real node with the cards of each container (card, cores, bytes), as the extender does."""
        uid = self.get(name)["metadata"]["uid"]
        said = Assignment(
            layout.NODE,
            uid,
            {c: tuple((CardUuid(u), Amount(cores, size)) for u, cores, size in s) for c, s in shares.items()},
        )
        extender = replace(self.cluster.api, user=EXTENDER)  # nobody else may write these annotations
        extender.post(
            f"{PATH}/{name}/binding",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name, "uid": uid, "annotations": {ALLOCATION: encode_assignment(said)}},
                "target": {"kind": "Node", "name": layout.NODE},
            },
        )

    def get(self, name: str) -> dict[str, Any]:
        """Raises ApiError."""
        return dict(self.cluster.api.get(f"{PATH}/{name}"))

    def phase(self, name: str) -> str:
        """Running, Failed, …"""
        return str(self.get(name)["status"].get("phase", ""))

    def run(self, *manifests: Mapping[str, Any], seconds: float = 60) -> list[dict[str, Any]]:
        """Create, and wait until every one runs with all its containers ready."""
        return [self.wait_running(name, seconds) for name in self.create(*manifests)]

    def wait_running(self, name: str, seconds: float = 60) -> dict[str, Any]:
        """Raises TimeoutError with what the pod says of itself."""

        def ready() -> dict[str, Any] | None:
            found = self.get(name)
            phase = found["status"].get("phase")
            if phase == "Failed":
                raise AssertionError(
                    f"{name} failed: {found['status'].get('reason')}: {found['status'].get('message')}"
                )
            statuses = found["status"].get("containerStatuses", [])
            return found if phase == "Running" and statuses and all(s["ready"] for s in statuses) else None

        try:
            return dict(self.cluster.wait(ready, seconds, f"{name} does not run"))
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.get(name)['status']}; {self.events(name)}") from None

    def wait_phase(self, name: str, phase: str, seconds: float = 60) -> dict[str, Any]:
        """Wait for a phase; the pod."""
        self.cluster.wait(lambda: self.phase(name) == phase, seconds, f"{name} is not {phase}")
        return self.get(name)

    def events(self, name: str) -> list[str]:
        """What was said about a pod, or another object of that name."""
        found = self.cluster.api.get(
            f"/api/v1/namespaces/{NAMESPACE}/events", fieldSelector=f"involvedObject.name={name}"
        )
        return [f"{e['reason']}: {e.get('message', '')}" for e in found["items"]]

    def execute(self, name: str, *command: str, container: str = "") -> str:
        """Run a command in a container; its output. Raises RuntimeError if it fails."""
        which = ("-c", container) if container else ()
        return self.cluster.kubectl("exec", name, *which, "--", *command)

    def log(self, name: str, container: str = "") -> str:
        """A container's output."""
        query = {"container": container} if container else {}
        return str(self.cluster.api.get(f"{PATH}/{name}/log", text=True, **query))

    def delete(self, *names: str, grace: int | None = None) -> None:
        """Delete and wait until the API has forgotten them."""
        for name in names:
            self.cluster.api.delete(f"{PATH}/{name}", grace)
        for name in names:
            self.wait_gone(name)

    def wait_gone(self, name: str) -> None:
        """Until the API has forgotten it."""
        self.cluster.wait(lambda: self._gone(name), 60, f"{name} does not go")

    def clear(self) -> None:
        """Everything that was created."""
        self.delete(*self._made)
        self._made = []

    def _gone(self, name: str) -> bool:
        try:
            self.get(name)
        except ApiError as error:
            return error.code == 404
        return False


def assignment(found: Mapping[str, Any]) -> Assignment | None:
    """What the pod's annotation says of its cards."""
    return decode_assignment(found["metadata"].get("annotations", {}).get(ALLOCATION))


def cards_of(found: Mapping[str, Any], name: str) -> list[str]:
    """UUIDs of a container's cards, by the annotation."""
    said = assignment(found)
    return [uuid for uuid, _ in said.containers.get(name, ())] if said is not None else []


def run_client(pods: Pods, name: str, *arguments: str, container: str = "") -> str:
    """The stand-in driver's client in a container: what it says, whether it succeeds or not."""
    command = [
        "kubectl",
        "exec",
        name,
        *(("-c", container) if container else ()),
        "--",
        "vcuda-client",
        *arguments,
    ]
    done = subprocess.run(
        [pods.cluster.parts["kubectl"], f"--kubeconfig={pods.cluster.kubeconfig}", *command[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def why_failed(status: Mapping[str, Any]) -> str:
    """Of a failed pod's status: why the kubelet would not admit it, or else why a container ended."""
    containers = (one["state"].get("terminated", {}) for one in status.get("containerStatuses", []))
    said = next((one for one in (status, *containers) if "reason" in one), status)
    return f"{said.get('reason')}: {said.get('message')}"

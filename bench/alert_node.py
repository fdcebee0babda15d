"""A node whose cards, driver, agent and tenants go wrong on request, for :mod:`bench.alerts`.

``python -m bench.alert_node ARGUMENTS`` is its agent, which sees another /proc than the machine's.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.world import NODE, World
from gpu_manager.adapters.simulated_control import write_control
from gpu_manager.domain.contract import GPU_MODEL
from gpu_manager.domain.dra.sides import ClaimCards, Front
from sandbox.kubelet import AdmissionResult
from tests.fakes.pages import put, register

_INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"  # in which all processes of a node are seen
Metadata = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fault:
    """What makes alerts fire, and what makes them resolve. ``again`` is repeated until they fire."""

    alerts: tuple[str, ...]
    provoke: Callable[[], object]
    cure: Callable[[], object]
    again: Callable[[], object] = lambda: None


class ProcWorld(World):
    """A world whose agent sees processes that the test describes in place of the machine's."""

    front, claim_cards = "plugin", 0  # of the agent that starts next

    @property
    def proc(self) -> Path:
        """The agent's /proc."""
        return self.root / "proc"

    def command(self, arguments: Mapping[str, str]) -> list[str]:
        """This module's own command, which starts the agent with another /proc."""
        (self.proc / "self/ns").mkdir(parents=True, exist_ok=True)
        if not (self.proc / "self/ns/pid").is_symlink():
            (self.proc / "self/ns/pid").symlink_to(_INITIAL_PID_NAMESPACE)
        more = {"--proc": str(self.proc), "--front": self.front, "--claim-cards": str(self.claim_cards)}
        return [sys.executable, "-m", "bench.alert_node", json.dumps({**arguments, **more})]


class FaultyNode:
    """A node whose cards, driver, agent and tenants go wrong on request."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        directory.mkdir()
        self._control = directory / "cards.yaml"
        self.world = stack.enter_context(ProcWorld(control=self._control, pages=directory / "pages"))
        stack.callback(self.world.kill)  # it would wait for the pods that it was never asked about
        self._cards: dict[str, dict[str, Any]] = {}
        self._names = itertools.count()

    def order(self, index: int, **order: Any) -> None:
        """Change a simulated card. What its driver has reported so far is never taken back."""
        xids = {**self._cards.get(str(index), {}).get("xids", {}), **order.get("xids", {})}
        self._cards[str(index)] = {**order, "xids": xids}
        self.driver()

    def driver(self, error: str = "", *, hangs: bool = False) -> None:
        """Take the driver away, have it hang, or bring it back."""
        write_control(self._control, self._cards, error, hangs=hangs)

    def run(
        self,
        name: str,
        annotations: Metadata = {},  # noqa: B006 - read only
        *,
        controlled: bool = False,
    ) -> tuple[AdmissionResult, Path]:
        """A pod that reaches the node past the scheduler; its admission, and its usage page if it got one."""
        made = self.world.create([("c", 10, 4)], name=name)
        owners = [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": name, "controller": True}
        ]
        changed = {"annotations": dict(annotations), **({"ownerReferences": owners} if controlled else {})}
        self.world.api.patch("pods", name, {"metadata": changed})
        result = self.world.kubelet.admit(self.world.bind(made, None))
        if not result.admitted:
            return result, Path()
        self.world.kubelet.start_container(result.uid, "c")
        mounts = {m.container_path: m.host_path for m in result.containers["c"].mounts}
        return result, Path(mounts["/etc/vcuda/usage"])

    def fill_memory(self) -> Callable[[], object]:
        """A tenant uses all that it may; what is returned ends its process."""
        _, page = self.run("full")
        handle = register(page, 0, charged=4 * self.world.unit)
        return lambda: os.close(handle)

    def start_bare(self) -> Callable[[], object]:
        """A container starts with nothing mounted; what is returned deletes its pod."""
        result, _ = self.run("bare")
        status = self.world.kubelet.pod(result.uid)["status"]
        self.world.api.patch("pods", "bare", {"status": status}, subresource="status")
        container_id = status["containerStatuses"][0]["containerID"].rpartition("://")[2]
        process = self.world.proc / "4242"
        process.mkdir()
        (process / "mountinfo").write_text("800 700 0:800 / / rw - overlay overlay rw\n")
        (process / "cgroup").write_text(f"0::/kubepods/pod{result.uid}/{container_id}\n")
        return lambda: self._delete("bare", result.uid)

    def _delete(self, name: str, uid: str) -> None:
        self.world.api.delete("pods", name, grace=0)
        self.world.kubelet.delete(uid)

    def start_outside(self) -> Callable[[], object]:
        """A process of the node itself takes a card's memory; what is returned ends it."""
        process = self.world.proc / "5151"
        process.mkdir()
        (process / "cgroup").write_text("0::/user.slice/user-0.slice/session-1.scope\n")
        self.order(4, load=[{"pid": 5151, "memory": "13Gi", "utilisation": 60}])
        return lambda: self.order(4)

    def scribble(self) -> Callable[[], object]:
        """A tenant writes over its page's head, and nobody evicts its pod; what is returned deletes it."""
        result, page = self.run("scribbler", controlled=True)
        put(page, 0, b"\xff" * 8)
        return lambda: self._delete("scribbler", result.uid)

    def leak(self) -> Callable[[], object]:
        """The kubelet admits a pod bound nowhere, named as a static one; what is returned binds it."""
        name = f"unseen-{NODE}"
        made = self.world.create([("c", 10, 4)], name=name)
        made["spec"]["nodeName"] = NODE
        self.world.kubelet.admit(made)

        def bind() -> None:
            self.world.api.bind(name, NODE)
            self.world.kubelet.start_container(made["metadata"]["uid"], "c")

        return bind

    def refuse(self) -> None:
        """A pod for a model that this node has not."""
        result, _ = self.run(f"elsewhere-{next(self._names)}", {GPU_MODEL: "H100"})
        if result.admitted:
            raise RuntimeError("a pod for an H100 was admitted on a node of A100s")

    def remove_pods(self) -> None:
        """Nobody is there any more."""
        for found in self.world.api.list("pods"):
            self.world.api.delete("pods", found["metadata"]["name"], grace=0)

    def restart_alone(self) -> None:
        """The agent starts anew and finds neither driver nor kubelet."""
        self.driver("the NVIDIA kernel driver is not loaded")
        self.world.kubelet.stop()
        self.world.start_agent(wait=False)

    def join(self) -> None:
        """Driver and kubelet are back."""
        self.driver()
        self.world.kubelet.start()


def _agent(given: Mapping[str, str]) -> None:
    """The agent with these arguments of ``gpu-manager run``, and ``--proc``."""
    from gpu_manager.agent.composition import main  # noqa: PLC0415  # the agent's process alone needs it
    from gpu_manager.agent.config import Config  # noqa: PLC0415  # as above
    from gpu_manager.cli.run import configure_log  # noqa: PLC0415  # as above

    configure_log(given["--log-level"])
    kubelet, front = Path(given["--kubelet-dir"]), Front(given["--front"])
    main(
        Config(
            node=given["--node-name"],
            api_url=given["--api-url"],
            device_plugins=kubelet / "device-plugins",
            pod_resources=kubelet / "pod-resources",
            state=Path(given["--state-dir"]),
            pages=Path(given["--pages-dir"]),
            http_address=given["--http-address"],
            http_port=int(given["--http-port"]),
            cards=given["--cards"],
            control=Path(given["--control"]),
            injection=given["--device-injection"] if front is Front.PLUGIN else "cdi",
            reclaim_seconds=float(given["--reclaim-seconds"]),
            proc=Path(given["--proc"]),
            cdi=Path(given["--kubelet-dir"]).parent / "cdi",
            front=front,
            claim_cards=ClaimCards(int(given["--claim-cards"])),
            evict_evaders=True,
            mark_evictions=True,
        )
    )


if __name__ == "__main__":
    _agent(json.loads(sys.argv[1]))

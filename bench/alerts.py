"""Each alert of the chart, provoked on a real Prometheus: a fault makes it fire, the cure makes it resolve.

Two agents and admission run as processes beside stand-ins of API server, kubelet and cards. The rules are the
chart's own; every time in them, ``for`` and windows, is divided by one factor. Thresholds stay as they are.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from bench.rows import Row
from bench.world import NODE, World
from gpu_manager.adapters.simulated_control import write_control
from gpu_manager.domain.contract import GPU_MODEL, NAMESPACE, QUOTA_KEY, QUOTA_MAP
from sandbox.kubelet import AdmissionResult
from sandbox.runtime import free_port
from tests.fakes.admission import Process, blind
from tests.fakes.certificates import self_signed
from tests.fakes.pages import put, register
from tests.fakes.prometheus import Prometheus
from tests.fakes.reviews import container, pod, review
from tests.fakes.waiting import until

RULES: Final = Path(__file__).resolve().parents[1] / "deploy/helm/gpu-manager/files/rules.yaml"
FACTOR: Final = 120  # a minute is half a second
INTERVAL: Final = "500ms"
MOST_SECONDS: Final = 60.0  # for one alert to fire, and for it to resolve
_LOOK_SECONDS: Final = 0.25
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"  # in which all processes of a node are seen
_LEASE: Final = "gpu-quota-admission"
Metadata = Mapping[str, str]


def shortened(text: str) -> str:
    """The alerts of a rules file, every ``for`` and window divided by :data:`FACTOR`."""
    groups = yaml.safe_load(text)["groups"]
    for group in groups:
        group["rules"] = [rule for rule in group["rules"] if "alert" in rule]
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[(\w+)\]", lambda found: f"[{_short(found[1])}]", rule["expr"])
            if "for" in rule:
                rule["for"] = _short(rule["for"])
    return yaml.safe_dump({"groups": [group for group in groups if group["rules"]]})


def _short(duration: str) -> str:
    parts = re.findall(r"(\d+)([smhd])", duration)
    if "".join(n + unit for n, unit in parts) != duration:
        raise ValueError(f"{duration!r} is no duration that can be shortened")
    return f"{sum(int(n) * _UNITS[unit] for n, unit in parts) * 1000 // FACTOR}ms"


@dataclass(frozen=True, slots=True)
class Fault:
    """What makes alerts fire, and what makes them resolve. ``again`` is repeated until they fire."""

    alerts: tuple[str, ...]
    provoke: Callable[[], object]
    cure: Callable[[], object]
    again: Callable[[], object] = lambda: None


class _ProcWorld(World):
    """A world whose agent sees processes that the test describes in place of the machine's."""

    @property
    def proc(self) -> Path:
        """The agent's /proc."""
        return self.root / "proc"

    def command(self, arguments: Mapping[str, str]) -> list[str]:
        """This module's own command, which starts the agent with another /proc."""
        (self.proc / "self/ns").mkdir(parents=True, exist_ok=True)
        if not (self.proc / "self/ns/pid").is_symlink():
            (self.proc / "self/ns/pid").symlink_to(_INITIAL_PID_NAMESPACE)
        return [sys.executable, "-m", "bench.alerts", json.dumps({**arguments, "--proc": str(self.proc)})]


class FaultyNode:
    """A node whose cards, driver, agent and tenants go wrong on request."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        directory.mkdir()
        self._control = directory / "cards.yaml"
        self.world = stack.enter_context(_ProcWorld(control=self._control, pages=directory / "pages"))
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

    def run(self, name: str, annotations: Metadata = {}) -> tuple[AdmissionResult, Path]:  # noqa: B006 - read only
        """A pod that reaches the node past the scheduler; its admission, and its usage page if it got one."""
        made = self.world.create([("c", 10, 4)], name=name)
        if annotations:
            self.world.api.patch("pods", name, {"metadata": {"annotations": dict(annotations)}})
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

    def scribble(self) -> Callable[[], object]:
        """A tenant writes over its page's head; what is returned deletes its pod."""
        result, page = self.run("scribbler")
        put(page, 0, b"\xff" * 8)
        return lambda: self._delete("scribbler", result.uid)

    def leak(self) -> Callable[[], object]:
        """The kubelet admits a pod that is bound nowhere; what is returned binds and starts it."""
        made = self.world.create([("c", 10, 4)], name="unseen")
        made["spec"]["nodeName"] = NODE
        self.world.kubelet.admit(made)

        def bind() -> None:
            self.world.api.bind("unseen", NODE)
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


class FaultyAdmission:
    """The admission service, its quota, certificate, Lease and callers."""

    def __init__(self, directory: Path, world: World, stack: ExitStack) -> None:
        self._directory, self._world = directory, world
        self._process: Process | None = None
        self.port, self._extender_port = (free_port(0) or 0 for _ in range(2))
        stack.callback(self._stop)
        quota = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": QUOTA_MAP}}
        world.api.create({**quota, "data": {QUOTA_KEY: "{}"}}, NAMESPACE)

    def start(self) -> None:
        """The service, which takes a Lease of its own."""
        certificate, key = self_signed(self._directory, hours=24 * 365)
        self._process = Process(
            f"--api-url={self._world.api.url}",
            "--leader-mode=lease",
            "--pod-name=admission-0",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--webhook-port={self.port}",
            f"--extender-address=127.0.0.1:{self._extender_port}",
        )

    def _stop(self) -> None:
        if self._process is not None:
            self._process.close()

    def take_lease(self) -> None:
        """Another replica has the Lease, and does not let go."""
        lease = {"holderIdentity": "admission-1_x", "leaseDurationSeconds": 3600}
        self._world.api.patch("leases", _LEASE, {"spec": lease}, NAMESPACE)

    def free_lease(self) -> None:
        """The other replica has gone, and gave it back."""
        self._world.api.patch("leases", _LEASE, {"spec": {"holderIdentity": ""}}, NAMESPACE)

    def certify(self, days: int) -> None:
        """A certificate that is good for so many days takes the place of the other."""
        self_signed(self._directory, hours=24 * days)

    def put_quota(self, text: str) -> None:
        """What the quota's ConfigMap holds."""
        self._world.api.patch("configmaps", QUOTA_MAP, {"data": {QUOTA_KEY: text}}, NAMESPACE)

    def deny(self) -> None:
        """One illegal pod, tried again and again."""
        body = json.dumps(review(pod(container("train", "150")))).encode()
        for _ in range(10):
            url = f"https://127.0.0.1:{self.port}/validate"
            asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            urllib.request.urlopen(asked, timeout=10, context=blind()).close()

    def fail_questions(self) -> None:
        """The API server names nobody who asks for an explanation."""
        self._world.api.faults.fail(1 << 30, 500, match="tokenreviews")

    def ask(self) -> None:
        """Ask for one, as somebody new."""
        if self._process is None:
            raise RuntimeError("admission does not run")
        self._process.get("/explain/default/p", f"token-{time.monotonic_ns()}")


class Told:
    """Which alerts fired after their fault, and were gone after its cure."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._firing: set[str] = set()
        self.resolved: dict[str, float] = {}
        """Alert → seconds from the cure until it, and those that share its cure, had resolved."""

    def run(self, tracks: Sequence[Sequence[Fault]]) -> None:
        """Every track's faults one after another, the tracks side by side. Raises RuntimeError with those
        that did not fire, or did not resolve, within a minute.
        """
        going = [self._follow(track) for track in tracks]
        while going:
            alerts = self._prometheus.get("alerts")["alerts"]
            self._firing = {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}
            going = [track for track in going if next(track, False)]
            time.sleep(_LOOK_SECONDS)

    def _follow(self, faults: Sequence[Fault]) -> Iterator[bool]:
        for fault in faults:
            names, since = set(fault.alerts), time.monotonic()
            waits = set(names)  # some fire for the length of a window alone
            fault.provoke()
            while waits := waits - self._firing:
                fault.again()
                yield _in_time(since, f"{', '.join(sorted(waits))} did not fire")
            since = time.monotonic()
            fault.cure()
            while left := names & self._firing:
                yield _in_time(since, f"{', '.join(sorted(left))} did not resolve")
            self.resolved |= dict.fromkeys(names, time.monotonic() - since)


def _in_time(since: float, otherwise: str) -> bool:
    if time.monotonic() - since > MOST_SECONDS:
        raise RuntimeError(f"{otherwise} within {MOST_SECONDS:g} s")
    return True


def provoke(directory: Path) -> Told:
    """Provoke every alert. Raises RuntimeError for one that does not fire, or does not resolve."""
    with ExitStack() as stack:
        node, other = (FaultyNode(directory / name, stack) for name in ("node", "other"))
        admission = FaultyAdmission(directory, node.world, stack)
        agents = {"job_name": "gpu-manager", "metrics_path": "/metric", "honor_labels": True}
        ports = {"node": node.world.port, "other": other.world.port}
        jobs = [
            {**agents, "static_configs": [_target(port, name) for name, port in ports.items()]},
            {
                "job_name": "gpu-quota-admission",
                "scheme": "https",
                "tls_config": {"insecure_skip_verify": True},
                "static_configs": [_target(admission.port, "")],
            },
        ]
        rules = shortened(RULES.read_text(encoding="utf-8"))
        prometheus = stack.enter_context(Prometheus(directory / "prometheus", jobs, rules, INTERVAL))
        until(lambda: len(prometheus.query("count_over_time(vcuda_registrations_total[10s]) > 1")) == 4)
        told = Told(prometheus)
        told.run((_cards(node), _tenants(node), _driver(other), _admission(admission)))
        return told


def _target(port: int, node: str) -> dict[str, Any]:
    return {"targets": [f"127.0.0.1:{port}"], "labels": {"node": node} if node else {}}


def _cards(node: FaultyNode) -> list[Fault]:
    reported = itertools.count(1)

    def fail() -> None:
        times = next(reported)
        node.order(7, healthy=False, reason="XID 79: fallen off the bus", xids={79: times})
        node.order(6, removed=True)
        node.order(5, xids={31: 12 * times})

    def mend() -> None:
        node.order(7)
        node.order(6)

    alerts = ("VcudaCardUnhealthy", "VcudaCardMissing", "VcudaCardXid", "VcudaProgramXids")
    return [Fault(alerts, fail, mend, again=fail)]


def _tenants(node: FaultyNode) -> list[Fault]:
    cures: list[Callable[[], object]] = []

    def cure() -> None:
        for one in cures:
            one()

    def provoke_all() -> None:
        cures.extend((node.fill_memory(), node.scribble(), node.leak(), node.start_bare()))

    alerts = (
        "VcudaMemoryNearLimit",
        "VcudaEvader",
        "VcudaIdsLeaked",
        "VcudaAllocationFailures",
        "VcudaContainerNotInjected",
    )
    return [
        Fault(alerts, provoke_all, cure, again=node.refuse),
        Fault(("VcudaPodsBypassing",), lambda: None, node.remove_pods),  # none of those was placed
    ]


def _driver(node: FaultyNode) -> list[Fault]:
    return [
        Fault(("VcudaAgentDown",), node.world.kill, node.restart_alone),
        Fault(("VcudaPluginNotRegistered", "VcudaEvasionDetectionBlind"), lambda: None, node.join),
        Fault(("VcudaSamplesStale",), lambda: node.driver(hangs=True), node.driver),
    ]


def _admission(admission: FaultyAdmission) -> list[Fault]:
    def fail() -> None:
        admission.take_lease()
        admission.certify(days=3)
        admission.put_quota("no JSON")
        admission.fail_questions()

    def again() -> None:
        admission.ask()
        admission.deny()

    def mend() -> None:
        admission.free_lease()
        admission.certify(days=365)
        admission.put_quota("{}")

    alerts = (
        "VcudaNoLeader",
        "VcudaCertificateExpiring",
        "VcudaQuotaUnreadable",
        "VcudaAdmissionErrors",
        "VcudaDenialsSpike",
    )
    return [
        Fault(("VcudaAdmissionDown",), lambda: None, admission.start),
        Fault(alerts, fail, mend, again),
    ]


def rows(*, full: bool) -> Iterator[Row]:  # noqa: ARG001 - as every group has it
    """The row; ``full`` makes no difference."""
    name, unit = "alerts_provoked", "alerts"
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        yield Row(name, None, unit, "all", note="Prometheus is not installed (Debian's package prometheus)")
        return
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    there = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    with tempfile.TemporaryDirectory(prefix="gma") as directory:
        told = provoke(Path(directory))
    slowest = max(told.resolved, key=lambda alert: told.resolved[alert])
    yield Row(
        name,
        len(there & told.resolved.keys()),
        unit,
        f"≥ {len(there)}",
        note=f"of {len(there)}, each fired after its fault and resolved after the cure; times in the rules "
        f"are divided by {FACTOR}; the slowest to resolve, {slowest}, in {told.resolved[slowest]:.0f} s",
    )


def _agent(given: Mapping[str, str]) -> None:
    """The agent with these arguments of ``gpu-manager run``, and ``--proc``."""
    from gpu_manager.agent import main  # noqa: PLC0415  # the agent's process alone needs it
    from gpu_manager.cli.run import configure_log  # noqa: PLC0415  # as above
    from gpu_manager.config import Config  # noqa: PLC0415  # as above

    configure_log(given["--log-level"])
    kubelet = Path(given["--kubelet-dir"])
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
            injection=given["--device-injection"],
            reclaim_seconds=float(given["--reclaim-seconds"]),
            proc=Path(given["--proc"]),
        )
    )


if __name__ == "__main__":
    _agent(json.loads(sys.argv[1]))

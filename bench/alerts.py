"""Each alert of the chart, provoked on a real Prometheus: a fault makes it fire, the cure makes it resolve.

Three agents and admission run as processes beside stand-ins of API server, kubelet and cards. The rules are
the chart's own; every time in them, ``for`` and windows, is divided by one factor. Thresholds stay as they
are.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import yaml

from bench.alert_claims import SplitNode
from bench.alert_node import Fault, FaultyNode
from bench.rows import Row
from bench.world import World
from gpu_manager.domain.contract import NAMESPACE, QUOTA_KEY, QUOTA_MAP
from sandbox.runtime import free_port
from tests.fakes.admission import Process, blind
from tests.fakes.certificates import self_signed
from tests.fakes.prometheus import Prometheus
from tests.fakes.reviews import container, pod, review
from tests.fakes.waiting import until

RULES: Final = Path(__file__).resolve().parents[1] / "deploy/helm/gpu-manager/files/rules.yaml"
FACTOR: Final = 120  # a minute is half a second
INTERVAL: Final = "500ms"
MOST_SECONDS: Final = 240.0  # for one alert to fire, and for it to resolve: beside load some took a minute
_LOOK_SECONDS: Final = 0.25
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LEASE: Final = "gpu-quota-admission"


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
        that did not fire, or did not resolve, in time.
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
        split = SplitNode(directory / "split", stack)
        admission = FaultyAdmission(directory, node.world, stack)
        agents = {"job_name": "gpu-manager", "metrics_path": "/metric", "honor_labels": True}
        ports = {"node": node.world.port, "other": other.world.port, "split": split.world.port}
        jobs: list[dict[str, Any]] = [
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
        until(lambda: len(prometheus.query("count_over_time(vcuda_registrations_total[10s]) > 1")) == 7)
        told = Told(prometheus)
        told.run((_cards(node), _tenants(node), _driver(other), _admission(admission), split.faults()))
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
        cures.append(node.start_outside())

    alerts = (
        "VcudaMemoryNearLimit",
        "VcudaEvader",
        "VcudaEvictionWaits",
        "VcudaIdsLeaked",
        "VcudaAllocationFailures",
        "VcudaContainerNotInjected",
        "VcudaMemoryOutside",
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

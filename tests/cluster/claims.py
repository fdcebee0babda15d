"""ResourceClaims for the tests, and what four books say of each container that uses one: the scheduler's allocation,
the agent's ledger, the environment and the limits page of the container's own process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.resources import DEFAULT_UNIT
from tests.agreement.claim_cases import asks, exactly
from tests.cluster import auditor, layout
from tests.cluster.auditor import Held
from tests.cluster.cluster import Cluster
from tests.cluster.decoding import Shares
from tests.cluster.pods import NAMESPACE, Pods, container, pod

API: Final = "/apis/resource.k8s.io/v1"
CLAIMS: Final = f"{API}/namespaces/{NAMESPACE}/resourceclaims"
TEMPLATES: Final = f"{API}/namespaces/{NAMESPACE}/resourceclaimtemplates"
BY_CLAIM: Final = {"agent.front": "dra"}  # values of the chart
REQUEST: Final = "gpu"  # of every claim here
NOTHING: Final = {"cores": "0", "memory": "0"}  # is what admin access holds of a card
WHOLE: Final = "tencent.com/vcuda-card"  # in limits: whole cards without a claim of one's own


def part(cores: int, units: int, **fields: Any) -> dict[str, Any]:
    """A claim's spec for so much of a card; ``count`` for the same of several cards."""
    return exactly(asks(cores, f"{units * 256}Mi", **fields))


def whole(**fields: Any) -> dict[str, Any]:
    """A claim's spec for whole cards."""
    return exactly(asks(**fields))


def claiming(name: str, source: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """A pod whose container uses one claim: ``{"resourceClaimName": …}`` or ``{"resourceClaimTemplateName": …}``."""
    user = container("c")
    user["resources"]["claims"] = [{"name": "share"}]
    return pod(name, user, resourceClaims=[{"name": "share", **source}], **more)


class Claims:
    """Creates pods with claims and templates, and takes all of them away again."""

    def __init__(self, cluster: Cluster) -> None:
        self.pods = Pods(cluster)
        self._cluster = cluster
        self._made: list[str] = []  # paths

    def claim(self, name: str, spec: Mapping[str, Any]) -> str:
        """A claim of this name. Raises ApiError: it is refused."""
        return self._create(CLAIMS, "ResourceClaim", name, spec)

    def template(self, name: str, spec: Mapping[str, Any]) -> str:
        """A template of this name. Raises ApiError: it is refused."""
        return self._create(TEMPLATES, "ResourceClaimTemplate", name, {"spec": spec})

    def _create(self, path: str, kind: str, name: str, spec: Mapping[str, Any]) -> str:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self._cluster.api.post(path, body)
        self._made.append(f"{path}/{name}")
        return name

    def by_template(self, name: str, spec: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """A pod with a template of its own, which is created; the pod is not."""
        self.template(f"of-{name}", spec)
        return claiming(name, {"resourceClaimTemplateName": f"of-{name}"}, **more)

    def by_claim(self, name: str, claim: str, **more: Any) -> dict[str, Any]:
        """A pod that uses the claim of this name."""
        return claiming(name, {"resourceClaimName": claim}, **more)

    def clear(self) -> None:
        """Everything, until neither API server nor agent has any of it."""
        self.pods.clear()
        for path in self._made:
            self._cluster.api.delete(path)
        self._made = []
        self._cluster.wait(
            lambda: not self._cluster.api.get(CLAIMS)["items"] and not booked(self._cluster),
            90,
            "claims, or what they hold, stay",
        )


@dataclass(frozen=True, slots=True)
class Using:
    """A running container of the node, and what the scheduler allocated to the claims that it names."""

    held: Held
    shares: Shares

    def __str__(self) -> str:
        return str(self.held)

    def process(self) -> int:
        """Its first process. Raises ProcessLookupError."""
        return auditor.process_of(self.held)


def allocated(cluster: Cluster) -> Mapping[str, Mapping[str, Shares]]:
    """Claim → request → shares of our cards, by the API server."""
    cards = {f"gpu-{card.uuid.removeprefix('GPU-')[:8].lower()}": str(card.uuid) for card in cluster.cards}
    found: dict[str, dict[str, Shares]] = {}
    for claim in cluster.api.get(CLAIMS)["items"]:
        devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
        requests: defaultdict[str, set[tuple[str, int, int]]] = defaultdict(set)
        for result in devices.get("results", ()):
            if result["driver"] == DRA_DRIVER:
                taken = result["consumedCapacity"] if not result.get("adminAccess") else NOTHING
                share = (cards[result["device"]], int(taken["cores"]), _bytes(taken["memory"]))
                requests[result["request"].partition("/")[0]].add(share)
        if requests:
            found[claim["metadata"]["name"]] = {name: frozenset(shares) for name, shares in requests.items()}
    return found


def _bytes(text: str) -> int:
    for suffix, factor in (("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("Ti", 1 << 40)):
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * factor
    return int(text)


def booked(cluster: Cluster) -> Mapping[str, Shares]:
    """``claim/request`` → shares, by the agent's ledger on disk."""
    rows = (row for row in auditor.Books.of(cluster).rows if "claim" in row)
    return {row["container"]: frozenset((u, c, m) for u, c, m in row["shares"]) for row in rows}


def containers(cluster: Cluster) -> Iterator[Using]:
    """Containers that run on the real node and use a claim of ours."""
    by_claim = allocated(cluster)
    for found in cluster.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={layout.NODE}")["items"]:
        meta, status = found["metadata"], found["status"]
        if status.get("phase") != "Running" or "deletionTimestamp" in meta:
            continue
        running = {
            one["name"]: one["containerID"].rpartition("/")[2]
            for one in status.get("containerStatuses", ())
            if "running" in one["state"]
        }
        for spec in found["spec"]["containers"]:
            named = list(_named(found, spec))
            shares = {s for claim, only in named for s in _of(by_claim.get(claim, {}), only)}
            if shares and spec["name"] in running:
                number = running[spec["name"]]
                held = Held(meta["name"], meta["uid"], spec["name"], 0, 0, number, None)
                yield Using(held, frozenset(shares))


def _named(found: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each claim that a container names, with its request; empty for all of them."""
    status = found["status"]
    made = {one["name"]: one.get("resourceClaimName", "") for one in status.get("resourceClaimStatuses", ())}
    given = {one["name"]: one.get("resourceClaimName", "") for one in found["spec"].get("resourceClaims", ())}
    for one in spec.get("resources", {}).get("claims", ()):
        yield given.get(one["name"]) or made.get(one["name"], ""), one.get("request", "")
    extended = status.get("extendedResourceClaimStatus", {})
    for one in extended.get("requestMappings", ()):
        if one["containerName"] == spec["name"]:
            yield extended["resourceClaimName"], one["requestName"]


def _of(requests: Mapping[str, Shares], only: str) -> Shares:
    return frozenset(s for name, shares in requests.items() if only in ("", name) for s in shares)


def compare(one: Using, cluster: Cluster) -> Iterator[str]:
    """What a container finds otherwise than it was allocated. Raises ProcessLookupError: it has ended."""
    pid = one.process()
    shown = auditor.cards_shown(pid)
    if shown != {uuid for uuid, _, _ in one.shares}:
        yield f"{one}: its environment names {sorted(shown)}, the claim {sorted(one.shares)}"
    page = auditor.page_of(pid)
    parts = frozenset(share for share in one.shares if share[1] < 100)
    if (page or frozenset()) != parts:
        yield f"{one}: limits in force {page}, allocated {sorted(one.shares)}"


def audit(cluster: Cluster) -> list[str]:
    """Every disagreement, in words; ask when nothing is under way."""
    found: list[str] = []
    for one in containers(cluster):
        try:
            found += compare(one, cluster)
        except (ProcessLookupError, FileNotFoundError):
            found.append(f"{one}: said to run, and has no process")
    wanted = {f"{claim}/{name}": s for claim, of in allocated(cluster).items() for name, s in of.items()}
    books = booked(cluster)
    found += [
        f"{name}: the ledger has {s}, allocated {wanted.get(name)}"
        for name, s in books.items()
        if wanted.get(name) != s
    ]
    found += auditor.overcommitted(cluster, auditor.Books.of(cluster))
    return found


def settled(cluster: Cluster, seconds: float = 30) -> None:
    """Wait until the books agree; raises AssertionError with what they disagree about."""
    last: list[str] = []

    def agree() -> bool:
        last[:] = audit(cluster)
        return not last

    try:
        cluster.wait(agree, seconds, "the books do not agree")
    except TimeoutError:
        raise AssertionError("\n".join(last)) from None


def together(cluster: Cluster) -> list[str]:
    """Cards of which more is in force than they have, by the processes alone. Containers with one page share it."""
    pages: dict[object, auditor.Running] = {}
    for one in auditor.running(cluster):
        pages.setdefault(auditor.page_file(one.process) or one.container_id, one)
    found = []
    for card in cluster.cards:
        shares = [s for one in pages.values() if one.alive() for s in one.shares if s[0] == card.uuid]
        cores, size = sum(s[1] for s in shares), sum(s[2] for s in shares)
        if cores > 100 or size > card.memory - card.reserved:
            found.append(f"card {card.index}: {cores} cores and {size} bytes are in force")
    return found


def size(cores: int, units: int) -> tuple[int, int]:
    """As a page has it: cores and bytes."""
    return cores, units * DEFAULT_UNIT


def shares_in_force(cluster: Cluster, name: str) -> Sequence[tuple[str, int, int]]:
    """What the process of a pod's only container finds in its page, sorted."""
    [one] = [u for u in containers(cluster) if u.held.pod == name]
    return sorted(auditor.page_of(one.process()) or ())

"""Pods with claims that come and go while the product is upgraded and set back: what is wrong then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.cluster import claims, product
from tests.cluster.churn import Churn
from tests.cluster.claims import Claims, part
from tests.cluster.cluster import Cluster
from tests.cluster.watcher import Watcher

SHAPES: Final = ((10, 4), (20, 10), (30, 30))  # cores, units
KEPT: Final = 3
_RUNS_SECONDS: Final = 60.0


class ClaimChurn(Churn):
    """As its base; each pod has a claim by one of the templates ``churn-0`` and so on."""

    def manifest(self, name: str) -> dict[str, Any]:
        """Make the next pod, of a random shape."""
        template = f"churn-{self.dice.randrange(len(SHAPES))}"
        return claims.claiming(name, {"resourceClaimTemplateName": template})


def upgrade_and_back(
    cluster: Cluster, made: Claims, here: Mapping[str, str], other: Mapping[str, Any]
) -> list[str]:
    """Install ``other`` in place of ``here``, and ``here`` again, while pods come and go; returns what was wrong.

    Both are arguments of :func:`tests.cluster.product.install`.
    """
    for at, shape in enumerate(SHAPES):
        made.template(f"churn-{at}", part(*shape))
    wanted = [
        claims.claiming(f"kept-{at}", {"resourceClaimTemplateName": f"churn-{at}"}) for at in range(KEPT)
    ]
    made.pods.run(*wanted, seconds=90)
    claims.settled(cluster)
    before, ran = claims.booked(cluster), _kept(cluster)
    with Watcher(cluster) as watcher, ClaimChurn(cluster, made.pods) as churn:
        for installed in (other, here):
            churn.more(4, 90)
            product.install(cluster, admission=True, **installed)
            churn.more(4, 90)
    wrong = [*watcher.looks.found, *churn.failed]
    for name in churn.alive:
        try:
            made.pods.wait_running(name, _RUNS_SECONDS)
        except (TimeoutError, AssertionError) as error:
            wrong.append(str(error)[:500])
    claims.settled(cluster)
    if not watcher.looks.processes:
        wrong.append("the watcher saw no process")
    if _kept(cluster) != ran:
        wrong.append("what ran was started anew, or ended")
    after = claims.booked(cluster)
    wrong += [
        f"{name} held {share}, and holds {after.get(name)}"
        for name, share in before.items()
        if after.get(name) != share
    ]
    return wrong


def _kept(cluster: Cluster) -> set[str]:
    return {one.held.container_id for one in claims.containers(cluster) if one.held.pod.startswith("kept-")}

"""The cluster by hand.

``python -m tests.cluster build|up|down|status|soak [MINUTES]|starts|claim-starts|claim-waves [EACH [WAVE]]|rollouts [COUNT [BACKLOG]]|agent-kills [COUNT [terms|kills|wholes|jobs]]|other-cards [STARTS]|lost-checkpoint [TIMES]|joins [TIMES]|double-offers [COUNT]|cdi-off [PODS]|numa [STARTS]|resizes|controllers|release DIRECTORY [COMMIT]|foreign ARCHIVE|record``
"""

# ruff: noqa: T201 - a program that prints, not a library

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.cluster import (
    agent_kills,
    build,
    cdi_off,
    claim_starts,
    claim_waves,
    double_offers,
    foreign_image,
    joins,
    lost_checkpoint,
    numa,
    other_cards,
    product,
    record,
    release_trial,
    resizes,
    rollouts,
    soak,
    starts,
)
from tests.cluster.cluster import Cluster, NotRunningError
from tests.cluster.controllers import programs
from tests.cluster.parts import ROOT, MissingError

BUILDS: Final[Mapping[str, Callable[[], None]]] = {"build": build.main, "controllers": programs.main}
SOAK_MINUTES = 10.0
BACKLOG = 200  # pods that wait for room while the agent is replaced, in the second half of ``rollouts``


def _with_product(cluster: Cluster) -> None:
    cluster.up()
    product.install(cluster, admission=True)


def _keep(kind: str, result: Mapping[str, object], cluster: Cluster) -> None:
    record.keep(kind, result, cluster.parts)
    print(result)


def _waves(cluster: Cluster, *words: int) -> int:
    """All waves, or one of them beside what those before it gave."""
    cluster.up()
    last = record.last("claim_waves", cluster.parts) if len(words) > 1 and words[1] else {}
    before = claim_waves.Waves.of(last) if last else None
    found = claim_waves.measure(cluster, *words, before=before)
    _keep("claim_waves", found.as_json(), cluster)
    return 0 if found.clean else 1


def _rollouts(cluster: Cluster, count: int = rollouts.ROLLOUTS, backlog: int = 0) -> int:
    """The record has what was counted so far, also where a rollout takes too long."""
    _with_product(cluster)
    kind = "rollouts_backlog" if backlog else "rollouts"

    def keep(rolled: rollouts.Rollouts) -> None:
        record.keep(kind, rolled.as_json(), cluster.parts)

    return 1 if rollouts.measure(cluster, count, backlog, keep).failed else 0


def _agent_kills(cluster: Cluster, count: str = str(agent_kills.KILLS), *ends: str) -> int:
    """The record has what was counted so far, also where an agent does not come back; runs of one image are added up.
    Polite ends alone, ``terms``, have a record of their own.
    """
    _with_product(cluster)
    kept = "agent_terms" if ends == ("terms",) else "agent_kills"
    last = record.last(kept, cluster.parts)

    def keep(ended: agent_kills.AgentKills) -> None:
        record.keep(kept, ended.added(last), cluster.parts)

    found = agent_kills.run(cluster, int(count), keep, only=ends)
    return 1 if found.failed_terms or found.failed_kills > found.kills else 0


def _other_cards(cluster: Cluster, starts: int = other_cards.STARTS) -> int:
    """Runs of one image are added up, as the soak's are."""
    _with_product(cluster)
    last = record.last("other_cards", cluster.parts)
    found = other_cards.measure(cluster, starts, seed=int(last.get("starts", 0)))
    record.keep("other_cards", found.added(last), cluster.parts)
    return 1 if found.elsewhere else 0


def _lost_checkpoint(cluster: Cluster, times: int = lost_checkpoint.TIMES) -> int:
    """Runs of one image are added up, as the soak's are."""
    cluster.up()
    product.install(cluster, admission=True, **lost_checkpoint.FAST)
    found = lost_checkpoint.measure(cluster, times)
    last = record.last("lost_checkpoint", cluster.parts)
    record.keep("lost_checkpoint", found.added(last), cluster.parts)
    return 1 if found.late or found.wrongly or found.stayed else 0


def _joins(cluster: Cluster, times: int = joins.TIMES) -> int:
    cluster.up()
    found = joins.measure(cluster, times)
    record.keep("joins", found.as_json(), cluster.parts)
    return 1 if found.failed else 0


COUNTED: Final[Mapping[str, Callable[..., int]]] = {
    "other-cards": _other_cards,
    "lost-checkpoint": _lost_checkpoint,
    "joins": _joins,
}


def main() -> int:
    """Exit code 2 where something must be installed first."""
    words = sys.argv[1:]
    cluster = Cluster()
    try:
        if words in (["build"], ["controllers"]):
            BUILDS[words[0]]()
        elif words == ["up"]:
            _with_product(cluster)
            print(f"export KUBECONFIG={cluster.kubeconfig}")
            print(f"export PATH={cluster.parts.paths['kubectl'].parent}:$PATH")
        elif words == ["down"]:
            cluster.down()
        elif words == ["status"]:
            for part in cluster.running.parts:
                print(f"{part:26}{cluster.pid(part) or 'not running'}")
        elif words[:1] == ["soak"] and len(words) <= 2:
            return soak.main(float(words[1]) if words[1:] else SOAK_MINUTES)
        elif words == ["starts"]:
            _with_product(cluster)
            _keep("starts", starts.measure(cluster).as_json(), cluster)
        elif words == ["claim-starts"]:
            _with_product(cluster)
            _keep("claim_starts", claim_starts.measure(cluster).as_json(), cluster)
        elif words[:1] == ["claim-waves"] and len(words) <= 3:
            return _waves(cluster, *map(int, words[1:]))
        elif words == ["rollouts"]:
            return max(_rollouts(cluster), _rollouts(cluster, backlog=BACKLOG))
        elif words[:1] == ["rollouts"] and len(words) <= 3:
            return _rollouts(cluster, *map(int, words[1:]))
        elif words[:1] == ["agent-kills"] and {*words[2:]} <= {*agent_kills.ENDS, agent_kills.JOBS}:
            return _agent_kills(cluster, *words[1:])
        elif words and words[0] in COUNTED and len(words) <= 2:
            return COUNTED[words[0]](cluster, *map(int, words[1:]))
        elif words[:1] == ["double-offers"] and len(words) <= 2:
            _with_product(cluster)
            found = double_offers.measure(cluster, int(words[1]) if words[1:] else double_offers.ORDERS)
            record.keep("double_offers", found.as_json(), cluster.parts)
            return 1 if found.double else 0
        elif words[:1] == ["cdi-off"] and len(words) <= 2:
            cluster.up()
            bare = cdi_off.measure(cluster, int(words[1]) if words[1:] else cdi_off.PODS)
            record.keep("cdi_off", bare.as_json(), cluster.parts)
            return 1 if bare.unseen else 0
        elif words[:1] == ["numa"] and len(words) <= 2:
            _with_product(cluster)
            aligned = numa.measure(cluster, *map(int, words[1:]))
            record.keep("numa", aligned.as_json(), cluster.parts)
            return 1 if aligned.refused or aligned.elsewhere else 0
        elif words == ["resizes"]:
            _with_product(cluster)
            record.keep("resizes", resizes.measure(cluster).as_json(), cluster.parts)
        elif words[:1] == ["release"] and len(words) in (2, 3):
            return release_trial.main(Path(words[1]), *words[2:])
        elif words[:1] == ["foreign"] and len(words) == 2:
            return foreign_image.main(Path(words[1]))
        elif words == ["record"]:
            print(f"{record.RESULTS.relative_to(ROOT)}: {', '.join(record.commit()) or 'nothing was run'}")
        else:
            print(__doc__)
            return 2
    except (MissingError, NotRunningError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

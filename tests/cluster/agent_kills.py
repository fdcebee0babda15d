"""The agent ends again and again while pods come and go: politely, by SIGTERM to its container, by SIGKILL to its own
process, whose parent holds the registration, and by SIGKILL to all processes of its pod; how many pods fail by it, and
how many Jobs that must not lose one?

``python -m tests.cluster agent-kills [COUNT [terms|kills|wholes|jobs]]``: all of them, or one kind alone. Runs of
one image are added up. Rollouts are :mod:`tests.cluster.rollouts`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.cluster import processes, product, record
from tests.cluster.cluster import Cluster
from tests.cluster.pods import container
from tests.cluster.rollouts import Rollouts, measure
from tests.cluster.workloads import Workload

KILLS: Final = 10
_PARALLEL: Final = 14
_BETWEEN: Final = 8  # pods of the Job that succeed from one kill to the next


@dataclass(slots=True)
class AgentKills:
    """``failed_terms`` must be 0, ``failed_kills`` no more than such kills. ``wholes``: nobody is left to hold the
    registration, and what was bound just before fails.
    """

    image: str = ""
    terms: int = 0
    created_terms: int = 0
    failed_terms: int = 0
    kills: int = 0
    created_kills: int = 0
    failed_kills: int = 0
    wholes: int = 0  # kills of the whole pod
    created_wholes: int = 0
    failed_wholes: int = 0
    job_kills: int = 0  # under Jobs with backoffLimit 0
    jobs_failed: int = 0
    job_pods: int = 0  # that succeeded

    def added(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """This run and the earlier ones of the same image, for the record."""
        return record.added(asdict(self), before)


def run(
    cluster: Cluster, count: int, keep: Callable[[AgentKills], object], *, only: Collection[str] = ()
) -> AgentKills:
    """So many ends of each kind, or of those named; ``keep`` is called after each with what was counted so far."""
    result = AgentKills(record.image())

    def counted(kind: str) -> Callable[[Rollouts], None]:
        def count_in(found: Rollouts) -> None:
            setattr(result, kind, found.rollouts)
            setattr(result, f"created_{kind}", found.created)
            setattr(result, f"failed_{kind}", found.failed)
            keep(result)

        return count_in

    for kind, end in ENDS.items():
        if kind in only or not only:
            measure(cluster, count, 0, counted(kind), end=end)
    while (JOBS in only or not only) and result.job_kills < count:
        _job(cluster, count, result)
        keep(result)
    return result


def _terminate(cluster: Cluster) -> None:
    """As a kubelet ends a container. Returns once the API has seen that the agent is gone."""
    agent = product.agent_pod(cluster)
    assert agent is not None
    processes.end(product.agent_processes(agent)[0], signal.SIGTERM)
    cluster.wait(lambda: not product.agent_ready(cluster), 60, "the agent's end is not noticed")


def _kill_whole(cluster: Cluster) -> None:
    """Nobody is left to hold the registration. Returns once the kubelet has started it again."""
    before = product.containers(cluster)
    product.kill(cluster, product.AGENT)
    cluster.wait(
        lambda: not product.containers(cluster) >= before, 60, "the end of its containers is not noticed"
    )


ENDS: Final[Mapping[str, Callable[[Cluster], None]]] = {
    "terms": _terminate,
    "kills": product.kill_held_agent,
    "wholes": _kill_whole,
}
JOBS: Final = "jobs"


def _job(cluster: Cluster, count: int, result: AgentKills) -> None:
    """One Job through as many kills as it lives through, or until there were ``count``."""
    shape = container("c", 10, 4, args=("/bin/sh", "-c", "sleep 1"))
    with Workload(
        cluster, "Job", "counted", shape, completions=5000, parallelism=_PARALLEL, backoffLimit=0
    ) as job:
        while result.job_kills < count:
            done = job.status().get("succeeded", 0)
            if not _goes_on(cluster, job, done + _BETWEEN):
                break
            product.kill_held_agent(cluster)
            result.job_kills += 1
        else:
            _goes_on(cluster, job, job.status().get("succeeded", 0) + _BETWEEN)
        result.jobs_failed += _failed(job)
        result.job_pods += job.status().get("succeeded", 0)
        sys.stdout.write(f"{asdict(result)} {job.failed()[:3]}\n")
        sys.stdout.flush()


def _goes_on(cluster: Cluster, job: Workload, wanted: int) -> bool:
    """Wait until so many of its pods have succeeded; False once it has failed."""
    cluster.wait(
        lambda: _failed(job) or job.status().get("succeeded", 0) >= wanted, 180, "the Job does not go on"
    )
    return not _failed(job)


def _failed(job: Workload) -> bool:
    conditions = job.status().get("conditions", [])
    return any(one["type"] == "Failed" and one["status"] == "True" for one in conditions)

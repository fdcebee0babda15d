"""``kubectl vcuda doctor``: what is wrong in the cluster, as far as the API server shows it."""

from __future__ import annotations

import time

from gpu_manager.cli.doctor_report import show
from gpu_manager.cli.kubectl.login import BY_KUBECONFIG, Access, log_in
from gpu_manager.cli.output import TABLE, Printing
from gpu_manager.domain.doctor import CLUSTER_CHECKS, Facts, examine


def command(printing: Printing = TABLE, access: Access = BY_KUBECONFIG) -> int:
    """Find what is wrong in the cluster: nodes, agents, webhooks, schedulers, pods. Each with its cure.

    Changes nothing, and looks with your own rights: what you may not see is said. `gpu-manager doctor` on a
    node looks at driver, runtime and kubelet. Exit code: 0 good (or warnings alone), 1 trouble, 2 bad input.

    Examples:
      kubectl vcuda doctor
      kubectl vcuda doctor -o json
    """
    from gpu_manager.adapters.diagnosis.cluster import gather_cluster  # noqa: PLC0415  # as in log_in

    with log_in(access) as login:
        facts = Facts(now=time.time(), cluster=gather_cluster(login.connection))
    return show(examine(facts, CLUSTER_CHECKS), printing)

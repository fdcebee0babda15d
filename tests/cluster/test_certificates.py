"""The webhook's certificate deleted, expired, and overwritten: the API server goes on asking it."""

from __future__ import annotations

import base64
import time
from typing import Any, Final

from admission.serving.certs import issue
from tests.cluster import product
from tests.cluster.api import ApiError
from tests.cluster.beside import Beside
from tests.cluster.cluster import Cluster
from tests.cluster.pods import PATH, Pods, container, pod

SECRET: Final = "/api/v1/namespaces/kube-system/secrets/gpu-quota-admission-certs"
SERVICE: Final = "gpu-quota-admission.kube-system.svc"
DAY: Final = 86_400
SINCE: Final = 5  # reviews since the new certificate is there: those that it has to serve


class Reviews(Beside):
    """Creates a legal pod, dry, again and again; the webhook's failurePolicy is Fail."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("reviews")
        self.count = 0
        self.refused: list[str] = []
        self._cluster = cluster

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            try:
                judge(self._cluster)
            except ApiError as error:
                self.refused.append(str(error))
            self.count += 1


def judge(cluster: Cluster) -> None:
    """Have a legal pod judged. Raises ApiError: it is refused, or the webhook was not reached."""
    cluster.api.post(f"{PATH}?dryRun=All", pod("case", container("c", 30, 20)))


def secret(cluster: Cluster) -> dict[str, Any]:
    """The Secret's data; empty while there is none."""
    try:
        return dict(cluster.api.get(SECRET)["data"])
    except ApiError as error:
        if error.code != 404:
            raise
        return {}


def test_a_deleted_certificate_is_made_anew_and_no_review_fails(cluster: Cluster, pods: Pods) -> None:
    before = secret(cluster)["tls.crt"]
    with Reviews(cluster) as reviews:
        cluster.api.delete(SECRET)
        cluster.wait(lambda: secret(cluster).get("tls.crt", before) != before, 60, "no new certificate")
        seen = reviews.count
        cluster.wait(lambda: reviews.count >= seen + SINCE, 60, "reviews do not go on")
    assert reviews.refused == []
    restart(cluster)
    judge(cluster)


def test_an_expired_certificate_is_replaced_when_admission_starts(cluster: Cluster, pods: Pods) -> None:
    """As after a cluster that was off for months: the Secret holds what nobody accepts any more."""
    old = issue((SERVICE,), time.time() - 100 * DAY, 90, f"{SERVICE} webhook authority")
    data = {"tls.crt": old.pair.certificate, "tls.key": old.pair.key, "ca.crt": old.authority}
    written = {key: base64.b64encode(value).decode() for key, value in data.items()}
    none = dict.fromkeys(("previous.crt", "previous.key", "previous-ca.crt"))
    cluster.api.patch(SECRET, {"data": {**written, **none}})
    restart(cluster)
    assert secret(cluster)["tls.crt"] != written["tls.crt"]
    pods.run(pod("after", container("c", 30, 20)))


def restart(cluster: Cluster) -> None:
    """Kill admission; returns once its successor answers and the API server trusts it."""
    product.kill(cluster, product.ADMISSION)
    cluster.wait(lambda: not product.admission_ready(cluster), 30, "its end is not noticed")
    cluster.wait(lambda: product.admission_ready(cluster), 90, "admission does not come back")
    cluster.wait(lambda: _judged(cluster), 90, "the webhook is not trusted")


def _judged(cluster: Cluster) -> bool:
    judge(cluster)  # ApiError: waited for
    return True

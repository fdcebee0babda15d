"""``kubectl vcuda quota``: what namespaces may hold by model of card, and what they hold."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from gpu_manager.cli.kubectl import service
from gpu_manager.cli.kubectl.names import read_target
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, AllNamespaces, Login, Namespace, log_in
from gpu_manager.cli.output import TABLE, Printing, Watch, repeat
from gpu_manager.domain.cluster.quota import QUOTA_PLACE, Quota, quota_table
from gpu_manager.domain.cluster.quota_map import read_quota
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.untrusted import mappings, text
from gpu_manager.runtime.arguments import Argument


def command(
    place: Annotated[
        str, Argument(metavar="NAMESPACE", help="Default: the context's.", complete="namespaces")
    ] = "",
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    watch: Watch = False,
    printing: Printing = TABLE,
    admission: service.Admission = service.USUAL,
    access: Access = BY_KUBECONFIG,
) -> int:
    """Show what namespaces may hold of each model of card, and what they hold now.

    The admission service answers; where it cannot be asked, the quotas' ConfigMap and the pods' annotations
    do, and it is said so. Exit code: 0, 1 if a quota is exceeded, 2 for bad input.

    Examples:
      kubectl vcuda quota team-a
      kubectl vcuda quota -A -w
    """
    place = read_target(place, ("Namespace",), "NAMESPACE").name if place else ""
    if namespace and place and namespace != place:
        raise RequestInvalid(f"two namespaces, {place} and {namespace}: name one")
    with log_in(access, place or namespace) as login:
        return repeat(lambda: _show(login, admission, printing, everywhere=all_namespaces), watch=watch)


def _show(login: Login, admission: str, printing: Printing, *, everywhere: bool) -> int:
    wanted = "" if everywhere else login.namespace
    rows, complaint, by = _answer(login, admission, wanted)
    if printing.for_program:
        told = {"complaint": complaint} if complaint else {}
        printing.emit({"quota": [dict(row) for row in rows], "answeredBy": by, **told})
    elif rows:
        titles, *cells = quota_table(rows)
        print(printing.columns(titles, cells))
        print(f"judged by {printable(by)}", file=sys.stderr)
    else:
        where = f"namespace {wanted}" if wanted else "any namespace"
        print(f"no quota limits {where}")
    if complaint:
        line = printable(f"{complaint}: the last valid quota is in force, and shown")
        print(f"kubectl vcuda: {line}", file=sys.stderr)
    return 1 if any(_exceeded(row) for row in rows) else 0


_Row = Mapping[str, Any]


def _answer(login: Login, admission: str, namespace: str) -> tuple[Sequence[_Row], str, str]:
    """The rows, why the ConfigMap as it stands is not in force (empty if it is), and who says so."""
    query = {"namespace": namespace} if namespace else {}
    try:
        answer = service.ask(login, admission, "/quota", query=query)
    except service.Silent as why:
        by = f"this program, from the ConfigMap, the annotations and allocated claims ({why})"
        return _here(login, namespace), "", by
    rows, complaint = mappings(answer.get("quota")), text(answer.get("complaint"))
    return rows, complaint, f"the admission service ({admission})"


def _here(login: Login, namespace: str) -> Sequence[_Row]:
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    quota, cluster = _quota(login), read_cluster(login.connection)
    service.tell_unread_claims(cluster)
    return (quota.only(namespace) if namespace else quota).rows(cluster.used, cluster.protected)


def _quota(login: Login) -> Quota:
    from gpu_manager.adapters.kube.connection import Refused  # noqa: PLC0415  # as in log_in

    path = "/api/v1/namespaces/{}/configmaps/{}".format(*QUOTA_PLACE)
    try:
        return read_quota(login.connection.request("read the quotas' ConfigMap", "GET", path))
    except Refused as error:
        if error.code == 404:
            return read_quota(None)
        raise


def _exceeded(row: _Row) -> bool:
    pairs = (("cores", "cores_used"), ("memory", "memory_used"), ("protected", "protected_used"))
    return any(
        isinstance(limit := row.get(a), int) and isinstance(used := row.get(b), int) and used > limit
        for a, b in pairs
    )

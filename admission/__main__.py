"""``gpu-quota-admission`` (``python -m admission``): reads the command line and runs the service."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from admission.config import (
    EXTENDER,
    POD_GROUP_APIS,
    PROBES,
    QUOTA,
    SCHEDULER_USER,
    TRUSTED_USERS,
    AdmissionSettings,
    ClusterTerms,
    ExtenderEndpoint,
    Leadership,
    OwnCertificates,
)
from gpu_manager.domain import features
from gpu_manager.domain.contract import ADMISSION_NAME, NAMESPACE
from gpu_manager.domain.errors import RequestInvalid, VcudaError, printable, quoted
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.runtime.arguments import Command, Option, Rest, whole_bytes
from gpu_manager.runtime.program import KLOG_FLAGS, configure_log, pass_over_old_flags

# The predecessor's flags that mean nothing any more: accepted with one warning, so that an old manifest
# starts. The value says whether a value follows.
OLD_FLAGS: Final = {"pprofAddress": True, "incluster-mode": False, "config": True, **KLOG_FLAGS}


def command(
    old_words: Annotated[list[str], Rest],
    settings: AdmissionSettings,
    terms: ClusterTerms,
    own_certificates: OwnCertificates,
    extender: ExtenderEndpoint,
    leadership: Leadership,
    probe_address: Annotated[
        str, Option(help="Address of the kubelet's HTTP probes, HOST:PORT; port 0 for a free one.")
    ] = PROBES,
    webhook_configuration: Annotated[
        list[str] | None, Option(help="Webhook configurations whose caBundle the service sets.")
    ] = None,
    extender_address: Annotated[
        str, Option("--extender-address", "--address", help="Address for schedulers, HOST:PORT; port 0: any.")
    ] = EXTENDER,
    extender_client_name: Annotated[
        list[str] | None, Option(help=f"Common names of clients that may; default: {SCHEDULER_USER}.")
    ] = None,
    lease_namespace: Annotated[str, Option(help="Namespace of the Lease; default: --namespace.")] = "",
    pod_name: Annotated[str, Option(envvar="POD_NAME", help="Name of this pod; default: the hostname.")] = "",
    quota_configmap: Annotated[str, Option(help="ConfigMap of the quotas, NAMESPACE/NAME.")] = QUOTA,
    exclude_namespace: Annotated[
        list[str] | None,
        Option(help="Namespaces that the webhooks skip; the service's and kube-system always."),
    ] = None,
    memory_unit: Annotated[
        str, Option(envvar="VCUDA_MEMORY_UNIT", help="Memory of one unit of vcuda-memory, such as 256Mi.")
    ] = str(DEFAULT_UNIT),
    bind_scheduler: Annotated[
        list[str] | None, Option(help="schedulerNames whose pods are bound here; --scheduler-name, else any.")
    ] = None,
    pod_groups: Annotated[
        list[str] | None,
        Option(
            help="APIs whose PodGroups state a gang's size, GROUP/VERSION, such as"
            " scheduling.x-k8s.io/v1alpha1; default: none.",
            feature=features.GANGS,
        ),
    ] = None,
    trusted_user: Annotated[
        list[str] | None, Option(help="Users that may write the annotations with a pod's cards.")
    ] = None,
    make_pod_certificate: Annotated[
        Path | None,
        Option(
            help="Write ca.crt, tls.crt and tls.key there, by which scheduler and extender of one pod know"
            " each other, and exit."
        ),
    ] = None,
    log_level: Annotated[
        str, Option(envvar="LOG_LEVEL", help="Log level: debug, info, warning, error, or 0..8.")
    ] = "info",
) -> None:
    """Run the admission service: webhooks, quota, scheduler extender, explanations."""
    configure_log(log_level)
    pass_over_old_flags(old_words, OLD_FLAGS, ADMISSION_NAME)
    if make_pod_certificate is not None:
        from admission.serving.certs import write_pod_certificate  # noqa: PLC0415  # each way loads what it needs

        write_pod_certificate(make_pod_certificate, time.time())
        return
    _all_or_none({"--tls-cert-file": settings.certificate, "--tls-private-key-file": settings.key})
    _all_or_none(
        {
            "--extender-tls-cert-file": extender.certificate,
            "--extender-tls-private-key-file": extender.key,
            "--extender-client-ca-file": extender.client_ca,
        }
    )
    host, port = _host_port("--extender-address", extender_address, EXTENDER)
    terms = replace(
        terms,
        unit=whole_bytes("--memory-unit", memory_unit),
        trusted_users=frozenset(trusted_user) if trusted_user else TRUSTED_USERS,
    )
    from admission.app import compose  # noqa: PLC0415  # FastAPI and the Kubernetes client

    compose(
        replace(
            settings,
            terms=terms,
            probes=_host_port("--probe-address", probe_address, PROBES),
            own_certificates=replace(
                own_certificates, names=tuple(webhook_configuration or (ADMISSION_NAME,))
            ),
            extender=replace(
                extender,
                address=host,
                port=port,
                client_names=frozenset(extender_client_name or (SCHEDULER_USER,)),
            ),
            leadership=replace(
                leadership,
                namespace=lease_namespace or settings.namespace,
                pod=pod_name or socket.gethostname(),
            ),
            binds_for=frozenset(bind_scheduler or filter(None, (terms.scheduler_name,))),
            pod_groups=_pod_groups(pod_groups or ()),
            quota_map=_named(quota_configmap),
            unseen_namespaces=frozenset({NAMESPACE, settings.namespace, *(exclude_namespace or ())}),
        )
    ).run()


def _all_or_none(files: Mapping[str, Path | None]) -> None:
    if len({path is None for path in files.values()}) > 1:
        raise RequestInvalid(f"give {', '.join(files)} together, or none of them")


def _host_port(flag: str, text: str, example: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise RequestInvalid(f"{flag} is {quoted(text)}: use HOST:PORT, such as {example}")
    return host.strip("[]"), int(port)


def _named(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise RequestInvalid(f"--quota-configmap is {quoted(text)}: use NAMESPACE/NAME, such as {QUOTA}")
    return namespace, name


def _pod_groups(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for text in texts:
        group, _, version = text.partition("/")
        if group not in POD_GROUP_APIS or not re.fullmatch(r"v[0-9a-z]{1,20}", version):
            known = ", ".join(f"{api}/VERSION" for api in POD_GROUP_APIS)
            raise RequestInvalid(f"--pod-groups is {quoted(text)}: use one of {known}")
        if group in found:
            raise RequestInvalid(
                f"--pod-groups names {group} twice: use one version, which the cluster serves"
            )
        found[group] = version
    return tuple(found.items())


def run(arguments: Sequence[str]) -> int:
    """Run the program; returns its exit code: 1 for faults that the operator must fix, 2 for a wrong command
    line.
    """
    try:
        Command(ADMISSION_NAME, command).call(arguments)
    except VcudaError as error:
        return _say(str(error), 2 if isinstance(error, RequestInvalid) else 1)
    except KeyboardInterrupt:
        return 130
    return 0


def _say(text: str, code: int) -> int:
    sys.stderr.write(f"{ADMISSION_NAME}: {printable(text)}\n")
    return code


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

"""``gpu-quota-admission`` (``python -m admission``): reads the command line and runs the service."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

from admission.config import (
    EXTENDER,
    GANG_SECONDS,
    KEEP_SECONDS,
    POD_GROUP_APIS,
    PROBES,
    QUOTA,
    RECORDS_MIB,
    SCHEDULER_USER,
    SHORTEST_KEEP_SECONDS,
    TRUSTED_USERS,
    AdmissionSettings,
    ClusterTerms,
    ExtenderEndpoint,
    LeaderMode,
    Leadership,
    OwnCertificates,
)
from gpu_manager.domain import features
from gpu_manager.domain.contract import ADMISSION_NAME, ADMISSION_SECRET, NAMESPACE
from gpu_manager.domain.errors import RequestInvalid, VcudaError, printable, quoted
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.runtime.arguments import Command, Option, Rest, whole_bytes
from gpu_manager.runtime.program import KLOG_FLAGS, configure_log, pass_over_old_flags

# The predecessor's flags that mean nothing any more: accepted with one warning, so that an old manifest
# starts. The value says whether a value follows.
OLD_FLAGS: Final = {
    "pprofAddress": True,
    "incluster-mode": False,
    "config": True,
    **KLOG_FLAGS,
}


def command(
    old_words: Annotated[list[str], Rest],
    webhook_address: Annotated[
        str, Option(help="Address that serves the webhooks; default: all, IPv4 and IPv6.")
    ] = "",
    webhook_port: Annotated[int, Option(help="Port that serves the webhooks; 0 for a free one.")] = 9443,
    tls_cert_file: Annotated[
        Path | None, Option(help="Path of the webhooks' TLS certificate, watched; default: self-signed.")
    ] = None,
    tls_private_key_file: Annotated[Path | None, Option(help="Path of the webhooks' private key.")] = None,
    probe_address: Annotated[
        str, Option(help="Address of the kubelet's HTTP probes, HOST:PORT; port 0 for a free one.")
    ] = PROBES,
    namespace: Annotated[str, Option(envvar="POD_NAMESPACE", help="The service's namespace.")] = NAMESPACE,
    service: Annotated[str, Option(help="Service that API servers call.")] = ADMISSION_NAME,
    cert_secret: Annotated[str, Option(help="Secret of self-signed certificates.")] = ADMISSION_SECRET,
    webhook_configuration: Annotated[
        list[str] | None, Option(help="Webhook configurations whose caBundle the service sets.")
    ] = None,
    cert_days: Annotated[int, Option(min=1, max=825, help="Days of a self-signed certificate.")] = 90,
    cert_settle_seconds: Annotated[
        float, Option(min=0, help="Seconds between publishing a new certificate authority and using it.")
    ] = 60.0,
    extender_address: Annotated[
        str, Option("--extender-address", "--address", help="Address for schedulers, HOST:PORT; port 0: any.")
    ] = EXTENDER,
    extender_tls_cert_file: Annotated[
        Path | None, Option(help="Path of the TLS certificate for schedulers, watched; default: HTTP.")
    ] = None,
    extender_tls_private_key_file: Annotated[
        Path | None, Option(help="The extender's TLS private key.")
    ] = None,
    extender_client_ca_file: Annotated[
        Path | None, Option(help="CA of the clients that may bind and preempt, watched.")
    ] = None,
    extender_client_name: Annotated[
        list[str] | None, Option(help=f"Common names of clients that may; default: {SCHEDULER_USER}.")
    ] = None,
    leader_mode: Annotated[
        LeaderMode,
        Option(
            help="Which replica binds. scheduler: that of the leading kube-scheduler in its pod; lease: the"
            " holder of a Lease of this service, which labels its pod; alone: the only one."
        ),
    ] = LeaderMode.SCHEDULER,
    lease_name: Annotated[str, Option(help="Name of the Lease, in either mode.")] = ADMISSION_NAME,
    lease_namespace: Annotated[str, Option(help="Namespace of the Lease; default: --namespace.")] = "",
    lease_seconds: Annotated[
        float, Option(min=10, max=60, help="Seconds that a Lease of this service lasts without renewal.")
    ] = 12.0,
    pod_name: Annotated[str, Option(envvar="POD_NAME", help="Name of this pod; default: the hostname.")] = "",
    pod_uid: Annotated[
        str,
        Option(
            envvar="POD_UID",
            help="UID of this pod: a process that starts again in it goes on with its own former Lease.",
        ),
    ] = "",
    quota_configmap: Annotated[str, Option(help="ConfigMap of the quotas, NAMESPACE/NAME.")] = QUOTA,
    exclude_namespace: Annotated[
        list[str] | None,
        Option(help="Namespaces that the webhooks skip; the service's and kube-system always."),
    ] = None,
    memory_unit: Annotated[
        str, Option(envvar="VCUDA_MEMORY_UNIT", help="Memory of one unit of vcuda-memory, such as 256Mi.")
    ] = str(DEFAULT_UNIT),
    minimum_cores: Annotated[
        int, Option(envvar="VCUDA_MINIMUM_CORES", min=1, max=100, help="Smallest vcuda-core of a container.")
    ] = 1,
    default_memory: Annotated[
        int,
        Option(envvar="VCUDA_DEFAULT_MEMORY", min=0, help="Units for fractions without memory; 0: refused."),
    ] = 0,
    scheduler_name: Annotated[str, Option(help="schedulerName for pods that ask for cards.")] = "",
    bind_scheduler: Annotated[
        list[str] | None, Option(help="schedulerNames whose pods are bound here; --scheduler-name, else any.")
    ] = None,
    keep_seconds: Annotated[
        float,
        Option(
            min=SHORTEST_KEEP_SECONDS,
            max=3600,
            help="Seconds that a pod's place is kept at most until its scheduler binds it.",
        ),
    ] = KEEP_SECONDS,
    best_nodes: Annotated[
        int,
        Option(
            min=0,
            max=100,
            help="Filter offers at most so many nodes, the best ones of equal cost; 0: all that fit.",
        ),
    ] = 0,
    gang_seconds: Annotated[
        float,
        Option(
            min=0,
            max=900,
            help="Seconds that places are kept for members of a gang that no scheduler has asked about;"
            " 0: each pod is judged alone.",
            feature=features.GANGS,
        ),
    ] = GANG_SECONDS,
    pod_groups: Annotated[
        list[str] | None,
        Option(
            help="APIs whose PodGroups state a gang's size, GROUP/VERSION, such as"
            " scheduling.x-k8s.io/v1alpha1; default: none.",
            feature=features.GANGS,
        ),
    ] = None,
    resize_within_quota: Annotated[  # noqa: FBT002  # the way to a flag
        bool,
        Option(
            "--resize-within-quota",
            help="Refuse a resize past a ResourceQuota or LimitRange of its namespace; these are then read.",
            feature=features.RESIZE,
        ),
    ] = False,
    placeholders: Annotated[
        str,
        Option(
            help="Namespace of pods that ask an autoscaler for cards which sums hide; default: none.",
            feature=features.AUTOSCALERS,
        ),
    ] = "",
    nodes_by_capacity: Annotated[  # noqa: FBT002  # the way to a flag
        bool,
        Option(
            "--nodes-by-capacity",
            help="Judge nodes without an inventory, such as the predecessor's, by their capacity.",
        ),
    ] = False,
    claims: Annotated[  # noqa: FBT002  # same
        bool,
        Option(
            "--claims",
            help="Charge ResourceClaims of the driver vcuda.tencent.com, and hold them to the quota.",
            feature=features.CLAIMS,
        ),
    ] = False,
    record_directory: Annotated[
        Path | None,
        Option(
            help="Directory in which decisions are recorded for gpu-manager replay; default: none are.",
            feature=features.RECORDS,
        ),
    ] = None,
    record_mib: Annotated[
        int,
        Option(
            min=8, max=1 << 16, help="MiB of recorded decisions; the oldest go.", feature=features.RECORDS
        ),
    ] = RECORDS_MIB,
    runtime_class: Annotated[
        str, Option(help="runtimeClassName to set in pods without one; default: unchanged.")
    ] = "",
    deny_node_name: Annotated[  # noqa: FBT002  # the way to a flag
        bool, Option("--deny-node-name", help="Refuse pods with spec.nodeName instead of warning.")
    ] = False,
    allow_envfrom: Annotated[  # noqa: FBT002  # same
        bool,
        Option(
            "--allow-envfrom",
            help="Take pods whose envFrom may bring NVIDIA_VISIBLE_DEVICES, where nodes show cards by it.",
        ),
    ] = False,
    trusted_user: Annotated[
        list[str] | None, Option(help="Users that may write the annotations with a pod's cards.")
    ] = None,
    agent_token_file: Annotated[
        Path | None,
        Option(help="File with the bearer token of the agents' pages, which the console asks for usage."),
    ] = None,
    prometheus_url: Annotated[
        str,
        Option(
            help="URL of the Prometheus that scrapes the agents: hours and days for the console.",
            feature=features.CONSOLE,
        ),
    ] = "",
    prometheus_token_file: Annotated[
        Path | None, Option(help="File with a bearer token for that Prometheus.")
    ] = None,
    drain_seconds: Annotated[
        float, Option(min=0, help="Seconds to be unready before the program ends.")
    ] = 5.0,
    kubeconfig: Annotated[Path | None, Option(help="Path of a kubeconfig; default: the pod's own.")] = None,
    api_url: Annotated[
        str | None, Option("--api-url", "--master", help="Address of an API server without credentials.")
    ] = None,
    make_pod_certificate: Annotated[
        Path | None,
        Option(
            help="Write ca.crt, tls.crt and tls.key there, by which scheduler and extender of one pod know"
            " each other, and exit."
        ),
    ] = None,
    print_policies: Annotated[  # noqa: FBT002  # same
        bool,
        Option("--print-policies", help="Print the rules as ValidatingAdmissionPolicies, and exit."),
    ] = False,
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
    _all_or_none({"--tls-cert-file": tls_cert_file, "--tls-private-key-file": tls_private_key_file})
    _all_or_none(
        {
            "--extender-tls-cert-file": extender_tls_cert_file,
            "--extender-tls-private-key-file": extender_tls_private_key_file,
            "--extender-client-ca-file": extender_client_ca_file,
        }
    )
    host, port = _host_port("--extender-address", extender_address, EXTENDER)
    terms = ClusterTerms(
        unit=whole_bytes("--memory-unit", memory_unit),
        minimum_cores=minimum_cores,
        default_memory=default_memory,
        scheduler_name=scheduler_name,
        runtime_class=runtime_class,
        deny_node_name=deny_node_name,
        allow_env_from=allow_envfrom,
        trusted_users=frozenset(trusted_user) if trusted_user else TRUSTED_USERS,
    )
    if print_policies:
        from admission.webhook.static_policies import render  # noqa: PLC0415  # each way of the program loads what it needs

        sys.stdout.write(render(terms))
        return
    from admission.app import compose  # noqa: PLC0415  # same: FastAPI and the Kubernetes client

    compose(
        AdmissionSettings(
            terms=terms,
            address=webhook_address,
            port=webhook_port,
            probes=_host_port("--probe-address", probe_address, PROBES),
            namespace=namespace,
            service=service,
            certificate=tls_cert_file,
            key=tls_private_key_file,
            own_certificates=OwnCertificates(
                secret=cert_secret,
                names=tuple(webhook_configuration or (ADMISSION_NAME,)),
                life_days=cert_days,
                settle_seconds=cert_settle_seconds,
            ),
            extender=ExtenderEndpoint(
                address=host,
                port=port,
                certificate=extender_tls_cert_file,
                key=extender_tls_private_key_file,
                client_ca=extender_client_ca_file,
                client_names=frozenset(extender_client_name or (SCHEDULER_USER,)),
            ),
            leadership=Leadership(
                mode=leader_mode,
                namespace=lease_namespace or namespace,
                lease=lease_name,
                pod=pod_name or socket.gethostname(),
                seconds=lease_seconds,
                pod_uid=pod_uid,
            ),
            binds_for=frozenset(bind_scheduler or filter(None, (scheduler_name,))),
            nodes_by_capacity=nodes_by_capacity,
            keep_seconds=keep_seconds,
            best_nodes=best_nodes,
            gang_seconds=gang_seconds,
            pod_groups=_pod_groups(pod_groups or ()),
            resize_within_quota=resize_within_quota,
            placeholders=placeholders,
            claims=claims,
            records=record_directory,
            records_mib=record_mib,
            quota_map=_named(quota_configmap),
            unseen_namespaces=frozenset({NAMESPACE, namespace, *(exclude_namespace or ())}),
            agent_token=agent_token_file,
            prometheus=prometheus_url,
            prometheus_token=prometheus_token_file,
            drain_seconds=drain_seconds,
            api_url=api_url,
            kubeconfig=kubeconfig,
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

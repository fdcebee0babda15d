"""``gpu-manager run``: the agent of one node."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import structlog

from gpu_manager.adapters.control_pages.limits_file import PagePolicy
from gpu_manager.adapters.control_pages.page_directory import DEFAULT_INODES, PageMounts
from gpu_manager.agent.config import Config
from gpu_manager.domain import features
from gpu_manager.domain.advice.demand import HOUR
from gpu_manager.domain.advice.size import AdvicePolicy
from gpu_manager.domain.contract import KUBELET_DIR
from gpu_manager.domain.dra.sides import NO_CARDS, ClaimCards, Front, parse_claim_cards
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.runtime.arguments import Option, Rest, whole_bytes
from gpu_manager.runtime.program import KLOG_FLAGS, child_of, configure_log, pass_over_old_flags

log = structlog.get_logger(__name__)

# Flags that mean nothing any more, the predecessor's and our own: accepted with one warning, so that an old
# manifest starts. The value says whether a value follows.
OLD_FLAGS = {
    "leave-claims": False,
    "no-leave-claims": False,
    "driver": True,
    "volume-config": True,
    "sample-period": True,
    "allocation-check-period": True,
    "virtual-manager-path": True,
    "device-plugin-path": True,
    "share-mode": False,
    "container-runtime": True,
    "container-runtime-endpoint": True,
    "cgroup-driver": True,
    "runtime-request-timeout": True,
    "wait-timeout": True,
    "query-port": True,
    "query-addr": True,
    **KLOG_FLAGS,
}


def command(
    old_words: Annotated[list[str], Rest],
    config: Config,
    kubelet_dir: Annotated[
        Path, Option(help="Directory of the kubelet; of device-plugins alone, if it has another --root-dir.")
    ] = Path(KUBELET_DIR),
    page_file_system_kib: Annotated[
        int,
        Option(
            min=0,
            max=1 << 20,
            help="Size of the file system that is mounted for each new container's pages, which needs "
            "privileges and 400 or more; 0: they lie in --pages-dir itself.",
            feature=features.PAGE_MOUNTS,
        ),
    ] = 0,
    page_file_system_inodes: Annotated[
        int,
        Option(
            min=16,
            max=1 << 20,
            help="Inodes of that file system; extended attributes take them.",
            feature=features.PAGE_MOUNTS,
        ),
    ] = DEFAULT_INODES,
    metrics_auth: Annotated[
        Path | None, Option(help="File with a bearer token that metrics and status require.")
    ] = None,
    program_xids: Annotated[str, Option(help="XIDs that never make a card unhealthy, comma-separated.")] = "",
    card_xids: Annotated[str, Option(help="XIDs that always make a card unhealthy, comma-separated.")] = "",
    memory_unit: Annotated[str, Option(help="Memory of one vcuda-memory.")] = str(DEFAULT_UNIT),
    context_mib: Annotated[
        int,
        Option(
            min=0,
            max=16384,
            help="MiB charged to a fraction for each CUDA context; what a context takes beyond that is "
            "charged once the driver shows it, about 3 s later.",
        ),
    ] = 0,
    oversubscribe: Annotated[
        bool,
        Option(
            help="Let cuMemAlloc return managed memory if the card is full but the share is not.",
            feature=features.OVERSUBSCRIBE,
        ),
    ] = False,
    fail_open: Annotated[
        bool,
        Option(
            help="Let programs run unlimited if their usage page is broken, which a tenant can do; else "
            "CUDA is refused to them."
        ),
    ] = False,
    nvidia_resource: Annotated[
        bool,
        Option(
            help="Offer whole cards as nvidia.com/gpu too. NVIDIA's plugin must not run here.",
            feature=features.WHOLE_CARDS,
        ),
    ] = False,
    claim_cards: Annotated[
        str,
        Option(
            help="With --front split: cards given by ResourceClaims, a number, all, or UUIDs with commas.",
            feature=features.CLAIMS,
        ),
    ] = "",
    dra_cards: Annotated[str, Option(help="Old name of --claim-cards; goes with the next release.")] = "",
    pod_resources_socket: Annotated[
        Path | None,
        Option(
            help="The kubelet's PodResources socket; default: that of its --root-dir, else the one in "
            "--kubelet-dir."
        ),
    ] = None,
    topology_manager_policy: Annotated[
        str,
        Option(
            help="The kubelet's topologyManagerPolicy: none, best-effort, restricted, single-numa-node; or "
            "auto: as its command line and its file say."
        ),
    ] = "auto",
    device_injection: Annotated[str, Option(help="auto, direct, cdi, nvidia or simulated.")] = "auto",
    extra_config: Annotated[Path | None, Option(help="The predecessor's extra-config.json.")] = None,
    account_gap_points: Annotated[
        float,
        Option(
            min=5,
            max=100,
            help="Report a container whose account differs so far from the driver's figure.",
            feature=features.WITNESS,
        ),
    ] = 10.0,
    advice_percentile: Annotated[
        float,
        Option(
            min=50,
            max=100,
            help="Advised cores are enough for this part of the time a program works.",
            feature=features.ADVICE,
        ),
    ] = 95.0,
    advice_margin: Annotated[
        float,
        Option(
            min=-50,
            max=400,
            help="Percent of memory to advise beside the greatest amount seen.",
            feature=features.ADVICE,
        ),
    ] = 0.0,
    advice_half_life: Annotated[
        float,
        Option(
            min=1,
            max=720,
            help="Hours after which the demand that was seen weighs half.",
            feature=features.ADVICE,
        ),
    ] = 24.0,
    node_labels: Annotated[str, Option(help="Labels to set on the node: KEY=VALUE,KEY=VALUE.")] = "",
    log_level: Annotated[
        str, Option(envvar="LOG_LEVEL", help="Log level: debug, info, warning, error, or 0..8.")
    ] = "info",
    hold_registration: Annotated[
        float,
        Option(
            min=0,
            max=600,
            help="Seconds to stay registered while the agent is killed; 0: off.",
            feature=features.HELD_REGISTRATION,
        ),
    ] = 0.0,
) -> int:
    """Run the node's agent until SIGTERM.

    Examples:
      gpu-manager run --stand-in a100x8
    """
    configure_log(log_level)
    from gpu_manager.agent.holder import HELD_IN, hold  # noqa: PLC0415  # gRPC, only when it is needed

    held_in = child_of(HELD_IN)
    if hold_registration and not held_in and config.front is not Front.DRA:
        return hold(kubelet_dir, config.state, hold_registration, lending=nvidia_resource)
    pass_over_old_flags(old_words, OLD_FLAGS, "gpu-manager run")
    from gpu_manager.adapters.driver_files.host import HostFiles  # noqa: PLC0415  # as the next one
    from gpu_manager.agent.backends import KubeletView  # noqa: PLC0415  # as above
    from gpu_manager.agent.composition import main  # noqa: PLC0415  # gRPC and the Kubernetes client, only when they are needed

    kubelet = KubeletView(HostFiles(config.host_root), kubelet_dir)
    main(
        replace(
            config,
            node=config.node or socket.gethostname().lower(),
            device_plugins=kubelet_dir / "device-plugins",
            registers_in=Path(held_in) if held_in else None,
            pod_resources=kubelet.pod_resources(pod_resources_socket),
            http_token=_secret(metrics_auth),
            program_xids=_xids("--program-xids", program_xids),
            card_xids=_xids("--card-xids", card_xids),
            unit=whole_bytes("--memory-unit", memory_unit),
            page_mounts=PageMounts(page_file_system_kib << 10, page_file_system_inodes),
            policy=PagePolicy(context_mib << 20, oversubscribe, fail_open),
            lending=nvidia_resource,
            claim_cards=_claim_cards(config.front, claim_cards, dra_cards),
            numa_policy=kubelet.numa_policy(topology_manager_policy),
            injection=known_injection(device_injection),
            extra_devices=_extra(extra_config),
            account_gap=account_gap_points / 100,
            advice=AdvicePolicy(advice_percentile, advice_margin / 100),
            advice_half_life=advice_half_life * HOUR,
            labels=_labels(node_labels),
        )
    )
    return 0


def _claim_cards(front: Front, text: str, old: str) -> ClaimCards:
    if old:
        log.warning("flag_renamed", old="--dra-cards", new="--claim-cards")
    text = text or old
    if front is Front.SPLIT:
        return parse_claim_cards(text)
    if text:
        raise RequestInvalid(
            f"--claim-cards is {quoted(text)}, and --front is {front.value}: it needs --front split"
        )
    return NO_CARDS


def _labels(text: str) -> dict[str, str]:
    labels = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.strip().partition("=")
        if not key or not equals:
            log.warning("label_ignored", label=item)
        else:
            labels[key] = value
    return labels


def _xids(flag: str, text: str) -> frozenset[int]:
    numbers = [item.strip() for item in text.split(",") if item.strip()]
    wrong = next((n for n in numbers if not (n.isdecimal() and len(n) < 5)), None)
    if wrong is not None:
        raise RequestInvalid(f"{flag} is {text!r}: {wrong!r} is no XID; use numbers such as 31,43")
    return frozenset(map(int, numbers))


def known_injection(text: str, simulated: bool = True) -> str:
    """``auto``, or the name of a strategy. Raises RequestInvalid: it is neither."""
    from gpu_manager.adapters.driver_files.runtimes import Strategy  # noqa: PLC0415  # as above

    known = ["auto", *(s.value for s in Strategy if simulated or s is not Strategy.SIMULATED)]
    if text not in known:
        raise RequestInvalid(f"--device-injection is {text!r}: use {', '.join(known[:-1])} or {known[-1]}")
    return text


def _secret(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestInvalid(f"--metrics-auth {path} cannot be read: {error}") from error
    if not token:
        raise RequestInvalid(
            f"--metrics-auth {path} is empty: write a token into it, or leave the option out"
        )
    return token


def _extra(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    from gpu_manager.adapters.driver_files.device_nodes import extra_devices  # noqa: PLC0415  # as above

    return extra_devices(path)

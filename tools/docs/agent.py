"""Pages of the reference about the agent and both command lines, from the code itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from gpu_manager.cli import run
from gpu_manager.cli.kubectl.main import PROGRAM as KUBECTL
from gpu_manager.cli.main import PROGRAM as NODE
from gpu_manager.cli.program import LazyProgram, load
from gpu_manager.domain import contract as c
from gpu_manager.runtime.arguments import Command
from gpu_manager.servers import exporter
from gpu_manager.services.enforcement.account_check import NOTHING
from gpu_manager.services.enforcement.usage_sample import Sample
from gpu_manager.services.metrics import ServiceMetrics
from tools.docs.markdown import family_row, made_page, option_row, table


def _counted() -> Iterator[Metric]:
    for counter in vars(ServiceMetrics(CollectorRegistry())).values():
        (family,) = counter.describe()
        family._labelnames = counter._labelnames  # noqa: SLF001  # the client keeps them to itself
        yield family


def metrics_page() -> str:
    """Name, type, labels and help of every metric that the agent exports."""
    families = [
        *_counted(),
        *exporter.describe(),
        *exporter.guards((), {}, frozenset(), {}, ()),
        *exporter.gates({}, {}),
        *exporter.accounts(Sample(0.0), NOTHING, {}),
    ]
    legacy = [f for f in families if not f.name.startswith("vcuda_")]
    ours = sorted((f for f in families if f not in legacy), key=lambda f: f.name)
    return made_page(
        "Metrics of the agent",
        "Served on `:5678` under `/metric` and `/metrics`, as Prometheus text or OpenMetrics. Figures that "
        "cannot be read have no series.",
        "A card is named by `uuid` and `card` (its index), a container by `namespace`, `pod`, `container`.",
        table(("name", "type", "labels", "meaning"), map(family_row, ours)),
        "## The predecessor's",
        "Names, labels and units (MiB, percent) as they were; left out with `--no-legacy-metrics`.",
        table(("name", "type", "labels", "meaning"), map(family_row, legacy)),
    )


_APPLY = "`kubectl vcuda advise --apply`"
_SIZING = "[sizing](../sizing.md)"
# Constant, who writes it, value, meaning.
_POD = (
    (c.CORE_LIMIT, "you", "percent, up to 100", "Elastic ceiling: what a fraction may use of an idle card."),
    (
        c.GPU_MODEL,
        "you",
        "models, comma-separated",
        "Allow list: whole names or tokens of them (`V100`); a MIG instance only by its profile (`1g.18gb`).",
    ),
    (c.GPU_UUID, "you", "card UUIDs, comma-separated", "Allow list of cards; of a MIG instance either name."),
    (
        c.PREEMPTION_DELAY,
        "you",
        "`90s`, `5m`, `1h`",
        "The pod evicts nobody until it has waited that long: an autoscaler has the time to add a node.",
    ),
    (c.PLACEMENT, "you", "`binpack`, `spread`, `topology`", "Which of the cards that would do is taken."),
    (c.PRELOAD, "you", "`false`", "Leave `/etc/ld.so.preload` of the image alone."),
    (
        c.PRIORITY,
        "you",
        "`protected`, `normal`, `best-effort`",
        "Who waits for whom on a card: [protected tenants](../protected.md); `normal` without it.",
    ),
    (
        c.CARDS,
        "you",
        "`2`, `train=2,eval=4`",
        "On how many cards the request lies in equal parts: [parts of several cards](../several-cards.md).",
    ),
    (
        c.RESIZE,
        "you",
        "JSON",
        "The size that running containers shall have, on a pod or on its workload: [resize](../resize.md).",
    ),
    (
        c.ADVICE,
        "you",
        "JSON",
        f"Whether {_APPLY} may follow advice, within which bounds; on a pod or its workload: {_SIZING}.",
    ),
    (
        c.ADVISED,
        "`kubectl vcuda advise`",
        "JSON",
        "When each container was last given the size that is advised.",
    ),
    (
        c.TEMPLATE_SIZE,
        "the webhook",
        "JSON",
        "What the template of a pod says that was created at its owner's size.",
    ),
    (c.ALLOCATION, "scheduler, agent", "JSON", "The cards of each container; memory in bytes."),
    (c.PREDICATE_NODE, "scheduler, agent", "node name", "The predecessor's: the node chosen."),
    (c.PREDICATE_TIME, "scheduler, agent", "nanoseconds", "The predecessor's: when it was chosen."),
    (
        f"{c.PREDICATE_INDEX}<n>",
        "scheduler, agent",
        "card indices",
        "The predecessor's: cards of app container n.",
    ),
    (
        c.ASSIGNED,
        "scheduler, agent",
        "`true`, `false`",
        "The predecessor's: whether a container has started.",
    ),
    (
        c.RESIZED,
        "scheduler",
        "JSON",
        "The sizes that the scheduler has reserved for the pod; memory in bytes.",
    ),
    (
        c.EVICT,
        "agent",
        "JSON",
        "Its node's agent wants it evicted, and why: [the evictor](../security.md#the-evictor).",
    ),
    (
        c.QUOTA_SEEN,
        "admission",
        "8 hex digits",
        "Its namespace's quota changed, or room came back: schedulers look again.",
    ),
    (
        c.PREPARE_AGAIN,
        "agent",
        "milliseconds",
        "Its claims could not be prepared a moment ago: the kubelet tries again at once.",
    ),
)
_LINGERS = (
    "what deleted pods hold whose processes still run, which pods cannot start a container again, "
    "whether the agent serves, and whether containers can be given cards"
)
_NODE = (
    (c.INVENTORY, "agent", "JSON", f"The cards: state, links, what was refused last, {_LINGERS}."),
    (c.CORDON, "`gpu-manager cordon`", "card UUIDs, comma-separated", "Cards that take nothing new."),
    (
        c.FORGET,
        "`gpu-manager forget`",
        "card UUIDs, comma-separated",
        "Vanished cards that are not expected back; the agent takes away what it has dealt with.",
    ),
)
_LABELS = (
    (c.MODEL_LABEL, "agent", "model", "The node's model of card, where all are alike."),
    (c.MODEL_LABEL_GAIA, "agent", "model", "The same under the predecessor's name."),
    (
        c.FRONT_LABEL,
        "agent",
        "`dra` or `split`",
        "The cards of this node, or some of them, are given by ResourceClaims.",
    ),
    (
        c.FRONT_LABEL,
        "you, on a namespace",
        "`dra`",
        "Its new pods ask for their vcuda resources by a ResourceClaim: [DRA](../dra.md#old-manifests).",
    ),
    (
        c.TURNED_LABEL,
        "admission",
        "`true`",
        "On a ResourceClaimTemplate: made for such pods, and deleted when none needs it.",
    ),
    (
        c.TEMPLATE_NEEDED,
        "admission",
        "seconds since 1970",
        "An annotation of such a template: when a pod last needed it.",
    ),
    (
        c.ADMITTED_CLAIMS,
        "admission",
        "JSON",
        "An annotation of a Lease: claims that the leader let pass, until its watch shows them.",
    ),
    (c.POOL_LABEL, "you", "text", "The pool that quotas name."),
    (
        c.MIG_LABEL,
        "you",
        "`true` or `false`",
        "Whether [MIG instances](../mig.md) of the node are given as cards, before the agent's setting.",
    ),
    (
        c.PLACEHOLDER,
        "admission",
        "10 hex digits",
        "On a pod of `--placeholders`: it asks an autoscaler for cards, and is never placed.",
    ),
    (c.LEADER_LABEL, "admission", "`true`", "On its own pod: this replica binds (`--leader-mode=lease`)."),
    (
        c.LEADER_SINCE,
        "admission",
        "UTC time",
        "An annotation of its own pod: when it began to lead. It binds once its watch shows that.",
    ),
    (
        c.FEATURES,
        "admission",
        "`multi-card,multi-card-resize`",
        "An annotation of its own pod: what its release can do; `/mutate` waits until all replicas can.",
    ),
)
_NODE_TAINTS = (
    (
        c.STARTUP_TAINT,
        "The node has just joined: its agent removes this once pods can be given cards (`--startup-taint`).",
    ),
)
_TAINTS = (
    (c.DRA_UNHEALTHY, "The card is not healthy, or has vanished."),
    (c.DRA_CORDONED, "The operator has closed the card."),
    (c.DRA_HELD, "A pod holds the whole card under another resource name."),
)
_RESOURCES = (
    (c.CORE, "hundredths of a card: 1 to 99 with memory, or a multiple of 100 for whole cards"),
    (c.MEMORY, "units of 256 MiB, or what `--memory-unit` says"),
    (c.WHOLE_CARD, "whole cards by ResourceClaims, where agents give cards so: [DRA](../dra.md)"),
    (c.NVIDIA, "whole cards, for pods written for NVIDIA's plugin; with `--nvidia-resource` alone"),
)
_CONTAINER = (
    (c.LIMITS_PATH, "The limits, read-only."),
    (c.USAGE_PATH, "What the container's processes use; theirs to write."),
    (
        c.GATES_DIR,
        "Best-effort containers: a gate for each card, closed while protected ones work.",
    ),
    (c.LIBRARY_DIR, "The library."),
    (c.PRELOAD_PATH, "Loads the library into every program, where the pod does not opt out."),
    (f"${c.CARDS_ENV}", "UUIDs of the container's cards."),
    (
        f"${c.TRITON_ENV}",
        "Where libcuda is, for Triton and torch.compile; with `direct` and `cdi`.",
    ),
    (
        f"${c.CAPABILITIES_ENV}",
        "Read from the pod: `graphics`, `display`, `ngx` or `all` bring graphics libraries.",
    ),
    (f"${c.VISIBLE_ENV}", "`void`, or the same UUIDs where the NVIDIA runtime injects them."),
)
_CRI = (
    (c.CRI_DEVICE, "Card device nodes, on the runtime's container object (the predecessor's)."),
    (c.CDI_KIND, "Kind of the device names where devices are injected by CDI."),
)
_CLUSTER = (
    (f"{c.NAMESPACE}/{c.QUOTA_MAP}", "ConfigMap with what namespaces may hold (the predecessor's)."),
    (c.QUOTA_KEY, "Its key, with JSON for a value: see Quota."),
)
_HOST = (
    (c.STATE_DIR, "The books and the library; must outlive a reboot."),
    (c.PAGES_DIR, "The control pages; made again after a reboot."),
    (c.CDI_DIR, "The container runtime's: a CDI spec for each allocation, under CDI."),
    (c.KUBELET_DIR, "The kubelet's."),
    (c.DRA_REGISTRY_SOCKET, "Below it, with `--front dra`: by this socket the kubelet finds the driver."),
    (c.PODS_API_SOCKET, "Below it, from Kubernetes 1.37 on: the pods that the kubelet has."),
    (c.DRA_SOCKET, "Below it, with `--front dra`: what it asks of the driver."),
    (c.OLD_CHECKPOINT_DIR, "The predecessor's checkpoint, read while there are no books of ours."),
)


def annotations_page() -> str:
    """Every name that is promised outside: resources, annotations, labels, paths."""
    writing = ("name", "written by", "value", "meaning")
    return made_page(
        "Names: resources, annotations, labels, paths",
        "What others wrote is read with care: a value that cannot be read counts as absent. What the "
        "scheduler and the agent write on a pod nobody else may set or change, but for the two marks that "
        "only make others look again (`vcuda-quota-seen`, `vcuda-prepare-again`).",
        "## Resources",
        table(("name", "counts"), _coded(_RESOURCES)),
        "## Annotations of a pod",
        table(writing, _coded(_POD)),
        "## Annotations of a node",
        table(writing, _coded(_NODE)),
        "## Labels of a node",
        table(writing, _coded(_LABELS)),
        "## Taints of a node",
        table(("name", "meaning"), _coded(_NODE_TAINTS)),
        "## Taints of a device in a ResourceSlice",
        table(("name", "meaning"), _coded(_TAINTS)),
        "## In a container with a fraction",
        table(("name", "meaning"), _coded(_CONTAINER)),
        "## At the container runtime",
        table(("name", "meaning"), _coded(_CRI)),
        "## In the cluster",
        table(("name", "meaning"), _coded(_CLUSTER)),
        "## On the host",
        table(("name", "meaning"), _coded(_HOST)),
    )


def flags_page() -> str:
    """The options of ``gpu-manager run``."""
    options = Command("gpu-manager run", run.command).parameters
    ignored = ", ".join(f"`--{name}`" for name in run.OLD_FLAGS)
    return made_page(
        "Flags of `gpu-manager run`",
        table(("flag", "default", "environment", "meaning"), map(option_row, options)),
        "## The predecessor's",
        f"Accepted, with one warning, and without effect: {ignored}. Those in `EXTRA_FLAGS` count too.",
    )


def commands_page() -> str:
    """Every command of both programs with its options, but those of ``run``, whose page is its own."""
    return made_page(
        "Commands",
        "Exit code of every command: 0 good, 1 it found trouble (or the answer is no), 2 bad input. "
        "`--help` of each shows examples.",
        *(part for program in (NODE, KUBECTL) for part in _program(program)),
    )


def _program(program: LazyProgram) -> Iterator[str]:
    yield f"## `{program.name}`"
    yield program.what
    every = [one for n, (at, _) in program.commands.items() for one in load(program.name, n, at).parameters]
    for title in dict.fromkeys(one.shared for one in every if one.shared):
        yield f"Options *{title}*, of each command that names them below:"
        mine = {one.names: one for one in every if one.shared == title}
        yield table(("flag", "default", "environment", "meaning"), map(option_row, mine.values()))
    for name, (module, summary) in program.commands.items():
        parameters = load(program.name, name, module).parameters
        words = " ".join(p.usage for p in parameters if p.positional)
        yield f"### `{f'{program.name} {name} {words}'.strip()}`"
        yield summary
        options = [p for p in parameters if not p.positional and not p.shared]
        shared = dict.fromkeys(f"*{p.shared}*" for p in parameters if p.shared)
        if name == "run":
            yield "Its options: [flags](flags.md)."
        elif options:
            yield table(("flag", "default", "environment", "meaning"), map(option_row, options))
        if shared:
            yield f"And options {' and '.join(shared)}."


def _coded(rows: Iterable[Sequence[str]]) -> Iterable[tuple[str, ...]]:
    return ((f"`{name}`", *rest) for name, *rest in rows)

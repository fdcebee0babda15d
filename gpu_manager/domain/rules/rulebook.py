"""All rules for pods: id, message and remedy; :mod:`gpu_manager.domain.rules.legal_values` applies them.

``docs/errors.md`` is generated from this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpu_manager.domain.contract import (
    ADVICE,
    CARDS,
    CORE,
    CORE_LIMIT,
    FRONT_LABEL,
    GPU_MODEL,
    GPU_UUID,
    MEMORY,
    NVIDIA,
    PLACEMENT,
    PREEMPTION_DELAY,
    PRELOAD,
    PRIORITY,
    RESIZE,
    VISIBLE_ENV,
)
from gpu_manager.domain.errors import quoted


@dataclass(frozen=True, slots=True)
class RuleText:
    """The message of a rule: ``text`` is a template that follows the container's name.

    ``words`` is the predecessor's message for the same fault, because people search for it.
    """

    text: str
    why: str
    cure: str
    words: str = ""
    warning: bool = False


_CORE_VALUES = "1 to 100 for a part of one card, or a multiple of 100 for whole cards"


class Rule(Enum):
    """The rules, in the order in which documentation lists them."""

    POD_UNREADABLE = RuleText(
        "{reason}",
        "The object has not the shape of a pod, or a quantity in it is none.",
        "Mend what the text names; `kubectl apply --dry-run=server` finds the same fault.",
    )
    CORE_NOT_WHOLE = RuleText(
        f"{CORE} is {{value}}: it counts hundredths of a card in whole numbers: use {{nearest}}{{hint}}",
        "One card is 100 units; less than one unit cannot be given.",
        "Write hundredths of a card: 0.3 of a card is `30`, two cards are `200`.",
    )
    CORE_NEGATIVE = RuleText(
        f"{CORE} is {{value}}: use {_CORE_VALUES}",
        "A container cannot ask for less than nothing.",
        f"Use {_CORE_VALUES}; leave the line out to ask for none.",
    )
    CORE_NOT_MULTIPLE = RuleText(
        f"{CORE} is {{value}}: use {_CORE_VALUES} ({{nearest}})",
        "A container has a part of one card, or whole cards; one card and a half is neither.",
        "Round to whole cards, or split the work over two containers.",
        words="cores are greater than 100, must be multiple of 100",
    )
    CORE_TOO_LARGE = RuleText(
        f"{CORE} is {{value}}, more than Kubernetes can count: use {_CORE_VALUES}",
        "Resources are counted in 64-bit numbers.",
        f"Use {_CORE_VALUES}.",
    )
    CORE_BELOW_MINIMUM = RuleText(
        f"{CORE} is {{value}}, this cluster gives no less than {{minimum}}: use {{nearest}}",
        "The cluster's operator has set a smallest part of a card.",
        "Ask for that much, or ask the operator to lower it.",
    )
    MEMORY_NOT_WHOLE = RuleText(
        f"{MEMORY} is {{value}}: it counts units of {{unit}} in whole numbers: use {{nearest}}",
        "Memory is given in whole units (256 MiB, unless the cluster's operator chose another size).",
        "Divide the memory you need by the unit and round up: 5 GiB is `20`.",
    )
    MEMORY_NEGATIVE = RuleText(
        f"{MEMORY} is {{value}}: use 1 or more units of {{unit}}",
        "A container cannot ask for less than nothing.",
        "Use 1 or more; leave the line out beside whole cards.",
    )
    MEMORY_TOO_LARGE = RuleText(
        f"{MEMORY} is {{value}} units of {{unit}}, more bytes than Kubernetes can count{{hint}}",
        "Memory is counted in units, not in bytes.",
        "Divide the bytes by the unit: 5 GiB is `20` units of 256 MiB.",
    )
    MEMORY_WITHOUT_CORE = RuleText(
        f"{MEMORY} is {{value}} without {CORE}: add {CORE}, {{minimum}} to 99 for a part of one card",
        "A share of a card is memory and computing time together; memory alone could never be used.",
        f"Add `{CORE}`, or remove the memory.",
    )
    FRACTION_WITHOUT_MEMORY = RuleText(
        f"{CORE} is {{value}} without {MEMORY}: "
        f"add {MEMORY}, 1 or more units of {{unit}}, or ask for 100, a whole card",
        "Containers that share a card share its memory; without an amount nothing could be held to it.",
        f"Add `{MEMORY}`. An admission service with a default memory writes it before this rule is applied.",
    )
    REQUESTS_DIFFER = RuleText(
        "{field} is {value} in requests and {limit} in limits: make them equal, or leave requests out",
        "Kubernetes does not overcommit extended resources: it refuses requests that differ from limits.",
        "Set both to the same value. "
        f"To let a container use more while its card is idle, annotate the pod with `{CORE_LIMIT}`.",
    )
    PRIVILEGED_FRACTION = RuleText(
        f"securityContext.privileged is true beside {CORE} {{value}}: "
        "a privileged container reaches every card, so drop privileged, or ask for whole cards",
        "A privileged container has every device of the node: its part of a card could not be enforced.",
        "Drop `privileged` (a share needs no privilege), or ask for whole cards.",
    )
    VISIBLE_DEVICES_SET = RuleText(
        f"env {VISIBLE_ENV} is {{value}} in a pod that asks for {CORE}: remove it",
        "Where NVIDIA's container runtime is used, this variable shows a container every card that it names, "
        "whatever the pod asks for. The agent writes it for each container that has cards.",
        "Remove the variable; `void` and `none` are allowed. For one from `envFrom` see `env-from`.",
    )
    ENV_FROM = RuleText(
        f"envFrom may bring {VISIBLE_ENV}, by which NVIDIA's container runtime shows a container every card "
        "that it names, as on {value}: name its variables one by one in env",
        "The kubelet puts a pod's variables after those of the agent, so one from a ConfigMap or Secret "
        "would win. Where no node that the pod may go to injects cards by that variable (`nvidia`), the "
        f"admission service writes `{VISIBLE_ENV}: void` into env, which counts before envFrom.",
        "Write `env` with `valueFrom.configMapKeyRef` or `secretKeyRef` for each variable. Or let the nodes "
        "inject cards by CDI or device nodes: "
        "[variables that show cards](isolation.md#variables-that-show-cards). "
        "`--allow-envfrom` of both programs (chart: `cards.allowEnvFrom`) takes such pods as they are.",
    )
    NAMES_MIXED = RuleText(
        f"{NVIDIA} is {{value}}, and the pod asks for {CORE} too: use one name, a whole card is {CORE} 100",
        "Two names of the same cards are counted apart: no scheduler could say whether one node has both.",
        f"Write `{CORE}: 100` for each whole card, or leave `{CORE}` and `{MEMORY}` out.",
    )
    INIT_CONTAINER_CARDS = RuleText(
        "it is an init container that asks for {value} cores, and the pod's containers ask for {shapes}: "
        "keep the whole pod within 100 cores at a time, or ask for the same number of whole cards in each",
        "Kubernetes hands an init container's share on to the containers after it, in an order nobody knows: "
        "that ends well only if all of them lie on one card, or take equal whole cards.",
        "Remove the request from the init container, make it a sidecar (`restartPolicy: Always`), "
        "or shrink the pod to one card.",
    )
    CONTAINERS_TOO_MANY = RuleText(
        f"spec.containers has {{value}} containers that ask for {CORE}, init containers counted: "
        "a pod may have {nearest}",
        "Every container that asks for cards is placed by itself, on every node that could take the pod: "
        "one pod of hundreds would hold up the scheduling of all others.",
        "Give several processes one container and one share, or split the pod.",
    )
    NODE_AFFINITY_TOO_LARGE = RuleText(
        f"spec.affinity.nodeAffinity has {{value}} bytes in a pod that asks for {CORE}: "
        "use {nearest} at most",
        "What a pod that waits requires of nodes is held for every such pod: some large ones would take the "
        "memory of the service that places all others.",
        "Label the nodes, and select them by that label; don't list their names.",
    )
    CEILING_NOT_INTEGER = RuleText(
        f"annotation {CORE_LIMIT} is {{value}}: use a whole number of percent ({{nearest}})",
        "The elastic ceiling is a percentage of one card.",
        'Write the bare number in quotes, such as `"80"`.',
    )
    CEILING_OUT_OF_RANGE = RuleText(
        f"annotation {CORE_LIMIT} is {{value}}: use {{lowest}} to 100 ({{nearest}})",
        "The ceiling is how far a container may go while its card is idle: "
        "never below its share, never past one card.",
        "Use at least the largest part of a card that a container of the pod asks for, at most 100.",
    )
    PLACEMENT_UNKNOWN = RuleText(
        f"annotation {PLACEMENT} is {{value}}: use {{nearest}}",
        "An unknown policy would silently become another.",
        "Use `binpack` (the default), `spread` or `topology`.",
    )
    PRELOAD_NOT_BOOLEAN = RuleText(
        f"annotation {PRELOAD} is {{value}}: use {{nearest}}",
        "It says whether the library is preloaded into the pod's processes; anything else could mean either.",
        'Write `"true"` (the default) or `"false"`, in quotes.',
    )
    PRIORITY_UNKNOWN = RuleText(
        f"annotation {PRIORITY} is {{value}}: use {{nearest}}",
        "A priority that cannot be read would leave the pod a normal tenant without a word.",
        "Use `protected`, `normal` (the default) or `best-effort`.",
    )
    PRIORITY_OF_WHOLE_CARDS = RuleText(
        f"annotation {PRIORITY} is {{value}}, but container {{name}} asks for whole cards, which have no "
        "other tenant: remove the annotation, or ask for parts of cards",
        "A priority says whose work waits on a shared card; nobody shares a whole one.",
        "Remove the annotation; or give the whole cards to another pod.",
    )
    PRIORITY_WITHOUT_SHARE = RuleText(
        f"annotation {PRIORITY} is {{value}}, but no container asks for {CORE}: "
        "a share by a ResourceClaim has the priority that the claim's parameters say",
        "A claim may serve several pods, so it says the priority of its shares itself; without a word they "
        "are normal tenants.",
        f"Write `priority` into the claim's `ShareParameters`, or ask for `{CORE}` and `{MEMORY}`; else "
        "remove the annotation.",
        warning=True,
    )
    PRIORITY_CHANGED = RuleText(
        f"annotation {PRIORITY} is {{value}}: it is fixed when the pod is created: leave it {{before}}",
        "The quota was judged by it and the card was chosen by it.",
        "Change it in the workload's template, so that its pods are replaced.",
    )
    PRIORITY_PAST_SCHEDULER = RuleText(
        f"annotation {PRIORITY} is protected, but {{field}} {{value}} passes the scheduler by, which alone "
        "counts the right to protected shares: remove {field}",
        "The right is counted exactly when the scheduler binds a pod. One that reaches a node by another way "
        "would be protected beyond it.",
        "Remove the line that the text names; select a node by its label `kubernetes.io/hostname`.",
    )
    CARDS_MALFORMED = RuleText(
        f"annotation {CARDS} is {{reason}}: write a number such as 2, or one for each container as train=2",
        "A number of cards that cannot be read would leave a container with another shape without a word.",
        "Write the number of cards of all containers with cores (`2`), or by name (`train=2,eval=4`).",
    )
    CARDS_CORES = RuleText(
        f"{CORE} is {{value}} on {{cards}} cards (annotation {CARDS}): it is the total of equal parts of "
        "{minimum} to 99: use {nearest}{hint}",
        f"With `{CARDS}` the limit counts all cards together, and each gets the same part.",
        "Multiply the part of one card by the number of cards: half of each of two cards is `100`. "
        "Whole cards are asked for without the annotation.",
    )
    CARDS_MEMORY = RuleText(
        f"{MEMORY} is {{value}} on {{cards}} cards (annotation {CARDS}): it is the total of equal parts of "
        "whole units of {unit}: use {nearest}",
        f"With `{CARDS}` the limit counts all cards together, and each gets the same part.",
        "Multiply the units of one card by the number of cards: 10 GiB of each of two cards is `80`.",
    )
    CARDS_INIT_CONTAINER = RuleText(
        f"it is an init container that asks for {{value}} cores in a pod whose container {{other}} has parts "
        f"of {{cards}} cards (annotation {CARDS}): remove the request, or make it a sidecar "
        "(restartPolicy: Always)",
        "The kubelet hands an init container's device ids on to later containers at random, so the parts "
        "would lie on cards that nobody chose.",
        "Do the work that needs a card in an app container, or in a sidecar.",
    )
    CARDS_BESIDE_CLAIM = RuleText(
        f"annotation {CARDS} gives it parts of {{value}} cards, and it uses ResourceClaim {{claim}} too: use "
        "one of both",
        "The limits of a claim and those of extended resources are mounted at the same paths.",
        "Ask for all cards by the claim (`count`), or for all by the annotation.",
    )
    CARDS_CHANGED = RuleText(
        f"annotation {CARDS} is {{value}}: it is fixed when the pod is created: leave it {{before}}",
        "It says what the container's amounts mean: its cards were chosen and its quota was judged by it.",
        "Change it in the workload's template, so that its pods are replaced.",
    )
    CARDS_NOT_YET = RuleText(
        f"annotation {CARDS} is not taken yet: {{reason}}",
        "An older replica of the admission service takes parts of several cards for whole cards.",
        "Create the pod again once the rollout of the admission service has ended.",
    )
    CARDS_WITHOUT_SHARE = RuleText(
        f"annotation {CARDS} is {{value}}, but no container asks for {CORE}: it has no effect",
        f"It divides what a container asks for by `{CORE}` and `{MEMORY}`. ResourceClaims count devices "
        f"themselves, and `{NVIDIA}` counts whole cards.",
        f"Ask for `{CORE}` and `{MEMORY}` as totals; else remove the annotation.",
        warning=True,
    )
    MIG_SEVERAL = RuleText(
        f"{CORE} is {{value}}, of several cards, and the pod allows MIG instances alone ({GPU_MODEL}, "
        f"{GPU_UUID}): a container gets one instance: use {{nearest}} or less",
        "CUDA shows a process one MIG instance, whatever its container was given.",
        "Ask for one instance with more memory, or for several containers or pods with one each.",
    )
    MIG_PARTS = RuleText(
        f"annotation {CARDS} is {{value}}, and the pod allows MIG instances alone ({GPU_MODEL}, {GPU_UUID}): "
        "a container gets one instance: remove the annotation",
        "CUDA shows a process one MIG instance, whatever its container was given.",
        f"Ask for one instance with more memory; to divide cards, let `{GPU_MODEL}` name a card's model.",
    )
    MIG_LENT = RuleText(
        f"{NVIDIA} is {{value}}, which counts whole cards, and the pod allows MIG instances alone "
        f"({GPU_MODEL}, {GPU_UUID}): ask for {CORE} 100",
        f"Instances are given by `{CORE}` and `{MEMORY}` alone; the name `{NVIDIA}` never counts them.",
        f"Write `{CORE}: 100` for a whole instance, or less with `{MEMORY}` for a part of one.",
    )
    MODELS_MALFORMED = RuleText(
        f"annotation {GPU_MODEL} is {{value}}: use a comma-separated list of models, such as V100,T4",
        "A list that cannot be read would match no card, or every card.",
        "Name each model whole or by a part between dashes (`V100` for `Tesla-V100-SXM2-32GB`); "
        "remove the annotation for any.",
    )
    UUIDS_MALFORMED = RuleText(
        f"annotation {GPU_UUID} is {{value}}: "
        "use a comma-separated list of card UUIDs as `nvidia-smi -L` prints them{hint}",
        "A UUID that no card can have would leave the pod pending for ever.",
        "Copy the UUIDs (`GPU-` or `MIG-` and 36 characters, lower case; `MIG-GPU-…/7/0` names the same "
        "instance by its place); remove the annotation for any card.",
    )
    DELAY_MALFORMED = RuleText(
        f"annotation {PREEMPTION_DELAY} is {{value}}: use a whole number with s, m or h, such as 90s or 5m",
        "A delay that cannot be read would be none: the pod would evict others at once.",
        "Write seconds, minutes or hours as `90s`, `5m` or `1h`; remove the annotation for no delay.",
    )
    RESIZE_UNREADABLE = RuleText(
        f"annotation {RESIZE} is {{value}}: {{reason}}: write {{example}}",
        "A size that cannot be read would leave the pod at its old one without a word.",
        "`kubectl vcuda resize` writes it. `memory` is a quantity such as `8Gi`, or bytes; "
        "what is left out stays as in the spec.",
    )
    RESIZE_NOT_A_FRACTION = RuleText(
        f"annotation {RESIZE} names container {{value}}, {{reason}}{{hint}}",
        "Only a fraction in an app container or sidecar changes its size: whole cards have no limit to move, "
        "and an ordinary init container hands its share on to the containers after it.",
        "Name a container with 1 to 99 cores, or change the template and let the pod be replaced.",
    )
    RESIZE_VALUE = RuleText(
        f"annotation {RESIZE}: {{what}} of container {{value}} is {{wanted}}: use {{nearest}}",
        "A resized container is still a fraction of the cards that it is on: 1 to 99 cores of each, in whole "
        "units of memory. Of several cards the size is the total of equal parts.",
        "Use a legal fraction; for a whole card change the pod's template.",
    )
    RESIZE_ABOVE_CEILING = RuleText(
        f"annotation {RESIZE}: cores of container {{value}} are {{wanted}}, above its elastic ceiling "
        f"{{ceiling}}: use at most {{ceiling}}, or set annotation {CORE_LIMIT} to {{wanted}} or more",
        "The elastic ceiling is never below the share that a container is sure of.",
        "Raise the ceiling in the same change, remove it, or ask for less.",
    )
    RESIZE_AT_CREATION = RuleText(
        "annotation {field} is removed: it resizes a running pod, and a new one has the size of its spec",
        "A copied manifest or a restored backup carries it; the pod that it was written for is another.",
        "Write the size into the pod's limits.",
        warning=True,
    )
    RESIZE_IMPOSSIBLE = RuleText(
        f"annotation {RESIZE} asks for a size that no pod can have: {{reason}}",
        "New pods of the workload start at that size: each of them would wait for ever.",
        "Ask for what the text names: a size is judged against the cluster's cards as if they were empty.",
    )
    RESIZE_OF_OWNER = RuleText(
        "the size that {value} asks for is not used: {reason}",
        "A workload's own annotation gives its pods another size than its template. One that does not suit "
        "the template leaves new pods at the template's.",
        f"Mend annotation {RESIZE} of the workload, or remove it.",
        warning=True,
    )
    ADVICE_UNREADABLE = RuleText(
        f"annotation {ADVICE} is {{value}}: {{reason}}: write {{example}}",
        "What cannot be read would allow nothing, without a word.",
        "Bounds are `[least, most]`: cores as numbers, memory as quantities such as `8Gi`; else "
        "there are none.",
    )
    ADVICE_BOUND = RuleText(
        f"annotation {ADVICE}: {{what}} of container {{value}} is bounded by {{wanted}}: use {{nearest}}",
        "No size within these bounds could be given: fractions have 1 to 99 cores and whole units of memory.",
        "Use the nearest bounds that can be kept.",
    )
    ANNOTATION_GUARDED = RuleText(
        "annotation {field} is written by the scheduler and the agent alone: remove it",
        "It says which cards a pod holds; whoever could write it could take another's.",
        "Remove it from the manifest. Restored backups lose it by themselves, with a warning.",
    )
    ANNOTATION_CHANGED = RuleText(
        "annotation {field} is {value}: the scheduler and the agent alone may change it: leave it {before}",
        "It says which cards a running pod holds; whoever could change it could take another's.",
        "Change nothing under these keys; `kubectl annotate` other keys freely.",
    )
    EPHEMERAL_CONTAINER = RuleText(
        "{field} is {value}, but an ephemeral container cannot ask for cards: remove the request",
        "An ephemeral container joins a pod whose cards are already given; it may look, not take.",
        "Remove the resources from the ephemeral container, or start a pod of its own.",
    )
    QUOTA_EXCEEDED = RuleText(
        "{reason}",
        "The namespace has a quota for the models of cards that the pod may use, and the pod asks for more. "
        "The text has the sums: used, granted, and what would still fit.",
        "Ask for less, free some, allow another model, or ask the operator to raise the namespace's quota.",
        words="ExceedsGPUQuota",
    )
    CLAIM_PARAMETERS = RuleText(
        "{reason}",
        "What a ResourceClaim, or its class, says to this driver beside its capacity cannot be read, or "
        "cannot hold for one of its requests or alternatives. Its pods would wait for it for ever.",
        "Write what the text names; [docs/dra.md](dra.md#ask-for-a-part-of-a-card) has the parameters.",
    )
    CLAIMS_IN_ONE_CONTAINER = RuleText(
        "uses {reason}: it can use one, for the limits of a request are mounted at fixed paths. Use one "
        "request with count for parts of several cards, or name the request that each container uses",
        "A container that names a claim and no request uses all of its requests.",
        "Write `count: 2` into one request for equal parts of two cards, or name one request of this driver "
        "in each container: `claims: [{name: …, request: …}]`.",
    )
    CLAIM_SHARED = RuleText(
        "{reason}: they have one part of a card, and one limit, together",
        "A request of a claim is one share, however many containers use it.",
        "Nothing, if that is meant; else write a request for each container.",
        warning=True,
    )
    TURNED_INTO_CLAIM = RuleText(
        "its vcuda resources are asked of a ResourceClaim, by template {value}: {shares}",
        f"The namespace has the label `{FRONT_LABEL}: dra`: its pods go to nodes that give cards by claims.",
        "Nothing; without the label pods keep their extended resources.",
        warning=True,
    )
    NOT_TURNED_INTO_CLAIM = RuleText(
        "it is not turned into a ResourceClaim, and nodes that give cards by claims alone cannot take it: "
        "{reason}",
        f"The namespace has the label `{FRONT_LABEL}: dra`, but a claim cannot say what the pod asks for. "
        "It keeps its extended resources.",
        "Change what the text names, or run the pod in a namespace without the label.",
        warning=True,
    )
    PLACEMENT_OF_CLAIM = RuleText(
        f"annotation {PLACEMENT} is {{value}}: it is passed over, cards of claims are taken in the order in "
        "which each node publishes them",
        "Kubernetes gives a claim the first card that fits; the order is the node's placement policy.",
        "Remove the annotation; the operator sets the policy of the nodes.",
        warning=True,
    )
    UNLIKE_SHARES = RuleText(
        "its claim has {value} unlike shares: where they do not fit, Kubernetes' scheduler searches each "
        "node for up to seconds, and all other pods wait; with {nearest} or fewer it takes 0.1 s at most",
        "It tries every combination of cards for the shares before one that finds none (measured, "
        "`allocator_worst_ms`).",
        "Ask for equal shares, or split the pod.",
        warning=True,
    )
    LIMIT_RANGE = RuleText(
        "{field} {reason} that asks for none then asks for that much",
        "Of a LimitRange's `max` Kubernetes makes the default of every container of the namespace, so that "
        "each web server and sidecar in it asks for a share of a card.",
        "Take the resource out of the LimitRange, and bound containers by `containerMax` in the "
        "[quota](quota.md).",
        warning=True,
    )
    RESOURCE_UNCOUNTED = RuleText(
        "{field} in {value} bounds nothing: {reason}",
        "A bound that its system does not count is taken for one, and is none.",
        "Remove it. What a namespace may hold the [quota](quota.md) bounds; machines, a resource that their "
        "types offer.",
        warning=True,
    )
    PRIVILEGED_BESIDE_SHARE = RuleText(
        "securityContext.privileged is true in a pod in which container {value} has a part of a card: "
        "a privileged container reaches every card of the node, past every share",
        "The share of the pod is held to its limits, its privileged neighbour to none. "
        "Whoever may create privileged containers has the node.",
        "Drop `privileged` where the container does not need it, or give it a pod of its own.",
        warning=True,
    )
    MEMORY_BESIDE_WHOLE_CARDS = RuleText(
        f"{MEMORY} is {{value}} beside {{cards}}: it is ignored, a whole card comes with all its memory",
        "The predecessor ignored it too; the admission service removes it.",
        "Remove the line.",
        warning=True,
    )
    INIT_CONTAINER_ASKS = RuleText(
        "it is an init container that asks for {value} cores: a restart of the kubelet may fail the pod "
        "while it runs: remove the request, or make it a sidecar (restartPolicy: Always)",
        "A kubelet that restarts admits its pods again, and passes over containers that run. One that has "
        "ended is judged anew: where the agent has not registered again by then, the pod fails (Kubernetes "
        "issues 124345 and 138446). The agent registers within 0.3 s, which is mostly early enough.",
        "Do the work that needs a card in an app container, or in a sidecar.",
        warning=True,
    )
    MEMORY_BEYOND_CARDS = RuleText(
        f"{MEMORY} is {{value}} units of {{unit}}, more than a card holds{{hint}}",
        "Memory is counted in units, not in bytes or MiB: the pod would wait for ever.",
        "Divide the memory by the unit: 5 GiB is `20` units of 256 MiB.",
        warning=True,
    )
    MEMORY_DEFAULTED = RuleText(
        f"{CORE} is {{value}} without {MEMORY}: it gets this cluster's default, {{units}} units ({{size}})",
        "The cluster's operator has set a default memory for parts of a card.",
        f"Write `{MEMORY}` yourself to have another amount.",
        warning=True,
    )
    ANNOTATION_REMOVED = RuleText(
        "annotation {field} is removed: the scheduler and the agent alone write it",
        "Restored backups and copied manifests carry it; it belongs to the pod that it was written for.",
        "Remove it from the manifest.",
        warning=True,
    )
    NODE_NAME_SET = RuleText(
        "spec.nodeName is {value}: the scheduler is passed by and keeps no card for the pod: "
        "use a nodeSelector instead",
        "A pod with a node name goes straight to that node, which refuses it if the cards are taken.",
        "Remove `nodeName`; select the node by its label `kubernetes.io/hostname`. "
        "An admission service that denies node names refuses such a pod.",
        warning=True,
    )
    SCHEDULER_OTHER = RuleText(
        "spec.schedulerName is {value}, but {expected} alone keeps cards for pods: remove the line",
        "Another scheduler counts a node's cards without knowing which of them are free.",
        "Leave `schedulerName` out: the admission service writes it.",
        warning=True,
    )
    RESOURCE_UNKNOWN = RuleText(
        "{field} is no resource of this system{hint}",
        "No node offers a resource by that name: a pod that asks for it waits for ever.",
        f"Write `{CORE}` and `{MEMORY}`; `kubectl vcuda migrate` translates manifests of other systems.",
        warning=True,
    )
    FOREIGN_NAME = RuleText(
        "{field} at {value} is a name of another system: {reason}",
        "Nothing here reads it: the share, the policy or the figure that it asks for is not had.",
        "Translate the manifest by `kubectl vcuda migrate`, and write by hand what it reports as left.",
        warning=True,
    )
    ANNOTATION_UNKNOWN = RuleText(
        "annotation {field} means nothing here{hint}",
        "A misspelt annotation would be ignored in silence.",
        "Correct its name, or remove it.",
        warning=True,
    )
    ANNOTATION_OF_WORKLOAD = RuleText(
        "annotation {field} stands on the {kind} itself, where it does nothing: write it into {place}",
        "Pods have the annotations of their template, not those of the workload that makes them.",
        "Move it into the template; its pods are then replaced, and have it from the start.",
        warning=True,
    )
    NO_CARD_FITS = RuleText(
        "{reason}",
        "The pod is legal, but no card of this cluster, even if it were empty, could hold what it asks for.",
        "Ask for what the text names, or wait until such a card joins the cluster.",
        warning=True,
    )

    @property
    def id(self) -> str:
        """The rule's name in documentation and JSON; it never changes."""
        return self.name.lower().replace("_", "-")

    @property
    def is_warning(self) -> bool:
        """True if a pod may break it and still run."""
        return self.value.warning


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule broken by a value.

    ``container`` is empty if the fault is the pod's. ``nearest`` holds the legal values on either side, the
    nearer first; it is empty if no single value is a remedy.
    """

    rule: Rule
    container: str
    field: str
    value: str
    message: str
    nearest: tuple[int | str, ...] = ()

    @property
    def refusal(self) -> str:
        """The message, which starts with the predecessor's words if there are any."""
        return f"{self.rule.value.words}: {self.message}" if self.rule.value.words else self.message


def violation(
    rule: Rule, container: str, field: str, value: str, nearest: tuple[int | str, ...] = (), **figures: str
) -> Violation:
    """Build a violation of the rule by this value; ``figures`` fill the rest of the template."""
    choice = " or ".join(map(str, sorted(nearest, key=lambda n: (isinstance(n, str), n))))
    text = rule.value.text.format(field=field, value=value, nearest=choice, **figures)
    where = f"container {quoted(container)}: " if container else ""
    return Violation(rule, container, field, value, where + text, nearest)

"""The webhooks' answers: ``/mutate`` completes a pod, ``/validate`` judges it, workload templates get
warnings.

Plain functions of the review and the cluster's terms; the rules themselves are the domain's. The API server's
own check of whole and equal quantities runs between the two and hides the better text, so ``/mutate`` already
reports what that check would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from admission.config import ClusterTerms
from admission.webhook.admission_review import ALLOWED, Review, ReviewVerdict
from admission.webhook.draft import (
    Draft,
    at_asked_size,
    draft_pod,
    ephemeral_faults,
    is_mirror,
    owner_faults,
    read_pod,
)
from gpu_manager.domain.advice.opt_in import check_advice_terms
from gpu_manager.domain.cluster.quota import QUOTA_PLACE
from gpu_manager.domain.cluster.quota_map import read_quota
from gpu_manager.domain.contract import ADVICE, CARDS, PRIORITY, RESIZE
from gpu_manager.domain.dra.translation import is_turned_template
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resize.judgement import check_resize
from gpu_manager.domain.rules.legal_values import check_guarded, check_pod, guarded_keys, warn_pod
from gpu_manager.domain.rules.pod_annotations import FIXED
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation
from gpu_manager.domain.rules.unknown_names import check_env_from, misplaced
from gpu_manager.domain.untrusted import annotations_of, at, mapping, mappings, text

Says = Callable[[Pod, PodRequest], Sequence[str]]

_SAID_BY_CLAIM: Final = (Rule.PRIORITY_WITHOUT_SHARE, Rule.CARDS_WITHOUT_SHARE)
"""What is not said of a pod whose claim was made from its annotations."""


@dataclass(frozen=True, slots=True)
class InjectionWays:
    """How the nodes that a pod may go to inject cards: ``by_variable`` is the name of a node where a variable
    shows containers their cards (``nvidia``), empty for none; ``known``: there are nodes, and all report it.
    """

    by_variable: str = ""
    known: bool = False

    @property
    def hidden(self) -> bool:
        """True if no variable is needed to show a container its cards."""
        return self.known and not self.by_variable


@dataclass(frozen=True, slots=True)
class CreateTimeChecks:
    """Checks of a legal pod at creation against the cluster's state; must answer from memory.

    Sentences: ``refuse`` gives why its namespace's quota forbids it, ``warn`` why no card could ever hold it.
    ``size``: the size that the pod's workload requests in its own metadata, empty for none. ``claim``: why a
    ResourceClaim (its object, its namespace, whether it is a dry run) cannot be created, empty if it can, and
    whether a retry may succeed. ``pod_claims``: faults of, or remarks on, the claims that a pod's containers
    use. ``injection``: how the nodes that a pod may go to inject cards. ``best_effort``: whether the quota of
    a namespace makes its fractions best-effort. ``no_parts``: why no replica may take parts of several cards
    yet, empty if all may.
    """

    refuse: Says = lambda *_: ()
    warn: Says = lambda *_: ()
    size: Callable[[Pod], str] = lambda _: ""
    claim: Callable[[Mapping[str, Any], str, bool], tuple[str, bool]] = lambda *_: ("", False)
    pod_claims: Callable[[Mapping[str, Any], str], tuple[Violation, ...]] = lambda *_: ()
    injection: Callable[[Mapping[str, Any]], InjectionWays] = lambda _: InjectionWays()
    best_effort: Callable[[str], bool] = lambda _: False
    no_parts: Callable[[], str] = lambda: ""

    def refusals(self, pod: Pod, request: PodRequest) -> tuple[Violation, ...]:
        """The reasons that forbid the pod, as violations."""
        lead = f"{Rule.QUOTA_EXCEEDED.value.words}: "
        return tuple(
            violation(Rule.QUOTA_EXCEEDED, "", "", "", reason=text.removeprefix(lead))
            for text in self.refuse(pod, request)
        )

    def warnings(self, pod: Pod, request: PodRequest) -> tuple[Violation, ...]:
        """The reasons for which the pod will wait, as violations."""
        return tuple(
            violation(Rule.NO_CARD_FITS, "", "", "", reason=text) for text in self.warn(pod, request)
        )


SILENT: Final = CreateTimeChecks()
_SHOWN: Final = 8  # faults of one pod in one text

# The API server would refuse these between the two webhooks, in words that teach nothing.
_HIDDEN: Final = frozenset(
    {
        Rule.POD_UNREADABLE,
        Rule.CORE_NOT_WHOLE,
        Rule.CORE_NEGATIVE,
        Rule.CORE_TOO_LARGE,
        Rule.MEMORY_NOT_WHOLE,
        Rule.MEMORY_NEGATIVE,
        Rule.REQUESTS_DIFFER,
        Rule.CARDS_CORES,
        Rule.CARDS_MEMORY,
    }
)
# These forbid an act; all others say that a value cannot be.
_FORBIDDEN: Final = frozenset(
    {
        Rule.ANNOTATION_GUARDED,
        Rule.ANNOTATION_CHANGED,
        Rule.PRIORITY_CHANGED,
        Rule.CARDS_CHANGED,
        Rule.CARDS_NOT_YET,
        Rule.PRIORITY_PAST_SCHEDULER,
        Rule.NODE_NAME_SET,
        Rule.QUOTA_EXCEEDED,
    }
)

_CHANGES: Final = frozenset(
    ("", resource, "UPDATE")
    for resource in ("pods", "pods/status", "pods/ephemeralcontainers", "pods/resize")
)
_TEMPLATE = ("spec", "template")
# Objects that make pods, by group and resource, and where the pod stands in them.
TEMPLATES: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("", "podtemplates"): ("template",),
    ("", "replicationcontrollers"): _TEMPLATE,
    ("apps", "deployments"): _TEMPLATE,
    ("apps", "statefulsets"): _TEMPLATE,
    ("apps", "daemonsets"): _TEMPLATE,
    ("apps", "replicasets"): _TEMPLATE,
    ("batch", "jobs"): _TEMPLATE,
    ("batch", "cronjobs"): ("spec", "jobTemplate", "spec", "template"),
}


def mutate(review: Review, terms: ClusterTerms, checks: CreateTimeChecks = SILENT) -> ReviewVerdict:
    """Complete a pod that is being created; any other object is left unchanged. Idempotent."""
    if (review.group, review.resource, review.operation) != ("", "pods", "CREATE") or review.obj is None:
        return ALLOWED
    obj = review.obj

    def owners(pod: Pod) -> str:
        return checks.size(replace(pod, namespace=review.namespace or "default"))

    try:
        draft = draft_pod(
            obj,
            terms,
            trusted=_is_trusted(review, terms),
            owners=owners,
            hidden=lambda: checks.injection(obj).hidden,
            best_effort=checks.best_effort(review.namespace or "default"),
        )
    except RequestInvalid as error:
        return denied((_unreadable(error),))
    faults = check_pod(draft.pod, terms.unit, terms.minimum_cores)
    if not is_mirror(review) and any(fault.rule in _HIDDEN for fault in faults):
        return denied(faults)
    if CARDS in draft.pod.annotations and not is_mirror(review) and (why := checks.no_parts()):
        return denied((violation(Rule.CARDS_NOT_YET, "", CARDS, "", reason=why),))
    return ReviewVerdict(
        patch=draft.patch, warnings=tuple(v.message for v in draft.changes), rules=_ids(draft.changes)
    )


def validate(review: Review, terms: ClusterTerms, checks: CreateTimeChecks = SILENT) -> ReviewVerdict:
    """Judge a pod that is created or changed, or warn about a workload's template; the rest is allowed."""
    if review.operation not in ("CREATE", "UPDATE") or review.obj is None:
        return ALLOWED
    path = TEMPLATES.get((review.group, review.resource))
    if path is not None:
        return _judge_template(review, path, terms, checks)
    act = (review.group, review.resource, review.operation)
    if act == ("", "pods", "CREATE"):
        return _judge_new(review, terms, checks)
    if act in (("", "pods/binding", "CREATE"), ("", "bindings", "CREATE")):
        # The annotations of a Binding become the pod's.
        if _is_trusted(review, terms):
            return ALLOWED
        return denied((*_guarded(review.obj), *_changed({}, annotations_of(review.obj))))
    if act == ("resource.k8s.io", "resourceclaims", "CREATE"):
        return _judge_claim(review, checks)
    if act in _CHANGES:
        return _judge_change(review, terms)
    if (review.group, review.resource, (review.namespace, review.name)) == ("", "configmaps", QUOTA_PLACE):
        return _judge_quota(review)
    return ALLOWED


def _judge_quota(review: Review) -> ReviewVerdict:
    """Refuse a quota that could not be used, before it is stored; what is written anew stays as it was."""
    now, before = (mapping(each).get("data") for each in (review.obj, review.old))
    try:
        read_quota(None if now == before else review.obj)
    except NodeUnready as error:
        return ReviewVerdict(allowed=False, message=str(error), code=422, reason="Invalid")
    return ALLOWED


def _judge_claim(review: Review, checks: CreateTimeChecks) -> ReviewVerdict:
    """Judge a ResourceClaim's parameters, and hold it to its namespace's quota."""
    text, again = checks.claim(review.obj or {}, review.namespace, review.dry_run)
    if not text:
        return ALLOWED
    if again:
        return ReviewVerdict(allowed=False, message=text, code=503, reason="ServiceUnavailable")
    lead = f"{Rule.QUOTA_EXCEEDED.value.words}: "
    rule = Rule.QUOTA_EXCEEDED if text.startswith(lead) else Rule.CLAIM_PARAMETERS
    return denied((violation(rule, "", "", "", reason=text.removeprefix(lead)),))


def _is_turned(obj: Mapping[str, Any]) -> bool:
    """True if the pod's claim was made from its own annotations."""
    entries = mappings(at(obj, "spec").get("resourceClaims"))
    return any(is_turned_template(text(one.get("resourceClaimTemplateName"))) for one in entries)


def _judge_new(review: Review, terms: ClusterTerms, checks: CreateTimeChecks) -> ReviewVerdict:
    obj = review.obj or {}
    guarded = () if _is_trusted(review, terms) else _guarded(obj)
    try:
        pod = replace(read_pod(obj), namespace=review.namespace or "default")
        ephemeral = ephemeral_faults(obj)
    except RequestInvalid as error:
        return denied((*guarded, _unreadable(error)))
    advice = check_advice_terms(pod.annotations, terms.unit, terms.minimum_cores)
    claims = checks.pod_claims(obj, pod.namespace)
    double = (one for one in claims if not one.rule.is_warning)
    shown = _shown_cards(pod, obj, terms, checks)
    faults = (
        *guarded,
        *check_pod(pod, terms.unit, terms.minimum_cores),
        *shown,
        *advice,
        *ephemeral,
        *double,
    )
    warnings = (
        *(one for one in claims if one.rule.is_warning),
        *(one for one in warn_pod(pod, terms.unit) if not (one.rule in _SAID_BY_CLAIM and _is_turned(obj))),
        *(_detours(pod, terms) if pod.asks else ()),
    )
    if is_mirror(review):
        # It runs already, whatever is said here; refused, its share would be hidden from everyone.
        return _warned((*faults, *warnings))
    faults = (*faults, *protected_past_scheduler(pod, terms))
    if terms.deny_node_name:
        refused = tuple(v for v in warnings if v.rule is Rule.NODE_NAME_SET)
        faults, warnings = (*faults, *refused), tuple(v for v in warnings if v not in refused)
    if not faults and pod.asks:
        request = judged_request(pod, terms.unit, terms.minimum_cores)
        warnings = (*warnings, *checks.warnings(pod, request))
        faults = checks.refusals(pod, request)
    return denied(faults, warnings) if faults else _warned(warnings)


def _judge_change(review: Review, terms: ClusterTerms) -> ReviewVerdict:
    """A change may not make a pod illegal; what it was before, it may stay: it must be able to end."""
    obj, old = review.obj or {}, review.old or {}
    faults = [] if _is_trusted(review, terms) else list(_tampered(old, obj))
    if (obj.get("spec"), annotations_of(obj)) != (old.get("spec"), annotations_of(old)):
        before = frozenset(_faults_or_none(old, terms) or ())
        try:
            faults += (fault for fault in _faults(obj, terms) if fault not in before)
        except RequestInvalid as error:
            if _faults_or_none(old, terms) is not None:
                faults.append(_unreadable(error))
    return denied(faults)


def _faults(obj: Mapping[str, Any], terms: ClusterTerms) -> tuple[Violation, ...]:
    pod = read_pod(obj)
    return (
        *check_pod(pod, terms.unit, terms.minimum_cores),
        *check_resize(pod, terms.unit, terms.minimum_cores),
        *check_advice_terms(pod.annotations, terms.unit, terms.minimum_cores),
        *ephemeral_faults(obj),
    )


def _faults_or_none(obj: Mapping[str, Any], terms: ClusterTerms) -> tuple[Violation, ...] | None:
    try:
        return _faults(obj, terms)
    except RequestInvalid:
        return None


def _judge_template(
    review: Review, path: tuple[str, ...], terms: ClusterTerms, checks: CreateTimeChecks
) -> ReviewVerdict:
    template = at(review.obj, *path)
    if not template:
        return ALLOWED
    sized, before = annotations_of(review.obj), annotations_of(review.old)
    if sized.get(RESIZE) != before.get(RESIZE):
        try:
            faults = owner_faults(read_pod(template), sized, terms) or _impossible(
                read_pod(template), sized, review.namespace, terms, checks
            )
        except RequestInvalid:
            faults = ()  # its pods will be told
        if faults:
            return denied(faults)
    if sized.get(ADVICE) != before.get(ADVICE):
        faults = tuple(check_advice_terms(sized, terms.unit, terms.minimum_cores))
        if faults:
            return denied(faults)
    same = template == at(review.old, *path)
    kind = review.kind if review.kind.isalnum() else "object"
    beside = tuple(
        one
        for one in misplaced(sized, annotations_of(template), kind, path)
        if not same or sized[one.field] != before.get(one.field)
    )
    found = () if same else tuple(_foresee(template, review.namespace, terms, checks))
    pods = f"pods of this {kind}"
    foretold = (f"{pods}{' will be refused' if bad else ''}: {v.refusal}" for bad, v in found)
    return ReviewVerdict(
        warnings=(*foretold, *(one.message for one in beside)), rules=_ids((*(v for _, v in found), *beside))
    )


def _impossible(
    template: Pod,
    annotations: Mapping[str, Any],
    namespace: str,
    terms: ClusterTerms,
    checks: CreateTimeChecks,
) -> tuple[Violation, ...]:
    """Why no card could ever hold the size that a workload's annotation asks for."""
    pod = at_asked_size(template, annotations, terms)
    if pod is None or not pod.asks:
        return ()
    pod = replace(pod, namespace=namespace or "default")
    request = judged_request(pod, terms.unit, terms.minimum_cores)
    return tuple(
        violation(Rule.RESIZE_IMPOSSIBLE, "", RESIZE, "", reason=text) for text in checks.warn(pod, request)
    )


def _foresee(
    template: Mapping[str, Any], namespace: str, terms: ClusterTerms, checks: CreateTimeChecks
) -> Iterator[tuple[bool, Violation]]:
    """What the webhooks will say to a pod of this template, and whether it is a refusal."""
    try:
        draft: Draft = draft_pod(
            template, terms, trusted=False, hidden=lambda: checks.injection(template).hidden
        )
    except RequestInvalid as error:
        yield True, _unreadable(error)
        return
    pod = replace(draft.pod, namespace=namespace or "default")
    advice = check_advice_terms(pod.annotations, terms.unit, terms.minimum_cores)
    shown = _shown_cards(pod, template, terms, checks)
    faults = (*check_pod(pod, terms.unit, terms.minimum_cores), *shown, *advice)
    yield from ((True, fault) for fault in faults)
    yield from ((False, change) for change in draft.changes)
    yield from ((False, warning) for warning in warn_pod(pod, terms.unit))
    if not pod.asks:
        return
    yield from ((True, fault) for fault in protected_past_scheduler(pod, terms))
    for warning in _detours(pod, terms):
        yield terms.deny_node_name and warning.rule is Rule.NODE_NAME_SET, warning
    if not faults:
        request = judged_request(pod, terms.unit, terms.minimum_cores)
        yield from ((True, fault) for fault in checks.refusals(pod, request))
        yield from ((False, warning) for warning in checks.warnings(pod, request))


def _shown_cards(
    pod: Pod, obj: Mapping[str, Any], terms: ClusterTerms, checks: CreateTimeChecks
) -> tuple[Violation, ...]:
    """Refuse envFrom where a node shows cards by a variable. Nodes that do not tell refuse it themselves."""
    if terms.allow_env_from or not any(container.env_from for container in pod.containers):
        return ()
    node = checks.injection(obj).by_variable
    return tuple(check_env_from(pod, f"node {quoted(node)}")) if node else ()


def _detours(pod: Pod, terms: ClusterTerms) -> Iterator[Violation]:
    """Ways past the scheduler that keeps the cards."""
    if pod.node:
        yield violation(Rule.NODE_NAME_SET, "", "spec.nodeName", quoted(pod.node))
    elif terms.scheduler_name and pod.scheduler not in ("", terms.scheduler_name):
        yield violation(
            Rule.SCHEDULER_OTHER,
            "",
            "spec.schedulerName",
            quoted(pod.scheduler),
            (terms.scheduler_name,),
            expected=terms.scheduler_name,
        )


def protected_past_scheduler(pod: Pod, terms: ClusterTerms) -> Iterator[Violation]:
    """Yield how a protected pod bypasses the scheduler, since only the scheduler counts the right to be
    one.
    """
    if pod.asks and pod.annotations.get(PRIORITY) == Priority.PROTECTED.value:
        for each in _detours(pod, terms):
            yield violation(Rule.PRIORITY_PAST_SCHEDULER, "", each.field, each.value)


def _guarded(obj: Mapping[str, Any]) -> tuple[Violation, ...]:
    return check_guarded(annotations_of(obj))


def _tampered(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Violation]:
    before, after = annotations_of(old), annotations_of(new)
    for key in guarded_keys({**before, **after}):
        was, now = before.get(key), after.get(key)
        if was != now:
            yield violation(
                Rule.ANNOTATION_CHANGED,
                "",
                key,
                "removed" if now is None else quoted(now),
                before="out" if was is None else f"as it was, {quoted(was)}",
            )
    yield from _changed(before, after)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Violation]:
    """Changes of what is fixed at creation; none written is the same as the default."""
    for key, (rule, default) in FIXED.items():
        was, now = before.get(key), after.get(key)
        if (default if was is None else was) != (default if now is None else now):
            yield violation(
                rule,
                "",
                key,
                "removed" if now is None else quoted(now),
                before="out" if was is None else f"as it was, {quoted(was)}",
            )


def _is_trusted(review: Review, terms: ClusterTerms) -> bool:
    return review.user in terms.trusted_users


def _unreadable(error: RequestInvalid) -> Violation:
    return violation(Rule.POD_UNREADABLE, "", "", "", reason=str(error))


def denied(faults: Sequence[Violation], warnings: Sequence[Violation] = ()) -> ReviewVerdict:
    """The refusal with every fault at once; only the warnings if there is no fault."""
    if not faults:
        return _warned(warnings)
    more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    forbidden = all(f.rule in _FORBIDDEN for f in faults)
    return ReviewVerdict(
        allowed=False,
        message="; ".join(fault.refusal for fault in faults[:_SHOWN]) + more,
        code=403 if forbidden else 422,
        reason="Forbidden" if forbidden else "Invalid",
        warnings=tuple(warning.message for warning in warnings),
        rules=_ids(faults),
    )


def _warned(warnings: Sequence[Violation]) -> ReviewVerdict:
    return (
        ReviewVerdict(warnings=tuple(v.refusal for v in warnings), rules=_ids(warnings))
        if warnings
        else ALLOWED
    )


def _ids(violations: Sequence[Violation] | Iterator[Violation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(v.rule.id for v in violations))

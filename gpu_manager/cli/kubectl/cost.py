"""``kubectl vcuda cost``: core-hours, GiB-hours and waste, by namespace, pod or a label of the pods.

The figures are sums that the agents keep and that outlive the pods, so a job of ten seconds is billed ten
seconds. A pod is booked at the peak over its phases. Waste is what was held and not used, by container, where
both are known.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from gpu_manager.adapters import prometheus
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, log_in, object_name
from gpu_manager.cli.output import TABLE, Printing
from gpu_manager.domain.billing import FIGURES
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.resources import GIB
from gpu_manager.runtime.arguments import Option

USUAL: Final = "monitoring/prometheus-k8s:9090"
_DURATION: Final = re.compile(r"([1-9][0-9]{0,5})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST: Final = 400 * 86400
_MONTH: Final = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,252}")
_TERM: Final = re.compile(
    rf"\s*(!?)({_LABEL.pattern})\s*(?:(==?|!=)\s*([\w.-]*)|\s(in|notin)\s*\(([\w\s.,-]*)\))?\s*(?:,|$)"
)
_SERVICE: Final = re.compile(r"(?:(https?):)?([a-z0-9-]+)/([a-z0-9.-]+?)(?::([a-z0-9-]+))?")
_SEVERAL: Final = " + "  # between the values of a relabelled pod, or of pods that share a claim
_ELSEWHERE: Final = "where Prometheus is, --prometheus says: NAMESPACE/SERVICE[:PORT], or a URL"


# Column → (figure of the agents' counters, factor to core-hours or GiB-hours).
_FIGURES: Final = {
    "core_hours": ("core_seconds", 1 / 3600),
    "core_hours_used": ("core_used_seconds", 1 / 3600),
    "core_hours_wasted": ("core_wasted_seconds", 1 / 3600),
    "gib_hours": ("memory_byte_seconds", 1 / GIB / 3600),
    "gib_hours_used": ("memory_used_byte_seconds", 1 / GIB / 3600),
    "gib_hours_wasted": ("memory_wasted_byte_seconds", 1 / GIB / 3600),
}
# Both used and wasted 0 while something was booked: nothing was measured.
_MEASURED: Final = (("core_hours_used", "core_hours_wasted"), ("gib_hours_used", "gib_hours_wasted"))
_TITLES: Final = ("CORE-HOURS", "USED", "WASTED", "GIB-HOURS", "USED", "WASTED")


@dataclass(frozen=True, slots=True)
class Grouping:
    """What lines are grouped by: column titles, and the pods' label if it is one. ``only``: matchers of
    PromQL for the labels that the pods must have; empty: any.
    """

    titles: tuple[str, ...]
    label: str = ""
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CostLine:
    """One line of the bill. A figure is None where nothing was measured."""

    who: tuple[str, ...]
    figures: Mapping[str, float | None]


def command(
    address: Annotated[
        str,
        Option(
            "--prometheus",
            envvar="VCUDA_PROMETHEUS",
            help="A URL, or NAMESPACE/SERVICE[:PORT] to go through the API server (https:… for TLS).",
        ),
    ] = USUAL,
    by: Annotated[
        str, Option(help="namespace, pod, or label=KEY (needs kube-state-metrics' kube_pod_labels).")
    ] = "namespace",
    since: Annotated[str, Option(help="How far back: 90m, 24h, 7d.")] = "24h",
    month: Annotated[str, Option(help="A calendar month instead, in UTC: 2026-10.")] = "",
    namespace: Annotated[str, Option("--namespace", "-n", help="This one alone; default: all.")] = "",
    selector: Annotated[
        str, Option("--selector", "-l", help="Labels of the pods: app=web. Needs what label=KEY needs.")
    ] = "",
    prometheus_token: Annotated[
        str, Option(envvar="VCUDA_PROMETHEUS_TOKEN", help="Bearer token for a URL that asks for one.")
    ] = "",
    printing: Printing = TABLE,
    access: Access = BY_KUBECONFIG,
) -> int:
    """Show core-hours, GiB-hours and what of them was wasted. 100 core-hours are one card for an hour.

    Exit code: 0, or 1 if Prometheus does not answer or knows no container in that time.

    Examples:
      kubectl vcuda cost --month 2026-10 -o csv
      kubectl vcuda cost --by label=team --since 7d
      kubectl vcuda cost -l 'team in (red, blue)' --by pod
      kubectl vcuda cost --by pod -n team-a --prometheus monitoring/prometheus:9090
    """
    if namespace:
        object_name(namespace, "--namespace")
    grouping, span = (
        replace(_grouping(by), only=tuple(_matchers(selector))),
        _range(since, month, time.time()),
    )
    if address.startswith(("http://", "https://")):
        lines = bill(prometheus.by_address(address, prometheus_token), grouping, span, namespace)
    else:
        lines = _through_api_server(address, access, grouping, span, namespace)
    if not lines:
        print("no container with a card was seen in that time", file=sys.stderr)
    if printing.for_program:
        printing.emit(_document(lines, grouping, span))
    elif lines:
        print(_table(lines, grouping, span, printing))
    return 0 if lines else 1


def _through_api_server(
    address: str, access: Access, grouping: Grouping, span: Range, namespace: str
) -> list[CostLine]:
    match = _SERVICE.fullmatch(address)
    if match is None:
        raise RequestInvalid(
            f"--prometheus is {quoted(address)}: write a URL, or NAMESPACE/SERVICE[:PORT] such as {USUAL}"
        )
    from gpu_manager.adapters.kube.connection import service_page  # noqa: PLC0415  # heavy, as in log_in

    scheme, service_namespace, name, port = match[1] or "http", match[2], match[3], match[4] or "9090"
    path = service_page(service_namespace, name, port, prometheus.PATH, scheme)
    with log_in(access) as login:

        def way(parameters: Mapping[str, str]) -> Mapping[str, Any]:
            try:
                return login.connection.request(f"ask {address}", "GET", path, query=parameters)
            except NodeUnready as error:
                raise NodeUnready(f"{error}; {_ELSEWHERE}") from error

        return bill(way, grouping, span, namespace)


def _grouping(by: str) -> Grouping:
    if by == "namespace":
        return Grouping(("NAMESPACE",))
    if by == "pod":
        return Grouping(("NAMESPACE", "POD"))
    kind, _, key = by.partition("=")
    if kind != "label" or not _LABEL.fullmatch(key):
        raise RequestInvalid(f"--by is {quoted(by)}: use namespace, pod, or label=KEY")
    return Grouping(("NAMESPACE", key.upper()), _published(key))


def _published(key: str) -> str:
    """The label as kube-state-metrics names it."""
    return "label_" + re.sub(r"[^A-Za-z0-9_]", "_", key)


def _matchers(selector: str) -> Iterator[str]:
    """PromQL's words for a selector of labels. Raises RequestInvalid: it is malformed."""
    at = 0
    while at < len(selector):
        term = _TERM.match(selector, at)
        if term is None or (term[1] and (term[3] or term[5])):
            raise RequestInvalid(f"--selector is {quoted(selector)}: write it like app=web,tier!=db")
        at, no = term.end(), term[1] or term[3] == "!=" or term[5] == "notin"
        if term[5]:
            operator, value = (
                "!~" if no else "=~",
                "|".join(map(re.escape, re.split(r"[\s,]+", term[6].strip()))),
            )
        elif term[3]:
            operator, value = "!=" if no else "=", term[4]
        else:
            operator, value = "=" if no else "!=", ""
        yield f"{_published(term[2])}{operator}{json.dumps(value)}"


def _duration(option: str, text: str) -> int:
    match = _DURATION.fullmatch(text)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 1 <= seconds <= _LONGEST:
        raise RequestInvalid(f"{option} is {quoted(text)}: write it like 90m, 24h or 7d, 400d at most")
    return seconds


def _range(since: str, month: str, now: float) -> Range:
    if not month:
        return Range(now - _duration("--since", since), now)
    match = _MONTH.fullmatch(month)
    if match is None:
        raise RequestInvalid(f"--month is {quoted(month)}: write it like 2026-10")
    year, number = int(match[1]), int(match[2])
    following = (year + 1, 1) if number == 12 else (year, number + 1)
    try:
        start, end = datetime(year, number, 1, tzinfo=UTC), datetime(*following, 1, tzinfo=UTC)
    except ValueError:
        raise RequestInvalid(f"--month is {quoted(month)}: there is no such month") from None
    if start.timestamp() >= now:
        raise RequestInvalid(f"--month is {quoted(month)}: it has not begun")
    return Range(start.timestamp(), min(end.timestamp(), now))


def bill(way: prometheus.Way, grouping: Grouping, span: Range, namespace: str = "") -> list[CostLine]:
    """The lines, the largest first. Raises NodeUnready."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for who, amounts in _billed(way, grouping, span, namespace):
        line = found.setdefault(who, dict.fromkeys(_FIGURES, 0.0))
        for name, (figure, factor) in _FIGURES.items():
            line[name] += amounts.get(figure, 0.0) * factor
    lines = [CostLine(who, _known(figures)) for who, figures in found.items() if any(figures.values())]
    return sorted(lines, key=lambda line: (-(line.figures["core_hours"] or 0.0), line.who))


def _billed(
    way: prometheus.Way, grouping: Grouping, span: Range, namespace: str
) -> Iterator[tuple[tuple[str, ...], Mapping[str, float]]]:
    """The group of each counter and its increase."""
    if grouping.titles == ("NAMESPACE",) and not grouping.only:
        for (name, _), amounts in increases(way, "namespace", ("namespace", "node"), span, namespace).items():
            yield (name,), amounts
        return
    pods = increases(way, "pod", ("namespace", "pod", "uid"), span, namespace)
    labels = _pod_labels(way, grouping, span, namespace) if grouping.label or grouping.only else {}
    for (name, pod, uid), amounts in pods.items():
        values = labels.get((name, pod, uid)) or labels.get((name, pod, "")) or set()
        if values or not grouping.only:
            second = _SEVERAL.join(sorted(values)) if grouping.label else pod
            yield (name, second)[: len(grouping.titles)], amounts


Labels = Mapping[tuple[str, str, str], set[str]]
"""(namespace, pod, uid) → the values of the label that the pod had."""


def _pod_labels(way: prometheus.Way, grouping: Grouping, span: Range, namespace: str) -> Labels:
    """The label of pods that existed in the range, by UID: a name may live twice.

    A pod that was relabelled has all of its values. What several pods hold by one ResourceClaim is billed
    once, under the claim's name: it has the values of its pods.

    Raises:
        NodeUnready: nobody publishes the label.
    """
    label, within = grouping.label, f"[{span.seconds}s]"
    own = [f'namespace="{namespace}"'] if namespace else []
    selector, chosen = (f"{{{','.join(some)}}}" if some else "" for some in (own, [*own, *grouping.only]))
    by = f"max by (namespace, pod, uid{f', {label}' if label else ''})"
    pods = prometheus.query(way, f"{by} (last_over_time(kube_pod_labels{chosen}{within}))", span.end)
    found: dict[tuple[str, str, str], set[str]] = {}
    names: dict[tuple[str, str], set[str]] = {}
    for pod in (one for one in pods if label in one.labels or grouping.only):
        value = pod.labels.get(label, "")
        found.setdefault((*_of(pod, "pod"), pod.labels.get("uid", "")), set()).add(value)
        names.setdefault(_of(pod, "pod"), set()).add(value)
    if not found:
        what = "pod with these labels" if grouping.only else f"pod's label {grouping.titles[1].lower()}"
        raise NodeUnready(
            f"Prometheus knows no {what}: kube-state-metrics publishes "
            "labels as kube_pod_labels where it is allowed to (--metric-labels-allowlist=pods=[KEY])"
        )
    shared = f"max by (namespace, claim, pod) (last_over_time(vcuda_claim_info{selector}{within}))"
    claims: dict[tuple[str, str, str], set[str]] = {}
    for user in prometheus.query(way, shared, span.end):
        claims.setdefault((*_of(user, "claim"), ""), set()).update(names.get(_of(user, "pod"), ()))
    return {**claims, **found}


def _of(point: prometheus.Point, key: str) -> tuple[str, str]:
    return point.labels.get("namespace", ""), point.labels.get(key, "")


def _known(figures: Mapping[str, float]) -> Mapping[str, float | None]:
    unknown = {name for pair in _MEASURED if not any(figures[name] for name in pair) for name in pair}
    return {name: None if name in unknown else value for name, value in figures.items()}


# Output.


def _table(lines: Sequence[CostLine], grouping: Grouping, span: Range, printing: Printing) -> str:
    titles = [*grouping.titles, *_TITLES]
    rows = [[*(part or "(none)" for part in line.who), *map(_shown, line.figures.values())] for line in lines]
    if len(lines) > 1:
        sums = [_sum(line.figures[name] for line in lines) for name in _FIGURES]
        rows.append(["total", *[""] * (len(grouping.titles) - 1), *map(_shown, sums)])
    since, until = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in (span.start, span.end))
    table = printing.columns(titles, rows)
    return f"{since} to {until} UTC; 100 core-hours are one card for an hour\n\n{table}"


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _document(lines: Sequence[CostLine], grouping: Grouping, span: Range) -> Mapping[str, Any]:
    names = [title.lower() for title in grouping.titles]
    return {
        "from": datetime.fromtimestamp(span.start, UTC).isoformat(timespec="seconds"),
        "to": datetime.fromtimestamp(span.end, UTC).isoformat(timespec="seconds"),
        "lines": [
            {
                **dict(zip(names, line.who, strict=True)),
                **{k: None if v is None else round(v, 6) for k, v in line.figures.items()},
            }
            for line in lines
        ],
    }


_BEFORE: Final = "1h"  # how long before the range the previous sample is searched
_CREATED: Final = "core_seconds_created"


@dataclass(frozen=True, slots=True)
class Range:
    """A time range, in seconds since 1970."""

    start: float
    end: float

    @property
    def seconds(self) -> int:
        """Length of the range as a PromQL duration."""
        return max(1, round(self.end - self.start))


Identity = tuple[str, ...]  # values of the labels that identify a counter
Increases = Mapping[Identity, Mapping[str, float]]  # identity → figure of domain.billing → increase


def increases(
    way: prometheus.Way, level: str, labels: tuple[str, ...], span: Range, namespace: str = ""
) -> Increases:
    """Increases of the counters ``vcuda_<level>_<figure>_total``. Raises NodeUnready.

    Prometheus' own ``increase`` starts at the first sample of a series, so it misses what a short job used
    before that sample, and it extrapolates to the whole range. Here the increase is the counter's last sample
    in the range less its last sample before the range; a counter that began within the range began at 0.
    ``labels`` are those of the counter itself: a replaced agent is a target of another name.
    """
    prefix = f"vcuda_{level}_"
    names = "|".join([*(f"{figure}_total" for figure in FIGURES), _CREATED])
    only = f',namespace="{namespace}"' if namespace else ""
    selector = f'{{__name__=~"{prefix}({names})"{only}}}'

    def at(text: str, moment: float) -> dict[Identity, dict[str, float]]:
        return _by_identity(prometheus.query(way, text, moment), prefix, labels)

    last = at(f"last_over_time({selector}[{span.seconds}s])", span.end)
    before = at(f"last_over_time({selector}[{_BEFORE}])", span.start)
    # An older counter without a sample just before the range: only its increase within the range is
    # certain.
    older = {who for who, now in last.items() if who not in before and not _began_within(now, span)}
    first: dict[Identity, dict[str, float]] = {}
    for figure in FIGURES if older else ():
        text = f"min_over_time({prefix}{figure}_total{{{only.lstrip(',')}}}[{span.seconds}s])"
        points = prometheus.query(way, text, span.end)
        for who, least in _by_identity(points, prefix, labels, f"{figure}_total").items():
            first.setdefault(who, {}).update(least)
    found: dict[Identity, Mapping[str, float]] = {}
    for who, now in last.items():
        start = before.get(who) or (first.get(who, {}) if who in older else {})
        found[who] = {
            figure: _increase(now[f"{figure}_total"], start.get(f"{figure}_total", 0.0))
            for figure in FIGURES
            if f"{figure}_total" in now
        }
    return found


def _began_within(counters: Mapping[str, float], span: Range) -> bool:
    return _CREATED in counters and counters[_CREATED] >= span.start


def _increase(now: float, start: float) -> float:
    """The increase from ``before``; a smaller counter was reset, as the node lost its disk."""
    return now - start if now >= start else now


def _by_identity(
    points: Iterable[prometheus.Point], prefix: str, labels: tuple[str, ...], name: str = ""
) -> dict[Identity, dict[str, float]]:
    """Identity → the largest value of the series that differ in other labels only."""
    found: dict[Identity, dict[str, float]] = {}
    for point in points:
        figure = name or point.labels.get("__name__", "").removeprefix(prefix)
        values = found.setdefault(tuple(point.labels.get(label, "") for label in labels), {})
        values[figure] = max(values.get(figure, 0.0), point.value)
    return found

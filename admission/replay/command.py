"""``gpu-manager replay FILE``: judge recorded decisions again, by this release or under another policy."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from admission.replay.judges import Judged, Judges, Player, recorded_answer, unchanged
from admission.replay.states import Line, RecordedStates
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.rules.request import PlacementPolicy, PodRequest
from gpu_manager.runtime.arguments import Argument, Option

_SEGMENTS: Final = "decisions-*.jsonl"
_WIDEST: Final = 2000  # characters of one answer
_VERBS: Final = {"rank": "prioritize", "gang": "places of the gang"}


def command(
    file: Annotated[Path, Argument(help="A file of recorded decisions, or the directory of a ring of them.")],
    what_if: Annotated[
        str, Option(help="Judge under another policy: policy=binpack, policy=spread or policy=topology.")
    ] = "",
    most: Annotated[int, Option(min=0, help="Differences that are listed.")] = 20,
    timeline: Annotated[  # noqa: FBT002  # the way to a flag
        bool, Option("--timeline", help="Print every decision as it was recorded, judge none.")
    ] = False,
) -> int:
    """Judge every recorded decision again, and print those that differ.

    Each is judged by the recorded state, so one that differs makes no other differ. Of the first one both
    answers and the input are printed. Exit status: 0 if none differs, 1 if one does, 2 for a file that is no
    record.

    Examples:
      gpu-manager replay decisions-00000001.jsonl
      gpu-manager replay records/ --what-if policy=spread
    """
    judges = Judges(_change(what_if))
    player = Player(_as_recorded if timeline else judges.judge)
    counts: Counter[str] = Counter()
    differ: list[str] = []
    for judged in player.play(_lines(file)):
        kind = judged.line["k"]
        counts[kind] += 1
        if timeline:
            _print(f"{_about(judged)}: {_summary(judged.recorded)}")
        elif not judged.same:
            if not differ:
                _print(*_first(judged))
            differ.append(kind)
            if len(differ) <= most:
                _print(f"{_about(judged)}: {_summary(judged.recorded)} -> {_summary(judged.now)}")
    kinds = ", ".join(f"{_VERBS.get(kind, kind)} {count}" for kind, count in sorted(counts.items())) or "none"
    changed = Counter(differ)
    found = ", ".join(f"{_VERBS.get(kind, kind)} {count}" for kind, count in sorted(changed.items()))
    answer = "" if timeline else f"; {f'{len(differ)} differ: {found}' if differ else 'none differs'}"
    _print(f"{counts.total()} decisions ({kinds}){answer}")
    for reason, count in player.passed.items():
        _print(f"{count} more not judged: {printable(reason)}")
    return 1 if differ else 0


def _lines(path: Path) -> Iterator[bytes]:
    try:
        files = sorted(path.glob(_SEGMENTS)) if path.is_dir() else [path]
        if not files:
            raise RequestInvalid(
                f"{path} holds no {_SEGMENTS}: name the directory of a ring, or one file of it"
            )
        for each in files:
            with each.open("rb") as stream:
                yield from stream
    except OSError as error:
        raise RequestInvalid(f"cannot read {quoted(str(path))}: {error.strerror}") from error


def _change(what_if: str) -> Callable[[PodRequest], PodRequest]:
    if not what_if:
        return unchanged
    key, _, value = what_if.partition("=")
    known = [policy.value for policy in PlacementPolicy]
    if key != "policy" or value not in known:
        raise RequestInvalid(f"--what-if {quoted(what_if)}: use policy= with one of {', '.join(known)}")
    policy = PlacementPolicy(value)

    def change(request: PodRequest) -> PodRequest:
        if request.placement is PlacementPolicy.SPREAD is not policy:
            raise RequestInvalid("it was made under spread, and so without the prices of another policy")
        return replace(request, placement=policy)

    return change


def _as_recorded(states: RecordedStates, line: Line) -> tuple[Line, Line]:
    found = recorded_answer(states, line)
    return found, found


def _first(judged: Judged) -> Iterator[str]:
    yield f"The first that differs: {_about(judged)}, by the state of generation {judged.line['turn']}"
    for what, answer in (("recorded", judged.recorded), ("now", judged.now)):
        other = judged.now if what == "recorded" else judged.recorded
        apart = {key: value for key, value in answer.items() if other.get(key) != value}
        yield f"  {what}: {_cut(apart)}"
    given = {key: value for key, value in judged.line.items() if key not in ("k", "answer", "offered")}
    yield f"  input: {_cut(given)}"


def _about(judged: Judged) -> str:
    at = dt.datetime.fromtimestamp(judged.line["at"], dt.UTC).isoformat(timespec="milliseconds")
    kind = judged.line["k"]
    return f"{at.removesuffix('+00:00')}Z {_VERBS.get(kind, kind)} of {printable(judged.pod)}"


def _summary(answer: Line) -> str:
    if "best" in answer:
        return printable(answer["best"]) or "no node"
    if answer.get("sizes") and "refusal" not in answer:
        return "; ".join(f"{printable(name)}: {size}" for name, size in answer["sizes"].items())
    if "places" in answer:
        return ", ".join(f"{printable(one['name'])} on {printable(one['node'])}" for one in answer["places"])
    if "placement" in answer:
        return "; ".join(
            f"{printable(name)} on {', '.join(printable(share['card']) for share in shares)}"
            for name, shares in answer["placement"].items()
        )
    if "patch" in answer:
        changed = f"allowed with {len(answer['patch'])} changes" if answer["patch"] else "allowed"
        return printable(answer.get("message", "")) or changed
    if "evicts" in answer:
        nodes = ((printable(name), len(uids)) for name, (uids, _) in answer["evicts"].items())
        return ", ".join(f"{count} evicted from {name}" for name, count in nodes) or "nobody evicted"
    if "refusal" in answer:
        return printable(answer["refusal"])
    verdicts = ((what, len(names)) for what, names in answer.items() if isinstance(names, list))
    return ", ".join(f"{what} {count}" for what, count in verdicts) or "no node"


def _cut(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return printable(text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…")


def _print(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)

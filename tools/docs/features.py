"""The page of the reference about features and their stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from admission.__main__ import command as admission
from gpu_manager.cli.run import command as agent
from gpu_manager.domain.features import FEATURES, Feature
from gpu_manager.runtime.arguments import Command
from tools.docs.markdown import made_page, table


def flags_of(feature: Feature) -> Iterator[str]:
    """The flags of agent and admission that set the feature."""
    for command in (Command("gpu-manager run", agent), Command("gpu-quota-admission", admission)):
        yield from (one.names[0] for one in command.parameters if one.feature is feature)


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def features_page() -> str:
    """Name, stage, flags and chart values of every feature, and what would raise its stage."""
    return made_page(
        "Features and their stages",
        "- **stable**: held by tests on a real cluster or by proofs over the ledger. Names stay within a "
        "major version.\n"
        "- **beta**: judged on a real card or a real cluster in part. A release that renames anything takes "
        "both names.\n"
        "- **alpha**: judged on models of a card or a cluster alone. It may change or go with any release.",
        "Help texts and the chart's values begin with `(alpha)` or `(beta)`; `/version` of agent and "
        "admission has the stages as `features`.",
        table(
            ("feature", "stage", "what it is", "flags", "chart values", "before a higher stage"),
            (
                (
                    f"[{one.name}](../{one.page})",
                    one.stage.value,
                    one.what,
                    _code(flags_of(one)),
                    _code(one.values),
                    one.next,
                )
                for one in FEATURES
            ),
        ),
    )

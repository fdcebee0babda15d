"""``docs/errors.md``: what is said to users when something is refused, and the cure."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_manager.domain.rules.rulebook import Rule
from tools.docs.refusals import SAYINGS


def errors_page() -> str:
    """``docs/errors.md``: every rule, then every refusal of extender and quota, each with its cure."""
    return "\n".join(_rules()) + refusals_page()


def _rules() -> Iterator[str]:
    yield "# Refusals and warnings\n"
    yield "<!-- Generated from gpu_manager/domain/rules/rulebook.py; a test keeps the two equal. -->\n"
    yield "Each text names the container, the field and its value, and the nearest values that would do."
    yield "The webhook, the scheduler extender, the agent and `gpu-manager check` apply the same rules.\n"
    for title, warning in (("Refusals", False), ("Warnings", True)):
        yield f"## {title}\n"
        for rule in Rule:
            if rule.is_warning is warning:
                yield from _entry(rule)


def _entry(rule: Rule) -> Iterator[str]:
    told = rule.value
    yield f"### {rule.id}\n"
    yield f"```text\n{told.text.replace('{hint}', '').replace('{', '<').replace('}', '>')}\n```\n"
    if told.words:
        yield f"In the predecessor's words, which still lead the refusal: `{told.words}`.\n"
    yield f"{told.why}\n"
    yield f"**Cure.** {told.cure}\n"


def refusals_page() -> str:
    """The part of ``docs/errors.md`` about scheduling."""
    lines = [
        "",
        "## Refusals of the scheduler extender and the quota",
        "",
        "They stand in a pod's `FailedScheduling` events behind `0/N nodes are available:`, and in",
        "`kubectl vcuda explain`.",
        "`<…>` stands for the figures of the case.",
        "A pod that is illegal gets the text of its rule, from above.",
        "",
    ]
    for title, group in SAYINGS:
        lines += [f"## {title}", ""]
        for one in group:
            lines += [
                f"### {one.id}",
                "",
                "```text",
                one.text,
                "```",
                "",
                one.why,
                "",
                f"**Cure.** {one.cure}",
                "",
            ]
    return "\n".join(lines)

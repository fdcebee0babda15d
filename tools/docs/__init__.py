"""The pages of the documentation that are made from the code: which there are, and what stands in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tools.docs import admission, agent
from tools.docs.doctor import doctor_page
from tools.docs.errors import errors_page
from tools.docs.features import features_page

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "doctor.md": doctor_page,
    "errors.md": errors_page,
    "reference/admission-flags.md": admission.flags_page,
    "reference/admission-metrics.md": admission.metrics_page,
    "reference/annotations.md": agent.annotations_page,
    "reference/commands.md": agent.commands_page,
    "reference/features.md": features_page,
    "reference/flags.md": agent.flags_page,
    "reference/metrics.md": agent.metrics_page,
}
"""Path below ``docs`` → what stands there."""

"""``python -m tools.policies``: prints the policies of the usual terms (``make manifests``)."""

from __future__ import annotations

import sys

from admission.config import ClusterTerms
from tools.policies import render

sys.stdout.write(render(ClusterTerms()))

"""Errors in a program's own threads reach its metrics."""

from __future__ import annotations

import urllib.request

from admission.serving.metrics import AdmissionMetrics
from gpu_manager.runtime import threads
from sandbox.api import ADMIN_TOKEN, StandInApi
from tests.fakes.waiting import PATIENCE


def test_admission_and_the_sandbox_show_what_failed(api: StandInApi) -> None:
    thread = threads.once("shown", lambda: 1 // 0)
    thread.start()
    thread.join(PATIENCE)
    request = urllib.request.Request(f"{api.url}/metrics", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
    with urllib.request.urlopen(request) as answer:
        pages = {"sandbox": answer.read(), "admission": AdmissionMetrics("0").page("")[0]}
    for program, page in pages.items():
        assert f'vcuda_{program}_thread_failures_total{{thread="shown"}} 1.0' in page.decode()

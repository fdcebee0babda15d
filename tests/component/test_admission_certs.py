"""Serving certificates that are renewed while callers call."""

from __future__ import annotations

import ssl
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
from prometheus_client.parser import text_string_to_metric_families

from admission.config import AdmissionSettings
from admission.program import AdmissionProgram
from admission.serving.authority import SelfSigned
from admission.serving.certs import FileCertificates, Issued, Switch, issue
from admission.serving.metrics import AdmissionMetrics
from tests.fakes.https import HOST, Caller, Given, trusting, visit
from tests.fakes.reviews import review
from tests.fakes.sandbox import until
from tests.fakes.vault import Clock, Vault


def made(now: float | None = None, name: str = HOST, days: int = 90) -> Issued:
    return issue((name,), time.time() if now is None else now, days, "test authority")


def write(directory: Path, issued: Issued, *, key_of: Issued | None = None) -> tuple[Path, Path]:
    paths = directory / "tls.crt", directory / "tls.key"
    paths[0].write_bytes(issued.pair.certificate)
    paths[1].write_bytes((key_of or issued).pair.key)
    return paths


class Load:
    """Callers that never rest, each with connections new and kept, until stopped; ``failures`` is what went wrong."""

    def __init__(self, port: int, context: Any) -> None:
        self._port = port
        self._context = context
        self._stop = threading.Event()
        self.answers = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._call, args=(kept,)) for kept in (False, True, False)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, kept: bool) -> None:
        caller: Caller | None = None
        while not self._stop.is_set():
            try:
                caller = caller or Caller(self._port, self._context())
                status, answer = caller.post("/validate", review())
                assert (status, answer["response"]["allowed"]) == (200, True)
                self.answers += 1
            except (OSError, AssertionError) as error:
                self.failures.append(repr(error))
            if not kept and caller:
                caller.close()
                caller = None
        if caller:
            caller.close()

    def wait_for(self, more: int) -> None:
        """Until so many more answers have come."""
        goal = self.answers + more
        until(lambda: self.answers >= goal or self.failures)


@pytest.fixture
def served():
    programs = []

    def start(certificates: Any, switch: Switch, metrics: AdmissionMetrics | None = None) -> AdmissionProgram:
        settings = AdmissionSettings(address="127.0.0.1", port=0)
        program = AdmissionProgram(
            settings, certificates, switch, metrics or AdmissionMetrics("0"), check_seconds=0.01
        )
        programs.append(program)
        program.start()
        return program

    yield start
    for program in programs:
        program.stop()


def test_case_65_rotation_of_files_under_load_fails_no_request(tmp_path: Path, served: Any) -> None:
    issued = [made(days=30 + i) for i in range(6)]
    switch, metrics = Switch(), AdmissionMetrics("0")
    files = FileCertificates(*write(tmp_path, issued[0]), switch, lambda taken: metrics.reloaded(taken=taken))
    program = served(files, switch, metrics)
    everyone = trusting(*(i.authority for i in issued))
    with Load(program.port, lambda: everyone) as load:
        load.wait_for(10)
        for old, new in pairwise(issued):
            write(tmp_path, new, key_of=old)  # what a reader may see between two writes
            load.wait_for(10)
            write(tmp_path, new)
            while switch.pair != new.pair:
                load.wait_for(1)
            load.wait_for(10)
    assert load.failures == []
    with Caller(program.port, trusting(issued[-1].authority)) as caller:
        _, page = caller.get("/metrics")
    figures = {s.name: s.value for family in text_string_to_metric_families(page) for s in family.samples}
    assert figures["vcuda_admission_certificate_expiry_timestamp_seconds"] == issued[-1].pair.not_after
    assert 'vcuda_admission_certificate_reloads_total{result="taken"} 6.0' in page


def test_case_65_self_signed_renewal_under_load_fails_no_request_of_callers_that_lag(served: Any) -> None:
    vault, time_, switch = Vault(), [time.time() - 17 * 3600], Switch()
    keeper = SelfSigned(vault, switch, Clock(time_), names=(HOST,), life_days=1, settle_seconds=60)
    program = served(keeper, switch)
    lagging = [trusting(vault.bundles["mutating"]["pods"])]
    with Load(program.port, lambda: lagging[0]) as load:
        load.wait_for(10)
        first = switch.pair
        # Two thirds of its life have gone, by the service's clock; what callers trust is a step behind.
        time_[0] += 16 * 3600 + 1
        while vault.version < 2:
            load.wait_for(1)
        load.wait_for(10)
        assert switch.pair == first
        lagging[0] = trusting(vault.bundles["mutating"]["pods"])
        load.wait_for(10)
        time_[0] += 61
        while switch.pair == first:
            load.wait_for(1)
        load.wait_for(20)
    assert load.failures == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_caller_that_resumes_its_session_across_a_change_of_authority_is_served(
    served: Any, version: ssl.TLSVersion
) -> None:
    """It knows the service by the first handshake; whoever begins anew verifies what is served now."""
    first, second, switch = made(), made(), Switch()
    files = Given(switch)
    files.issued = first
    program = served(files, switch)
    context = trusting(first.authority)
    context.maximum_version = version
    before = visit(program.port, context)
    files.issued = second
    until(lambda: switch.pair == second.pair)
    after = visit(program.port, context, before.session)
    assert (before.status, after.status, after.resumed) == (200, 200, True)
    with pytest.raises(ssl.SSLCertVerificationError):
        visit(program.port, context)
    assert visit(program.port, trusting(second.authority)).status == 200

"""One replica as a program: what it serves, when it is ready, how it starts and how it stops.

:mod:`admission.app` builds the parts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final, Protocol

import structlog
from fastapi import APIRouter

from admission.config import AdmissionSettings
from admission.controller import SchedulingController
from admission.replay.reviews import Recorded
from admission.serving.certs import Certificates, Switch
from admission.serving.https_server import HttpsServer, ProbeServer
from admission.serving.metrics import AdmissionMetrics
from admission.serving.webhook_app import ReviewClient, WebhookParts, build_app
from admission.webhook.admit import SILENT, CreateTimeChecks
from admission.webhook.claim_translation import EnsureTemplate
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.runtime import threads
from gpu_manager.runtime.program import Ending, raise_open_files_limit

log = structlog.get_logger(__name__)

_FIRST_SECONDS: Final = 0.5  # without any certificate nobody is served


class ProgramPart(Protocol):
    """Something that runs beside the webhooks (snapshot, quota, extender)."""

    def start(self) -> None:
        """Begin; must not wait for the API server."""

    def ready(self) -> Mapping[str, bool]:
        """The conditions for readiness; their names are shown in ``/readyz``."""

    def stop(self) -> None:
        """End everything it began."""


class AdmissionProgram:
    """One replica. ``start`` returns once it answers; ``stop`` once everything has ended."""

    def __init__(
        self,
        settings: AdmissionSettings,
        certificates: Certificates,
        switch: Switch,
        metrics: AdmissionMetrics,
        *,
        check_seconds: float,
        checks: CreateTimeChecks = SILENT,
        routers: Sequence[APIRouter] = (),
        parts: Sequence[ProgramPart] = (),
        draining: threading.Event | None = None,
        ask_leader: ReviewClient = lambda _body: None,
        ensure: EnsureTemplate | None = None,
        recorded: Recorded | None = None,
    ) -> None:
        """Bind the port. Raises NodeUnready: it is taken. ``draining`` is set once the end has begun."""
        self._settings = settings
        self._certificates = certificates
        self._switch = switch
        self._check_seconds = check_seconds
        self._parts = tuple(parts)
        self._draining = draining or threading.Event()
        self._ended = threading.Event()
        metrics.watch_expiry(lambda: pair.not_after if (pair := switch.pair) else None)
        webhooks = WebhookParts(
            metrics,
            version("gpu-manager"),
            self.ready,
            self._draining.is_set,
            checks,
            routers,
            ask_leader,
            self.why,
            ensure,
            recorded,
        )
        self._listener = HttpsServer(
            build_app(settings, webhooks),
            settings.address,
            settings.port,
            switch.context,
            bounds=settings.connections,
            patience_seconds=settings.bounds.seconds,
            evicted=metrics.evicted,
        )
        self._probes = (
            ProbeServer(*settings.probes, lambda: self._listener.stalled, self.ready, self.why)
            if settings.probes
            else None
        )
        self._keeper = threads.forever("certificates", self._keep_certificates)

    @property
    def port(self) -> int:
        """Where HTTPS is served."""
        return self._listener.port

    def ready(self) -> dict[str, bool]:
        """The conditions for readiness."""
        pair = self._switch.pair
        checks = {"serving": not self._draining.is_set()}
        checks |= {"certificate": pair is not None and pair.not_after > time.time()}
        for part in self._parts:
            checks |= part.ready()
        return checks

    def why(self) -> str:
        """Faults beside those conditions; empty if there are none."""
        return "; ".join(part.why() for part in self._parts if isinstance(part, SchedulingController))

    def start(self) -> None:
        """Answer; ready once there is a certificate. Raises NodeUnready: the port cannot be served."""
        self._check()
        for part in self._parts:
            part.start()
        self._listener.start()
        if self._probes is not None:
            self._probes.start()
        self._keeper.start()

    def stop(self, drain_seconds: float = 0.0) -> None:
        """Report not ready for ``drain_seconds``, so that callers go elsewhere; then end everything."""
        self._draining.set()
        self._ended.wait(drain_seconds)
        self._ended.set()
        self._listener.stop()
        for part in reversed(self._parts):
            part.stop()
        if self._probes is not None:
            self._probes.stop()
        if self._keeper.is_alive():
            self._keeper.join()

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        ending = Ending()
        raise_open_files_limit()
        self.start()
        log.info("running", port=self.port, **self.ports(), ready=self.ready())
        ending.wait()
        log.info("stopping", drain_seconds=self._settings.drain_seconds)
        self.stop(self._settings.drain_seconds)

    def ports(self) -> dict[str, int]:
        """Where it listens beside :attr:`port`, by the name in the log."""
        ports = {"probe_port": self._probes.port} if self._probes else {}
        for part in self._parts:
            if isinstance(part, SchedulingController) and part.listener is not None:
                ports["extender_port"] = part.listener.port
        return ports

    def _keep_certificates(self) -> None:
        while not self._ended.wait(self._check_seconds if self._switch.pair else _FIRST_SECONDS):
            self._check()

    def _check(self) -> None:
        try:
            self._certificates.check()
        except NodeUnready as error:
            log.warning("certificate_renewal_failed", reason=str(error))

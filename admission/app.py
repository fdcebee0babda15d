"""The admission service: builds every part, introduces them to each other, runs them, ends them together.

The only module of the service that knows the Kubernetes client. Nothing decides here.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final, Protocol

import structlog
from fastapi import APIRouter

from admission.authority import SelfSigned
from admission.certs import Certificates, FileCertificates, Switch
from admission.config import Settings
from admission.doors import Doors, build_app
from admission.listener import Listener
from admission.metrics import Metrics
from admission.webhook import SILENT, Outlook
from gpu_manager.adapters.clock import SystemClock
from gpu_manager.adapters.kube import connect
from gpu_manager.adapters.kube.certificates import KubeCertificates
from gpu_manager.domain.errors import NodeUnready

log = structlog.get_logger(__name__)

_FILE_SECONDS: Final = 2.0
_VAULT_SECONDS: Final = 10.0
_FIRST_SECONDS: Final = 0.5  # without any certificate nobody is served


class Part(Protocol):
    """Something that runs beside the webhooks (snapshot, quota, extender)."""

    def start(self) -> None:
        """Begin; must not wait for the API server."""

    def ready(self) -> Mapping[str, bool]:
        """What must hold before this replica is asked; names go to ``/readyz``."""

    def stop(self) -> None:
        """End everything it began."""


class Program:
    """One replica. ``start`` returns once it answers; ``stop`` once everything has ended."""

    def __init__(
        self,
        settings: Settings,
        certificates: Certificates,
        switch: Switch,
        metrics: Metrics,
        *,
        check_seconds: float,
        outlook: Outlook = SILENT,
        routers: Sequence[APIRouter] = (),
        parts: Sequence[Part] = (),
    ) -> None:
        """Bind the port. Raises NodeUnready: it is taken."""
        self._settings = settings
        self._certificates = certificates
        self._switch = switch
        self._check_seconds = check_seconds
        self._parts = tuple(parts)
        self._draining = threading.Event()
        self._ended = threading.Event()
        metrics.watch_expiry(lambda: pair.not_after if (pair := switch.pair) else None)
        doors = Doors(metrics, version("gpu-manager"), self.ready, self._draining.is_set, outlook, routers)
        app = build_app(settings, doors)
        self._listener = Listener(
            app,
            settings.address,
            settings.port,
            switch.context,
            header_seconds=settings.bounds.seconds,
        )
        self._keeper = threading.Thread(target=self._keep_certificates, name="certificates", daemon=True)

    @property
    def port(self) -> int:
        """Where HTTPS is served."""
        return self._listener.port

    def ready(self) -> dict[str, bool]:
        """What must hold before this replica is asked."""
        pair = self._switch.pair
        checks = {"certificate": pair is not None and pair.not_after > time.time()}
        for part in self._parts:
            checks |= part.ready()
        return checks

    def start(self) -> None:
        """Answer; ready once there is a certificate. Raises NodeUnready: the port cannot be served."""
        self._check()
        for part in self._parts:
            part.start()
        self._listener.start()
        self._keeper.start()

    def stop(self, drain_seconds: float = 0.0) -> None:
        """Say so for ``drain_seconds``, so that callers go elsewhere; then end everything."""
        self._draining.set()
        self._ended.wait(drain_seconds)
        self._ended.set()
        self._listener.stop()
        for part in reversed(self._parts):
            part.stop()
        if self._keeper.is_alive():
            self._keeper.join()

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        asked = threading.Event()
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, lambda *_: asked.set())
        self.start()
        log.info("running", port=self.port, ready=self.ready())
        asked.wait()
        log.info("stopping", drain_seconds=self._settings.drain_seconds)
        self.stop(self._settings.drain_seconds)

    def _keep_certificates(self) -> None:
        while not self._ended.wait(self._check_seconds if self._switch.pair else _FIRST_SECONDS):
            self._check()

    def _check(self) -> None:
        try:
            self._certificates.check()
        except NodeUnready as error:
            log.warning("certificate not renewed", reason=str(error))


def compose(settings: Settings) -> Program:
    """The service as deployed. Raises NodeUnready: a port is taken, or the API server cannot be found."""
    switch, metrics = Switch(), Metrics(version("gpu-manager"))
    if settings.certificate is not None and settings.key is not None:
        certificates: Certificates = FileCertificates(
            settings.certificate, settings.key, switch, lambda taken: metrics.reloaded(taken=taken)
        )
        certificates.check()
        return Program(settings, certificates, switch, metrics, check_seconds=_FILE_SECONDS)
    own = settings.own_certificates
    connection = connect(kubeconfig=settings.kubeconfig, url=settings.api_url)
    service = f"{settings.service}.{settings.namespace}.svc"
    certificates = SelfSigned(
        KubeCertificates(connection, settings.namespace, own.secret, own.names),
        switch,
        SystemClock(),
        names=(service, f"{service}.cluster.local"),
        life_days=own.life_days,
        settle_seconds=own.settle_seconds,
        noted=lambda taken: metrics.reloaded(taken=taken),
    )
    return Program(settings, certificates, switch, metrics, check_seconds=_VAULT_SECONDS)

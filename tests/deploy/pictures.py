"""Makes the documentation's pictures: ``PYTHONPATH=. python -m tests.deploy.pictures [SECONDS]`` writes docs/assets.

The sandbox of :mod:`tests.deploy.test_dashboards` runs under a load that changes: pods come, compute, fill their
memory, are refused and go. Prometheus scrapes it, the dashboards are drawn from their own queries, and headless
Chromium takes a picture of the agent's console and of the cluster's. Chinese needs a font (Debian:
fonts-wqy-zenhei). A person looks at the result.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from deploy.grafana.preview import pictures
from sandbox import commands
from sandbox.api import ADMIN_TOKEN
from sandbox.simulated_cluster import NODE, Sandbox, SandboxSettings
from tests.deploy.test_dashboards import (
    RULES,
    ask,
    asking,
    job,
    load,
    prepare,
    state_metrics,
)
from tests.fakes.admission import Process
from tests.fakes.browser import CHROMIUM, Page, browsing
from tests.fakes.prometheus import Prometheus
from tests.fakes.sandbox import short_directory
from tests.fakes.web import send, serving

ASSETS = Path(__file__).parents[2] / "docs" / "assets"


def main(seconds: float) -> None:
    """Run for that long, then draw."""
    with (
        short_directory() as directory,
        Sandbox(SandboxSettings(directory / "s", admission=False)) as sandbox,
        serving(lambda h: send(h, state_metrics(sandbox).encode(), kind="text/plain")) as states,
    ):
        prepare(sandbox)
        with Process(f"--kubeconfig={sandbox.kubeconfig}", "--leader-mode=alone") as admission:
            webhook, extender = admission.port, admission.extender_port
            tls = {"scheme": "https", "tls_config": {"insecure_skip_verify": True}}
            jobs = [
                job("gpu-manager", sandbox.port, "/metric", honor_labels=True),
                job("gpu-quota-admission", webhook, "/metrics", **tls),
                job("kube-state-metrics", urlsplit(states).port or 0, "/metrics", honor_labels=True),
            ]
            quick = RULES.replace("interval: 1m", "interval: 1s")
            with Prometheus(directory / "prometheus", jobs, quick) as prometheus:
                live(sandbox, webhook, extender, seconds)
                page(sandbox.port, webhook, directory)
                chosen = {"pod": {"namespace": "nlp|vision", "pod": "embed|full"}, "card": {"card": "1"}}
                pictures(prometheus.url, ASSETS, seconds, chosen)


def live(sandbox: Sandbox, webhook: int, extender: int, seconds: float) -> None:
    """Five scenes of equal length."""
    tick = threading.Event()
    brief = ["cuda-spin", str(int(seconds * 0.4))]

    def wait() -> None:
        tick.wait(seconds / 5)

    wait()
    load(sandbox)
    wait()
    commands.apply(
        sandbox.api,
        [
            asking("train", "research", ["sleep", "600"], 100, 0, "green"),
            asking("embed", "vision", brief, 40, 16, "red"),
        ],
    )
    ask(webhook, extender)
    wait()
    commands.apply(sandbox.api, [asking("notebook", "research", ["sleep", "600"], 25, 24, "green")])
    commands.apply(sandbox.api, [asking("late", "research", ["sleep", "600"], 150, 4, "green")])
    ask(webhook, extender)
    wait()
    wait()


def page(port: int, webhook: int, directory: Path) -> None:
    """The agent's console and the cluster's, as a browser draws them."""
    if CHROMIUM is None:
        raise SystemExit("no chromium (Debian: apt-get install chromium)")
    with browsing(directory / "profile") as console:
        console.show_as(width=1180, height=760, dark=False)
        log_in(console, f"http://127.0.0.1:{port}/ui#/node/{NODE}")
        console.wait("document.querySelector('.card li a') && !document.querySelector('form.login')")
        console.picture(ASSETS / "ui.png")
        log_in(console, f"https://127.0.0.1:{webhook}/ui")
        shown = (".capacity .spark", ".heat .spark", "[aria-labelledby=waste-title]", ".charts path")
        console.wait(" && ".join(f"document.querySelector('{one}')" for one in shown))
        console.picture(ASSETS / "console.png")
        console.click("header button[lang=zh]")
        console.wait("document.querySelector('main h1').innerText == '总览'")
        console.picture(ASSETS / "console-zh.png")


def log_in(console: Page, url: str) -> None:
    """Open the address, and type the token that it asks for."""
    console.open(url, "document.querySelector('form.login')")
    console.look("document.querySelector('[name=token]').focus()")
    console.type(ADMIN_TOKEN)
    console.key("Enter")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 100.0)

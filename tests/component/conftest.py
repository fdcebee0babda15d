"""What component tests share: short paths for unix sockets (107 characters at most), a log of their own, servers.

A file that means something else by one of these names has a fixture of its own.
"""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog

from gpu_manager.adapters.control_pages.pages import FileControlPages
from sandbox.api import ADMIN_TOKEN, StandInApi
from tests.component.driver_roots import Objects
from tests.fakes.browser import Page, browsing
from tests.fakes.served_console import Served
from tests.fakes.web import serving


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Like pytest's own, but short whatever the test is called and whichever worker runs it."""
    # A browser's helpers write into its profile for a moment after it has ended.
    with tempfile.TemporaryDirectory(prefix="gm-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
def own_log() -> Iterator[None]:
    """The program sets up the log of the whole process; other tests have theirs."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def restart() -> Iterator[threading.Event]:
    """Set once the agent asks to be started again, by SIGTERM to its own process."""
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    yield asked
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def api() -> Iterator[StandInApi]:
    with StandInApi() as running:
        yield running


@pytest.fixture
def kubectl_login(api: StandInApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``kubectl vcuda`` finds it, and no admission service is named."""
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "config")))
    monkeypatch.delenv("VCUDA_ADMISSION", raising=False)


@pytest.fixture
def core(api: StandInApi) -> Iterator[Any]:
    """The official client on it."""
    from kubernetes import client  # noqa: PLC0415  # takes a second to import, and few files need it

    configuration = client.Configuration(host=api.url, api_key={"BearerToken": f"Bearer {ADMIN_TOKEN}"})
    configuration.retries = False
    with client.ApiClient(configuration) as connection:
        yield client.CoreV1Api(connection)


@pytest.fixture
def serve(api: StandInApi) -> Iterator[Callable[..., Any]]:
    """Starts admission services beside it, and ends them with the test."""
    from tests.fakes.admission import Service  # noqa: PLC0415  # same

    with ExitStack() as running:
        yield lambda *more: running.enter_context(Service(api, *more))


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    return Objects(tmp_path_factory.mktemp("objects"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the control pages lie."""
    return tmp_path / "run" / "pages"


@pytest.fixture
def tenants(root: Path) -> Iterator[FileControlPages]:
    pages = FileControlPages(root)
    yield pages
    pages.close()


@pytest.fixture
def served() -> Iterator[Served]:
    running = Served()
    with serving(running.respond) as running.url:
        yield running
        running.ended.set()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(tab: Page) -> Page:
    tab.call("Page.navigate", url="about:blank")
    tab.complaints.clear()
    tab.requested.clear()
    return tab

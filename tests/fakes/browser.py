"""Headless Chromium, driven over its DevTools protocol: pages, clicks, keys, pictures, and what it complains of."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import websocket

from tests.fakes.sandbox import until
from tests.fakes.waiting import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_A_BROWSER = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium (Debian: apt-get install chromium)"
)
KEYS = {"/": ("Slash", 191), "Enter": ("Enter", 13), "Tab": ("Tab", 9), "ArrowRight": ("ArrowRight", 39)}


class Page:
    """One tab. ``complaints``: errors of scripts, refused requests, breaches of the content policy."""

    def __init__(self, line: websocket.WebSocket) -> None:
        self._line = line
        self._number = 0
        self.complaints: list[str] = []
        self.requested: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """One command, and what it returns."""
        self._number += 1
        self._line.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._line.recv())
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self._noted(message)

    def _noted(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    def look(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        said = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            timeout=2000 * PATIENCE,
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until the JavaScript condition holds; the page itself watches for it."""
        script = f"""new Promise((yes) => {{
          const end = performance.now() + {PATIENCE * 1000};
          const look = () => ({condition}) ? yes(true) : performance.now() > end ? yes(false) : setTimeout(look, 10);
          look(); }})"""
        assert self.look(script), (
            f"never: {condition}; the page shows: {self.text()[:2000]}; {self.complaints}"
        )

    def open(self, url: str, ready: str) -> None:
        """Go there, and wait for a condition."""
        self.call("Page.navigate", url=url)
        self.wait(ready)

    def text(self) -> str:
        """What a person can read."""
        return str(self.look("document.body.innerText"))

    def click(self, selector: str) -> None:
        """The mouse pressed and released over the middle of the first element that fits."""
        at = self.look(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;
            e.scrollIntoView({{block: "center"}}); const r = e.getClientRects()[0];
            return [r.x + r.width / 2, r.y + r.height / 2]; }})()"""
        )
        assert at, f"no {selector}: {self.text()[:2000]}"
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def key(self, name: str) -> None:
        """One key pressed and released."""
        code, number = KEYS.get(name, (f"Digit{name}", ord(name[0])))
        text = {"text": "\r" if name == "Enter" else name} if len(name) == 1 or name == "Enter" else {}
        part = {"key": name, "code": code, "windowsVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown", **part, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **part)

    def type(self, text: str) -> None:
        """Text into whatever has the focus, as from an input method."""
        self.call("Input.insertText", text=text)

    def show_as(self, *, width: int, dark: bool, height: int = 900) -> None:
        """The size of the screen, and the theme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of what is seen, or of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browsing(profile: Path, *flags: str, language: str = "en-US") -> Iterator[Page]:
    """A browser with one tab, ended at the end."""
    assert CHROMIUM is not None
    command: Sequence[str] = [
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={profile}"),
        *("--no-first-run", "--ignore-certificate-errors", f"--lang={language}", *flags, "about:blank"),
    ]
    quiet = subprocess.DEVNULL
    browser = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        port = until(lambda: _port(profile))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE) as answer:
            (target, *_) = [one for one in json.load(answer) if one["type"] == "page"]
        line = websocket.create_connection(
            target["webSocketDebuggerUrl"], timeout=2 * PATIENCE, max_size=None, suppress_origin=True
        )
        try:
            yield Page(line)
        finally:
            line.close()
    finally:
        browser.terminate()
        browser.wait(PATIENCE)


def _port(profile: Path) -> int:
    try:
        lines = (profile / "DevToolsActivePort").read_text().splitlines()
    except OSError:
        return 0
    return int(lines[0]) if len(lines) > 1 else 0

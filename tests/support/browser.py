"""A real browser without a window, told what to do through Chromium's own pipe: JSON messages that end in a zero byte.

Needs no driver and no package. `chromium()` is None where no browser is installed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_S = 60.0
"""How long an answer may take before the browser is taken for hung."""
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # refuses to start as root with it
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--window-size=1400,900",
)


def chromium() -> str | None:
    """Path of the browser: CHROMIUM_PATH, or the first of the usual names that is installed and starts."""
    named = [os.environ.get("CHROMIUM_PATH") or "", *NAMES]
    found = (path for name in named if name and (path := shutil.which(name)))
    return next((path for path in found if _starts(path)), None)


def _starts(path: str) -> bool:
    """Whether it is the program, and not what stands in for one that has yet to be installed."""
    return subprocess.run([path, "--version"], capture_output=True).returncode == 0


@dataclass
class Tab:
    """One page."""

    browser: Browser
    session: str
    events: list[dict[str, Any]] = field(default_factory=list)
    """What happened: dialogs, exceptions, refusals, requests."""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, params, self.session)

    def run(self, script: str) -> Any:
        """The value of an expression (awaited where it is a promise)."""
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"{condition} did not come true; {self.events[-5:]}"
            time.sleep(0.005)

    def open(self, url: str) -> None:
        """Load a page anew and wait until it has settled."""
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.until("['ready', 'failed'].some((name) => document.documentElement?.dataset[name])")

    def text(self, selector: str) -> str:
        """The text of an element, as it is in the document."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that a selector finds."""
        return list(self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.textContent)"))

    def press(self, key: str) -> None:
        """A key, as the keyboard gives it."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **(text if kind == "keyDown" else {}))

    def happened(self, method: str) -> list[dict[str, Any]]:
        """The parameters of each event of a kind since the page was opened."""
        return [event["params"] for event in self.events if event["method"] == method]


class Browser:
    """A running browser; use `open_browser`."""

    def __init__(self, path: str, folder: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        start = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'  # the numbers that the browser reads and writes
        self.process = subprocess.Popen(
            ["bash", "-c", start, "bash", path, *_FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._unread = b""
        self._number = 0
        self._tabs: dict[str, Tab] = {}

    def tab(self) -> Tab:
        """A new page, empty."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        return tab

    def call(self, method: str, params: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        number = self._send(method, params, session)
        while True:
            said = self._next()
            if said.get("id") == number:
                assert "error" not in said, (method, said["error"])
                return dict(said["result"])
            tab = self._tabs.get(said.get("sessionId", ""))
            if tab is not None and "method" in said:
                tab.events.append(said)
                if said["method"] == "Page.javascriptDialogOpening":
                    self._send("Page.handleJavaScriptDialog", {"accept": False}, said["sessionId"])

    def _send(self, method: str, params: dict[str, Any], session: str | None) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return self._number

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], PATIENCE_S)
            data = os.read(self._in, 1 << 16) if ready else b""
            assert data, f"the browser {'has ended' if ready else 'does not answer'}"
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))

    def close(self) -> None:
        """End the browser and all of its processes."""
        os.close(self._out)  # it ends when its pipe does
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._in)


@contextmanager
def open_browser(path: str) -> Iterator[Browser]:
    """A browser with a profile of its own, ended and deleted at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(path, Path(folder))
        try:
            yield browser
        finally:
            browser.close()

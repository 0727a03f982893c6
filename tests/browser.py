"""A headless Chromium for tests, spoken to through two pipes by its DevTools protocol: no port, no further package.

with Browser() as browser:
    page = browser.page(width=1280, height=800)
    page.open(url)
    page.wait_for("document.querySelector('table')")
    page.screenshot(path)
    assert not page.errors
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed; on Debian: apt install chromium")
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-background-networking", "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip
ANSWER_SECONDS = 120  # on a busy machine


class Browser:
    """One Chromium with a profile of its own, gone with the `with` block."""

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        its_in, self.out = os.pipe()
        self.into, its_out = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses to have one for root
        words = [CHROMIUM, *FLAGS, *sandbox, f"--user-data-dir={self.profile.name}", "about:blank"]
        # Chromium reads commands from descriptor 3 and answers on 4.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out}', "bash", *words], pass_fds=(its_in, its_out),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(its_in)
        os.close(its_out)
        self.read, self.asked, self.pages = b"", 0, {}
        return self

    def __exit__(self, *_):
        try:
            self.send("Browser.close")
            self.process.wait(20)
        except (OSError, EOFError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.into)
        self.profile.cleanup()

    def page(self, width: int = 1280, height: int = 800, dark: bool = False, headers: dict | None = None) -> "Page":
        """A new tab; `headers` go with every request, such as a token."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.send("Emulation.setEmulatedMedia", features=scheme)
        if headers:
            page.send("Network.setExtraHTTPHeaders", headers=headers)
        return page

    def send(self, method: str, session: str | None = None, **parameters) -> dict:
        """A command's result; events that come before it are given to their pages."""
        self.asked += 1
        asked = self.asked
        command = {"id": asked, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self.out, json.dumps(command).encode() + b"\0")
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            message = self.hear(until - time.monotonic())
            if message is None:
                raise TimeoutError(f"no answer from Chromium to {method} within {ANSWER_SECONDS} s")
            if message.get("id") == asked:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]

    def hear(self, seconds: float) -> dict | None:
        """The next message, or None if there is none for so long."""
        until = time.monotonic() + seconds
        while b"\0" not in self.read:
            ready, _, _ = select.select([self.into], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(self.into, 2**20)
            if not chunk:
                raise EOFError("Chromium has ended")
            self.read += chunk
        text, _, self.read = self.read.partition(b"\0")
        message = json.loads(text)
        if page := self.pages.get(message.get("sessionId")):
            page.note(message.get("method"), message.get("params", {}))
        return message


class Page:
    """A tab: what it logged as errors, and every address it asked for."""

    def __init__(self, browser: Browser, session: str):
        self.browser, self.session = browser, session
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.loaded = False

    def send(self, method: str, **parameters) -> dict:
        return self.browser.send(method, self.session, **parameters)

    def note(self, event: str | None, details: dict) -> None:
        if event == "Page.loadEventFired":
            self.loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            thrown = details["exceptionDetails"]
            self.errors.append(thrown.get("exception", {}).get("description", thrown["text"]))
        elif event == "Runtime.consoleAPICalled" and details["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in details["args"]))
        elif event == "Log.entryAdded" and details["entry"]["level"] == "error":
            self.errors.append(f"{details['entry']['text']} {details['entry'].get('url', '')}")

    def open(self, url: str, seconds: float = 60) -> None:
        """Go there; returns when it has loaded."""
        self.loaded = False
        if "loaderId" not in self.send("Page.navigate", url=url):
            return  # another place of the page that is there
        until = time.monotonic() + seconds
        while not self.loaded:
            if self.browser.hear(until - time.monotonic()) is None:
                raise TimeoutError(f"{url} did not load within {seconds} s")

    def evaluate(self, script: str):
        """The value of a JavaScript expression (or of the promise it is)."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"]
            raise RuntimeError(thrown.get("exception", {}).get("description", thrown["text"]))
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        """Until the expression is true, or is something that is there."""
        until = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > until:
                text = self.evaluate("document.body.innerText")
                raise TimeoutError(f"{condition} never became true; the page says:\n{text[:3000]}")
            self.browser.hear(0.2)

    def press(self, key: str) -> None:
        """A key, by its DOM name: Tab, Enter, ArrowRight."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def move_to(self, x: float, y: float) -> None:
        """The mouse."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: str | Path, whole: bool = False) -> Path:
        """As PNG: what is seen, or the whole length of the page."""
        image = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(image))
        return Path(path)

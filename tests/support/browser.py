"""A headless Chromium for tests, spoken to through its DevTools pipe: no driver, no package."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# Chromium reads commands from descriptor 3 and answers on 4.
_LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_PATIENCE = 30.0


class Browser:
    """One tab: opens pages and tells what they asked for and complained about."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._pending, self._number, self._session = b"", 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def open(self, path: Path, width: int, dark: bool = False, scripts: bool = True) -> None:
        """Open a file at a width, and wait until it is loaded."""
        self.requests, self.complaints = [], []
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, whole: bool = False) -> bytes:
        """What is on the screen, or the whole page, as a PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def _next(self) -> dict[str, Any]:
        """The next message; requests and complaints are noted on the way."""
        limit = time.monotonic() + _PATIENCE
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], limit - time.monotonic())
            assert ready, "the browser does not answer"
            piece = os.read(self._answers, 1 << 20)
            assert piece, "the browser has ended"
            self._pending += piece
        text, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, facts: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])
        elif method == "Network.loadingFailed":
            self.complaints.append(f"failed: {facts['errorText']}")
        elif method == "Log.entryAdded":
            self.complaints.append(facts["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console: {facts['args']}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(facts["exceptionDetails"]))


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, for as long as this lasts."""
    assert CHROMIUM is not None
    pipes = [*os.pipe(), *os.pipe()]
    # Numbers that the launcher's own 3 and 4 cannot collide with.
    theirs = [fcntl.fcntl(pipes[i], fcntl.F_DUPFD, 20) for i in (0, 3)]
    command = [
        sys.executable, "-c", _LAUNCH, *map(str, theirs), CHROMIUM,
        "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
        "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
        "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={profile}",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for one in (pipes[0], pipes[3], *theirs):
        os.close(one)
    try:
        found = Browser(pipes[1], pipes[2])
        yield found
        found._session = ""
        found.call("Browser.close")
    finally:
        for one in (pipes[1], pipes[2]):
            os.close(one)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

"""A headless Chromium, driven through its debugging pipe; needs nothing but the browser."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60.0


def find() -> str | None:
    """The browser: what LITEFUSE_CHROMIUM names, or one that is installed."""
    return os.environ.get("LITEFUSE_CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. ``problems`` are console errors, exceptions and violations of the policy; ``requests`` all loads."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser has ended"
            self._rest += data
        line, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, content: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            details = content["exceptionDetails"]
            self.problems.append(str(details.get("exception", {}).get("description", details)))
        elif method == "Runtime.consoleAPICalled" and content["type"] in ("error", "warning", "assert"):
            self.problems.append(str(content["args"]))
        elif method == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning"):
            self.problems.append(content["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(content["request"]["url"])

    def open(self, path: Path, width: int = 1400, height: int = 1000, *, dark: bool = False) -> None:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._loaded = False
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._receive()
        self.settle()

    def settle(self) -> None:
        """Waits until the page has drawn twice."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def key(self, key: str, text: str = "") -> None:
        named = {"key": key, "code": key, **({"text": text} if text else {})}
        if key == "Enter":
            named |= {"windowsVirtualKeyCode": 13, "text": "\r"}
        elif key == "Tab":
            named["windowsVirtualKeyCode"] = 9
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, **named)
        self.settle()

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)
        self.settle()

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def picture(self, path: Path, *, whole: bool = False) -> None:
        more = {"captureBeyondViewport": True} if whole else {}
        if whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            more["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", **more)["data"]))

    def paper(self) -> bytes:
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])


@contextmanager
def page() -> Iterator[Page]:
    """A tab of a browser of its own."""
    program = find()
    assert program is not None
    ours, theirs = os.pipe(), os.pipe()  # what it reads, what it writes
    with tempfile.TemporaryDirectory() as home:
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"]
        arguments += ["--remote-debugging-pipe", f"--user-data-dir={home}", "about:blank"]
        # The browser reads from descriptor 3 and writes to 4.
        shell = f'exec "$0" "$@" 3<&{ours[0]} 4>&{theirs[1]}'
        process = subprocess.Popen(
            ["bash", "-c", shell, program, *arguments],
            pass_fds=(ours[0], theirs[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        try:
            yield Page(theirs[0], ours[1])
        finally:
            os.close(ours[1])
            os.close(theirs[0])
            process.terminate()
            process.wait(PATIENCE)
            shutil.rmtree(home, ignore_errors=True)  # helpers of the browser may still write
            os.makedirs(home, exist_ok=True)

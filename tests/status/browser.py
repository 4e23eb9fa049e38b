"""A headless Chromium, controlled over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import WebSocketClientConnection, websocket_connect

PATIENCE_S = 60.0
_OPTIONS = (
    "--headless",
    # A container has no user namespace for the sandbox; the only page it sees is ours.
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-port=0",
)


class Browser:
    """One tab. A context manager; every call waits, for a limited time."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._runner = asyncio.Runner()
        self._number = 0
        self.complaints: list[str] = []
        """Errors of the page: exceptions, errors on the console, and requests that the policy refused."""

    def __enter__(self) -> Self:
        self._profile = Path(tempfile.mkdtemp(prefix="bruce-browser-"))
        self._process = subprocess.Popen(
            [self._program, *_OPTIONS, f"--user-data-dir={self._profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._runner.run(self._connect())
        for domain in ("Page", "Runtime", "Log"):
            self.tell(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._disconnect())
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        self._runner.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    async def _connect(self) -> None:
        port = self._profile / "DevToolsActivePort"
        end = time.monotonic() + PATIENCE_S
        while not (port.exists() and port.read_text().count("\n")):
            assert time.monotonic() < end, "the browser does not start"
            await asyncio.sleep(0.05)
        tabs = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port.read_text().split()[0]}/json")
        address = next(tab["webSocketDebuggerUrl"] for tab in json.loads(tabs.body) if tab["type"] == "page")
        self._tab: WebSocketClientConnection = await websocket_connect(address, max_message_size=64 << 20)

    async def _disconnect(self) -> None:
        self._tab.close()
        while await self._tab.read_message() is not None:
            pass

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command, and return its answer."""
        return self._runner.run(asyncio.wait_for(self._tell(method, parameters), PATIENCE_S))

    async def _tell(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._tab.write_message(
            json.dumps({"id": self._number, "method": method, "params": parameters})
        )
        while True:
            heard = json.loads(await self._tab.read_message() or "{}")
            if heard.get("id") == self._number:
                assert "error" not in heard, heard
                return dict(heard["result"])
            self._note(heard)

    def _note(self, heard: dict[str, Any]) -> None:
        about = heard.get("params", {})
        if heard.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(about["exceptionDetails"]))
        elif heard.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.complaints.append(about["entry"]["text"])

    def show(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Open a page."""
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", features=[scheme])
        self.tell("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression."""
        found = self.tell("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """The text that can be read in a part of the page."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def await_text(self, condition: Callable[[str], bool], selector: str = "body") -> str:
        """The first text that meets the condition; fails when it takes too long."""
        end = time.monotonic() + PATIENCE_S
        while not condition(seen := self.text(selector)):
            assert time.monotonic() < end, f"last seen in {selector}:\n{seen}\n{self.complaints}"
            time.sleep(0.05)
        return seen

    def photograph(self, path: Path) -> None:
        """The whole page as a PNG."""
        found = self.tell("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

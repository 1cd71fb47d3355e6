"""Headless Chromium, asked over its DevTools protocol: enough to read a page and click on it.

It is used where it is installed; tests that need it are collected only there.

**Source:** Chrome DevTools Protocol, domains Page and Runtime.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--force-color-profile=srgb",
         "--remote-debugging-port=0")  # fmt: skip
START_SECONDS = 30.0
WAIT_SECONDS = 20.0

BROWSER = os.environ.get("EPP_BROWSER") or next(filter(None, map(shutil.which, NAMES)), "")


class Page:
    """An open page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []  #: uncaught errors, and what the page's policy refused
        self._socket = socket
        self._ids = itertools.count(1)

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                message = await self._socket.receive_json()
                if message.get("id") == number:
                    return message["result"]
                self._hear(message)

    async def value(self, script: str) -> Any:
        """What a JavaScript expression is."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def text(self, selector: str) -> str:
        found = await self.value(f"document.querySelector({selector!r})?.innerText ?? ''")
        return str(found)

    async def column(self, place: int) -> list[str]:
        """The visible pods' cells in one column, first line of each."""
        cells = f"document.querySelectorAll('#pods tbody tr > :nth-child({place})')"
        found = await self.value(f"[...{cells}].map((cell) => cell.innerText.split('\\n')[0])")
        return list(found)

    async def click(self, selector: str) -> None:
        await self.value(f"document.querySelector({selector!r}).click()")

    async def fill(self, selector: str, text: str) -> None:
        await self.value(
            f"(() => {{ const field = document.querySelector({selector!r}); field.value = {text!r};"
            " field.dispatchEvent(new Event('input')); })()"
        )

    async def until(self, script: str) -> None:
        """Wait until a JavaScript expression is true."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not await self.value(script):
                await asyncio.sleep(0.05)

    async def picture(self, path: Path, *, height: int = 900) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=1360, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def _hear(self, message: dict[str, Any]) -> None:
        if message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(message["params"]["exceptionDetails"]))
        entry = message["params"].get("entry", {})
        if entry.get("level") == "error" and entry.get("source") == "security":
            self.complaints.append(entry["text"])


@contextlib.asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[Page]:
    """Open ``url`` in a browser of its own, whose profile lies in ``folder``."""
    profile = folder / "browser"
    process = await asyncio.create_subprocess_exec(
        BROWSER, *FLAGS, f"--user-data-dir={profile}", "about:blank", start_new_session=True,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = await _port(profile / "DevToolsActivePort")
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = await answer.json(content_type=None)
            target = next(tab for tab in tabs if tab["type"] == "page")
            async with http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                await page.call("Page.navigate", url=url)
                yield page
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own group: the browser and its children
        await process.wait()


async def _port(file: Path) -> int:
    async with asyncio.timeout(START_SECONDS):
        while not file.exists() or not file.read_text().strip():
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])

"""A headless Chromium, driven over its DevTools protocol: enough to open a page, press keys, look at it and take a picture."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.support import patience

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--remote-debugging-port=0",
)  # fmt: skip


def program() -> str | None:
    """A Chromium on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.console: list[str] = []
        """What the page complained of."""
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            data = json.loads(message.data)
            if data.get("id") in self._answers:
                self._answers.pop(data["id"]).set_result(data)
            elif data.get("method") == "Runtime.exceptionThrown":
                self.console.append(str(data["params"]["exceptionDetails"]))
            elif data.get("method") == "Log.entryAdded":
                self.console.append(str(data["params"]["entry"].get("text")))

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        data = await asyncio.wait_for(answer, patience.seconds(30))
        assert "error" not in data, data["error"]
        return data["result"]

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, expression: str, limit: float = 30.0) -> Any:
        """Wait until an expression is true in the page."""
        deadline = asyncio.get_running_loop().time() + patience.seconds(limit)
        while True:
            with contextlib.suppress(AssertionError):
                if found := await self.value(expression):
                    return found
            assert asyncio.get_running_loop().time() < deadline, f"{expression} did not come true; {self.console}"
            await asyncio.sleep(0.05)

    async def press(self, key: str, text: str = "") -> None:
        code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0)
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def size(self, width: int, height: int) -> None:
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    async def picture(self, path: Path) -> None:
        taken = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        self._reading.cancel()


@contextlib.asynccontextmanager
async def browser(chromium: str) -> AsyncIterator[Page]:
    """A page in a Chromium with a profile of its own."""
    with tempfile.TemporaryDirectory(prefix="koord-browser-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port = await _port(Path(profile) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    targets = await answer.json(content_type=None)
                target = next(one for one in targets if one["type"] == "page")
                async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    try:
                        yield page
                    finally:
                        page.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), patience.seconds(10))
            except TimeoutError:
                process.kill()
                await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    deadline = asyncio.get_running_loop().time() + patience.seconds(30)
    while not file.exists() or "\n" not in file.read_text():
        assert process.returncode is None, f"the browser ended with {process.returncode}"
        assert asyncio.get_running_loop().time() < deadline, "the browser did not come up"
        await asyncio.sleep(0.05)
    return int(file.read_text().splitlines()[0])

"""Drives a headless Chromium over its debugging pipe: two file descriptors, and messages of JSON
that end with a zero byte. It reaches only this machine's loopback.

Source: the Chrome DevTools Protocol (Page, Runtime, DOM, Network, Log).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.peers.programs import program, without_proxies

TIMEOUT = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)


class Page:
    """One tab.

    Attributes:
        urls: of all its requests.
        complaints: errors in its console, with violations of its content security policy.
    """

    def __init__(self, commands: int, messages: int) -> None:
        self._commands = commands
        self._messages = messages
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.urls: list[str] = []
        self.console_errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + TIMEOUT
        while not (found := self.evaluate(script)):
            assert time.monotonic() < end, f"{script} is still {found!r}; {self.console_errors}"
        return found

    def choose_file(self, selector: str, path: Path) -> None:
        """Choose a file in an input's dialogue."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def _next(self) -> dict[str, Any]:
        """The next message; events are recorded."""
        while b"\0" not in self._rest:
            piece = os.read(self._messages, 1 << 16)
            assert piece, "the browser has ended"
            self._rest += piece
        one, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.urls.append(params["request"]["url"])
            case "Log.entryAdded":
                if params["entry"]["level"] == "error":
                    self.console_errors.append(
                        f"{params['entry']['text']} {params['entry'].get('url')}"
                    )
            case "Runtime.exceptionThrown":
                self.console_errors.append(str(params["exceptionDetails"]))
        return message


@contextmanager
def browsing(folder: Path) -> Iterator[Page]:
    """A page of a browser with a new profile."""
    browser_in, to_browser = os.pipe()
    from_browser, browser_out = os.pipe()

    def move_descriptors() -> None:  # the descriptors that the browser uses
        spare_in, spare_out = os.dup(browser_in), os.dup(browser_out)
        os.dup2(spare_in, 3)
        os.dup2(spare_out, 4)

    command = [program("chromium"), *_FLAGS, f"--user-data-dir={folder / 'profile'}"]
    log = (folder / "chromium.log").open("wb")
    with (
        log,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=False,
            preexec_fn=move_descriptors,
            env=without_proxies(),
        ) as browser,
    ):
        os.close(browser_in)
        os.close(browser_out)
        try:
            page = Page(to_browser, from_browser)
            yield page
            with suppress(OSError, AssertionError):
                page.call("Browser.close")
        finally:
            os.close(to_browser)
            os.close(from_browser)
            try:
                browser.wait(10)
            except subprocess.TimeoutExpired:
                browser.kill()

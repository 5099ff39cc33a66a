"""Browsers without a window, driven with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

CHROMIUM = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--autoplay-policy=no-user-gesture-required", "--mute-audio", "--hide-scrollbars"),
    *("--enable-precise-memory-info", "--js-flags=--expose-gc", "--remote-debugging-pipe"),
)


class Browser:
    """A browser with one page, and a profile of its own, which its end removes."""

    name: str
    program: str

    def __init__(self) -> None:
        self.profile = tempfile.mkdtemp(prefix="browser-")
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)
        shutil.rmtree(self.profile, ignore_errors=True)

    def open(self, page: Path) -> None:
        raise NotImplementedError

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, awaited."""
        raise NotImplementedError

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, f"{self.name}: not within {seconds} s: {condition}"
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        raise NotImplementedError


class Chromium(Browser):
    """Chromium through the pipe of its DevTools protocol."""

    name = program = "chromium"

    def _start(self) -> subprocess.Popen[bytes]:
        ours, theirs = os.pipe(), os.pipe()  # they read from the first and write to the second
        os.set_blocking(theirs[0], True)

        def at_3_and_4() -> None:
            read, write = os.dup(ours[0]), os.dup(theirs[1])
            os.dup2(read, 3)
            os.dup2(write, 4)

        process = subprocess.Popen(
            [self.program, *CHROMIUM, f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=at_3_and_4,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._out, self._in = os.fdopen(ours[1], "wb", 0), os.fdopen(theirs[0], "rb")
        self._number, self._rest, self.events = 0, b"", []
        self._session: str | None = None
        [target] = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return process

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol; events that come before its answer are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                self._rest += os.read(self._in.fileno(), 1 << 20)
            first, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(first)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path) -> None:
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())

    def evaluate(self, expression: str) -> Any:
        options = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        answer = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """Return the addresses that the page has asked for."""
        self.evaluate("1")
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in sent]

    def problems(self) -> list[str]:
        """Return what the page has thrown and what its policy has refused."""
        self.evaluate("1")
        found = [
            e
            for e in self.events
            if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]
        return [json.dumps(each["params"])[:500] for each in found]

    def key(self, key: str, kind: str) -> None:
        """Press or release a key: `keyDown` or `keyUp`."""
        code = f"Key{key.upper()}"
        text = {"text": key} if kind == "keyDown" else {}
        self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code, **text)

    def show_as(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1}
        self.call("Emulation.setDeviceMetricsOverride", **size, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


class Firefox(Browser):
    """Firefox through its Marionette protocol."""

    name, program = "firefox", "firefox-esr"

    def _start(self) -> subprocess.Popen[bytes]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        preferences = {"marionette.port": port, "media.autoplay.default": 0}
        lines = [f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in preferences.items()]
        (Path(self.profile) / "user.js").write_text("\n".join(lines))
        process = subprocess.Popen(
            [self.program, "--headless", "--marionette", "--no-remote", "--profile", self.profile],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 60
        while True:
            try:
                self._socket = socket.create_connection(("127.0.0.1", port), 120)
                break
            except OSError:
                assert time.monotonic() < end, "firefox does not answer"
                time.sleep(0.1)
        self._file, self._number = self._socket.makefile("rb"), 0
        self._receive()
        self._call("WebDriver:NewSession", {})
        self._call("WebDriver:SetTimeouts", {"script": 600_000})
        return process

    def _receive(self) -> Any:
        digits = b""
        while (byte := self._file.read(1)) != b":":
            digits += byte
        return json.loads(self._file.read(int(digits)))

    def _call(self, method: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        message = json.dumps([0, self._number, method, parameters]).encode()
        self._socket.sendall(str(len(message)).encode() + b":" + message)
        _, _, error, result = self._receive()
        assert error is None, (method, error)
        return result

    def open(self, page: Path) -> None:
        self._call("WebDriver:Navigate", {"url": page.resolve().as_uri()})

    def evaluate(self, expression: str) -> Any:
        script = f"Promise.resolve({expression}).then(arguments[0]);"
        found = self._call("WebDriver:ExecuteAsyncScript", {"script": script, "args": []})
        return found["value"]

    def screenshot(self, path: Path) -> None:
        found = self._call("WebDriver:TakeScreenshot", {"full": False})
        path.write_bytes(base64.b64decode(found["value"]))


def installed() -> list[type[Browser]]:
    """Return the browsers that this machine has."""
    return [each for each in (Chromium, Firefox) if shutil.which(each.program)]

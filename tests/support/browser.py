"""Chromium, spoken to over its own protocol: what a person does on a page, and what it says then."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
from websockets.sync.client import connect

SECONDS = 30
KEYS = {"Backspace": 8, "Tab": 9, "Enter": 13, "Escape": 27, " ": 32}


def chromium() -> str | None:
    """Return where a browser is; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One browser process without a window, as long as the tests run."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
        quiet = ("--no-first-run", "--disable-background-networking", "--disable-extensions")
        place = (f"--user-data-dir={self._profile.name}", "--remote-debugging-port=0")
        self._process = subprocess.Popen(
            [program, *flags, *quiet, *place, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._port = self._wait_for_port()

    def _wait_for_port(self) -> str:
        path = Path(self._profile.name) / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not (path.exists() and len(path.read_text().split()) == 2):
            assert self._process.poll() is None, "the browser ended"
            assert time.monotonic() < deadline, "the browser does not begin"
            time.sleep(0.05)
        return path.read_text().split()[0]

    def open(self, url: str, *, width: int = 1280, height: int = 900) -> "Tab":
        """Open a page of its own, with cookies and storage that no other page has."""
        address = httpx.get(f"http://127.0.0.1:{self._port}/json/version").json()
        with connect(address["webSocketDebuggerUrl"], max_size=None) as socket:
            context = _ask(socket, 1, "Target.createBrowserContext")["browserContextId"]
            made = {"url": "about:blank", "browserContextId": context}
            target = _ask(socket, 2, "Target.createTarget", **made)["targetId"]
        tab = Tab(f"ws://127.0.0.1:{self._port}/devtools/page/{target}")
        tab.resize(width, height)
        tab.go(url)
        return tab

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._profile.cleanup()


def _ask(socket, number, method, **params):
    socket.send(json.dumps({"id": number, "method": method, "params": params}))
    while True:
        message = json.loads(socket.recv(timeout=SECONDS))
        if message.get("id") == number:
            assert "error" not in message, message
            return message["result"]


class Tab:
    """One page; ``problems`` is what it complained of: errors, and what its policy kept out."""

    def __init__(self, address: str) -> None:
        self._stack = ExitStack()
        self._socket = self._stack.enter_context(connect(address, max_size=None))
        self._number = 0
        self.problems: list[str] = []
        self.requested: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=SECONDS))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message) -> None:
        params = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:1000])
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif message["method"] == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)

    def go(self, url: str) -> None:
        self.ask("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, expression: str):
        """Return what an expression of JavaScript is; promises are waited for."""
        params = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        result = self.ask("Runtime.evaluate", **params)
        assert "exceptionDetails" not in result, (expression, result["exceptionDetails"])
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + SECONDS
        while not self.run(f"Boolean({expression})"):
            shown = self.run("document.body?.innerText ?? ''")[-1500:]
            assert time.monotonic() < deadline, f"never: {expression}\n{shown}\n{self.problems}"
            time.sleep(0.03)

    def wait_for(self, text: str) -> None:
        self.wait(f"document.body?.innerText.includes({json.dumps(text)})")

    def click(self, selector: str) -> None:
        """Click as a mouse does, on what lies at that place, when the page has its scripts."""
        there = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"document.readyState === 'complete' && {there}")
        box = self.run(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)});"
            "it.scrollIntoView({block: 'center'}); const box = it.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            place = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self.ask("Input.dispatchMouseEvent", type=kind, **place)

    def press(self, key: str, *, shift: bool = False) -> None:
        text = {"Enter": "\r", " ": " "}.get(key)
        code = {"key": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.ask("Input.dispatchKeyEvent", **down, **code)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **code)

    def type(self, text: str) -> None:
        self.ask("Input.insertText", text=text)

    def tab_to(self, selector: str, *, most: int = 60) -> None:
        """Press Tab until something has the focus."""
        for _ in range(most):
            if self.run(f"document.activeElement?.matches({json.dumps(selector)}) ?? false"):
                return
            self.press("Tab")
        raise AssertionError(f"Tab never comes to {selector}")

    def choose_files(self, selector: str, *paths: Path) -> None:
        """Choose files in a field, as its dialog does."""
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        node = self.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.ask("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def accept_questions(self) -> None:
        """Say yes to whatever the page asks before it does something, from now on."""
        self.run("window.confirm = () => true")

    def picture(self) -> bytes:
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        self.ask("Page.close")
        self._stack.close()

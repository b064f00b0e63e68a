"""The distribution's Chromium, driven by Playwright: what a person does on a page, and what it says."""

import asyncio
import json
import shutil
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import ConsoleMessage, Dialog, Page, ViewportSize, async_playwright
from playwright.async_api import TimeoutError as NeverError

Result = TypeVar("Result")
SECONDS = 120
POLL_MILLISECONDS = 30


def chromium() -> str | None:
    """Return where a browser is; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Loop:
    """A loop in a thread of its own: one of this thread's would be in the way of other tests'."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[object, object, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Browser:
    """One browser process without a window, as long as the tests run."""

    def __init__(self, program: str) -> None:
        self._loop = Loop()
        self._loop.run(self._launch(program))

    async def _launch(self, program: str) -> None:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        self._playwright = await async_playwright().start()
        chromium = self._playwright.chromium
        self._browser = await chromium.launch(executable_path=program, args=flags)

    def open(self, url: str, *, width: int = 1280, height: int = 900) -> "Tab":
        """Open a page of its own, with cookies and storage that no other page has."""
        tab = self._loop.run(self._open(width, height))
        tab.go(url)
        return tab

    async def _open(self, width: int, height: int) -> "Tab":
        size: ViewportSize = {"width": width, "height": height}
        context = await self._browser.new_context(viewport=size, is_mobile=width < 600)
        context.set_default_timeout(1000 * SECONDS)
        return Tab(self._loop, await context.new_page())

    def close(self) -> None:
        self._loop.run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        await self._browser.close()
        await self._playwright.stop()


class Tab:
    """One page; ``problems`` is what it complained of: errors, and what its policy kept out.

    It is made in the loop's thread, where all that Playwright gives is used.
    """

    def __init__(self, loop: Loop, page: Page) -> None:
        self._loop = loop
        self._page = page
        self._accepts = False
        self.problems: list[str] = []
        self.requested: list[str] = []
        page.on("dialog", self._answer)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._note_message)
        page.on("request", lambda request: self.requested.append(request.url))

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"{message.text} {message.location['url']}")

    async def _answer(self, question: Dialog) -> None:
        await (question.accept() if self._accepts else question.dismiss())

    def _do(self, work: Callable[[Page], Awaitable[Result]]) -> Result:
        """Have something done with the page, and return what comes of it."""

        async def done() -> Result:
            return await work(self._page)

        return self._loop.run(done())

    def resize(self, width: int, height: int) -> None:
        self._do(lambda page: page.set_viewport_size({"width": width, "height": height}))

    def go(self, url: str) -> None:
        self._do(lambda page: page.goto(url))

    def run(self, script: str) -> Any:
        """Return what a script's last expression is; promises are waited for."""
        return self._do(lambda page: page.evaluate(script))

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        # A function: the pages' policy lets no text be evaluated, but by a debugger, once.
        wanted = f"() => Boolean({expression})"
        try:
            self._do(lambda page: page.wait_for_function(wanted, polling=POLL_MILLISECONDS))
        except NeverError:
            shown = self.run("document.body?.innerText ?? ''")[-1500:]
            raise AssertionError(f"never: {expression}\n{shown}\n{self.problems}") from None

    def wait_for(self, text: str) -> None:
        self.wait(f"document.body?.innerText.includes({json.dumps(text)})")

    def click(self, selector: str) -> None:
        """Click as a mouse does, on what lies at that place, when the page has its scripts."""
        self._do(lambda page: page.wait_for_load_state())
        self._do(lambda page: page.locator(selector).first.click())

    def press(self, key: str, *, shift: bool = False) -> None:
        self._do(lambda page: page.keyboard.press(f"Shift+{key}" if shift else key))

    def type(self, text: str) -> None:
        self._do(lambda page: page.keyboard.insert_text(text))

    def tab_to(self, selector: str, *, most: int = 60) -> None:
        """Press Tab until something has the focus."""
        for _ in range(most):
            if self.run(f"document.activeElement?.matches({json.dumps(selector)}) ?? false"):
                return
            self.press("Tab")
        raise AssertionError(f"Tab never comes to {selector}")

    def choose_files(self, selector: str, *paths: Path) -> None:
        """Choose files in a field, as its dialog does."""
        self._do(lambda page: page.locator(selector).first.set_input_files(paths))

    def accept_questions(self) -> None:
        """Say yes to whatever the page asks before it does something, from now on."""
        self._accepts = True

    def picture(self) -> bytes:
        return self._do(lambda page: page.screenshot())

    def close(self) -> None:
        self._do(lambda page: page.context.close())

"""Take a picture of every page, in both themes and on a phone, of a server that is asked things.

    scripts/pictures.py FOLDER         # Chromium must be there: apt-get install chromium
    scripts/pictures.py FOLDER --docs  # also those that the documents show, into docs/images

The server serves the built-in model, and keeps what it keeps in a folder of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import httpx  # noqa: E402
from browser import Browser, chromium  # noqa: E402

from zse.serve.access.rules import PAGES  # noqa: E402

SIZES = {"desktop": (1280, 900), "phone": (390, 800)}
SHOWN = {"dashboard": (1280, 1120), "chat": (1280, 880)}
ASKING_SECONDS = 110  # charts show two minutes
QUESTIONS = (
    "What is the capital of France?",
    "What is the opposite of hot?",
    "What is the capital of Italy?",
    "What is the opposite of big?",
)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", action="store_true")
    asked = parser.parse_args(words)
    program = chromium()
    if program is None:
        print("no browser on this machine: apt-get install chromium", file=sys.stderr)
        return 1
    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        server, url = start(Path(home))
        browser = Browser(program)
        try:
            page = fill(url)
            take_all(browser, url, page, asked.folder)
            if asked.docs:
                take_shown(browser, url, page)
        finally:
            browser.close()
            server.terminate()
            server.wait()
    return 0


def start(home: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server; return it and its address, when it is ready."""
    flags = ["--port", "0", "--device", "cpu", "--log-format", "json", "--tools", "calculator"]
    log = home / "log"
    with log.open("w") as stream:
        server = subprocess.Popen(
            [sys.executable, "-m", "zse.serve", "tiny", *flags],
            env={**os.environ, "ZSE_HOME": str(home), "HOME": str(home)},
            stderr=stream,
        )
    deadline = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < deadline:
        if found := re.search(r'"message": "ready".*?"url": "([^"]*)"', log.read_text()):
            return server, found.group(1)
        time.sleep(0.1)
    server.kill()
    raise SystemExit(f"the server is not ready:\n{log.read_text()}")


def fill(url: str) -> str:
    """Ask things, keep a document and a conversation; return the conversation's page."""
    handbook = b"# Handbook\n\n## Leave\n\nEverybody has 31 days of leave a year.\n"
    with httpx.Client(base_url=url, timeout=60) as http:
        http.post("/api/rag/documents/upload", files={"file": ("handbook.md", handbook)})
        root = "/api/chat/conversations"
        made: Any = http.post(root, json={"title": QUESTIONS[0]}).json()["id"]
        parent = None
        for text in QUESTIONS[:3]:
            message = {"role": "user", "content": text, "parent": parent}
            asked = http.post(f"{root}/{made}/messages", json=message).json()["id"]
            parent = http.post(f"{root}/{made}/answers", json={"parent": asked}).json()["id"]
            wait_for(http, f"{root}/{made}/messages")
    return f"chat?c={made}"


def wait_for(http: httpx.Client, path: str) -> None:
    deadline = time.monotonic() + 60
    while any(one["status"] == "writing" for one in http.get(path).json()["messages"]):
        if time.monotonic() > deadline:
            raise SystemExit("an answer does not end")
        time.sleep(0.05)


def take_all(browser: Browser, url: str, conversation: str, folder: Path) -> None:
    for size, (width, height) in SIZES.items():
        tab = browser.open(f"{url}/", width=width, height=height)
        for theme in ("dark", "light"):
            tab.run(f"localStorage.setItem('zse-theme', '{theme}')")
            for name in sorted(path[1:] for path in PAGES):
                tab.go(f"{url}/{conversation if name == 'chat' else name}")
                time.sleep(2.5 if name == "dashboard" else 0.5)
                (folder / f"{name}-{theme}-{size}.png").write_bytes(tab.picture())
        tab.close()


def take_shown(browser: Browser, url: str, conversation: str) -> None:
    """Take those of the documents: the dashboard while answers are written."""
    for name, (width, height) in SHOWN.items():
        tab = browser.open(
            f"{url}/{conversation if name == 'chat' else name}", width=width, height=height
        )
        time.sleep(1)
        if name == "dashboard":
            with ThreadPoolExecutor(4) as askers:
                begun = [askers.submit(keep_asking, url, seed) for seed in range(4)]
                while not any(one.done() for one in begun):
                    tab.run("1")  # what has come is read
                    time.sleep(0.2)
                picture = tab.picture()  # while the others are still asking
            for one in begun:
                one.result()
        else:
            picture = tab.picture()
        target = ROOT / "docs" / "images" / f"{'playground' if name == 'chat' else name}.png"
        target.write_bytes(picture)
        tab.close()


def keep_asking(url: str, seed: int) -> None:
    """Ask in bursts, as people do, until there is enough to show."""
    rng = random.Random(seed)
    deadline = time.monotonic() + ASKING_SECONDS
    while time.monotonic() < deadline:
        for _ in range(rng.randrange(1, 12)):
            body = {"messages": [{"role": "user", "content": rng.choice(QUESTIONS)}]}
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
        time.sleep(rng.random() * 3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

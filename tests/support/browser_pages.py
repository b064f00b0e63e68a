"""What tests of pages in a browser have in common: sizes of windows, conversations, axe."""

import time
from importlib.resources import files

AXE = files("axe_core_python") / "axe.min.js"
DESKTOP, PHONE = (1280, 900), (390, 800)


def talk(site, title="talk", system="", *texts):
    """Begin a conversation with messages of both sides, by turns; returns its page."""
    root = "/api/chat/conversations"
    made = site.http.post(root, json={"title": title, "system": system}).json()["id"]
    parent = None
    for index, text in enumerate(texts):
        role = ("user", "assistant")[index % 2]
        message = {"role": role, "content": text, "parent": parent}
        parent = site.http.post(f"{root}/{made}/messages", json=message).json()["id"]
    return f"{site.url}/chat?c={made}"


def check_with_axe(tab):
    """Axe finds nothing; the long list of routes is of elements that the rest of its page has.

    What it finds is looked for once more: a part may have been exchanged while it looked.
    """
    tab.run(AXE.read_text())
    for _ in range(2):
        found = tab.run(
            "axe.run({exclude: ['.reference']}, {resultTypes: ['violations']}).then(found =>"
            " JSON.stringify(found.violations.map(v => [v.id, v.nodes.map(node => node.html)])))"
        )
        if found == "[]":
            return
        time.sleep(1)
    raise AssertionError(f"{tab.run('location.pathname')}: {found}")

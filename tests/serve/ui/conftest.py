"""Servers with pages, people who are logged in, and a browser where there is one."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from browser import Browser
from browser import chromium as where
from browser_pages import DESKTOP
from person import Person

from zse.serve.access.key_file import KeyFile
from zse.serve.access.keyring import Keyring
from zse.serve.access.keys import make_key
from zse.serve.access.policy import Access
from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.serve.ui.conversations import Conversations
from zse.settings import Settings


@pytest.fixture
def state(tmp_path):
    """A server whose files lie in a folder of the test."""
    state = AppState(ledger=Ledger(), settings=Settings(home=tmp_path / "home"))
    yield state
    if (store := state._parts.get(Conversations)) is not None:
        store.close()


@pytest.fixture
def key_file(tmp_path):
    return KeyFile(tmp_path / "home" / "api_keys.json")


@pytest.fixture
def add_key(key_file, state):
    """Add a key; returns what it is."""

    def add(name="alice", **facts):
        new = make_key(name, **facts)
        key_file.add(new.key)
        state.access.keyring.look()
        return new.secret

    return add


@pytest.fixture
def guarded(state, make_caller, key_file):
    """Calls an application that other machines reach, and that has the file of keys."""
    state.access = Access(Keyring(key_file=key_file), is_local=False)
    return make_caller()


@pytest.fixture
def log_in(guarded, add_key):
    """Log a person in with a new key."""

    def log_in(name="boss", scope="admin"):
        return Person(guarded, add_key(name, scope=scope))

    return log_in


@pytest.fixture
def foreign_page(tmp_path):
    """A page that another port of this machine serves."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html><title>elsewhere</title><p>elsewhere</p>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def chromium():
    """The browser, once for all tests."""
    program = where()
    if program is None:
        pytest.skip("no browser on this machine: apt-get install chromium")
    browser = Browser(program)
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def site(server_class, scripted, tmp_path_factory, chromium):
    """A server on this machine that asks for no key."""
    home = tmp_path_factory.mktemp("home")
    child = server_class([scripted.__file__], ZSE_HOME=str(home), ZSE_TOOLS="string_ops")
    try:
        child.wait_for_line("ready")
        yield child
    finally:
        child.close()


@pytest.fixture
def open_tab(chromium):
    """Open pages; in the end none of them has complained, and none has asked another host."""
    tabs = []

    def open_tab(url, size=DESKTOP):
        tabs.append((chromium.open(url, width=size[0], height=size[1]), urlsplit(url).netloc))
        return tabs[-1][0]

    yield open_tab
    for tab, host in tabs:
        asked = {urlsplit(url).netloc for url in tab.requested if not url.startswith("data:")}
        problems = tab.problems
        tab.close()
        assert asked <= {host}
        assert problems == []

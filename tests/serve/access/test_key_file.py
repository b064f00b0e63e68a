"""The file of keys: private, whole, and suspicious of what it finds."""

import json
import multiprocessing
import os
import stat

import pytest

from zse.errors import NotFoundError, RefusedError, UsageError, ZSEError
from zse.serve.access.key_file import KeyFile
from zse.serve.access.keys import KeyTable, make_key


def test_no_file_is_no_keys(key_file):
    assert key_file.read() == KeyTable()


def test_the_file_holds_digests_and_only_its_user_reads_it(key_file, add_key):
    secret = add_key(rate_limit=60)
    text = key_file.path.read_text()
    assert secret not in text
    assert secret.removeprefix("zse-") not in text
    assert json.loads(text)["keys"][0]["rate_limit"] == 60
    assert stat.S_IMODE(key_file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file.path.parent.stat().st_mode) == 0o700


def test_a_name_is_given_once(add_key):
    add_key("app")
    with pytest.raises(UsageError, match="already"):
        add_key("app")


def test_what_is_not_there_is_not_found(key_file):
    with pytest.raises(NotFoundError, match="no API key 'nobody'"):
        key_file.update("nobody", lambda _: None)


def test_a_change_that_fails_leaves_the_file_and_nothing_beside_it(key_file, add_key):
    add_key("app")
    before = key_file.path.read_bytes()

    def fail(table):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        key_file.change(fail)
    assert key_file.path.read_bytes() == before
    names = {path.name for path in key_file.path.parent.iterdir()}
    assert names == {"api_keys.json", ".api_keys.json.lock"}


def _add_some(path, worker):
    for index in range(10):
        KeyFile(path).add(make_key(f"{worker}-{index}").key)


def test_processes_that_write_at_once_lose_no_key(key_file):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add_some, args=(key_file.path, i)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    names = {key.name for key in key_file.read().keys}
    assert names == {f"{worker}-{index}" for worker in range(4) for index in range(10)}


def _write(path, text, mode=0o600):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        "[" * 100_000,
        '{"version": 2}',
        '{"keys": [{}]}',
        '{"keys": [{"name": "a", "key_id": "x", "sha256": "y"}]}',
        '{"unknown": 1}',
        '{"keys": {"a": 1}}',
    ],
)
def test_a_file_that_is_no_key_file_is_refused_and_not_replaced(key_file, add_key, text):
    _write(key_file.path, text)
    with pytest.raises(RefusedError, match="is no file of API keys"):
        key_file.read()
    with pytest.raises(RefusedError):
        add_key("app")
    assert key_file.path.read_text() == text


def test_two_keys_of_one_name_are_refused(key_file, add_key):
    add_key("app")
    table = json.loads(key_file.path.read_text())
    _write(key_file.path, json.dumps(table | {"keys": table["keys"] * 2}))
    with pytest.raises(RefusedError, match="two API keys of one name"):
        key_file.read()


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_a_file_that_others_read_or_write_is_refused(key_file, mode):
    _write(key_file.path, "{}", mode)
    with pytest.raises(RefusedError, match=f"mode {mode:04o}") as caught:
        key_file.read()
    assert "chmod 600" in caught.value.hint


def test_a_symbolic_link_is_refused(key_file, tmp_path):
    _write(tmp_path / "elsewhere", "{}")
    key_file.path.parent.mkdir()
    key_file.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RefusedError, match="symbolic link"):
        key_file.read()


def test_a_pipe_is_refused_and_not_waited_for(key_file):
    key_file.path.parent.mkdir()
    os.mkfifo(key_file.path, 0o600)
    with pytest.raises(RefusedError, match="ordinary file"):
        key_file.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_file_is_refused(key_file):
    _write(key_file.path, "{}")
    os.chown(key_file.path, 12345, 12345)
    with pytest.raises(RefusedError, match="belongs to user 12345"):
        key_file.read()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "home").write_text("a file")
    with pytest.raises(ZSEError, match="cannot write"):
        KeyFile(tmp_path / "home" / "api_keys.json").add(make_key("app").key)

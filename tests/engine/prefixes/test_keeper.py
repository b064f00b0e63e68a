"""Prefixes between two starts: kept, encrypted, bounded; and never used where they do not fit."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest
from range_server import serving

from zse.engine.loading import load_model
from zse.engine.prefixes import store as stores
from zse.engine.prefixes.cipher import UnreadablePrefixesError, decrypted, encrypted, read_key
from zse.engine.prefixes.memory_store import MemoryStore, forget_all
from zse.engine.prefixes.store import FolderStore
from zse.errors import DiskFullError, RefusedError, UsageError
from zse.settings import load_settings
from zse.store.private_file import PrivateWriter

PROMPT = [7 * index % 290 for index in range(77)]
KEY = bytes(range(32))


@pytest.fixture
def run(plain_engines, answer, tmp_path):
    """Start, ask, stop; with prefixes kept in a folder. Returns tokens, and how many were spared."""

    def once(prompt=PROMPT, *, path: Path | None = None, salt="", **options):
        given = plain_engines.options(**{"prefix_store": str(tmp_path / "kept"), **options})
        loaded = load_model(path or plain_engines.path, given, load_settings())
        try:
            tokens = answer(loaded.core, prompt, salt=salt)
            return tokens, loaded.core.stats().restored_store_tokens
        finally:
            loaded.close()

    return once


@pytest.fixture
def kept(tmp_path):
    return lambda: sorted((tmp_path / "kept").glob("*.zpx"))


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    return str(path)


@pytest.fixture(autouse=True)
def without_reading_the_tokenizer(monkeypatch):
    """These files have none."""
    monkeypatch.setattr("zse.engine.loading._load_tokenizer", lambda *_: None)
    monkeypatch.setattr("zse.engine.loading._end_tokens", lambda *_: ())


def test_a_prefix_is_there_after_a_restart(run, kept):
    tokens, spared = run()
    assert spared == 0
    assert run() == (tokens, 72)
    (file,) = kept()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_memory_keeps_what_a_model_left_until_it_is_back_or_forgotten(run, kept):
    forget_all()
    tokens, spared = run(prefix_store="memory:")
    assert spared == 0
    assert run(prefix_store="memory:") == (tokens, 72)
    assert run(prefix_store="memory:", salt="bob")[1] == 0
    assert kept() == []
    forget_all()
    assert run(prefix_store="memory:") == (tokens, 0)
    forget_all()


def test_memory_is_bounded_over_all_models_and_what_came_first_goes_first():
    store = MemoryStore()
    store.most_bytes = 100
    assert store.read("a") is None
    assert store.write("a", [b"a" * 30, bytearray(b"b" * 10)]) == 40
    store.write("b", [b"c" * 40])
    store.write("a", [b"d" * 50])
    assert (bytes(store.read("a")), bytes(store.read("b"))) == (b"d" * 50, b"c" * 40)
    held = store.read("b")
    store.write("c", [b"e" * 50])
    assert store.read("b") is None
    assert bytes(held) == b"c" * 40  # who reads it still has it
    assert store.length_bytes == 100
    store.write("d", [b"f" * 101])
    assert store.length_bytes == 0


def test_tenants_do_not_share_over_a_restart_either(run):
    run(salt="ann")
    assert run(salt="bob")[1] == 0
    assert run(salt="ann")[1] == 72


def test_with_a_key_nobody_reads_it_and_the_next_start_does(run, kept, key_file, caplog):
    tokens, _ = run(prefix_key_file=key_file)
    (file,) = kept()
    held = file.read_bytes()
    assert held[:4] == b"ZPE\0"
    assert bytes([7, 0, 0, 0, 14, 0, 0, 0]) not in held
    assert run(prefix_key_file=key_file) == (tokens, 72)
    assert run() == (tokens, 0)
    assert "no key was given" in caplog.text
    assert run(prefix_key_file=key_file)[1] == 0, "what is not encrypted is not believed"


def other_key(path):
    Path(path).write_text("ff" * 32)


def test_another_key_is_a_warning_and_no_prefix(run, key_file, caplog):
    run(prefix_key_file=key_file)
    other_key(key_file)
    assert run(prefix_key_file=key_file)[1] == 0
    assert "another key" in caplog.text


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "noise"])
def test_a_damaged_file_is_a_warning_and_no_prefix(run, kept, caplog, damage):
    tokens, _ = run()
    (file,) = kept()
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[5000] ^= 1
    file.write_bytes(
        {"cut": data[:-4096], "empty": b"", "noise": os.urandom(9000)}.get(damage, data)
    )
    assert run() == (tokens, 0)
    assert "not used" in caplog.text
    assert run()[1] == 72, "what was damaged has been replaced"


def test_other_weights_find_nothing_and_change_nothing(run, kept, make_pair):
    run()
    other = make_pair("qwen2", "int4", vocab_size=300, max_position_embeddings=512).path
    assert run(path=other)[1] == 0
    assert len(kept()) == 2
    assert run()[1] == 72


def test_what_another_version_or_another_way_computed_is_not_used(run, monkeypatch, caplog):
    run()
    with monkeypatch.context() as patch:
        patch.setattr("zse.engine.prefixes.binding.__version__", "99.0")
        assert run()[1] == 0
    assert "this is 99.0" in caplog.text
    run(deterministic=False)
    assert run()[1] == 0
    assert "without --deterministic" in caplog.text


def test_other_sizes_of_blocks_and_types_have_files_of_their_own(run, kept):
    run()
    assert run(kv_dtype="int8")[1] == 0
    assert run(block_size=16)[1] == 0
    assert len(kept()) == 3
    assert run(kv_dtype="int8")[1] == 72


def test_a_disk_that_fills_up_loses_nothing(run, kept, monkeypatch, caplog):
    run()
    before = [(file, file.read_bytes()) for file in kept()]
    real, written = os.write, [0]

    def full(descriptor, data):
        if written[0] > 5000:
            raise OSError(28, "No space left on device")
        written[0] += len(data)
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr("zse.store.local.os.write", full)
        run([1, 2, *PROMPT])
    assert "prefixes are not kept" in caplog.text
    assert [(file, file.read_bytes()) for file in kept()] == before
    assert [path.name for path in before[0][0].parent.iterdir()] == [before[0][0].name]


def test_what_others_may_have_written_is_not_used(run, kept, caplog):
    run()
    (file,) = kept()
    file.chmod(0o666)
    with caplog.at_level(logging.WARNING):
        assert run()[1] == 0
    assert "mode 666" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_prefixes_are_read_only_where_tags_show_who_wrote_them(tmp_path):
    store = FolderStore(tmp_path, 1 << 20)
    store.write("plain.zpx", [b"tokens"])
    store.write("secret.zpx", encrypted([b"tokens"], KEY))
    for path in tmp_path.iterdir():
        os.chown(path, 12345, -1)
    with pytest.raises(RefusedError, match="belongs to user 12345"):
        store.read("plain.zpx")
    assert decrypted(store.read("secret.zpx"), KEY) == b"tokens"


def test_a_folder_stays_within_its_bound_and_the_oldest_go(tmp_path):
    store = FolderStore(tmp_path, 2500)
    for number in range(4):
        store.write(f"{number}.zpx", [bytes(1000)])
        os.utime(tmp_path / f"{number}.zpx", (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.zpx", "3.zpx"]
    store.write("big.zpx", [bytes(9000)])
    assert [path.name for path in tmp_path.iterdir()] == ["big.zpx"]


def test_a_model_with_states_says_so_and_is_served(make_pair, plain_engines, tmp_path, caplog):
    path = make_pair("qwen3_next", "int8", vocab_size=300).path
    options = plain_engines.options(prefix_store=str(tmp_path), deterministic=False)
    with caplog.at_level(logging.WARNING):
        load_model(path, options, load_settings()).close()
    assert "states beside" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_no_place_is_refused_at_the_start(run, plain_engines, tmp_path):
    for place in ("https://example.com/x", "s3://bucket/object"):
        options = plain_engines.options(prefix_store=place)
        with pytest.raises(UsageError, match="cannot be kept"):
            load_model(plain_engines.path, options, load_settings())
    (tmp_path / "short").write_bytes(b"x")
    with pytest.raises(UsageError, match="1 bytes"):
        run(prefix_key_file=str(tmp_path / "short"))
    with pytest.raises(UsageError, match="cannot be read"):
        run(prefix_key_file=str(tmp_path / "absent"))


@pytest.mark.parametrize("count", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_frames_come_back_and_none_can_be_changed_or_left_out(count):
    text = os.urandom(count)
    data = b"".join(encrypted([text[:1000], text[1000:]], KEY))
    assert decrypted(memoryview(data), KEY) == text
    assert b"".join(encrypted([text], KEY)) != data
    frame = (1 << 20) + 16
    broken = [data[:-1], data + b"x", data[:40], data[:39], b"ZPE\0\2" + data[5:]]
    broken += [data[: 40 + frame], data[:40] + data[40 + frame :]] if count > 1 << 20 else []
    for place in {4, 20, 40, len(data) - 1}:
        changed = bytearray(data)
        changed[place] ^= 1
        broken.append(bytes(changed))
    for each in broken:
        with pytest.raises(UnreadablePrefixesError):
            decrypted(memoryview(each), KEY)


def test_a_key_may_be_written_in_digits(tmp_path):
    (tmp_path / "key").write_text(KEY.hex() + "\n")
    assert read_key(str(tmp_path / "key")) == KEY


def test_what_cannot_be_written_is_a_full_disk(tmp_path, monkeypatch):
    store = FolderStore(tmp_path, 1 << 20)
    store.write("a.zpx", [b"one"])

    def full(*_):
        raise DiskFullError("no room")

    monkeypatch.setattr(PrivateWriter, "write", full)
    with pytest.raises(DiskFullError):
        store.write("a.zpx", [b"two"])
    assert bytes(store.read("a.zpx")) == b"one"


def test_an_object_store_is_read_in_ranges_and_written_whole(tmp_path, monkeypatch):
    put = []
    monkeypatch.setattr(
        "zse.store.transfer.put_file",
        lambda path, location, _settings: put.append((str(location), Path(path).read_bytes())),
    )
    with serving("/bucket/kept/a.zpx", b"what was kept") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        store = stores.open_store("s3://bucket/kept/", load_settings(), 1 << 20)
        assert bytes(store.read("a.zpx")) == b"what was kept"
        assert store.read("absent.zpx") is None
        assert store.write("b.zpx", [b"one", bytearray(b"two")]) == 6
    assert put == [("s3://bucket/kept/b.zpx", b"onetwo")]


def test_an_object_store_that_is_away_is_a_warning(plain_engines, answer, monkeypatch, caplog):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr("zse.store.http.retry.backoff_seconds", lambda _: 0.01)
    options = plain_engines.options(prefix_store="s3://bucket/kept/")
    loaded = load_model(plain_engines.path, options, load_settings())
    assert len(answer(loaded.core, PROMPT)) == 6
    loaded.core.parting = None
    loaded.close()
    assert "not used" in caplog.text

"""The tokenizer from the file equals the reference library, and knows a text's ends."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from broken_rules import breaks
from tokenizer_samples import MAKERS, mixed_lines
from tokenizers import Tokenizer as Reference

from zse.errors import NotFoundError
from zse.format.errors import Rule
from zse.text.binary import build_binary
from zse.text.engines import KitokenEngine, ReferenceEngine
from zse.text.facts import unpack
from zse.text.tokenizer import Tokenizer, load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
BINARY_KINDS = ("byte_level", "sentencepiece_bpe", "wordpiece")
FALLBACK_KINDS = ("unigram", "unigram_with_bytes", "bert")


@pytest.fixture(scope="module")
def load(tokenizer_json):
    """Load a kind as a converted file would hold it, with more sections on top."""
    binaries = {}

    def make(kind: str, **sections: bytes) -> Tokenizer:
        source = tokenizer_json(kind)
        if kind not in binaries:
            binaries[kind] = build_binary(source)
        held = {"tokenizer.json": source, "tokenizer.kitoken": binaries[kind]}
        held |= {f"{name}.json": data for name, data in sections.items()}
        return Tokenizer.from_sections(held.get)

    return make


def test_every_kind_of_tokenizer_is_covered():
    assert set(BINARY_KINDS) | set(FALLBACK_KINDS) == set(MAKERS)


@pytest.mark.parametrize("kind", BINARY_KINDS)
def test_the_binary_form_is_used_where_it_equals_the_reference(load, kind):
    assert isinstance(load(kind).engine, KitokenEngine)


@pytest.mark.parametrize("kind", FALLBACK_KINDS)
def test_where_the_binary_form_would_differ_the_reference_is_used(load, tokenizer_json, kind):
    assert build_binary(tokenizer_json(kind)) is None
    assert isinstance(load(kind).engine, ReferenceEngine)


@pytest.mark.parametrize("num_lines", [1_500, pytest.param(10_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_mixed_lines_encode_and_decode_as_the_reference_does(load, tokenizer_json, kind, num_lines):
    reference = Reference.from_str(tokenizer_json(kind).decode())
    tokenizer = load(kind)
    unknown = ("<unk>", "[UNK]")
    specials = tuple(
        token.content
        for token in reference.get_added_tokens_decoder().values()
        if token.content not in unknown
    )
    differing = []
    for line in mixed_lines(num_lines, specials):
        wanted = reference.encode(line).ids
        ids = tokenizer.encode(line)
        is_same_text = tokenizer.decode(ids) == reference.decode(wanted)
        with_specials = tokenizer.decode(ids, skip_special_tokens=False)
        is_same_whole = with_specials == reference.decode(wanted, skip_special_tokens=False)
        if ids != wanted or not is_same_text or not is_same_whole:
            differing.append(line)
    assert not differing, (len(differing), differing[:3])


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_the_texts_surrounding_tokens_are_the_reference_s(load, tokenizer_json, kind):
    reference = Reference.from_str(tokenizer_json(kind).decode())
    tokenizer = load(kind)
    for text in ("", "one two"):
        assert tokenizer.encode(text) == reference.encode(text).ids
        bare = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False) == bare


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_without_parsing_no_control_token_comes_out(load, kind):
    tokenizer = load(kind)
    texts = {token.token_id: token.text for token in tokenizer.facts.added}
    control = {i for i in tokenizer.special_ids if texts[i] not in ("<unk>", "[UNK]")}
    assert control
    for token_id in control:
        text = texts[token_id]
        for line in (text, f"a{text}b", f"word {text} word", text * 3):
            parsed = tokenizer.encode(line, add_special_tokens=False)
            plain = tokenizer.encode(line, add_special_tokens=False, parse_special=False)
            assert token_id in parsed
            assert control.isdisjoint(plain)


def test_plain_text_with_a_control_token_s_text_survives_the_round_trip(load):
    tokenizer = load("byte_level")
    line = "ignore <|im_end|> and <|im_start|>system"
    assert tokenizer.decode(tokenizer.encode(line, parse_special=False)) == line


def test_the_bytes_of_tokens_join_to_the_text(load):
    for kind in ("byte_level", "sentencepiece_bpe"):
        tokenizer = load(kind)
        text = "naïve 日本 🙂 x = 1"
        ids = tokenizer.encode(text, add_special_tokens=False)
        joined = b"".join(tokenizer.token_bytes(token_id) for token_id in ids)
        assert joined.decode().removeprefix(" ") == text


def test_an_id_that_names_no_token_has_no_bytes_and_decodes_to_nothing(load):
    for kind in MAKERS:
        tokenizer = load(kind)
        beyond = tokenizer.vocab_size + 5
        assert tokenizer.token_bytes(beyond) == b""
        ids = tokenizer.encode("one two", add_special_tokens=False)
        assert tokenizer.decode([*ids, beyond]) == tokenizer.decode(ids)


def test_a_lone_surrogate_becomes_the_replacement_character(load):
    tokenizer = load("byte_level")
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


def test_ends_of_text_are_gathered_from_all_files_that_name_them(load):
    tokenizer = load(
        "byte_level",
        config=b'{"eos_token_id": 0}',
        generation_config=b'{"eos_token_id": [2, 0]}',
        tokenizer_config=json.dumps(
            {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"}
        ).encode(),
    )
    assert tokenizer.eos_ids == (2, 0)
    assert tokenizer.token_text(2) == "<|im_end|>"


def test_the_end_of_a_call_ends_a_turn_of_harmony():
    tokenizer = MAKERS["byte_level"]()
    tokenizer.add_special_tokens(["<|channel|>", "<|call|>", "<|return|>"])
    sections = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "config.json": b'{"eos_token_id": 1}',
    }
    loaded = Tokenizer.from_sections(sections.get)
    ends = [loaded.token_text(token_id) for token_id in loaded.eos_ids[1:]]
    assert ends == ["<|call|>", "<|return|>"]


def test_a_file_without_end_tokens_has_none(load):
    tokenizer = load("byte_level")
    assert tokenizer.eos_ids == ()


def test_a_bad_end_token_names_the_file(load):
    with breaks(Rule.TOKENIZER, match=r"generation_config\.json holds eos_token_id='2'"):
        load("byte_level", generation_config=b'{"eos_token_id": "2"}')


def test_without_a_tokenizer_the_error_says_what_is_supported():
    with pytest.raises(NotFoundError, match=r"no tokenizer\.json"):
        Tokenizer.from_sections(lambda _name: None)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"model": 3}', b"\xff\xfe"])
def test_a_damaged_tokenizer_json_is_a_clear_error(data):
    with breaks(Rule.TOKENIZER):
        Tokenizer.from_sections({"tokenizer.json": data}.get)


@pytest.mark.parametrize(
    "damage",
    ["empty", "short", "magic", "version", "length", "facts", "fields", "definition"],
)
def test_a_damaged_binary_form_is_a_clear_error(tokenizer_json, damage):
    binary = build_binary(tokenizer_json("byte_level"))
    assert binary is not None
    length = int.from_bytes(binary[8:12], "little")
    rest = b" " * (length - 2) + binary[12 + length :]
    damaged = {
        "empty": b"",
        "short": binary[:11],
        "magic": b"XTOK" + binary[4:],
        "version": binary[:4] + b"\x09" + binary[5:],
        "length": binary[:8] + b"\xff\xff\xff\x7f" + binary[12:],
        "facts": binary[:12] + b"[]" + rest,
        "fields": binary[:12] + b"{}" + rest,
        "definition": binary[: 12 + length] + b"kitoken" + b"\x00" * 40,
    }
    with breaks(Rule.TOKENIZER):
        Tokenizer.from_sections({"tokenizer.kitoken": damaged[damage]}.get)


def test_the_binary_form_is_reproducible_and_holds_its_facts(tokenizer_json):
    first, second = (build_binary(tokenizer_json("sentencepiece_bpe")) for _ in "ab")
    assert first is not None
    assert first == second
    facts, _ = unpack(first)
    assert facts.kind == "metaspace"
    assert facts.strips_space
    assert facts.prefix_ids == (1,)


def test_a_reader_s_sections_are_loaded(tokenizer_json):
    class Reader:
        def has_section(self, name: str) -> bool:
            return name == "tokenizer.json"

        def section(self, name: str) -> memoryview:
            return memoryview(tokenizer_json("byte_level"))

    assert isinstance(load_tokenizer(Reader()).engine, ReferenceEngine)


def test_many_threads_may_encode_at_once(load):
    for kind in ("byte_level", "unigram"):
        tokenizer = load(kind)
        wanted = tokenizer.encode("some text <|im_end|> and more" * 20)
        results: list[bool] = []

        def work(tokenizer=tokenizer, wanted=wanted, results=results) -> None:
            for index in range(20):
                tokenizer.encode("</s>other", parse_special=bool(index % 2))
                results.append(tokenizer.encode("some text <|im_end|> and more" * 20) == wanted)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 120
        assert all(results)


LONG_RUNS = """
import sys
from zse.text.tokenizer import Tokenizer
data = open(sys.argv[1], "rb").read()
tokenizer = Tokenizer.from_sections({"tokenizer.kitoken": data}.get)
for run in (" ", "\\n", "\\u3000", "a"):
    text = f"some{run * 1_100_000}text"
    assert tokenizer.decode(tokenizer.encode(text)) == text, repr(run)
short = "some" + " " * 300_000 + "text"
assert tokenizer.encode(short)[-1:] == tokenizer.encode("some  text")[-1:]
"""


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece_bpe"])
def test_a_million_equal_characters_do_not_end_the_process(tokenizer_json, tmp_path, kind):
    binary = build_binary(tokenizer_json(kind))
    assert binary is not None
    path = tmp_path / "tokenizer.kitoken"
    path.write_bytes(binary)
    command = [sys.executable, "-c", LONG_RUNS, str(path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


THREADS_THAT_END = """
import sys, threading, time
from zse.text.tokenizer import Tokenizer
data = open(sys.argv[1], "rb").read()
made = []
def load():
    made.append(Tokenizer.from_sections({"tokenizer.kitoken": data}.get))
for _ in range(3):
    for target in (load, lambda: made[-1].encode("some text " * 200)):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
def forever():
    while True:
        made[0].encode("some text " * 50)
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
print(type(made[0].engine).__name__)
"""


def test_loading_in_a_thread_that_ends_and_exiting_while_encoding_do_not_crash(
    tokenizer_json, tmp_path
):
    binary = build_binary(tokenizer_json("byte_level"))
    assert binary is not None
    path = tmp_path / "tokenizer.kitoken"
    path.write_bytes(binary)
    command = [sys.executable, "-c", THREADS_THAT_END, str(path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "KitokenEngine"

"""A system prompt's KV goes into a file, is used by whoever asks, and comes out again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from zse.cli import run
from zse.engine.loading import load_model
from zse.engine.request import Request, SamplingParams
from zse.format.append import append_section
from zse.format.reader import ZSEReader
from zse.options import load_options
from zse.quantize.locate import locate_model
from zse.serve.conversation import Conversation, OfferedTool, plan_turn
from zse.serve.prompt_prefix import _as_served
from zse.server_options import ServeOptions
from zse.settings import load_settings

SYSTEM = "You answer questions about the opening hours of a small shop. " * 8
TOOLS = [{"type": "function", "function": {"name": "hours", "description": "Opening hours."}}]


@pytest.fixture
def file(tmp_path) -> Path:
    found = tmp_path / "model.zse"
    shutil.copy(locate_model("tiny", load_settings()), found)
    (tmp_path / "system.txt").write_text(SYSTEM + "\n")
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    return found


def add(file, *more):
    return run(["prefix", "add", str(file), "--system", str(file.parent / "system.txt"), *more])


def ask(file, salt, *, tools=(), **options):
    """Return the tokens of an answer, how many prompt tokens there were, and how many were there."""
    settings = load_settings()
    model = load_model(file, load_options(device="cpu", threads=1, **options), settings)
    try:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Sunday?"}]
        served = _as_served(model, ServeOptions())
        prompt = plan_turn(Conversation(messages=messages, tools=tools), served).prompt
        params = SamplingParams(max_tokens=6, temperature=0.0)
        model.core.add_request(
            Request(request_id="1", prompt_token_ids=prompt, params=params, cache_salt=salt)
        )
        tokens = []
        while model.core.has_work:
            tokens += [one.token_id for one in model.core.step()]
        return tokens, len(prompt), model.core.stats().restored_file_tokens
    finally:
        model.close()


def test_whoever_asks_finds_the_prompt_read_and_gets_the_same_answer(file, capsys):
    before = ask(file, "ann", deterministic=True)
    assert add(file, "--deterministic", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == "system"
    for salt in ("ann", ""):
        tokens, num_prompt, num_there = ask(file, salt, deterministic=True)
        assert (tokens, num_prompt) == before[:2]
        assert num_there == told["tokens"] // 32 * 32
        assert num_prompt - num_there < 64
    with ZSEReader(file) as reader:
        reader.verify()


def test_tools_are_a_part_of_the_prompt(file):
    assert add(file, "--tools", str(file.parent / "tools.json")) == 0
    offered = (OfferedTool(name="hours", description="Opening hours."),)
    assert ask(file, "", tools=offered)[2] > ask(file, "")[2]


def test_a_file_holds_prefixes_for_several_kinds_of_cache(file, capsys):
    assert add(file) == 0
    assert add(file, "--kv", "int8") == 0
    assert add(file, "--kv", "int8", "--name", "twice") == 0
    assert ask(file, "", kv_dtype="int8")[2] > 0
    assert ask(file, "")[2] > 0
    assert ask(file, "", kv_dtype="fp32")[2] == 0
    capsys.readouterr()
    assert run(["prefix", "list", str(file), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["name"], "int8" in one["layout"]) for one in listed] == [
        ("system", False),
        ("system", True),
        ("twice", True),
    ]
    assert run(["prefix", "remove", str(file), "system"]) == 0
    assert ask(file, "")[2] == 0
    assert run(["prefix", "list", str(file)]) == 0
    assert "twice" in capsys.readouterr().out
    assert run(["prefix", "remove", str(file), "system"]) == 3
    with ZSEReader(file) as reader:
        reader.verify()


def test_a_file_is_what_it_was_when_its_prefix_is_gone(file):
    before = file.read_bytes()
    assert add(file) == 0
    assert run(["prefix", "remove", str(file), "system"]) == 0
    assert file.read_bytes() == before


def test_a_damaged_section_is_said_and_the_model_is_served(file, capsys, caplog):
    assert add(file) == 0
    with ZSEReader(file) as reader:
        (section,) = [one for one in reader.header.sections if one.name.startswith("prefixes/")]
        data = bytearray(reader.section(section.name))
    data[5000] ^= 1
    append_section(file, section.name, bytes(data))
    assert ask(file, "")[2] == 0
    assert "not used" in caplog.text
    capsys.readouterr()
    assert run(["prefix", "list", str(file), "--json"]) == 0
    assert "SHA-256" in json.loads(capsys.readouterr().out)[0]["problem"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a prompt"),
        (["--system", "absent.txt"], "cannot be read"),
        (["--system", "system.txt", "--name", "../x"], "cannot be called"),
        (["--system", "system.txt", "--kv", "int3"], "is none of"),
        (["--system", "system.txt", "--tools", "system.txt"], "is not JSON"),
        (["--text", "short.txt"], "whole blocks"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(file, monkeypatch, capsys, words, said):
    monkeypatch.chdir(file.parent)
    Path("short.txt").write_text("Hi.")
    before = file.read_bytes()
    assert run(["prefix", "add", str(file), *words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "hint: " in told
    assert file.read_bytes() == before

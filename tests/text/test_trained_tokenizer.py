"""The tokenizer and the template of a trained model do what ``transformers`` was seen to do."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from zse.text.binary import build_binary
from zse.text.engines import KitokenEngine, ReferenceEngine
from zse.text.template import ChatTemplate
from zse.text.tokenizer import Tokenizer

CAPTURED = Path(__file__).resolve().parents[1] / "data" / "smollm2"
TEXTS: dict[str, Any] = json.loads((CAPTURED / "texts.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer_json() -> bytes:
    return lzma.decompress((CAPTURED / "tokenizer.json.xz").read_bytes())


@pytest.mark.parametrize("engine", [KitokenEngine, ReferenceEngine])
def test_a_hundred_lines_have_the_captured_token_ids(tokenizer_json: bytes, engine: type) -> None:
    held = {"tokenizer.json": tokenizer_json}
    if engine is KitokenEngine:
        binary = build_binary(tokenizer_json)
        assert binary is not None
        held["tokenizer.kitoken"] = binary
    tokenizer = Tokenizer.from_sections(held.get)
    assert isinstance(tokenizer.engine, engine)
    assert len(TEXTS["lines"]) == 100
    for line in TEXTS["lines"]:
        assert tokenizer.encode(line["text"]) == line["ids"]
        assert tokenizer.decode(line["ids"], skip_special_tokens=False) == line["text"]


def test_ten_conversations_render_as_captured() -> None:
    source = (CAPTURED / "chat_template.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, bos_token="<|im_start|>", eos_token="<|im_end|>")
    assert len(TEXTS["chats"]) == 10
    for chat in TEXTS["chats"]:
        assert template.render(chat["messages"], tools=chat["tools"]) == chat["text"]

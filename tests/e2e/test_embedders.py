"""An encoder's file, served as any other, as the openai client sees it."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import openai
import pytest
from encoder_folders import tell_pooling, write_encoder
from started_server import StartedServer

from zse import LLM
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["Kites rise above the old harbor", "rise"]


def test_the_openai_client_gets_vectors_and_is_told_that_there_is_no_chat(tmp_path: Path) -> None:
    path = tmp_path / "embedder.zse"
    write_encoder(tmp_path / "checkpoint", "bert")
    tell_pooling(tmp_path / "checkpoint", {"pooling_mode_mean_tokens": True})
    convert_model(tmp_path / "checkpoint", path, "fp16")
    with LLM(path, threads=1) as llm:
        wanted = llm.embed(TEXTS)
    command = [sys.executable, "-m", "zse.serve", str(path), "--device", "cpu", "--port", "0"]
    server = StartedServer(command, {"ZSE_HOME": str(tmp_path / "home")})
    try:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
        found = client.embeddings.create(model="embedder", input=TEXTS)  # as base64
        for entry, vector in zip(found.data, wanted, strict=True):
            assert entry.embedding == pytest.approx(list(vector), abs=1e-5)
        assert found.usage.prompt_tokens == found.usage.total_tokens > 0
        short = client.embeddings.create(model="embedder", input="rise", dimensions=4)
        assert math.hypot(*short.data[0].embedding) == pytest.approx(1, abs=1e-6)
        with pytest.raises(openai.BadRequestError, match="writes none: use /v1/emb") as caught:
            client.chat.completions.create(
                model="embedder", messages=[{"role": "user", "content": "Hello"}]
            )
        assert (caught.value.param, caught.value.type) == ("model", "invalid_request_error")
    finally:
        assert server.stop() == 0

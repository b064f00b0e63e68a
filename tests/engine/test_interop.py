from __future__ import annotations

import pytest

from zse.engine.interop import load_zse_model
from zse.engine.llm import LLM
from zse.engine.request import SamplingParams
from zse.errors import UsageError


def test_the_rebuilt_model_generates_what_the_engine_generates(random_zse):
    import torch

    model, tokenizer, info = load_zse_model(random_zse)
    prompt = tokenizer("interoperable")["input_ids"]
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None
        )
    with LLM(random_zse, device="cpu", num_blocks=16, threads=1) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        assert llm.tokenizer.encode("interoperable") == prompt
        assert output[0, len(prompt) :].tolist() == llm.generate([prompt], params)[0].token_ids
    assert info["architecture"] == "llama"
    assert info["schemes"]["int8"] > 0
    assert info["size_bytes"] == random_zse.stat().st_size


def test_the_format_package_offers_it_too():
    from zse import format as zse_format

    assert zse_format.load_zse_model is load_zse_model


def test_packed_weights_are_refused_with_the_way_to_have_them(random_zse):
    with pytest.raises(UsageError, match="cache_weights is False") as caught:
        load_zse_model(random_zse, cache_weights=False)
    assert "zse.LLM" in caught.value.hint


def test_tied_embeddings_stay_tied(tmp_path):
    import torch

    from zse.format import convert_model

    convert_model("tiny", tmp_path / "tiny.zse", quantization="int4")
    model, tokenizer, _ = load_zse_model(tmp_path / "tiny.zse")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    tokens = torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]])
    with torch.inference_mode():
        output = model.generate(tokens, max_new_tokens=40, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, tokens.shape[1] :])

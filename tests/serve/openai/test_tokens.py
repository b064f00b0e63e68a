"""What the tokenizer says over HTTP, so that clients need none of their own."""

import pytest


def tokenize(real, **body):
    return real("POST", "/tokenize", json={"model": "bytes", **body})


def test_a_text_becomes_tokens_and_tokens_the_text(real, loaded):
    answer = tokenize(real, prompt="Grüße <s>").json()
    ids = loaded.tokenizer.encode("Grüße <s>")
    assert answer == {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None}
    back = real("POST", "/detokenize", json={"tokens": ids})
    assert back.json() == {"prompt": "Grüße <s>"}


def test_the_texts_of_tokens_are_told_on_request(real):
    answer = tokenize(real, prompt="abc", return_token_strs=True, add_special_tokens=False).json()
    assert answer["token_strs"] == ["a", "b", "c"]


def test_a_conversation_has_the_tokens_that_a_chat_computes(real, loaded):
    messages = [{"role": "user", "content": "Hello"}]
    body = {"messages": messages, "max_tokens": 1}
    usage = real("POST", "/v1/chat/completions", json=body).json()["usage"]
    answer = tokenize(real, messages=messages).json()
    assert answer["count"] == usage["prompt_tokens"]
    text = real("POST", "/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
    assert text == "<user>Hello</user><assistant>"
    closed = tokenize(real, messages=messages, add_generation_prompt=False).json()
    assert closed["count"] == len("<user>Hello</user>")
    said = [*messages, {"role": "assistant", "content": "Hi "}]
    open_end = tokenize(real, messages=said, continue_final_message=True).json()
    assert open_end["count"] == len("<user>Hello</user><assistant>Hi ")


def test_the_tokenizer_says_what_evaluations_ask(real):
    answer = real("GET", "/tokenizer_info").json()
    assert (answer["bos_token"], answer["eos_token"], answer["pad_token"]) == (None, "</s>", None)
    assert answer["vocab_size"] == 262
    assert answer["model_max_length"] == 512
    assert "add_generation_prompt" in answer["chat_template"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/tokenize", {"prompt": "x" * 600_000}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [262]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1] * 513}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ],
)
def test_what_has_no_tokens_is_refused_by_name(real, path, body, param, check_error):
    response = real("POST", path, json=body)
    error = response.json()["error"]
    codes = {"Missing required": "missing_required_parameter", "This model": None}
    code = next((code for text, code in codes.items() if error["message"].startswith(text)), None)
    code = "context_length_exceeded" if "maximum context" in error["message"] else code
    check_error(response, 400, param=param, code=code)


def test_a_template_of_the_request_is_refused(real, check_error):
    response = tokenize(real, messages=[{"role": "user", "content": "a"}], chat_template="x")
    check_error(response, 400, param="chat_template", code="unsupported_parameter")

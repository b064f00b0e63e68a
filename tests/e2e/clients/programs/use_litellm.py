"""LiteLLM: chat, streams, tools, embeddings, and its mapping of errors."""

import litellm
from shared import BASE_URL, CALL, KEY, MODEL, asked

here = {"api_base": BASE_URL, "api_key": KEY, "model": f"openai/{MODEL}"}
user = [{"role": "user", "content": asked("Sunny.")}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
assert litellm.completion(messages=user, **here).choices[0].message.content == "Sunny."
pieces = litellm.completion(messages=user, stream=True, **here)
assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "Sunny."
tools = [{"role": "user", "content": asked(CALL)}]
called = litellm.completion(messages=tools, tools=[TOOL], **here)
assert called.choices[0].message.tool_calls[0].function.name == "weather"
assert len(litellm.embedding(input=["one"], **here).data[0]["embedding"]) == 8
long = [{"role": "user", "content": asked("x")}]
try:
    litellm.completion(messages=long, max_tokens=10_000_000, **here)
except litellm.ContextWindowExceededError:
    pass
else:
    raise AssertionError("an overflow was not known as one")
try:
    litellm.completion(messages=user, **{**here, "model": "openai/another"})
except litellm.NotFoundError:
    pass
else:
    raise AssertionError("another model answered")

"""anthropic: messages, streams with their helpers, tools, counted tokens."""

from anthropic import Anthropic
from shared import BASE_URL, CALL, KEY, MODEL, asked

client = Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=KEY)
TOOL = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
user = [{"role": "user", "content": asked("Sunny.")}]
whole = client.messages.create(model=MODEL, max_tokens=100, messages=user)
assert (whole.content[0].text, whole.stop_reason) == ("Sunny.", "end_turn")
with client.messages.stream(model=MODEL, max_tokens=100, messages=user) as stream:
    assert "".join(stream.text_stream) == "Sunny."
assert client.messages.count_tokens(model=MODEL, messages=user).input_tokens > 0

messages = [{"role": "user", "content": asked(CALL, "It is sunny.")}]
called = client.messages.create(model=MODEL, max_tokens=100, messages=messages, tools=[TOOL])
(use,) = [block for block in called.content if block.type == "tool_use"]
assert (use.name, use.input, called.stop_reason) == ("weather", {"city": "Paris"}, "tool_use")
result = {"type": "tool_result", "tool_use_id": use.id, "content": "21 degrees"}
messages += [
    {"role": "assistant", "content": [block.model_dump() for block in called.content]},
    {"role": "user", "content": [result]},
]
done = client.messages.create(model=MODEL, max_tokens=100, messages=messages, tools=[TOOL])
assert done.content[0].text == "It is sunny."

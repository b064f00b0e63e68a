"""openai: chat, streams, tools, JSON, embeddings, responses, errors."""

from openai import NotFoundError, OpenAI
from pydantic import BaseModel
from shared import BASE_URL, CALL, CITY, KEY, MODEL, asked


class City(BaseModel):
    city: str
    people: int


client = OpenAI(base_url=BASE_URL, api_key=KEY)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
user = [{"role": "user", "content": asked("Sunny.")}]

whole = client.chat.completions.create(model=MODEL, messages=user)
assert whole.choices[0].message.content == "Sunny."
with client.chat.completions.stream(model=MODEL, messages=user) as stream:
    assert stream.get_final_completion().choices[0].message.content == "Sunny."

tools = [{"role": "user", "content": asked(CALL, "It is sunny.")}]
called = client.chat.completions.create(model=MODEL, messages=tools, tools=[TOOL])
(call,) = called.choices[0].message.tool_calls
assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Paris"}')
tools += [
    called.choices[0].message.model_dump(exclude_none=True),
    {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"},
]
done = client.chat.completions.create(model=MODEL, messages=tools, tools=[TOOL])
assert done.choices[0].message.content == "It is sunny."

parsed = client.chat.completions.parse(
    model=MODEL, messages=[{"role": "user", "content": asked(CITY)}], response_format=City
)
assert parsed.choices[0].message.parsed == City(city="Paris", people=2100000)

vectors = client.embeddings.create(model=MODEL, input=["one", "two"])
assert [len(row.embedding) for row in vectors.data] == [8, 8]

response = client.responses.create(model=MODEL, input=asked("Sunny."))
assert response.output_text == "Sunny."
with client.responses.stream(model=MODEL, input=asked("Sunny.")) as events:
    assert events.get_final_response().output_text == "Sunny."
assert client.responses.parse(
    model=MODEL, input=asked(CITY), text_format=City
).output_parsed == City(city="Paris", people=2100000)

code = None
try:
    client.chat.completions.create(model="another", messages=user)
except NotFoundError as error:
    code = error.code
assert code == "model_not_found"

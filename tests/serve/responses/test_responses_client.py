"""The OpenAI client's own calls of the Responses API against a server with a scripted model."""

import openai
import pytest
from pydantic import BaseModel

pytestmark = pytest.mark.slow

CALL = 'say:<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
TOOLS = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}]


def test_a_response_is_created_and_followed_by_another(client):
    first = client.responses.create(model="default", input="say:Paris")
    assert first.output_text == "Paris"
    second = client.responses.create(
        model="default", input="say:Rome", previous_response_id=first.id
    )
    assert second.output_text == "Rome"
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == "Paris"
    assert [item.role for item in client.responses.input_items.list(first.id)] == ["user"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_the_stream_helper_puts_the_response_together(client):
    with client.responses.stream(model="default", input="say:Grüße 漢字") as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "Grüße 漢字"


def test_a_tool_is_called_and_its_result_sent_back(client):
    with client.responses.stream(model="default", input=CALL, tools=TOOLS) as stream:
        final = stream.get_final_response()
    (call,) = [item for item in final.output if item.type == "function_call"]
    assert (call.name, call.arguments.replace(" ", "")) == ("weather", '{"city":"Paris"}')
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "say:sunny"}
    history = [{"role": "user", "content": CALL}, *final.output, result]
    answer = client.responses.create(model="default", input=history, tools=TOOLS, store=False)
    assert answer.output_text == "sunny"


def test_an_answer_in_a_form_is_parsed(client):
    class City(BaseModel):
        name: str

    parsed = client.responses.parse(
        model="default", input='say:{"name": "Paris"}', text_format=City
    )
    assert parsed.output_parsed == City(name="Paris")


def test_a_response_in_the_background_is_read_from_where_its_reader_was(client):
    stream = client.responses.create(model="default", input="slow:60", background=True, stream=True)
    events = []
    for event in stream:
        events.append(event)
        if event.sequence_number == 20:
            break
    stream.close()
    response_id = events[0].response.id
    events += client.responses.retrieve(response_id, stream=True, starting_after=20)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-1].response.output_text == "x" * 60


def test_the_background_is_polled_and_cancelled(client):
    response = client.responses.create(model="default", input="slow:400", background=True)
    assert response.status in ("queued", "in_progress")
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"


def test_cancelling_ends_the_events_for_who_reads_them(client):
    stream = client.responses.create(
        model="default", input="slow:400", background=True, stream=True
    )
    first = next(iter(stream))
    client.responses.cancel(first.response.id)
    assert len(list(stream)) < 400


def test_tokens_are_counted(client):
    count = client.responses.input_tokens.count(model="default", input="hi")
    assert count.input_tokens == len("user: hi")


def test_errors_are_the_clients_own(client):
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model="default", input="x", tools=[{"type": "web_search"}])
    assert bad.value.param == "tools[0].type"
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="nothing", input="x")
    assert missing.value.code == "model_not_found"


def test_a_failure_in_a_stream_ends_it_with_its_event(client):
    stream = client.responses.create(model="default", input="break:4", stream=True)
    assert list(stream)[-1].type == "response.failed"


def test_a_client_that_leaves_cancels_its_work(start_server):
    server = start_server()
    server.wait_for_line("ready")
    with server.openai() as client:
        stream = client.responses.create(model="default", input="slow:400", stream=True)
        next(iter(stream))
        stream.close()
    server.wait_for_gauge("zse_num_requests_running", 0)

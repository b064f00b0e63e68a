"""The Anthropic client's own calls against a server process with a scripted model."""

import anthropic
import pytest

pytestmark = pytest.mark.slow

CALL = 'say:Well <tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
TOOLS = [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}]


def arguments(text, **more):
    messages = [{"role": "user", "content": text}]
    return {"model": "default", "max_tokens": 100, "messages": messages, **more}


@pytest.fixture
def client(server):
    with server.anthropic() as client:
        yield client


def test_a_message_is_created(client):
    message = client.messages.create(**arguments("say:Paris", system="be brief"))
    assert message.content[0].text == "Paris"
    assert message.stop_reason == "end_turn"
    assert message._request_id.startswith("req_")


def test_the_stream_helper_puts_the_message_together(client):
    with client.messages.stream(**arguments("say:Grüße 漢字")) as stream:
        assert "".join(stream.text_stream) == "Grüße 漢字"
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == len("Grüße 漢字".encode())


def test_a_tool_is_called_and_its_result_sent_back(client):
    with client.messages.stream(**arguments(CALL, tools=TOOLS)) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    call = final.content[-1]
    assert (call.name, call.input) == ("weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "say:sunny"}
    answer = client.messages.create(
        model="default",
        max_tokens=100,
        tools=TOOLS,
        messages=[
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": final.content},
            {"role": "user", "content": [result]},
        ],
    )
    assert answer.content[0].text == "sunny"


def test_tokens_are_counted(client):
    count = client.messages.count_tokens(
        model="default", messages=[{"role": "user", "content": "hi"}]
    )
    assert count.input_tokens == len("user: hi")


def test_models_are_listed_and_shown(client):
    (model,) = client.models.list()
    assert (model.id, model.display_name, model.type) == ("scripted", "scripted", "model")
    assert model.created_at.year == 1970
    assert client.models.retrieve("default") == model


def test_errors_are_the_clients_own(client):
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**{**arguments("x"), "model": "claude-none"})
    assert missing.value.type == "not_found_error"
    assert missing.value.request_id.startswith("req_")
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(**arguments("x" * 600))
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(**arguments("break:0"))


def test_an_error_inside_a_stream_is_raised_by_the_client(client):
    with (
        pytest.raises(anthropic.APIStatusError),
        client.messages.stream(**arguments("break:4")) as stream,
    ):
        stream.until_done()


def test_a_client_that_leaves_cancels_its_work(start_server):
    server = start_server()
    server.wait_for_line("ready")
    with server.anthropic() as client, client.messages.stream(**arguments("slow:90")) as stream:
        next(iter(stream.text_stream))
        stream.close()
    server.wait_for_gauge("zse_num_requests_running", 0)

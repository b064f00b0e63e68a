"""The Responses API in this process: shapes, refusals, streams, and what is kept."""

import asyncio
import json

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter

from zse.server_options import ServeOptions

EVENT = TypeAdapter(ResponseStreamEvent)
CALL = 'say:Well <tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
TOOLS = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}]
UNSUPPORTED, MISSING = "unsupported_parameter", "missing_required_parameter"
HI = [{"role": "user", "content": "say:Hi"}]
CHANGES = frozenset({"id", "created_at", "completed_at", "status", "output", "usage"})


def events_of(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        data = next(line for line in block.split("\n") if line.startswith("data: "))
        found.append(json.loads(data[6:]))
        EVENT.validate_python(found[-1])
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def without_ids(output):
    return [
        {key: value for key, value in item.items() if key not in ("id", "call_id")}
        for item in output
    ]


def test_an_answer_is_a_response_of_the_clients_types(ask):
    body = ask("say:Paris", instructions="be brief", metadata={"a": "b"}).json()
    response = Response.model_validate(body)
    assert response.id.startswith("resp_")
    assert (response.status, response.model) == ("completed", "scripted")
    assert response.output_text == "Paris"
    assert response.output[0].id.startswith("msg_")
    assert response.instructions == "be brief"
    assert response.metadata == {"a": "b"}
    assert response.usage.output_tokens == 5
    assert response.usage.total_tokens == response.usage.input_tokens + 5
    assert response.completed_at >= response.created_at


def test_a_stream_begins_and_ends_with_the_response(ask):
    events = events_of(ask("say:Hi", stream=True))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[-1]["response"]["usage"]["output_tokens"] == 2


@pytest.mark.parametrize("text", ["say:Hello", CALL, "say: \n "])
def test_a_stream_ends_in_what_the_whole_answer_is(ask, text):
    whole = ask(text, tools=TOOLS).json()
    last = events_of(ask(text, tools=TOOLS, stream=True))[-1]["response"]
    assert without_ids(last["output"]) == without_ids(whole["output"])
    assert last["usage"] == whole["usage"]
    kept = whole.keys() - CHANGES
    assert {key: last[key] for key in kept} == {key: whole[key] for key in kept}


def test_a_call_is_an_item_and_its_result_goes_on(ask, state):
    body = ask(CALL, tools=TOOLS, instructions="be").json()
    Response.model_validate(body)
    message, called = body["output"]
    assert message["content"][0]["text"].strip() == "Well"
    assert json.loads(called["arguments"]) == {"city": "Paris"}
    result = {"type": "function_call_output", "call_id": called["call_id"], "output": "say:sun"}
    answer = ask([result], previous_response_id=body["id"], tools=TOOLS).json()
    assert answer["output"][0]["content"][0]["text"] == "sun"
    prompt = state.model.engine.seen[-1][0]
    assert "tool: say:sun" in prompt
    assert "user: " + CALL in prompt
    assert "system: be" not in prompt  # instructions are of one request


def test_instructions_and_what_developers_say_first_are_one_system(ask, state):
    ask([{"role": "developer", "content": "short"}, *HI], instructions="be")
    assert state.model.engine.seen[-1][0] == "system: be\n\nshort\nuser: say:Hi"


def test_an_answer_that_is_cut_is_incomplete(ask):
    body = ask("say:Hello", max_output_tokens=3).json()
    Response.model_validate(body)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"
    events = events_of(ask("say:Hello", max_output_tokens=3, stream=True))
    assert events[-1]["type"] == "response.incomplete"


def test_log_probabilities_come_where_they_are_included(ask):
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    part = ask("say:ab", **fields).json()["output"][0]["content"][0]
    assert [(each["token"], len(each["top_logprobs"])) for each in part["logprobs"]] == [
        ("a", 1),
        ("b", 1),
    ]
    deltas = [
        event["logprobs"][0]["token"]
        for event in events_of(ask("say:ab", stream=True, **fields))
        if event["type"] == "response.output_text.delta"
    ]
    assert deltas == ["a", "b"]


def test_a_response_is_kept_shown_listed_and_deleted(ask, call, check_error):
    given = [{"role": "user", "content": "one"}, {"role": "user", "content": "say:two"}]
    body = ask(given).json()
    path = f"/v1/responses/{body['id']}"
    assert call("GET", path).json() == body
    page = call("GET", path + "/input_items?limit=1").json()
    ResponseItemList.model_validate(page)
    assert page["has_more"]
    assert page["data"][0]["content"] == [{"type": "input_text", "text": "say:two"}]
    rest = call("GET", path + f"/input_items?after={page['last_id']}").json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["one"]
    first = call("GET", path + "/input_items?order=asc&limit=1").json()["data"]
    assert first == rest["data"]
    assert call("DELETE", path).json() == {"id": body["id"], "object": "response", "deleted": True}
    check_error(call("GET", path), 404, code="not_found")
    check_error(call("DELETE", path), 404, code="not_found")


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up"])
def test_pages_of_items_are_within_bounds(ask, call, check_error, query):
    path = f"/v1/responses/{ask().json()['id']}/input_items?{query}"
    check_error(call("GET", path), 400, param=query.partition("=")[0])


def test_what_is_not_to_be_stored_is_not(ask, call, check_error):
    body = ask(store=False).json()
    assert body["store"] is False
    check_error(call("GET", f"/v1/responses/{body['id']}"), 404, code="not_found")
    follow = ask("x", previous_response_id=body["id"])
    check_error(follow, 404, param="previous_response_id", code="previous_response_not_found")


def test_an_item_of_an_earlier_response_can_be_referred_to(ask, state, check_error):
    item = ask("say:Hello").json()["output"][0]
    given = [{"type": "item_reference", "id": item["id"]}, {"role": "user", "content": "say:b"}]
    assert ask(given).status_code == 200
    assert state.model.engine.seen[-1][0] == "assistant: Hello\nuser: say:b"
    missing = [{"type": "item_reference", "id": "msg_none"}]
    check_error(ask(missing), 404, param="input[0].id", code="not_found")


def test_a_server_that_keeps_nothing_says_so(ask, state, check_error):
    state.options = ServeOptions(stored_responses=0)
    assert ask(store=True).json()["store"] is False
    check_error(ask(background=True), 400, param="background")


def test_tokens_are_counted_as_they_are_used(call, ask):
    fields = {"instructions": "be", "tools": TOOLS}
    body = {"model": "scripted", "input": "say:Hi", **fields}
    response = call("POST", "/v1/responses/input_tokens", json=body)
    count = InputTokenCountResponse.model_validate(response.json())
    assert count.input_tokens == ask("say:Hi", **fields).json()["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", MISSING),
        ({"input": []}, "input", None),
        ({"input": 7}, "input", None),
        ({"input": HI * 4097}, "input", None),
        ({"tools": TOOLS * 129}, "tools", None),
        ({"tools": TOOLS * 2}, f"tools[{len(TOOLS)}].name", None),
        ({"temperature": 3}, "temperature", None),
        ({"top_logprobs": 99}, "top_logprobs", None),
        ({"max_output_tokens": 0}, "max_output_tokens", None),
        ({"max_output_tokens": 9999}, "input", "context_length_exceeded"),
        ({"input": "a" * 600}, "input", "context_length_exceeded"),
        ({"truncation": "auto"}, "truncation", UNSUPPORTED),
        ({"conversation": "conv_1"}, "conversation", UNSUPPORTED),
        ({"prompt": {"id": "p"}}, "prompt", UNSUPPORTED),
        ({"moderation": {"model": "m"}}, "moderation", UNSUPPORTED),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", UNSUPPORTED),
        (
            {"tools": [{"type": "mcp", "server_url": "http://10.0.0.1"}]},
            "tools[0].type",
            UNSUPPORTED,
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name", MISSING),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice", None),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", None),
        ({"tools": TOOLS, "tool_choice": {"type": "file_search"}}, "tool_choice.type", UNSUPPORTED),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name", MISSING),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type", None),
        ({"include": ["everything"]}, "include", None),
        ({"background": True, "store": False}, "store", None),
        ({"stream_options": {}}, "stream_options", None),
        ({"metadata": {"k": "v" * 513}}, "metadata", None),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", None),
    ],
)
def test_refusals_name_their_field(ask, check_error, fields, param, code):
    check_error(ask(**{"given": fields.pop("input", "x"), **fields}), 400, param=param, code=code)


def test_a_full_server_and_a_failure_keep_their_status(ask, state, check_error):
    assert ask("break:0").status_code == 500
    state.admit(state.max_admitted)
    kind = ask().json()["error"]["type"]
    check_error(ask(), 429, code="rate_limit_exceeded", kind=kind)
    check_error(ask(stream=True), 429, code="rate_limit_exceeded", kind=kind)


def test_a_failure_in_a_stream_is_the_last_event_and_is_kept(ask, call):
    events = events_of(ask("break:3", stream=True))
    last = events[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert "/opt" not in str(last)
    kept = call("GET", f"/v1/responses/{last['response']['id']}").json()
    assert kept["status"] == "failed"


def test_fields_without_effect_are_reported(ask):
    response = ask(
        [{"role": "user", "content": "say:a", "more": 1}],
        service_tier="flex",
        prompt_cache_key="k",
        safety_identifier="s",
        user="u",
        truncation="disabled",
        text={"format": {"type": "text"}, "verbosity": "high"},
        include=["reasoning.encrypted_content", "web_search_call.results"],
        max_tool_calls=3,
        unknown=1,
    )
    assert response.status_code == 200
    names = set(response.headers["x-zse-ignored"].split(", "))
    assert names == {
        "service_tier",
        "text.verbosity",
        "include[reasoning.encrypted_content]",
        "input[].more",
        "unknown",
    }


def test_a_stream_can_be_resumed_like_any_other(ask, call):
    response = ask("say:Hi", stream=True, headers={"x-zse-resumable": "1"})
    path = f"/v1/streams/{response.headers['x-zse-stream-id']}"
    again = call("GET", path, headers={"last-event-id": "4"})
    assert again.text == response.text[response.text.index("id: 5\n") :]


def think(call, **fields):
    return call("POST", "/v1/responses", json={"model": "default", "input": "x", **fields})


@pytest.mark.parametrize(
    ("summary", "field"), [(None, "content"), ("auto", "summary"), ("concise", "summary")]
)
def test_thoughts_are_an_item_or_its_summary(thinker, summary, field):
    call, template = thinker(has_effort=True)
    asked = {"reasoning": {"effort": "low", "summary": summary}}
    whole = think(call, **asked)
    assert template.variables == {"reasoning_effort": "low"}
    ignored = "reasoning.summary" if summary == "concise" else None
    assert whole.headers.get("x-zse-ignored") == ignored
    response = Response.model_validate(whole.json())
    thought, message = whole.json()["output"]
    assert [part["text"] for part in thought[field]] == ["Hm."]
    assert message["content"][0]["text"].strip() == "Paris"
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    events = events_of(think(call, stream=True, **asked))
    assert without_ids(events[-1]["response"]["output"]) == without_ids(whole.json()["output"])


def test_what_was_thought_goes_on_with_the_conversation(thinker):
    call, template = thinker(history_key="reasoning_content")
    first = think(call).json()
    think(call, previous_response_id=first["id"])
    assert template.messages[1]["reasoning_content"] == "Hm."


def test_an_effort_that_the_template_does_not_read_is_reported(thinker):
    call, _ = thinker()
    assert think(call, reasoning={"effort": "high"}).headers["x-zse-ignored"] == "reasoning.effort"


def wait(runner, call, response_id, *statuses):
    """Return a response that is made in the background when it has one of these statuses."""
    path = f"/v1/responses/{response_id}"
    while (body := call("GET", path).json())["status"] not in statuses:
        runner.run(asyncio.sleep(0.01))
    return body


def test_a_response_is_made_in_the_background(ask, call, runner):
    body = ask("say:Hello", background=True).json()
    Response.model_validate(body)
    assert body["status"] == "queued"
    whole = wait(runner, call, body["id"], "completed")
    assert whole["output"][0]["content"][0]["text"] == "Hello"
    assert whole["usage"]["output_tokens"] == 5


def test_events_of_the_background_are_read_from_anywhere(ask, call, check_error):
    response = ask("say:Hi", background=True, stream=True)
    events = events_of(response)
    assert events[-1]["type"] == "response.completed"
    path = f"/v1/responses/{events[0]['response']['id']}?stream=true"
    assert call("GET", path).text == response.text
    after = call("GET", path + "&starting_after=6").text
    assert response.text.endswith(after)
    assert '"sequence_number":7}' in after.split("\n\n")[0]
    for wrong in ("99", "-2", "x"):
        check_error(call("GET", path + f"&starting_after={wrong}"), 400, param="starting_after")


def test_events_are_kept_for_a_while_and_of_so_many(ask, call, runner, state, check_error):
    def ask_when_there_is_room():
        while (response := ask("say:Hi", background=True, stream=True)).status_code == 429:
            runner.run(asyncio.sleep(0.01))
        return response

    for seconds in (0.05, 3.0, 30.0):  # a busy machine may take longer to the second question
        state.options = ServeOptions(resumable_streams=1, resume_seconds=seconds)
        events = events_of(ask_when_there_is_room())
        full = ask("say:Hi", background=True, stream=True)
        if full.status_code == 429:
            break
    kind = full.json()["error"]["type"]
    check_error(full, 429, code="rate_limit_exceeded", kind=kind)
    assert state.in_flight == 0
    assert ask_when_there_is_room().status_code == 200
    path = f"/v1/responses/{events[0]['response']['id']}?stream=true"
    check_error(call("GET", path), 400, param="stream")


def test_events_of_what_was_made_in_the_foreground_are_not_kept(ask, call, check_error):
    path = f"/v1/responses/{ask().json()['id']}?stream=true"
    check_error(call("GET", path), 400, param="stream")


def test_the_background_can_be_cancelled_and_nothing_else(ask, call, runner, state, check_error):
    body = ask("slow:400", background=True).json()
    wait(runner, call, body["id"], "in_progress")
    path = f"/v1/responses/{body['id']}"
    cancelled = call("POST", path + "/cancel").json()
    Response.model_validate(cancelled)
    assert cancelled["status"] == "cancelled"
    while state.model.engine.active:
        runner.run(asyncio.sleep(0.01))
    assert call("GET", path).json()["status"] == "cancelled"
    assert call("POST", path + "/cancel").json()["status"] == "cancelled"
    assert state.in_flight == 0
    check_error(call("POST", f"/v1/responses/{ask().json()['id']}/cancel"), 400)


def test_deleting_what_is_being_made_stops_it(ask, call, runner, state, check_error):
    body = ask("slow:400", background=True).json()
    wait(runner, call, body["id"], "in_progress")
    assert call("DELETE", f"/v1/responses/{body['id']}").status_code == 200
    while state.model.engine.active:
        runner.run(asyncio.sleep(0.01))
    check_error(call("GET", f"/v1/responses/{body['id']}"), 404, code="not_found")


def test_a_failure_in_the_background_is_told_to_who_asks(ask, call, runner):
    failed = wait(runner, call, ask("break:2", background=True).json()["id"], "failed")
    Response.model_validate(failed)
    assert failed["error"]["code"] == "server_error"

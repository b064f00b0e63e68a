"""The playground's routes: the server writes the answer, whoever looks."""

import asyncio
import json
from threading import Event

import pytest

from zse.errors import StoreError
from zse.option import with_values
from zse.serve.documents.libraries import Libraries
from zse.serve.ui.answering import Answers
from zse.serve.ui.conversations import Conversations

ROOT = "/api/chat/conversations"


@pytest.fixture
def ask(call, runner):
    """Ask the routes of conversations for JSON."""

    async def send(method, path="", **options):
        response = await call.send(method, ROOT + path, **options)
        assert response.status_code < 300, response.text
        return response.json() if response.content else None

    return send


async def answered(ask, text, **settings):
    """Begin a conversation with an answer; returns its path and the message that is written."""
    facts = {"title": text[:20], "settings": settings}
    path = "/" + (await ask("POST", json=facts))["id"]
    message = {"role": "user", "content": text}
    parent = (await ask("POST", f"{path}/messages", json=message))["id"]
    return path, await ask("POST", f"{path}/answers", json={"parent": parent})


async def ended(ask, path, identifier):
    while True:
        rows = (await ask("GET", f"{path}/messages"))["messages"]
        row = next(one for one in rows if one["id"] == identifier)
        if row["status"] != "writing":
            return row
        await asyncio.sleep(0.01)


def test_an_answer_is_written_and_kept_with_nobody_listening(ask, runner):
    async def talk():
        path, message = await answered(ask, "say:Paris.", temperature=0)
        assert (message["status"], message["model"]) == ("writing", "scripted")
        return await ended(ask, path, message["id"])

    row = runner.run(talk())
    assert (row["status"], row["content"], row["tokens"]) == ("done", "Paris.", 6)


def test_events_begin_with_all_there_is_and_end_with_how_it_ended(ask, call, runner):
    async def talk():
        path, message = await answered(ask, "slow:8")
        await asyncio.sleep(0.06)
        events = f"{ROOT}{path}/messages/{message['id']}/events"
        live = await call.send("GET", events)
        return live, await call.send("GET", events)

    live, later = runner.run(talk())
    assert live.headers["content-type"].startswith("text/event-stream")
    for response in (live, later):
        rows = [json.loads(line[6:]) for line in response.text.splitlines() if line[:5] == "data:"]
        assert rows[0]["begins"]
        assert not any(row["begins"] for row in rows[1:])
        assert "".join(row["content"] for row in rows) == "x" * 8
        assert rows[-1]["status"] == "done"


def test_a_stopped_answer_keeps_what_was_written(ask, runner):
    async def talk():
        path, message = await answered(ask, "slow:400")
        while not (await ask("GET", f"{path}/messages"))["messages"][1]["content"]:
            await asyncio.sleep(0.01)
        return await ask("POST", f"{path}/messages/{message['id']}/stop")

    row = runner.run(talk())
    assert row["status"] == "stopped"
    assert 0 < len(row["content"]) < 400


def test_an_answer_that_is_stopped_before_it_begins_is_stopped_and_holds_nothing(
    ask, state, runner
):
    async def talk():
        path, message = await answered(ask, "slow:400")
        run = state.one_of(Answers).get(message["id"])
        await run.stop()
        return await ended(ask, path, message["id"])

    assert runner.run(talk())["status"] == "stopped"
    assert state.in_flight == 0
    assert state.model.uses.count == 0


def test_who_reads_an_answer_that_is_stopped_while_its_end_is_saved_is_told_of_its_end(
    ask, state, runner, monkeypatch
):
    store, saving, may_save = state.one_of(Conversations), Event(), Event()
    save = store.save

    def slow(message, **facts):
        if facts["status"] != "writing":
            saving.set()
            may_save.wait(60)
        save(message, **facts)

    async def talk():
        path, message = await answered(ask, "Hello")
        run = state.one_of(Answers).get(message["id"])
        reading = asyncio.create_task(last_frame(run))
        await asyncio.to_thread(saving.wait, 60)
        stopping = asyncio.create_task(run.stop())
        await asyncio.sleep(0)
        may_save.set()
        await stopping
        return await asyncio.wait_for(reading, 60), await ended(ask, path, message["id"])

    async def last_frame(run):
        return [frame async for frame in run.frames()][-1]

    monkeypatch.setattr(store, "save", slow)
    frame, row = runner.run(talk())
    assert b'"status":"done"' in frame
    assert row["status"] == "done"


def test_what_the_end_of_the_server_interrupts_is_kept_and_marked(ask, state, runner):
    async def talk():
        path, message = await answered(ask, "slow:400")
        while not (await ask("GET", f"{path}/messages"))["messages"][1]["content"]:
            await asyncio.sleep(0.01)
        state.terminate.set()
        return await ended(ask, path, message["id"])

    row = runner.run(talk())
    assert row["status"] == "interrupted"
    assert row["content"]


def test_an_answer_that_cannot_be_kept_still_ends_for_who_reads_it(ask, state, runner, monkeypatch):
    def full(*_, **__):
        raise StoreError("the disk is full")

    async def talk():
        _, message = await answered(ask, "slow:4")
        monkeypatch.setattr(state.one_of(Conversations), "save", full)
        run = state.one_of(Answers).get(message["id"])
        return [json.loads(frame[6:]) async for frame in run.frames()][-1]

    assert runner.run(talk())["status"] == "done"


def test_what_breaks_is_told_without_the_server_s_places(ask, runner):
    async def talk():
        path, message = await answered(ask, "break:3")
        return await ended(ask, path, message["id"])

    row = runner.run(talk())
    assert (row["status"], row["content"]) == ("failed", "yyy")
    assert row["error"]
    assert "/opt/" not in row["error"]


def test_the_system_prompt_and_the_branch_are_what_the_model_is_told(ask, state, runner):
    async def talk():
        path, message = await answered(ask, "say:one")
        await ended(ask, path, message["id"])
        await ask("PATCH", path, json={"system": "Be brief."})
        follow = {"role": "user", "content": "say:two", "parent": message["id"]}
        said = await ask("POST", f"{path}/messages", json=follow)
        again = await ask("POST", f"{path}/answers", json={"parent": said["id"]})
        await ended(ask, path, again["id"])

    runner.run(talk())
    prompt, *_ = state.model.engine.seen[-1]
    assert prompt == "system: Be brief.\nuser: say:one\nassistant: one\nuser: say:two"


def test_deleting_a_conversation_stops_its_answer(ask, state, runner):
    async def talk():
        path, _ = await answered(ask, "slow:400")
        while not state.model.engine.active:
            await asyncio.sleep(0.01)
        await ask("DELETE", path)

    runner.run(talk())
    assert state.model.engine.cancelled == 1
    assert state.in_flight == 0


def test_a_conversation_goes_along_as_json_and_markdown(ask, call, runner):
    async def talk():
        path, message = await answered(ask, "say:Paris.")
        await ended(ask, path, message["id"])
        return [await call.send("GET", f"{ROOT}{path}/export?format={kind}") for kind in kinds]

    kinds = ("json", "markdown")
    found, text = runner.run(talk())
    assert [one["content"] for one in found.json()["messages"]] == ["say:Paris.", "Paris."]
    assert "owner" not in found.json()["conversation"]
    assert text.text.endswith("**Assistant**\n\nParis.\n")
    for response in (found, text):
        assert response.headers["content-disposition"].startswith("attachment;")


def test_what_one_key_said_is_not_there_for_another(log_in, guarded):
    alice, bob = log_in("alice", "inference"), log_in("bob", "inference")
    made = alice.ask("POST", ROOT, json={"title": "secret"}).json()
    assert [one["title"] for one in alice.get(ROOT).json()["conversations"]] == ["secret"]
    assert bob.get(ROOT).json()["conversations"] == []
    for method, path in (
        *(("GET", ""), ("DELETE", ""), ("GET", "/messages"), ("GET", "/export")),
        *(("GET", "/messages/x/events"), ("POST", "/messages/x/stop")),
    ):
        answer = bob.ask(method, f"{ROOT}/{made['id']}{path}")
        assert answer.status_code == 404, path
    assert guarded("GET", ROOT).status_code == 401


@pytest.mark.parametrize(
    "inside",
    [
        '"\\ud800"',
        "NaN",
        "1e999",
        "[" * 300 + "]" * 300,
        "[" * 900 + "]" * 900,
        f'"{"x" * 300_000}"',
    ],
    ids=["half a character", "no number", "infinite", "deep", "deeper", "long"],
)
def test_tools_that_could_not_be_shown_again_are_not_kept(call, inside):
    headers = {"content-type": "application/json"}
    body = f'{{"settings": {{"tools": [{{"x": {inside}}}]}}}}'
    refused = call("POST", ROOT, content=body, headers=headers)
    assert refused.status_code == 400, refused.text
    path = f"{ROOT}/{call('POST', ROOT, json={}).json()['id']}"
    assert call("PATCH", path, content=body, headers=headers).status_code == 400
    assert len(call("GET", ROOT).json()["conversations"]) == 1


def test_what_no_conversation_has_is_refused(call):
    for facts in (
        {"title": "x" * 201},
        {"settings": {"temperature": 3}},
        {"settings": {"max_tokens": 0}},
        {"settings": {"messages": []}},
        {"owner": "bob"},
    ):
        assert call("POST", ROOT, json=facts).status_code == 400, facts


def test_a_conversation_with_documents_gives_excerpts_and_keeps_where_they_are_from(
    ask, call, runner, state
):
    asked = {"name": "zoo.txt", "content": "Zebras live in Africa."}
    assert call("POST", "/api/rag/documents", json=asked).status_code == 201

    async def talk():
        path, message = await answered(ask, "Where do zebras live?", documents=True)
        await ended(ask, path, message["id"])
        other, plain = await answered(ask, "Where do zebras live?")
        await ended(ask, other, plain["id"])
        return [(await ask("GET", f"{one}/messages"))["messages"] for one in (path, other)]

    (question, answer), (_, without) = runner.run(talk())
    assert [source["name"] for source in answer["sources"]] == ["zoo.txt"]
    assert question["content"] == "Where do zebras live?", "excerpts are no part of what was said"
    assert without["sources"] == []
    state.one_of(Libraries).close()


def test_tools_of_the_server_run_in_the_background_and_give_back_what_they_took(ask, state, runner):
    state.options = with_values(state.options, {"tools": ("string_ops",)})
    given = json.dumps({"operation": "reverse", "text": "dne ehT:yas"})
    text = f'say:<tool_call>{{"name": "string_ops", "arguments": {given}}}</tool_call>'

    async def talk():
        path, message = await answered(ask, text, server_tools=True)
        row = await ended(ask, path, message["id"])
        while state.one_of(Answers).get(message["id"]) is not None:
            await asyncio.sleep(0.01)
        found = await ask("GET", f"{path}/export?format=json")
        return row, found["messages"][-1]["calls"]

    row, exported = runner.run(talk())
    assert (row["status"], row["content"]) == ("done", "The end")
    assert row["calls"] == exported == [
        {"name": "string_ops", "arguments": given, "output": "say:The end"}
    ]  # fmt: skip
    assert state.admission.num_choices == 0
    assert state.model.uses.count == 0


def test_a_server_without_tools_says_so_to_who_wants_them(call, runner, ask):
    async def talk():
        made = await ask("POST", json={"settings": {"server_tools": True}})
        message = {"role": "user", "content": "say:1"}
        parent = (await ask("POST", f"/{made['id']}/messages", json=message))["id"]
        body = {"parent": parent}
        return await call.send("POST", f"{ROOT}/{made['id']}/answers", json=body)

    response = runner.run(talk())
    assert response.status_code == 400
    assert "started with --tools" in response.json()["error"]["message"]


def test_the_audit_log_waits_for_an_answer_and_names_its_model_tokens_and_tools(ask, state, runner):
    state.options = with_values(state.options, {"tools": ("string_ops",)})
    given = json.dumps({"operation": "reverse", "text": "dne ehT:yas"})
    text = f'say:<tool_call>{{"name": "string_ops", "arguments": {given}}}</tool_call>'

    async def talk():
        path, message = await answered(ask, text, server_tools=True)
        await ended(ask, path, message["id"])
        while state.one_of(Answers).get(message["id"]) is not None:
            await asyncio.sleep(0.01)

    runner.run(talk())
    (entry,) = [one for one in state.audit.recent() if one.path.endswith("/answers")]
    assert (entry.model_id, entry.tools, entry.status_code) == ("scripted", "string_ops", 202)
    assert entry.total_tokens > len("The end")

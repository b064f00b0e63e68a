"""The server and its real engine, when clients do not read, or send more than is read at once."""

import asyncio
import json

import pytest

from zse.engine.inbox import UnreadBounds

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class StuckClient:
    """An ASGI client that reads so many messages of a response and then no more."""

    def __init__(self, path, body, *, most=1) -> None:
        raw = json.dumps(body).encode()
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }
        self.messages = []
        self.left = asyncio.Event()
        self._most = most
        self._body = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive(self):
        if self._body:
            return self._body.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.messages.append(message)
        if len(self.messages) > self._most:
            await asyncio.Event().wait()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def chat_body(text="x", **fields):
    return {"messages": [{"role": "user", "content": text}], **fields}


@pytest.fixture
def serve(make_caller):
    """Run a test within the server's loop, with a model whose engine ends with it."""

    def run(model, test):
        call = make_caller(model)
        try:
            return call.runner.run(test(call))
        finally:
            model.close()

    return run


def test_streams_that_nobody_reads_lock_nobody_out(serve, paced, state):
    async def main(call):
        clients = [StuckClient(CHAT, chat_body(stream=True, n=64, max_tokens=20)) for _ in range(5)]
        tasks = [asyncio.create_task(call.app(c.scope, c.receive, c.send)) for c in clients]
        await until(lambda: all(len(client.messages) > 1 for client in clients))
        await until(lambda: state.in_flight == 0)
        response = await call.send("POST", CHAT, json=chat_body(max_tokens=3))
        for client in clients:
            client.left.set()
        await asyncio.gather(*tasks)
        return response

    assert serve(paced.paced_model(), main).status_code == 200
    assert (state.in_flight, state.num_answering) == (0, 0)


def test_an_answer_that_is_not_read_ends_and_leaves_the_engine(serve, paced, state):
    model = paced.paced_model(unread=UnreadBounds(each=500))

    async def main(call):
        client = StuckClient(CHAT, chat_body(stream=True, max_tokens=30_000))
        task = asyncio.create_task(call.app(client.scope, client.receive, client.send))
        await until(lambda: len(client.messages) > 1)
        await until(lambda: state.in_flight == 0)
        num_generated = model.engine.stats().generated_tokens
        client.left.set()
        await task
        return num_generated

    assert serve(model, main) < 30_000


def test_a_chat_is_answered_while_many_long_texts_are_tokenized(serve, paced, state):
    """Each of the lists would take the tokenizer seconds, in one thread that all have to share."""
    model = paced.paced_model(seconds_per_character=5e-6, max_sequences=64)

    async def main(call):
        heavy = {"prompt": ["y" * 60_000] * 8 + ["z" * 65_000], "max_tokens": 1}
        tasks = [asyncio.create_task(call.send("POST", COMPLETIONS, json=heavy)) for _ in range(12)]
        await until(lambda: state.in_flight == 12 * 9)
        for _ in range(3):
            response = await call.send("POST", CHAT, json=chat_body(max_tokens=3))
            assert response.status_code == 200
        assert state.in_flight > 0
        assert not all(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    serve(model, main)


def test_a_list_of_more_prompts_than_there_is_room_for_is_refused_before_any_is_read(
    serve, paced, state, monkeypatch
):
    model = paced.paced_model()
    monkeypatch.setattr(model.tokenizer, "encode", lambda *_, **__: pytest.fail("it was read"))

    async def main(call):
        held = state.admit(state.max_admitted - 3)
        response = await call.send("POST", COMPLETIONS, json={"prompt": ["a"] * 4})
        held.close()
        return response

    response = serve(model, main)
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert int(response.headers["retry-after-ms"]) > 0


def test_a_client_that_leaves_while_its_prompt_is_read_leaves_no_room_taken(serve, paced, state):
    model = paced.paced_model(seconds_per_character=2e-5)

    async def main(call):
        waiting = [StuckClient(COMPLETIONS, {"prompt": "y" * 65_600}, most=9) for _ in range(3)]
        tasks = [asyncio.create_task(call.app(c.scope, c.receive, c.send)) for c in waiting]
        cut = StuckClient(COMPLETIONS, {"prompt": ["y" * 60_000] * 4})
        tasks.append(asyncio.create_task(call.app(cut.scope, cut.receive, cut.send)))
        await until(lambda: state.in_flight == 7)
        for client in waiting:
            client.left.set()
        tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    serve(model, main)
    assert state.in_flight == 0

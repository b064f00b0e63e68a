"""Limits of a key, counted in memory."""

import asyncio

import pytest

from zse.serve.access.account import Account
from zse.serve.access.caller import Caller
from zse.serve.access.limited import _span
from zse.serve.access.limits import Limits, RateLimitError
from zse.serve.access.windows import WINDOW_SECONDS

MODELS = "/v1/models"


def caller_with(key_id="a1", **limits):
    return Caller(key_id=key_id, name="alice", scope="inference", **limits)


@pytest.fixture
def limits(clock):
    clock.seconds = WINDOW_SECONDS * 1000.0
    return Limits(now=clock)


async def charge(limits, caller, num_tokens, prompt_tokens=0):
    return await limits.charge(caller, prompt_tokens=prompt_tokens, most_tokens=num_tokens)


async def settled(limits):
    await asyncio.gather(*limits._settling)


def test_a_minute_has_room_for_its_requests_and_no_more(runner):
    limits, caller = Limits(), caller_with(requests_per_minute=3)

    async def ask():
        for _ in range(3):
            await limits.admit(caller)
        with pytest.raises(RateLimitError) as caught:
            await limits.admit(caller)
        await limits.admit(caller_with(key_id="b2", requests_per_minute=3))
        return caught.value

    error = runner.run(ask())
    assert "Rate limit exceeded. Limit: 3/min, Current: 3. Try again in " in str(error)
    assert 0 < error.retry_after_seconds <= 60
    assert error.error_type == "requests"


def test_a_reset_gives_the_whole_limit_again(runner):
    limits = Limits()

    async def ask():
        await limits.admit(caller_with(requests_per_minute=1))
        await limits.admit(caller_with(requests_per_minute=1, limits_epoch=1))

    runner.run(ask())


def test_tokens_are_charged_in_advance_and_given_back(limits, runner):
    caller = caller_with(tokens_per_minute=1000)

    async def ask():
        taken = await charge(limits, caller, 800)
        with pytest.raises(RateLimitError):
            await charge(limits, caller, 300)
        limits.settle(taken, 100)
        await settled(limits)
        assert (await limits.use_of(caller))["tokens"].remaining == 900
        await charge(limits, caller, 900)

    runner.run(ask())


def test_what_was_used_beyond_the_charge_is_taken_too(limits, runner):
    caller = caller_with(tokens_per_minute=1000)

    async def ask():
        limits.settle(await charge(limits, caller, 100), 400)
        await settled(limits)
        assert (await limits.use_of(caller))["tokens"].remaining == 600

    runner.run(ask())


def test_an_answer_without_an_end_is_charged_the_whole_minute(limits, runner):
    caller = caller_with(tokens_per_minute=1000)

    async def ask():
        taken = await charge(limits, caller, 100_000, prompt_tokens=10)
        assert taken.num_tokens == 1000
        with pytest.raises(RateLimitError, match="The prompt has 1001 tokens"):
            await charge(limits, caller, 2000, prompt_tokens=1001)

    runner.run(ask())


def test_the_minute_before_counts_by_its_share_of_the_window(limits, clock, runner):
    caller = caller_with(tokens_per_minute=1000)

    async def ask():
        await charge(limits, caller, 1000)
        clock.seconds += WINDOW_SECONDS  # all of it is in the window still
        with pytest.raises(RateLimitError) as caught:
            await charge(limits, caller, 250)
        assert caught.value.retry_after_seconds == pytest.approx(15)
        clock.seconds += 15  # a quarter has left it
        await charge(limits, caller, 250)
        with pytest.raises(RateLimitError):
            await charge(limits, caller, 1)

    runner.run(ask())


def test_the_time_that_is_told_is_the_time_that_it_takes(limits, clock, runner):
    caller = caller_with(tokens_per_minute=1000)

    async def ask():
        clock.seconds += 20
        await charge(limits, caller, 900)
        with pytest.raises(RateLimitError) as caught:
            await charge(limits, caller, 400)
        clock.seconds += caught.value.retry_after_seconds - 1
        with pytest.raises(RateLimitError):
            await charge(limits, caller, 400)
        clock.seconds += 1.001
        await charge(limits, caller, 400)

    runner.run(ask())


def test_what_is_given_back_late_goes_where_it_was_taken(limits, clock, runner):
    caller = caller_with(tokens_per_minute=1000)

    async def ask():
        taken = await charge(limits, caller, 1000)
        clock.seconds += WINDOW_SECONDS
        limits.settle(taken, 0)
        await settled(limits)
        assert (await limits.use_of(caller))["tokens"].remaining == 1000
        clock.seconds += 2 * WINDOW_SECONDS
        limits.settle(taken, 0)  # far too late: forgotten with its minute
        await settled(limits)
        assert (await limits.use_of(caller))["tokens"].remaining == 1000

    runner.run(ask())


def test_a_redis_that_does_not_answer_takes_no_service_away(runner, caplog):
    limits, caller = Limits("redis://127.0.0.1:1/0"), caller_with(requests_per_minute=1)

    async def ask():
        await limits.admit(caller)
        with pytest.raises(RateLimitError):
            await limits.admit(caller)

    runner.run(ask())
    runner.run(limits.close())
    assert caplog.text.count("counted by this server alone") == 1


def test_an_account_is_closed_when_the_last_work_of_an_ended_request_is():
    account, reports = Account(), []

    async def work():
        await account.begin("m", prompt_tokens=1, most_tokens=2)
        await account.begin("m", prompt_tokens=1, most_tokens=2)
        account.end(None, prompt_tokens=1, completion_tokens=1)
        account.close(lambda: reports.append(account.total_tokens))
        assert reports == []
        account.end(None, prompt_tokens=1, completion_tokens=3)

    asyncio.run(work())
    assert reports == [6]


def test_spans_are_written_as_openai_does():
    assert [_span(each) for each in (0, 0.25, 1, 59.2, 90)] == [
        "0ms",
        "250ms",
        "1s",
        "1m0s",
        "1m30s",
    ]


def headers_of(secret):
    return {"authorization": f"Bearer {secret}"}


def test_every_answer_to_a_limited_key_says_what_is_left(guarded, add_key):
    headers = headers_of(add_key(rate_limit=60, tokens_per_minute=10_000))
    call = guarded()
    for path, left in ((MODELS, 59), ("/v1/nowhere", 58)):
        found = call("GET", path, headers=headers).headers
        assert found["x-ratelimit-limit-requests"] == "60"
        assert found["x-ratelimit-remaining-requests"] == str(left)
        assert found["x-ratelimit-remaining-tokens"] == "10000"
        assert found["x-ratelimit-limit"] == "60"
        assert found["x-ratelimit-remaining"] == str(left)
        assert {"x-ratelimit-reset-requests", "x-ratelimit-reset-tokens"} <= set(found)


def test_a_key_without_limits_hears_of_none(guarded, add_key):
    secret = add_key()
    found = guarded()("GET", MODELS, headers=headers_of(secret)).headers
    assert not [name for name in found if name.startswith("x-ratelimit")]


def test_a_request_too_many_gets_429_and_is_told_when_to_come_back(guarded, add_key, check_error):
    headers = headers_of(add_key(rate_limit=1))
    call = guarded()
    call("GET", MODELS, headers=headers)
    response = call("GET", MODELS, headers=headers)
    body = response.json()
    assert response.status_code == 429
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert body["error"]["type"] == "requests"
    assert body["detail"] == body["error"]["message"]
    assert body["detail"].startswith("Rate limit exceeded. Limit: 1/min, Current: 1. Try again in")
    assert 1 <= int(response.headers["retry-after"]) <= 60
    assert 1 <= int(response.headers["retry-after-ms"]) <= 60_000
    assert response.headers["x-ratelimit-remaining-requests"] == "0"


def test_probes_cost_a_limited_key_nothing(guarded, add_key):
    headers = headers_of(add_key(rate_limit=1))
    call = guarded()
    for _ in range(3):
        assert call("GET", "/health/live", headers=headers).status_code == 200
    assert call("GET", MODELS, headers=headers).status_code == 200


def chat(call, headers, text="say:abc", **fields):
    body = {"messages": [{"role": "user", "content": text}], **fields}
    return call("POST", "/v1/chat/completions", headers=headers, json=body)


def test_an_answer_costs_what_it_used(guarded, add_key):
    headers = headers_of(add_key(tokens_per_minute=400))
    call = guarded()
    first = chat(call, headers, max_tokens=100)
    usage = first.json()["usage"]
    assert int(first.headers["x-ratelimit-remaining-tokens"]) == 400 - usage[
        "prompt_tokens"
    ] - 100 or (int(first.headers["x-ratelimit-remaining-tokens"]) == 400 - usage["total_tokens"])
    second = call("GET", MODELS, headers=headers)
    assert int(second.headers["x-ratelimit-remaining-tokens"]) == 400 - usage["total_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_that_are_not_there_are_refused_before_the_engine_works(
    guarded, add_key, state, stream
):
    headers = headers_of(add_key(tokens_per_minute=100))
    call = guarded()
    first = chat(call, headers, text="say:" + "a" * 60, max_tokens=20)
    assert first.status_code == 200, first.text
    refused = chat(call, headers, text="say:" + "a" * 60, max_tokens=20, stream=stream)
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "tokens"
    assert len(state.model.engine.seen) == 1
    assert state.in_flight == 0


def test_a_request_that_the_queue_refused_costs_no_tokens(guarded, add_key, state):
    headers = headers_of(add_key(tokens_per_minute=300))
    call = guarded()
    room = state.admit(state.max_admitted)
    assert chat(call, headers, max_tokens=50).json()["error"]["type"] == "rate_limit_error"
    room.close()
    left = call("GET", MODELS, headers=headers).headers["x-ratelimit-remaining-tokens"]
    assert left == "300"

"""How prompts begin: equal beginnings have equal hashes, other callers' have none in common."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zse.route.prompt import BLOCK_BYTES, BLOCK_TOKENS, MAX_BLOCKS, NO_PROMPT, read_prompt


def chat(*texts, **fields):
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def shared(a, b):
    pairs = zip(a.digests, b.digests, strict=False)
    return sum(1 for _ in iter_equal(pairs))


def iter_equal(pairs):
    for one, other in pairs:
        if one != other:
            return
        yield one


def test_a_conversation_that_goes_on_has_the_blocks_of_its_earlier_turns():
    first = read_prompt(chat("a" * 1000), {})
    later = read_prompt(chat("a" * 1000, "b" * 1000, "c"), {})
    assert shared(first, later) == len(first.digests) == 1040 // BLOCK_BYTES
    assert shared(first, read_prompt(chat("b" * 1000), {})) == 0


@pytest.mark.parametrize(
    "change",
    [{"authorization": b"Bearer other"}, {"x-api-key": b"other"}],
)
def test_callers_share_no_prefixes_as_they_share_none_at_replicas(change):
    body = chat("a" * 1000)
    fields = {name.encode(): value for name, value in change.items()}
    assert shared(read_prompt(body, {}), read_prompt(body, fields)) == 0


@pytest.mark.parametrize("change", [{"model": "n"}, {"cache_salt": "s"}])
def test_another_model_or_salt_is_another_prefix(change):
    body = {"messages": [{"role": "user", "content": "a" * 1000}], "model": "m"}
    one, other = (json.dumps(each).encode() for each in (body, body | change))
    assert shared(read_prompt(one, {}), read_prompt(other, {})) == 0


def test_what_stands_behind_the_prompt_in_the_body_changes_nothing():
    one = read_prompt(chat("a" * 1000, temperature=0.1), {})
    other = read_prompt(chat("a" * 1000, max_tokens=7, stream=True), {})
    assert one.digests == other.digests


def test_tools_and_system_come_before_messages_as_templates_have_them():
    tools = [{"type": "function", "function": {"name": "f" * 500}}]
    one = read_prompt(chat("a" * 300, tools=tools), {})
    other = read_prompt(chat("b" * 300, tools=tools), {})
    assert shared(one, other) >= 500 // BLOCK_BYTES


def test_numbers_of_tokens_are_counted_in_the_blocks_of_the_cache():
    ids = list(range(3 * BLOCK_TOKENS + 5))
    one = read_prompt(json.dumps({"prompt": ids}).encode(), {})
    spaced = read_prompt(json.dumps({"prompt": ids}, indent=1).encode(), {})
    assert len(one.digests) == 3
    assert one.digests == spaced.digests


def test_a_prompt_of_any_length_has_a_bounded_number_of_blocks():
    assert len(read_prompt(chat("a" * 1_000_000), {}).digests) == MAX_BLOCKS


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff\xfe", b'{"messages": ' + b"[" * 100_000, b"null", b'{"a":1}']
)
def test_what_is_no_prompt_has_no_blocks(body):
    assert read_prompt(body, {}).digests == NO_PROMPT.digests


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail(data):
    read_prompt(b"{" + data, {b"authorization": data})


def test_an_answer_that_one_replica_keeps_is_seen():
    assert read_prompt(b'{"previous_response_id": "r"}', {}).goes_on
    assert not read_prompt(b'{"previous_response_id": null}', {}).goes_on

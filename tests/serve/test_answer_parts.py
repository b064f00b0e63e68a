"""The parts of an answer: opened, grown and closed in order."""

from zse.engine.output import TokenLogprob
from zse.serve.answer_parts import Parts
from zse.serve.turn import CallArguments, CallOpened, ChoiceEnded, ReasoningPart, TextPart


def steps_of(parts, *events):
    steps = [step for event in events for step in parts.push(event)]
    return [(step.kind, step.part.index, step.part.kind, step.text) for step in steps]


def token(text):
    return TokenLogprob(token=text, token_id=1, logprob=-0.1, bytes=list(text.encode()))


TURN = (
    ReasoningPart(0, "hm"),
    TextPart(0, "\n"),
    TextPart(0, "I "),
    TextPart(0, "look"),
    CallOpened(0, 0, "call_1", "weather"),
    CallArguments(0, 0, '{"city": '),
    CallArguments(0, 0, '"Paris"}'),
    TextPart(0, "\n"),
    CallOpened(0, 1, "call_2", "time"),
    CallArguments(0, 1, "{}"),
    ChoiceEnded(0, "tool_calls"),
)


def test_parts_follow_each_other_and_space_between_them_is_none():
    assert steps_of(Parts(shows_reasoning=True), *TURN) == [
        ("opened", 0, "reasoning", ""),
        ("grown", 0, "reasoning", "hm"),
        ("closed", 0, "reasoning", ""),
        ("opened", 1, "text", ""),
        ("grown", 1, "text", "\nI "),
        ("grown", 1, "text", "look"),
        ("closed", 1, "text", ""),
        ("opened", 2, "call", ""),
        ("grown", 2, "call", '{"city": '),
        ("grown", 2, "call", '"Paris"}'),
        ("closed", 2, "call", ""),
        ("opened", 3, "call", ""),
        ("grown", 3, "call", "{}"),
        ("closed", 3, "call", ""),
    ]


def test_the_whole_parts_are_what_was_streamed():
    parts = Parts(shows_reasoning=True)
    steps_of(parts, *TURN)
    assert [part.text for part in parts.parts] == ["hm", "\nI look", '{"city": "Paris"}', "{}"]
    assert (parts.parts[2].call_id, parts.parts[2].name) == ("call_1", "weather")
    assert not parts.parts[-1].is_cut


def test_thoughts_are_left_out_where_nobody_asked_for_them():
    parts = Parts(shows_reasoning=False)
    assert steps_of(parts, TURN[0], TextPart(0, "yes"))[0] == ("opened", 0, "text", "")


def test_the_part_in_which_an_answer_was_cut_says_so():
    parts = Parts(shows_reasoning=False)
    steps_of(parts, TextPart(0, "a"), TURN[4], TURN[5], ChoiceEnded(0, "length"))
    assert [part.is_cut for part in parts.parts] == [False, True]


def test_an_answer_of_space_has_no_parts():
    parts = Parts(shows_reasoning=False)
    assert steps_of(parts, TextPart(0, " \n"), ChoiceEnded(0, "stop")) == []
    assert parts.parts == []


def test_log_probabilities_of_held_space_come_with_the_text_that_follows():
    parts = Parts(shows_reasoning=False)
    steps_of(parts, TextPart(0, " ", [token(" ")]), TextPart(0, "a", [token("a")]))
    assert [each.token for each in parts.parts[0].logprobs] == [" ", "a"]

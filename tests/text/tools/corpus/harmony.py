"""gpt-oss."""

from __future__ import annotations

from corpus.sample import PARIS, TIME, Sample

_FINAL = "<|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>"
_CALL = (
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'
)
HARMONY = [
    Sample("harmony", "an answer", "<|channel|>final<|message|>It is sunny.", "It is sunny."),
    Sample(
        "harmony",
        "reasoning, then an answer",
        "<|channel|>analysis<|message|>Easy: 2 < 3.<|end|>" + _FINAL,
        "It is sunny.",
        thought="Easy: 2 < 3.",
    ),
    Sample("harmony", "a call", _CALL + "<|call|>", calls=(PARIS,)),
    Sample("harmony", "a call whose end was a stop token", _CALL, calls=(PARIS,)),
    Sample(
        "harmony",
        "reasoning, then a call",
        "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant" + _CALL,
        calls=(PARIS,),
        thought="I look.",
    ),
    Sample(
        "harmony",
        "the recipient in the role",
        " to=functions.get_time<|channel|>commentary json<|message|>{}",
        calls=(TIME,),
    ),
    Sample(
        "harmony",
        "a preamble",
        "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant" + _CALL,
        "I look it up.",
        (PARIS,),
    ),
    Sample(
        "harmony",
        "two calls",
        f"{_CALL}<|end|><|start|>assistant to=functions.get_time<|channel|>commentary<|message|>{{}}<|call|>",
        calls=(PARIS, TIME),
    ),
    Sample(
        "harmony", "a name nobody offered", _CALL.replace("get_weather", "rm"), '{"city": "Paris"}'
    ),
    Sample("harmony", "no messages at all", "Hello there\n", "Hello there\n"),
    Sample("harmony", "cut in a header", "<|channel|>analy"),
    Sample(
        "harmony",
        "cut in the header of the second message",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>comm",
        thought="Hm.",
    ),
    Sample("harmony", "cut in a recipient", " to=functions.get_w"),
    Sample("harmony", "a header that is a text", "<|channel|>Hello there", "Hello there"),
    Sample(
        "harmony",
        "a header that ends at once",
        "<|start|>assistant<|end|>" + _FINAL,
        "It is sunny.",
    ),
    Sample(
        "harmony",
        "messages that nothing ends",
        "<|channel|>analysis<|message|>I look.<|channel|>commentary<|message|>One moment.<|start|>assistant"
        + _CALL,
        "One moment.",
        (PARIS,),
        thought="I look.",
    ),
    Sample(
        "harmony",
        "markers of headers within a message",
        "<|channel|>final<|message|>It <|message|>is <|constrain|>sunny.",
        "It is sunny.",
    ),
    Sample(
        "harmony",
        "a call in the channel of thoughts",
        "<|channel|>analysis to=functions.get_time code<|message|>{}<|call|>",
        calls=(TIME,),
    ),
    Sample(
        "harmony",
        "a tool of the model's own",
        "<|channel|>analysis to=python code<|message|>1 + 1<|call|>",
        thought="1 + 1",
    ),
    Sample(
        "harmony",
        "an answer behind a call",
        _CALL + "<|call|><|start|>assistant<|channel|>final<|message|>Done.<|return|>",
        "Done.",
        (PARIS,),
    ),
    Sample("harmony", "nothing but ends", "<|end|><|call|><|return|>"),
    Sample(
        "harmony",
        "cut in the reasoning",
        "<|channel|>analysis<|message|>I am thin",
        thought="I am thin",
    ),
    Sample(
        "harmony",
        "two thoughts",
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        + _FINAL,
        "It is sunny.",
        thought="One.\nTwo.",
    ),
]

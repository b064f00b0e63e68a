"""Random traces of arrivals, aborts and steps against an oracle that knows no engine."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

import pytest
from grammar_walks import WordTokenizer
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from known_answers import KnownAnswers

from zse.engine.drafting.speculator import Speculator
from zse.engine.reading import PromptQuery
from zse.kv.windows import WindowGroup, blocks_each, most_blocks
from zse.text.grammar import spec as forms
from zse.text.grammar.compile import GrammarCompiler


@dataclass(frozen=True)
class Arrival:
    prompt: list[int]
    max_tokens: int
    n: int
    priority: int
    salt: str
    seed: int | None
    min_tokens: int
    has_penalty: bool
    query: PromptQuery | None
    tenant: str
    weight: int
    form: str
    ignores_ends: bool


@dataclass(frozen=True)
class Abort:
    target: int


LETTERS = WordTokenizer.of(["a", "b", "c", "d", "e", "abc", "cd", "ca", "aa"])
"""Token 0 ends an answer."""
COMPILER = GrammarCompiler(LETTERS, vocab_size=11, end_token_ids=(0,))
FORMS = ["a{2,5}b?", "abcabc(d|e)cdabcabc", "(aa|b)*e", "[a-e]*", "d", "(abcd){9}", "ca(cd)+|b"]

# Two token ids and a handful of lengths: prefixes collide all the time.
arrivals = st.builds(
    Arrival,
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=14),
    max_tokens=st.integers(1, 8),
    n=st.sampled_from([1, 1, 1, 2, 3]),
    priority=st.integers(-2, 2),
    salt=st.sampled_from(["", "", "x"]),
    seed=st.one_of(st.none(), st.integers(0, 5)),
    min_tokens=st.sampled_from([0, 0, 1]),
    has_penalty=st.sampled_from([False, False, True]),
    query=st.sampled_from(
        [
            None,
            None,
            PromptQuery(logprobs=0),
            PromptQuery(logprobs=1, generates=False),
            PromptQuery(pooling="mean", generates=False),
            PromptQuery(pooling="last", generates=False),
        ]
    ),
    tenant=st.sampled_from(["", "a", "b"]),
    weight=st.integers(1, 3),
    form=st.sampled_from(["", "", *FORMS]),
    ignores_ends=st.sampled_from([False, False, True]),
)
traces = st.lists(
    st.one_of(arrivals, st.builds(Abort, st.integers(0, 20)), st.just("step")), max_size=40
)
shapes = st.fixed_dictionaries(
    {
        "block_size": st.integers(1, 5),
        "spare_blocks": st.integers(0, 12),
        "max_batch_tokens": st.integers(1, 24),
        "max_sequences": st.integers(1, 6),
        "prefix_cache": st.booleans(),
        "aging_steps": st.integers(1, 20),
        "looks_ahead": st.booleans(),
        "steps_in_flight": st.sampled_from([1, 1, 2, 3, 5]),
        "is_late": st.booleans(),
        "most_accepted": st.integers(1, 5),
        "least_jump": st.integers(0, 2),
        "num_checkpoints": st.sampled_from([None, None, 0, 1, 2, 5]),
        "most_drafts": st.sampled_from([64, 3, 0]),
        "windows": st.lists(st.integers(1, 12), max_size=2),
        "seats": st.sampled_from([0, 0, 1, 2, 3]),
    }
)
LONGEST = 14 + 8
DEVICE = (
    "looks_ahead",
    "steps_in_flight",
    "is_late",
    "most_accepted",
    "num_checkpoints",
    "most_drafts",
)


def make_core(engine, shape, drafter=None):
    shape = dict(shape)
    block_size = shape.pop("block_size")
    num_blocks = -(-LONGEST // block_size) + shape.pop("spare_blocks")
    device = {name: shape.pop(name) for name in DEVICE}
    most = functools.partial(
        most_blocks,
        block_size=block_size,
        num_sequences=shape["max_sequences"],
        step_tokens=3 * shape["max_batch_tokens"],  # of one step, and drafts of those in flight
        keeps_prefixes=False,
    )
    seats = shape.pop("seats")  # windows that there is room for where memory is short of them
    most_reserved = {
        window: seats * blocks_each(window, block_size) or None for window in shape.pop("windows")
    }
    windows = [
        WindowGroup(
            window=window,
            num_blocks=min(num_blocks, most(window))
            if reserved is None
            else reserved - (-3 * shape["max_batch_tokens"] // block_size),
            most_reserved=reserved,
        )
        for window, reserved in most_reserved.items()
    ]
    runner = engine.Runner(
        num_blocks=num_blocks, block_size=block_size, vocab_size=11, windows=windows, **device
    )
    least_jump = shape.pop("least_jump")
    if drafter is not None:  # for whom every step takes as long
        shape["begin_speculation"] = lambda: Speculator(drafter, itertools.count().__next__)
    core = engine.core(runner, eos_token_ids=(0,), **shape)
    core.least_jump = least_jump
    return core


def request_of(engine, name, arrival):
    return engine.request(
        name,
        arrival.prompt,
        max_tokens=arrival.max_tokens,
        min_tokens=min(arrival.min_tokens, arrival.max_tokens),
        n=arrival.n,
        priority=arrival.priority,
        cache_salt=arrival.salt,
        temperature=0.0 if arrival.seed is None else 1.0,
        seed=arrival.seed,
        tenant=arrival.tenant,
        weight=arrival.weight,
        presence_penalty=float(arrival.has_penalty),  # the model takes no notice, the engine does
        query=arrival.query,
        ignore_eos=arrival.ignores_ends,
        grammar=COMPILER.compile(forms.regex(arrival.form)) if arrival.form else None,
    )


def answer_of(engine, sequence):
    return engine.expected_tokens(
        sequence.prompt_token_ids,
        sequence.request.params,
        index=sequence.index,
        vocab_size=11,
        eos=(0,),
        grammar=sequence.request.grammar,
    )


def guess(engine, core, num_drafts):
    """Give running sequences drafts: what they will answer, but for a token here and there."""
    for sequence in core._scheduler.running:
        num_output = len(sequence.output_token_ids)
        if sequence.num_pending or (core.stats().steps + num_output) % 3 == 0:
            continue
        drafts = [*answer_of(engine, sequence)[num_output:], 0, 0][:num_drafts]
        sequence.drafts = [1 if (num_output + i) % 4 == 3 else t for i, t in enumerate(drafts)]


def check_report(engine, request, events):
    """What was asked of a prompt is told once, with the first choice's first event."""
    own = [e for e in events if e.request_id == request.request_id]
    reports = [e.report for e in own if e.report]
    first = next(e for e in own if e.index == 0)
    if request.query is None or (first.finish_reason == "abort"):
        assert not reports
        return
    assert [first.report] == reports
    prompt, count = request.prompt_token_ids, len(request.prompt_token_ids)
    states = [engine.hidden_of(prompt[:end]) for end in range(1, count + 1)]
    told = [(t.token_id, t.logprob) for t in reports[0].tokens]
    wanted = [(prompt[i], engine.logprob_of(prompt[: i + 1])) for i in range(1, count)]
    assert told == (wanted if request.query.logprobs is not None else [])
    if request.query.pooling is None:
        assert reports[0].vector is None
    elif request.query.pooling == "last":
        assert reports[0].vector == states[-1]
    else:
        means = [sum(state[i] for state in states) / count for i in range(2)]
        assert reports[0].vector == pytest.approx(means)


def check_accounting(core):
    core.check_consistency()
    stats = core.stats()
    assert 0 <= stats.kv_blocks_used <= stats.kv_blocks_total
    assert stats.kv_blocks_used + core.cache.num_available == stats.kv_blocks_total


@settings(max_examples=300, deadline=None)
@given(shape=shapes, trace=traces, num_drafts=st.sampled_from([0, 0, 1, 3, 6, None]))
def test_every_request_of_a_random_trace_ends_with_the_tokens_it_gets_alone(
    engine, shape, trace, num_drafts
):
    drafter = KnownAnswers(functools.partial(answer_of, engine)) if num_drafts is None else None
    core = make_core(engine, shape, drafter)
    requests, aborted, events = [], set(), []
    for operation in trace:
        if isinstance(operation, Arrival):
            requests.append(request_of(engine, f"r{len(requests)}", operation))
            core.add_request(requests[-1])
        elif isinstance(operation, Abort):
            if operation.target < len(requests):
                aborted.add(f"r{operation.target}")
                core.abort(f"r{operation.target}")
        else:
            if drafter is None:
                guess(engine, core, num_drafts)
            events += core.step()
        check_accounting(core)
    while core.has_work:
        if drafter is None:
            guess(engine, core, num_drafts)
        events += core.step()
        check_accounting(core)
        assert core.stats().steps < 4000, "a request starves"

    for request in requests:
        check_report(engine, request, events)
        for index in range(request.params.n):
            got = engine.tokens_of(events, request.request_id, index)
            want = engine.expected_tokens(
                request.prompt_token_ids,
                request.params,
                index=index,
                vocab_size=11,
                eos=(0,),
                grammar=request.grammar,
            )
            if request.query is not None and not request.query.generates:
                want = []
            ends = [
                e.finish_reason
                for e in events
                if (e.request_id, e.index) == (request.request_id, index) and e.finish_reason
            ]
            assert len(ends) == 1
            if ends == ["abort"]:
                assert request.request_id in aborted
                assert got == want[: len(got)]
            else:
                assert got == want

    core.cache.flush()
    assert core.cache.num_cached == 0
    assert core.cache.num_available == core.cache.num_blocks
    core.check_consistency()


@settings(max_examples=100, deadline=None)
@given(shape=shapes, first=arrivals, crowd=st.lists(arrivals, min_size=1, max_size=3))
def test_a_low_priority_is_served_under_a_stream_of_urgent_arrivals(engine, shape, first, crowd):
    core = make_core(engine, shape)
    core.add_request(request_of(engine, "crowd-0", crowd[0]))
    core.add_request(request_of(engine, "low", first))
    done: set[int] = set()
    for step in range(1, 2000):
        arrival = crowd[step % len(crowd)]
        if core.stats().num_waiting < 8:
            urgent = request_of(engine, f"crowd-{step}", arrival)
            core.add_request(urgent)
        done |= {e.index for e in core.step() if e.request_id == "low" and e.finish_reason}
        if len(done) == first.n:
            return
    raise AssertionError(f"starved for 2000 steps: {core.stats()}")


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    shape=shapes,
    weights=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    mix=st.lists(arrivals, min_size=1, max_size=5),
)
def test_tenants_that_always_wait_get_shares_of_the_work_by_their_weights(
    engine, shape, weights, mix
):
    core = make_core(engine, {**shape, "prefix_cache": False})
    computed = [0.0] * len(weights)
    submitted = core._scheduler.submitted

    def counting(chunks):
        for chunk in chunks:
            computed[int(chunk.sequence.request.tenant)] += chunk.num_tokens
        submitted(chunks)

    core._scheduler.submitted = counting
    lines = [0] * len(weights)
    numbers = itertools.count()
    for _ in range(100):
        for tenant, weight in enumerate(weights):
            while lines[tenant] <= shape["max_sequences"] * 2:
                lines[tenant] += 1
                arrival = mix[lines[tenant] % len(mix)]
                arrival = replace(arrival, tenant=str(tenant), weight=weight, n=1, priority=0)
                core.add_request(request_of(engine, f"{tenant}/{next(numbers)}", arrival))
        for event in core.step():
            lines[int(event.request_id[0])] -= event.finish_reason is not None
    shares = [done / weight for done, weight in zip(computed, weights, strict=True)]
    # Who is ahead is so by no more than what runs, and is left to run, when its turn comes.
    assert max(shares) - min(shares) <= (shape["max_sequences"] + 1) * LONGEST

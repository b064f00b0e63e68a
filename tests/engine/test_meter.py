"""The meter of the engine: what it asks for, and what it counts."""

from __future__ import annotations

import pytest

from zse.engine.meter import open_runner, random_prompts, run_batch
from zse.errors import UsageError
from zse.options import load_options
from zse.settings import load_settings


def test_a_run_counts_what_was_read_and_written_and_when_decoding_began(engine):
    core = engine.core(engine.Runner(num_blocks=64), max_batch_tokens=6, max_sequences=3)
    run = run_batch(core, random_prompts(core.runner.vocab_size, 3, 5, seed=1), 4)
    assert (run.prompt_tokens, run.output_tokens) == (15, 12)
    assert run.first_token_seconds == sorted(run.first_token_seconds)
    # A budget of 6 reads the three prompts in three steps: the others decode meanwhile.
    assert 0 < run.decode_tokens < 9
    # All three decode together from the third's first token until the first one's fourth.
    assert run.decode_tokens == 3 * len(run.step_seconds)
    assert run.prompt_rate > 0


def test_requests_that_never_decode_at_once_have_no_decode_rate(engine):
    core = engine.core(engine.Runner(num_blocks=64), max_batch_tokens=6, max_sequences=1)
    run = run_batch(core, random_prompts(core.runner.vocab_size, 3, 5, seed=1), 4)
    assert run.output_tokens == 12
    assert (run.decode_tokens, run.decode_rate) == (0, 0)


def test_prompts_of_a_seed_are_the_same_and_inside_the_vocabulary():
    prompts = random_prompts(50, 2, 9, seed=4)
    assert prompts == random_prompts(50, 2, 9, seed=4)
    assert prompts != random_prompts(50, 2, 9, seed=5)
    assert {len(prompt) for prompt in prompts} == {9}
    assert max(max(prompt) for prompt in prompts) < 50


def test_a_sequence_longer_than_the_model_takes_is_refused(random_zse):
    options = load_options(device="cpu", threads=1, max_sequences=1)
    with pytest.raises(UsageError, match="are more than the model's"):
        open_runner(random_zse, options, load_settings(), num_tokens=1_000_000)

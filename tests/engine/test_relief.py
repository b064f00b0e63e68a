"""A device that has no memory for a step: the KV cache becomes smaller, and no answer is lost."""

from __future__ import annotations

import random

import pytest
from scripted_runner import ScriptedRunner

from zse.errors import DeviceError
from zse.kv.windows import WindowGroup


class NoMemoryError(DeviceError):
    is_out_of_memory = True


class ShortRunner(ScriptedRunner):
    """One whose device has no memory for some of its steps, until its pool is smaller."""

    can_shrink = True

    def __init__(self, fails_at: set[int], **sizes: object) -> None:
        super().__init__(**sizes)  # type: ignore[arg-type]
        self.fails_at = fails_at
        self.num_submitted = 0
        self.sizes: list[int] = []

    def submit(self, batch):
        self.num_submitted += 1
        if self.num_submitted in self.fails_at:
            raise NoMemoryError("no memory for scratch")
        return super().submit(batch)

    def shrink(self, num_blocks: int, *, least_blocks: int) -> None:
        assert not self.in_flight
        assert least_blocks <= num_blocks < self.num_blocks
        self.num_blocks = num_blocks
        self.cells = [[-1] * self.block_size for _ in range(num_blocks)]  # what it held is lost
        self.windows = [
            WindowGroup(
                window=each.window,
                num_blocks=min(each.num_blocks, num_blocks),
                most_reserved=each.most_reserved,
            )
            for each in self.windows
        ]
        self.window_cells = [
            [[-1] * self.block_size for _ in range(each.num_blocks)] for each in self.windows
        ]
        self.states.clear()
        self.sizes.append(num_blocks)


def answers(engine, core, requests):
    for request in requests:
        core.add_request(request)
    events = engine.run_to_end(core)
    for request in requests:
        want = engine.expected_tokens(request.prompt_token_ids, request.params)
        assert engine.tokens_of(events, request.request_id) == want


@pytest.mark.parametrize("looks_ahead", [False, True])
@pytest.mark.parametrize("fails_at", [{1}, {2}, {5}, {3, 4, 5}, {1, 2, 3, 4, 9, 20}])
def test_every_answer_is_what_it_would_have_been(engine, looks_ahead, fails_at):
    runner = ShortRunner(fails_at, num_blocks=32, looks_ahead=looks_ahead)
    core = engine.core(runner, max_batch_tokens=16)
    requests = [engine.request(f"r{i}", [i, 7, i, 3] * (1 + i), max_tokens=12) for i in range(4)]
    answers(engine, core, requests)
    assert len(runner.sizes) == len(fails_at)
    assert core.stats().kv_blocks_total == runner.num_blocks == runner.sizes[-1]
    assert core.stats().kv_blocks_used == 0
    assert core.capacity_tokens == runner.num_blocks * runner.block_size + 1
    answers(engine, core, [engine.request("later", [5] * 9, max_tokens=6)])


@pytest.mark.parametrize("seed", range(6))
def test_random_shortages_lose_nothing(engine, seed):
    source = random.Random(seed)
    fails_at = {source.randrange(1, 80) for _ in range(8)}
    kinds = [
        {},
        {"looks_ahead": True},
        {"num_checkpoints": 3},
        {"windows": [WindowGroup(window=6, num_blocks=40)]},
    ]
    runner = ShortRunner(fails_at, num_blocks=40, **kinds[seed % len(kinds)])
    core = engine.core(runner, max_batch_tokens=source.choice((8, 32)), max_sequences=5)
    requests = [
        engine.request(
            f"r{i}",
            [source.randrange(3) for _ in range(source.randrange(1, 30))],
            max_tokens=source.randrange(1, 20),
            n=1,
            temperature=source.choice((0.0, 1.0)),
            seed=seed,
        )
        for i in range(12)
    ]
    answers(engine, core, requests)
    assert runner.sizes == sorted(runner.sizes, reverse=True)


def test_a_cache_is_never_smaller_than_its_longest_sequence_needs(engine):
    runner = ShortRunner(set(range(1, 200)), num_blocks=16)
    core = engine.core(runner)
    core.add_request(engine.request("long", [1] * 20, max_tokens=20))
    with pytest.raises(NoMemoryError, match="no memory for scratch"):
        engine.run_to_end(core)
    assert runner.sizes[-1] == 10  # 40 tokens in blocks of 4
    assert runner.sizes[0] == 14


def test_other_errors_of_a_device_end_the_engine_as_ever(engine):
    runner = ShortRunner(set())
    runner.error = DeviceError("the GPU fell off the bus")
    core = engine.core(runner)
    core.add_request(engine.request("r", [1], max_tokens=2))
    with pytest.raises(DeviceError, match="fell off"):
        core.step()
    assert runner.sizes == []


def test_a_runner_whose_pool_cannot_shrink_ends_with_its_own_error(engine):
    runner = ShortRunner({1})
    runner.can_shrink = False
    core = engine.core(runner)
    core.add_request(engine.request("r", [1], max_tokens=2))
    with pytest.raises(NoMemoryError):
        core.step()


def test_what_becomes_smaller_is_told_in_the_log(engine, caplog):
    core = engine.core(ShortRunner({2}, num_blocks=32))
    answers(engine, core, [engine.request("r", [1] * 5, max_tokens=4)])
    (line,) = [record for record in caplog.records if "no memory for a step" in record.message]
    assert (line.kv_blocks, line.kv_blocks_before) == (28, 32)
    assert "1 answers are computed again" in line.message

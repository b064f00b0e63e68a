"""Adapters on the GPU backend, in the interpreter: what they add is what they add in torch."""

from __future__ import annotations

import gc
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from interpreted_runner import open_runner
from logits import as_tensor
from random_adapters import edit_tensors, write_adapter
from tiny_shape import TINY

from zse.backends.adapters import PlainMatrix
from zse.backends.gpu import adapter_image
from zse.backends.gpu.adapter_image import (
    image_bytes,
    largest_image_bytes,
    matrices_of,
    parts_by_record,
)
from zse.backends.gpu.adapters import Ranges
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.errors import LoRAError, UnsupportedModelError
from zse.format import ZSEReader
from zse.format.schemes import Scheme
from zse.kernels.layout import Partials, Plain
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.lora.modules import places_at_run_time
from zse.models.lora.read import read_adapter
from zse.models.runner import load_runner, spec_of
from zse.options import load_options
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zse.backends.adapters import AdapterWeights
    from zse.models.runner import ModelRunner

PROMPT = [5, 17, 70]
MOST_RANK = 16


@pytest.fixture
def case(make_pair: Callable[..., Any], tmp_path: Path) -> SimpleNamespace:
    """A model's file, and two adapters of different ranks and modules."""
    path = make_pair("qwen2", "int8", **{**TINY, "num_hidden_layers": 1}).path
    with ZSEReader(path) as reader:
        spec = spec_of(reader)
    few = ["q_proj", "down_proj"]
    return SimpleNamespace(
        path=path,
        spec=spec,
        one=write_adapter(tmp_path / "one", spec, dtype=torch.float16),
        two=write_adapter(tmp_path / "two", spec, seed=2, rank=9, modules=few),
        room=largest_image_bytes(spec, MOST_RANK),
    )


@pytest.fixture
def runner(case: SimpleNamespace) -> Iterator[ModelRunner]:
    room = {"max_lora_rank": MOST_RANK, "lora_gib": 2 * case.room / GIB}
    opened = open_runner(case.path, exact_activations=True, **room)
    yield opened
    opened.close()


@pytest.fixture
def reference(case: SimpleNamespace) -> Iterator[ModelRunner]:
    opened = load_runner(case.path, load_options(device="torch", num_blocks=8))
    yield opened
    opened.close()


def weights_of(runner: ModelRunner, folder: Path) -> AdapterWeights:
    return read_adapter(folder, folder.name, places_at_run_time(runner.spec), max_rank=MOST_RANK)


def bound(runner: ModelRunner, folder: Path) -> Any:
    return runner.bind_adapter(weights_of(runner, folder))


def test_a_prompt_has_what_an_adapter_adds(
    case: SimpleNamespace, runner: ModelRunner, reference: ModelRunner
) -> None:
    plain = as_tensor(reference.logits(PROMPT))
    expected = as_tensor(reference.logits(PROMPT, adapter=bound(reference, case.one)))
    adapter = bound(runner, case.one)
    found = as_tensor(runner.logits(PROMPT, adapter=adapter))
    assert float((found - expected).norm() / expected.norm()) < 3e-2
    assert float((plain - expected).norm() / expected.norm()) > 0.2


def step(adapters: list[Any]) -> StepBatch:
    """Return a step of the first token of a sequence for each adapter."""
    chunks = [
        SequenceChunk(slot, [9], 0, [2 * slot], kind_of(1), adapter=adapter)
        for slot, adapter in enumerate(adapters)
    ]
    return StepBatch(chunks=chunks, sampling=[[SamplingRow(temperature=0.0)]] * len(chunks))


def tokens_of(runner: ModelRunner, adapters: list[Any]) -> list[int]:
    return [token.token_id for (token,) in runner.execute(step(adapters))]


def test_a_captured_step_stays_right_when_adapters_come_and_go(
    case: SimpleNamespace, runner: ModelRunner, reference: ModelRunner
) -> None:
    backend = runner._backend
    assert not any(key.startswith("low_rank") for key in backend._launcher._loaded)  # type: ignore[attr-defined]
    found = []
    for folder in (case.one, case.two):
        adapter, other = bound(runner, folder), bound(reference, folder)
        found.append(tokens_of(runner, [None, adapter]))
        assert found[-1] == tokens_of(reference, [None, other])
        del adapter
        gc.collect()
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]
    (key,) = (key for key in backend._graphs if key.adapter_tiles)  # type: ignore[attr-defined]
    assert (key.rows, key.adapter_tiles) == (2, 1)


def test_a_matrix_that_takes_no_adapters_is_left_as_it_is(runner: ModelRunner) -> None:
    adapters: Any = runner._backend._model.adapters  # type: ignore[attr-defined]
    launcher = SimpleNamespace(launch=lambda *_: pytest.fail("a kernel was launched"))
    step: Any = SimpleNamespace(launcher=launcher)
    adapters.shrink(step, "layers.0.latent.query", Plain(rows=1, columns=16, values=0))
    sums = Partials(rows=1, columns=16, splits=1, values=0)
    adapters.expand(step, "layers.0.latent.query", Plain(rows=1, columns=16, values=0), sums)


def test_memory_is_free_again_with_the_last_that_holds_an_adapter(
    case: SimpleNamespace, runner: ModelRunner
) -> None:
    free = runner._backend._model.adapters._ranges.num_free  # type: ignore[attr-defined]
    for _ in range(50):
        adapter = bound(runner, case.two)
        assert runner._backend._model.adapters._ranges.num_free < free  # type: ignore[attr-defined]
        del adapter
    assert runner._backend._model.adapters._ranges.num_free == free  # type: ignore[attr-defined]


def test_one_more_than_there_is_room_for_is_refused_and_told_what_to_do(
    case: SimpleNamespace, runner: ModelRunner
) -> None:
    count = 2 * case.room // bound(runner, case.one).size_bytes
    held = [bound(runner, case.one) for _ in range(count)]
    with pytest.raises(LoRAError, match=r"'one' takes 0\.\d* GiB of GPU memory") as raised:
        bound(runner, case.one)
    assert "--lora-gib" in raised.value.hint
    assert len(held) >= 2


def test_numbers_that_are_not_finite_are_refused_and_take_no_memory(
    case: SimpleNamespace, runner: ModelRunner, tmp_path: Path
) -> None:
    ranges = runner._backend._model.adapters._ranges  # type: ignore[attr-defined]
    free = ranges.num_free
    for number, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16)):
        folder = write_adapter(
            tmp_path / str(number), case.spec, dtype=dtype, size=float("inf"), modules=["q_proj"]
        )
        with pytest.raises(LoRAError, match="not finite"):
            bound(runner, folder)
    assert ranges.num_free == free


@pytest.mark.parametrize("bits", [0x7F800000, 0x7F800001, 0x7FFFFFFF, 0xFF800000, 0xFFFFFFFF])
def test_no_number_that_is_not_finite_is_rounded_to_one_that_is(bits: int) -> None:
    matrix = PlainMatrix(
        data=struct.pack("<4I", 0, bits, 0, 0), scheme=Scheme.FP32, rows=1, columns=4
    )
    with pytest.raises(LoRAError, match="not finite"):
        adapter_image._checked(matrix, "one")


def test_large_numbers_are_finite_and_rounded_to_the_nearest(
    case: SimpleNamespace, runner: ModelRunner, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "large", case.spec, modules=["o_proj"], rank=8)
    name = "base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight"
    numbers = torch.randn(8, 128) * 10.0 ** torch.arange(-30, 34, 8)[:, None]
    numbers[0, 0], numbers[1, 1] = 3.3e38, -3.3e38
    edit_tensors(folder, {name: numbers})
    image = bound(runner, folder).unsent.tobytes()
    assert numbers.bfloat16().view(torch.int16).numpy().tobytes() in image


def test_a_model_that_was_loaded_without_room_says_how_to_make_some(case: SimpleNamespace) -> None:
    opened = open_runner(case.path)
    with pytest.raises(UnsupportedModelError, match="no GPU memory is set aside") as raised:
        bound(opened, case.one)
    opened.close()
    assert "--lora-gib" in raised.value.hint


def test_the_largest_adapter_is_one_of_all_parts(case: SimpleNamespace, tmp_path: Path) -> None:
    matrices = matrices_of(case.spec)
    assert [len(one.part_rows) for one in matrices] == [3, 1, 2, 1]
    folder = write_adapter(tmp_path / "largest", case.spec, rank=MOST_RANK)
    whole = read_adapter(folder, "a", places_at_run_time(case.spec), max_rank=MOST_RANK)
    parts = parts_by_record(whole, matrices)
    assert largest_image_bytes(case.spec, MOST_RANK) == image_bytes(parts)
    assert image_bytes([None] * 7) == 256


def test_ranges_that_are_given_back_are_whole_again() -> None:
    ranges = Ranges(10)
    starts = [ranges.take(3) for _ in range(4)]
    assert starts == [0, 3, 6, None]
    ranges.give_back(3, 3)
    assert ranges.take(4) is None
    ranges.give_back(0, 3)
    assert ranges.take(5) == 0
    ranges.give_back(6, 3)
    ranges.give_back(0, 5)
    assert ranges.num_free == ranges.size
    assert ranges.take(10) == 0

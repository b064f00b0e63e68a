"""A step with rows of their own bits is computed in parts, and answered as one."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from any_layers import write_model
from family_shapes import shape_of
from interpreted_runner import open_runner
from model_pairs import ARCHITECTURES, CONFIG_CLASSES

from zse.backends.gpu.parted import MOST_UNREAD, Part, PartedStep, has_single, parts_of
from zse.backends.types import SampledToken, SequenceChunk, StepBatch
from zse.engine.core import EngineCore
from zse.engine.loading import make_core
from zse.engine.request import Request, SamplingParams
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.families import read_checkpoint
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.backends.types import Answers, StepKind
    from zse.models.spec import ModelSpec

PLAIN, MASKED = SamplingRow(temperature=0.0), SamplingRow(temperature=0.0, is_masked=True)


def chunk(slot: int, count: int, kind: StepKind, *, is_alone: bool = True) -> SequenceChunk:
    tokens = range(100 * slot, 100 * slot + count)
    return SequenceChunk(slot, tokens, 7, [0], kind, is_alone=is_alone)


@dataclass
class Masks:
    """Row i is bytes of i."""

    rows: int
    written: int = 0

    def write(self, address: int, row_bytes: int) -> None:
        self.written += 1
        for row in range(self.rows):
            ctypes.memset(address + row * row_bytes, row, row_bytes)


def test_every_token_is_in_one_part_in_its_order_and_has_its_rows() -> None:
    numbers = random.Random(2)
    for _ in range(200):
        chunks, sampling = [], []
        for slot in range(numbers.randint(1, 9)):
            kind: StepKind = numbers.choice(("decode", "verify", "alone"))
            count = 1 if kind == "decode" else numbers.randint(1, 40 if kind == "alone" else 5)
            is_alone = numbers.random() < 0.7
            chunks.append(chunk(slot, count, kind, is_alone=is_alone))
            rows = count if kind == "verify" else numbers.randint(0, count)
            sampling.append([SamplingRow(temperature=0.0, seed=i) for i in range(rows)])
        most = numbers.randint(5, 16)
        parts = parts_of(StepBatch(chunks=chunks, sampling=sampling), most)
        read: dict[int, list[int]] = {}
        rows_of: dict[int, list[SamplingRow]] = {}
        for part in parts:
            assert len(set(part.numbers)) == len(part.numbers)
            for number, piece, rows in zip(
                part.numbers, part.batch.chunks, part.batch.sampling, strict=True
            ):
                own = chunks[number]
                assert piece.is_alone == part.is_alone == own.is_alone
                assert piece.start_position == 7 + len(read.get(number, []))
                read.setdefault(number, []).extend(piece.token_ids)
                rows_of.setdefault(number, []).extend(rows)
            if part.is_alone:
                assert sum(len(piece.token_ids) for piece in part.batch.chunks) <= most
        assert [read[i] for i in range(len(chunks))] == [list(each.token_ids) for each in chunks]
        assert [rows_of[i] for i in range(len(chunks))] == sampling


def test_others_are_computed_together_and_first() -> None:
    chunks = [chunk(0, 1, "decode"), chunk(1, 30, "prefill", is_alone=False), chunk(2, 9, "alone"),
              chunk(3, 1, "decode", is_alone=False), chunk(4, 1, "decode")]  # fmt: skip
    batch = StepBatch(chunks=chunks, sampling=[[PLAIN]] * 5)
    parts = parts_of(batch, 8)
    assert [list(part.numbers) for part in parts] == [[1, 3], [0, 4], [2], [2]]
    assert [part.is_alone for part in parts] == [False, True, True, True]
    assert [part.is_read for part in parts] == [True, True, False, True]
    assert has_single(batch)
    assert not has_single(parts[0].batch)


def test_pieces_have_their_own_rows_of_states_and_are_read_for_them() -> None:
    states, joined = memoryview(bytearray(range(5 * 8))), memoryview(bytes(range(5 * 4)))
    whole = chunk(0, 5, "alone")._replace(states_to=states, joined=joined)
    parts = parts_of(StepBatch(chunks=[whole], sampling=[()]), 2)
    pieces = [part.batch.chunks[0] for part in parts]
    assert [bytes(p.states_to or b"") for p in pieces] == [states[:16], states[16:32], states[32:]]
    assert [bytes(p.joined or b"") for p in pieces] == [joined[:8], joined[8:16], joined[16:]]
    assert all(part.is_read for part in parts)


@dataclass
class Device:
    """Answers each piece with its slot and what it was asked; tells how many wait to be read."""

    unread: int = 0
    most_unread: int = 0
    launched: list[tuple[int, ...]] = field(default_factory=list)
    masks: dict[tuple[int, ...], bytes] = field(default_factory=dict)

    def launch(self, part: Part) -> Launched:
        self.launched.append(tuple(part.numbers))
        self.unread += part.is_read
        self.most_unread = max(self.most_unread, self.unread)
        return Launched(self, part)


@dataclass
class Launched:
    device: Device
    part: Part
    is_sampled: bool = False

    def sample(self) -> None:
        masks = self.part.batch.masks
        if masks is None or self.is_sampled:
            return
        self.is_sampled = True
        rows = sum(row.is_masked for rows in self.part.batch.sampling for row in rows)
        room = (ctypes.c_char * rows)()
        masks.write(ctypes.addressof(room), 1)
        self.device.masks[tuple(self.part.numbers)] = bytes(room)

    def wait(self) -> Answers:
        self.device.unread -= 1
        batch = self.part.batch
        return [
            [SampledToken(1000 * piece.sequence_slot + piece.start_position)] * len(rows)
            for piece, rows in zip(batch.chunks, batch.sampling, strict=True)
        ]


def test_pieces_are_answered_as_the_chunk_they_are_of_and_few_wait_to_be_read() -> None:
    chunks = [chunk(0, 1, "decode", is_alone=False), chunk(1, 20, "alone"), chunk(2, 1, "decode")]
    sampling = [[PLAIN], [PLAIN] * 15, [PLAIN]]
    device = Device()
    parts = parts_of(StepBatch(chunks=chunks, sampling=sampling), 4)
    step = PartedStep(parts, 3, device.launch)
    assert device.launched == [(0,), (2,), (1,), (1,), (1,), (1,), (1,)]
    answers = [[token.token_id for token in tokens] for tokens in step.wait()]
    pieces = [1011] * 3 + [1015] * 4 + [1019] * 4 + [1023] * 4
    assert answers == [[7], pieces, [2007]]
    assert device.most_unread == MOST_UNREAD
    assert device.unread == 0


def test_what_follows_a_part_with_masks_waits_for_them_and_each_has_its_own() -> None:
    chunks = [chunk(0, 1, "decode", is_alone=False), chunk(1, 1, "decode"),
              chunk(2, 2, "verify", is_alone=False), chunk(3, 2, "alone")]  # fmt: skip
    masks, device = Masks(rows=5), Device()
    batch = StepBatch(
        chunks=chunks, sampling=[[MASKED], [MASKED], [MASKED, MASKED], [MASKED]], masks=masks
    )
    step = PartedStep(parts_of(batch, 4), 4, device.launch)
    assert device.launched == [(0, 2)]
    assert masks.written == 0
    step.sample()
    assert device.launched == [(0, 2), (1,), (3,)]
    assert device.masks == {(0, 2): b"\0\2\3", (1,): b"\1", (3,): b"\4"}
    assert masks.written == 1
    assert [len(tokens) for tokens in step.wait()] == [1, 1, 2, 1]


SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 72,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "eos_token_id": None,
}
LATENTS: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
Told = dict[str, list[tuple[int | None, float | None]]]


def request(name: str, length: int, *, is_alone: bool) -> Request:
    params = SamplingParams(
        max_tokens=2, temperature=0.9, seed=length, logprobs=1, deterministic=is_alone
    )
    prompt = [(7 * length + i) % 70 for i in range(length)]
    return Request(request_id=name, prompt_token_ids=prompt, params=params)


def answers_of(
    path: Path, requests: list[Request], spec: ModelSpec | None = None, **options: Any
) -> Told:
    """Answer requests of which one arrives before each step."""
    runner = open_runner(path, spec=spec, max_sequences=3, max_batch_tokens=32, **options)
    core = make_core(runner, load_options(max_sequences=3, max_batch_tokens=32, **options))
    assert isinstance(core, EngineCore)
    waiting, answers = list(requests), Told()
    while core.has_work or waiting:
        if waiting:
            core.add_request(waiting.pop(0))
        for event in core.step():
            answers.setdefault(event.request_id, []).append((event.token_id, event.logprob))
    core.close()
    return answers


@pytest.mark.parametrize("family", ["qwen2", pytest.param("qwen3_moe", marks=pytest.mark.nightly)])
def test_a_request_has_the_bits_of_a_server_that_computes_all_alone(
    family: str, make_pair: Callable[..., Any]
) -> None:
    path = make_pair(family, "int4", **SHAPE).path
    check_bits(path)


@pytest.mark.nightly
def test_a_request_of_a_model_with_latents_has_such_bits(tmp_path: Path) -> None:
    config = CONFIG_CLASSES["deepseek_v3"](**shape_of("deepseek_v3", **LATENTS))
    spec = read_checkpoint(config.to_dict() | {"architectures": [ARCHITECTURES["deepseek_v3"]]})
    path = tmp_path / "model.zse"
    write_model(path, spec, "int8")
    check_bits(path, spec, max_context=64)


def check_bits(path: Path, spec: ModelSpec | None = None, **options: Any) -> None:
    """Compare answers beside others with those of a server that computes all alone."""
    single = [request("a", 11, is_alone=True), request("b", 4, is_alone=True)]
    expected = answers_of(path, single, spec, deterministic=True, **options)
    other = request("other", 5, is_alone=False)
    found = answers_of(path, [single[0], other, single[1]], spec, **options)
    assert len(found.pop("other")) == 2
    assert found == expected

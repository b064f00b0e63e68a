"""A head that guesses as a model of one layer: the formula of the paper, by transformers' layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from guessing_models import ONE_LAYER, make_guessing_model

from zse.backends.types import SequenceChunk, StepBatch
from zse.errors import EngineError, FormatError
from zse.format.reader import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.guess import model_of, stored_guesses
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.runner import ModelRunner

DEVICES: list[dict[str, Any]] = [{"device": "torch"}, {"device": "cpu", "exact_activations": True}]
TOKENS = [5, 9, 60, 7, 9, 5, 33]
ROW = SamplingRow(temperature=0.0, logprobs=5, wants_hidden=True)


def head_runner(reader: ZSEReader, spec: Any, device: dict[str, Any]) -> ModelRunner:
    options = load_options(**device, num_blocks=8, block_size=4, max_sequences=2, threads=1)
    return load_runner(reader, options, spec=model_of(spec, spec.guesses[0]))


def state_bytes(states: torch.Tensor) -> memoryview:
    return memoryview(states.contiguous().numpy().tobytes())


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device["device"])
@pytest.mark.parametrize("family", ONE_LAYER)
def test_a_head_gives_the_log_probabilities_of_the_published_formula(
    family: str, device: dict[str, Any], tmp_path: Path
) -> None:
    model = make_guessing_model(tmp_path, family)
    states = torch.randn(len(TOKENS), model.spec.hidden_size)
    with torch.no_grad():
        embeds = model.joined(TOKENS, states).unsqueeze(0)
        expected = model.reference(tmp_path / "theirs")(inputs_embeds=embeds).logits[0]
    expected = torch.log_softmax(expected, -1)
    with ZSEReader(model.path) as reader:
        runner = head_runner(reader, model.spec, device)
        pieces = [(0, 4, "prefill"), (4, 6, "prefill"), (6, 7, "decode")]  # as drafts come
        for first, end, kind in pieces:
            chunk = SequenceChunk(
                0, TOKENS[first:end], first, [3, 5], kind, joined=state_bytes(states[first:end])
            )
            ((token,),) = runner.execute(StepBatch(chunks=[chunk], sampling=[[ROW]]))
            row = expected[end - 1]
            assert token.token_id == int(row.argmax())
            for token_id, logprob in token.top:
                assert logprob == pytest.approx(float(row[token_id]), abs=2e-3)
        runner.close()


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device["device"])
def test_states_that_a_step_leaves_are_those_that_tokens_are_chosen_from(
    device: dict[str, Any], tmp_path: Path
) -> None:
    """Prompts of more rows than are computed at once, beside a decoded token."""
    model = make_guessing_model(tmp_path, "qwen3_5", max_position_embeddings=400)
    width, prompt = model.spec.hidden_size, [index % 90 for index in range(300)]
    options = load_options(**device, num_blocks=40, block_size=16, max_sequences=3, threads=1)
    runner = load_runner(model.path, options)
    tables = [list(range(20)), list(range(20, 39))]
    first = SequenceChunk(1, [3], 0, tables[1], "decode")
    runner.execute(StepBatch(chunks=[first], sampling=[[]]))
    rooms = [memoryview(bytearray(4 * width * count)) for count in (300, 1)]
    chunks = [
        SequenceChunk(0, prompt, 0, tables[0], "prefill", states_to=rooms[0]),
        SequenceChunk(1, [8], 1, tables[1], "decode", states_to=rooms[1]),
    ]
    answers = runner.execute(StepBatch(chunks=chunks, sampling=[[ROW], [ROW]]))
    for room, answer in zip(rooms, answers, strict=True):
        states = torch.frombuffer(room, dtype=torch.float32).view(-1, width)
        assert states.norm(dim=1).min() > 0
        hidden = torch.tensor(answer[0].hidden)
        assert torch.allclose(states[-1], hidden, rtol=1e-6)
    runner.close()


def test_tokens_without_their_states_are_refused(tmp_path: Path) -> None:
    model = make_guessing_model(tmp_path, "qwen3_5")
    with ZSEReader(model.path) as reader:
        for device in DEVICES:
            runner = head_runner(reader, model.spec, device)
            chunk = SequenceChunk(0, [3, 4], 0, [0], "prefill")
            with pytest.raises(EngineError, match="states"):
                runner.execute(StepBatch(chunks=[chunk], sampling=[[ROW]]))
            runner.close()


def test_a_stored_head_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    model = make_guessing_model(tmp_path, "qwen3_5")
    other = make_guessing_model(tmp_path / "other", "qwen3_5", intermediate_size=64)
    with ZSEReader(model.path) as reader:
        assert stored_guesses(reader.header, model.spec) == model.spec.guesses
        with pytest.raises(FormatError, match=r"mtp\.0\.gate_up\.weight has shape"):
            stored_guesses(reader.header, other.spec)

"""The least memory that a model streams in, from its shape alone."""

from __future__ import annotations

import pytest

from zse.engine.recorded import recorded_facts
from zse.models.memory import estimate_memory
from zse.models.streaming_memory import least_streaming_bytes
from zse.settings import load_settings
from zse.units import GIB


@pytest.mark.parametrize("scheme", ["int4", "bf16"])
def test_a_large_model_streams_in_a_fraction_of_its_memory(scheme):
    facts = recorded_facts("Qwen/Qwen2.5-72B-Instruct", load_settings())
    estimate = estimate_memory(facts, scheme, on_gpu=True)
    least = least_streaming_bytes(facts, estimate)
    layer_bytes = (estimate.weights_bytes - 2 * GIB) / 80
    besides = estimate.total_bytes - estimate.weights_bytes
    assert besides + 2 * layer_bytes < least < estimate.total_bytes / 3


def test_a_model_of_two_layers_takes_what_it_takes():
    facts = recorded_facts("tiny", load_settings())
    estimate = estimate_memory(facts, "int8", on_gpu=True)
    assert 0 < least_streaming_bytes(facts, estimate) <= estimate.total_bytes

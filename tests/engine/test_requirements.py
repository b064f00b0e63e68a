from __future__ import annotations

import pytest
from range_server import serving

from zse.engine.requirements import largest_that_fits, read_facts
from zse.errors import DeviceError, NotFoundError
from zse.format import ZSEReader, convert_model
from zse.models.memory import estimate_memory
from zse.settings import load_settings


@pytest.mark.parametrize("quantization", ["int4", "nf4", "int8", "fp16", "bf16"])
def test_the_estimated_weights_are_those_of_the_converted_file(
    random_checkpoint, tmp_path, quantization
):
    facts = read_facts(random_checkpoint, load_settings())
    convert_model(random_checkpoint, tmp_path / "m.zse", quantization=quantization)
    with ZSEReader(tmp_path / "m.zse") as reader:
        stored = sum(reader.entry(name).length_bytes for name in reader.names())
    estimate = estimate_memory(facts, quantization, on_gpu=True)
    assert estimate.weights_bytes == pytest.approx(stored, rel=0.02)


def test_a_file_is_estimated_at_the_scheme_it_has(random_zse):
    facts = read_facts(random_zse, load_settings())
    estimate = estimate_memory(facts, "int4", on_gpu=False, context_tokens=100)
    assert estimate.quantization == "int8"
    whole_blocks = 4 * 32  # of 32 tokens, for 100
    assert estimate.kv_bytes == whole_blocks * 2 * 2 * 2 * 16 * 2
    on_gpu = estimate_memory(facts, "int4", on_gpu=True, context_tokens=100)
    assert on_gpu.kv_bytes == whole_blocks * 2 * 2 * 2 * 16 * 2
    assert estimate.total_bytes > estimate.weights_bytes + estimate.kv_bytes


def test_the_context_is_cut_to_the_models(random_zse):
    assert (
        estimate_memory(
            read_facts(random_zse, load_settings()), "int8", on_gpu=False
        ).context_tokens
        == 256
    )


def test_the_first_estimate_within_the_budget_is_chosen(random_checkpoint):
    facts = read_facts(random_checkpoint, load_settings())
    estimates = [estimate_memory(facts, name, on_gpu=False) for name in ("bf16", "int8", "int4")]
    assert largest_that_fits(estimates[0].total_bytes, estimates) is estimates[0]
    assert largest_that_fits(estimates[0].total_bytes - 1, estimates) is estimates[1]
    with pytest.raises(DeviceError, match=r"needs 0\.\d+ GB at int4"):
        largest_that_fits(1000, estimates)


def test_an_object_is_known_by_its_header(random_zse, monkeypatch):
    with serving("/models/a.zse", random_zse.read_bytes()) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        assert read_facts("s3://models/a.zse", load_settings()) == read_facts(
            random_zse, load_settings()
        )
    assert len(server.requests) == 1


def test_an_unknown_model_is_not_found(tmp_path):
    with pytest.raises(NotFoundError):
        read_facts(tmp_path / "absent.zse", load_settings())
    with pytest.raises(NotFoundError):
        read_facts(tmp_path / "absent", load_settings())

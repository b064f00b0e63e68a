"""What is counted, by the names that operators know."""

import re

import pytest

from zse.engine.stats import EngineStats
from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.serve.telemetry.families import FAMILIES, VLLM_NAMES
from zse.serve.telemetry.metrics import Metrics, _as_vllm
from zse.serve.telemetry.watch import RequestWatch, Subject, Used
from zse.server_options import ServeOptions, TelemetryOptions


def samples(text):
    """Return the samples of an exposition by name and labels."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


@pytest.fixture
def watch(state):
    subject = Subject(request_id="r", model="m", key_name="anna", arrival=0.0)
    return RequestWatch(state, subject)


def test_a_request_has_a_queue_a_prefill_and_a_decode(state, watch):
    watch.started()
    for _ in range(3):
        watch.piece()
    watch.choice_ended("stop")
    watch.end(Used(prompt_tokens=7, completion_tokens=3, cached_tokens=2), "completed")
    found = samples(state.metrics.render().decode())
    for phase in ("queue", "prefill", "decode"):
        assert found[f'zse_request_{phase}_time_seconds_count{{model="m"}}'] == 1
    assert found['zse_inter_token_latency_seconds_count{model="m"}'] == 2
    assert found['zse_request_time_per_output_token_seconds_count{model="m"}'] == 1
    assert found['zse_request_prompt_tokens_sum{model="m"}'] == 7
    assert found['zse_cached_prompt_tokens_total{model="m"}'] == 2


def test_a_request_that_never_began_was_queued_all_the_time_and_cancelled(state, watch):
    watch.end(Used(prompt_tokens=7, completion_tokens=0, cached_tokens=0), "aborted")
    found = samples(state.metrics.render().decode())
    assert found['zse_request_queue_time_seconds_count{model="m"}'] == 1
    assert 'zse_request_prefill_time_seconds_count{model="m"}' not in found
    assert found['zse_requests_cancelled_total{model="m"}'] == 1
    assert watch.first_token_ms is None


def test_keys_are_told_apart_only_where_that_is_asked_for():
    by_key = ServeOptions(telemetry=TelemetryOptions(metrics_by_key=True))
    state = AppState(ledger=Ledger(), options=by_key)
    RequestWatch(state, Subject(request_id="r", model="m", key_name="anna", arrival=0.0)).end(
        Used(prompt_tokens=1, completion_tokens=0, cached_tokens=0), "completed"
    )
    assert 'zse_prompt_tokens_total{key="anna",model="m"} 1.0' in state.metrics.render().decode()


def test_each_phase_of_the_start_is_in_exactly_one_bucket_and_those_above(state):
    with state.ledger.phase("weights"):
        pass
    found = samples(state.metrics.render().decode())
    buckets = [
        value
        for name, value in found.items()
        if re.fullmatch(r'zse_cold_start_seconds_bucket\{le=".*",phase="weights"\}', name)
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found['zse_cold_start_seconds_count{phase="weights"}'] == 1


def test_with_the_names_of_vllm_each_is_told_under_both(state):
    metrics = Metrics(state, TelemetryOptions(metrics_names="both"))
    metrics.count("prompt_tokens", "m", by=3)
    metrics.observe("first_token", 0.2, "m")
    found = samples(metrics.render().decode())
    assert found['vllm:prompt_tokens_total{model_name="m"}'] == 3
    assert found['vllm:time_to_first_token_seconds_count{model_name="m"}'] == 1
    assert found['zse_prompt_tokens_total{model="m"}'] == 3


def test_without_being_asked_the_names_of_vllm_are_not_told(state):
    assert "vllm:" not in state.metrics.render().decode()


def test_every_name_of_vllm_is_one_of_ours():
    from zse.serve.telemetry.families import COUNTERS, GAUGES, INFOS

    ours = {row.name for row in FAMILIES.values()} | set(GAUGES) | set(COUNTERS) | set(INFOS)
    assert {f"zse_{name}" for name in VLLM_NAMES} <= ours


def test_an_inference_gateway_finds_what_its_endpoint_picker_reads(state, scripted):
    """Names, types and labels of the model server protocol of Kubernetes' inference extension."""
    model = scripted.scripted_model("m")
    model.engine.stats = lambda: EngineStats(
        num_running=2, num_waiting=3, block_size=32, kv_blocks_total=8, kv_blocks_used=2
    )
    entry = state.models.put(model, aliases=())
    entry.adapters = {"b": model, "a": model}
    text = Metrics(state, TelemetryOptions(metrics_names="both")).render().decode()
    found = samples(text)
    assert found['vllm:num_requests_waiting{model_name="m"}'] == 3
    assert found['vllm:num_requests_running{model_name="m"}'] == 2
    assert found['vllm:kv_cache_usage_perc{model_name="m"}'] == 0.25
    shape = 'vllm:cache_config_info{block_size="32",model_name="m",num_gpu_blocks="8"}'
    assert found[shape] == 1
    most = state.options.load.lora.max_loaded
    named = 'running_lora_adapters="a,b",waiting_lora_adapters=""'
    assert found[f'vllm:lora_requests_info{{max_lora="{most}",{named}}}'] > 1e9
    for name in ("num_requests_waiting", "kv_cache_usage_perc", "lora_requests_info"):
        assert f"# TYPE vllm:{name} gauge" in text


def test_what_vllm_has_not_is_not_renamed():
    assert _as_vllm(b'zse_engine_steps_total{model="m"} 1.0\n').strip() == b""


def test_a_timer_from_before_the_library_was_there_counts_all_the_same(state):
    note = state.metrics.timer("token_gap", "m")
    note([0.01])
    state.metrics.warm()
    note([0.01])
    found = samples(state.metrics.render().decode())
    assert found['zse_inter_token_latency_seconds_count{model="m"}'] == 2
    assert found['zse_inter_token_latency_seconds_bucket{le="0.005",model="m"}'] == 0
    assert found['zse_inter_token_latency_seconds_bucket{le="0.01",model="m"}'] == 2
    assert found['zse_inter_token_latency_seconds_bucket{le="1.0",model="m"}'] == 2
    assert found['zse_inter_token_latency_seconds_sum{model="m"}'] == 0.02

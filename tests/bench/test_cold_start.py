"""The cold-start benchmark and what it makes for its peers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import timed_server  # noqa: E402
from model_shapes import CONFIGS  # noqa: E402
from peers.make_hf import checkpoint_bytes, make_hf  # noqa: E402

SETTINGS = CONFIGS["tiny-gqa"]


@pytest.mark.slow
def test_it_reports_phases_decoding_and_peers_that_are_absent() -> None:
    command = [sys.executable, str(BENCH / "cold_start.py"), "tiny", "--repeat", "1"]
    command += ["--peers", "llama-server,nobody", "--llama-server", "absent-server"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    result = json.loads(done.stdout.splitlines()[-1])["models"][0]
    ours = result["zse"]
    assert 0 < ours["live_ms_p50"] < ours["ready_ms_p50"] < ours["first_token_ms_p50"]
    assert {"interpreter", "weights", "ready"} <= set(ours["ledger_end_ms_p50"])
    assert ours["decode_tokens_per_second"] > 0
    assert result["peers"] == {
        "llama-server": {"not_run": "there is no executable absent-server"},
        "nobody": {"not_run": "there is no peer 'nobody'"},
    }


def test_prompts_share_no_prefix_and_stay_in_the_vocabulary() -> None:
    prompts = [timed_server.prompt_ids(128, 2048, variant) for variant in range(10)]
    assert len({prompt[0] for prompt in prompts}) == 10
    assert all(0 <= token < 2048 for prompt in prompts for token in prompt)


def test_the_checkpoint_for_transformers_is_one_that_it_loads(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    make_hf(tmp_path, SETTINGS)
    sizes = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert 0 < sizes - checkpoint_bytes(SETTINGS) < 100_000
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert bool((model.model.norm.weight == 1).all())
    weight = model.model.layers[2].mlp.down_proj.weight.detach().float()
    assert 0.015 < float(weight.std()) < 0.025


def test_the_gguf_file_has_the_models_tensors(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from peers.make_gguf import make_gguf

    make_gguf(tmp_path / "m.gguf", SETTINGS, "q4_k")
    shapes = {t.name: tuple(t.shape) for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert len(shapes) == 3 + 12 * SETTINGS["num_hidden_layers"]
    assert shapes["output.weight"] == (256, 2048)
    assert shapes["blk.1.ffn_down.weight"] == (640, 256)

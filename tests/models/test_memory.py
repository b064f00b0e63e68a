"""A big INT4 model takes little more memory than its file, whatever its KV cache may grow to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from zse.format import Scheme, ZSEWriter
from zse.format.as_torch import bytes_from
from zse.format.layout import PlannedTensor
from zse.format.schemes import parts_for
from zse.models.families import read_header
from zse.models.uniform import UniformDecoder
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from zse.models.weights import WeightSpec

LARGEST_SHARE_OF_FILE = 1.1
NUMBERS = UniformDecoder(
    family="llama",
    vocab_size=8192,
    hidden_size=2048,
    intermediate_size=5632,
    num_layers=14,
    num_heads=16,
    num_kv_heads=4,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=True,
)
CHILD = """
import json, sys
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import load_runner
from zse.options import load_options

def status(name):
    text = open("/proc/self/status").read()
    return int(text.split(name + ":")[1].split()[0]) * 1024

before = status("VmRSS")
runner = load_runner(sys.argv[1], load_options(device="cpu", num_blocks=8192, threads=1))
assert runner.memory_bytes()["kv_cache"] > 7e9
loaded = status("VmRSS")
start = 0
for tokens in ([5, 6, 7, 8], [9], [10]):
    chunk = SequenceChunk(0, tokens, start, range(4), kind_of(len(tokens)))
    row = SamplingRow(temperature=0.0)
    assert len(runner.execute(StepBatch(chunks=[chunk], sampling=[[row]]))[0]) == 1
    start += len(tokens)
print(json.dumps({
    "loaded": loaded - before, "after": status("VmRSS") - before, "peak": status("VmHWM") - before
}))
runner.close()
"""


def planned(tensor: WeightSpec) -> PlannedTensor:
    schemes = {"norm": (Scheme.BF16, 0), "head": (Scheme.INT8, 0), "linear": (Scheme.INT4, 128)}
    scheme, group_size = schemes["linear" if tensor.is_product else tensor.kind]
    return PlannedTensor(name=tensor.name, scheme=scheme, shape=tensor.shape, group_size=group_size)


def part_of(role: str, shape: tuple[int, ...], scheme: Scheme) -> torch.Tensor:
    """Return numbers of a plausible size without quantizing anything."""
    if role == "data":
        return torch.ones(shape, dtype=torch.bfloat16)
    if role == "scale":
        return torch.full(shape, 1e-3)
    if role == "scale_zero":
        pair = torch.tensor([0.01, -0.08], dtype=torch.float16).view(torch.int32)
        return pair.expand(shape).contiguous()
    if scheme is Scheme.INT8:
        return torch.randint(-127, 128, shape, dtype=torch.int8)
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.fixture(scope="module")
def big_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "big.zse"
    spec = read_header(NUMBERS.to_json())
    plan = [(g.name, [planned(tensor) for tensor in g.weights]) for g in spec.groups()]
    with ZSEWriter(path, architecture="llama", model_config=spec.header, provenance={}) as writer:
        writer.plan(plan)
        for _, tensors in plan:
            for tensor in tensors:
                for role, _, shape in parts_for(tensor.scheme, tensor.shape, tensor.group_size):
                    part = part_of(role, shape, tensor.scheme)
                    writer.write_part(tensor.name, role, bytes_from(part))
        writer.close()
    return path


@pytest.mark.slow
def test_resident_memory_is_near_the_file_while_a_large_kv_cache_is_unused(big_file: Path) -> None:
    size = big_file.stat().st_size
    assert size > 300_000_000
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(big_file)],
        env=subprocess_environment(OMP_NUM_THREADS="1"),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    growth = json.loads(child.stdout)
    shares = {name: value / size for name, value in growth.items()}
    assert max(shares.values()) < LARGEST_SHARE_OF_FILE, shares
    big_file.unlink()

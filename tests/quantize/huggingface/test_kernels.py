"""Our kernels under transformers' layers: in the interpreter here, on the GPU where there is one."""

from __future__ import annotations

import pytest

from interpreted import InterpretedLauncher  # isort: skip - before anything of triton
import torch

from zse.format.layout import PlannedTensor
from zse.format.schemes import Scheme, parts_for
from zse.format.spec import TensorEntry, TensorPart
from zse.quantize.huggingface.kernels import TorchLinearKernels
from zse.quantize.huggingface.layers import StoredMatrix, ZSELinear
from zse.quantize.huggingface.load import load_zse_model
from zse.quantize.scheme import quantize_rows

CPU = torch.device("cpu")


def stored(scheme: str, rows: int, columns: int, group_size: int = 0) -> StoredMatrix:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(rows, columns, generator=generator) * 0.05
    planned = PlannedTensor(
        name="w", scheme=Scheme(scheme), shape=(rows, columns), group_size=group_size
    )
    laid_out = tuple(
        TensorPart(role=role, dtype=dtype, shape=shape, offset_bytes=0, length_bytes=0)
        for role, dtype, shape in parts_for(planned.scheme, planned.shape, group_size)
    )
    entry = TensorEntry(
        name="w",
        scheme=planned.scheme,
        shape=planned.shape,
        group_size=group_size,
        parts=laid_out,
    )
    parts = quantize_rows(planned.scheme, values, group_size)
    return StoredMatrix(entry=entry, parts={role: p.contiguous() for role, p in parts.items()})


@pytest.mark.parametrize("rows", [1, 3, 300])
@pytest.mark.parametrize(
    ("scheme", "group_size"),
    [
        ("int4", 128),
        ("int4", 64),
        ("int3", 64),
        ("int2", 32),
        ("nf4", 64),
        ("nl4", 16),
        ("mxfp4", 32),
        ("int8", 0),
        ("bf16", 0),
        ("fp16", 0),
    ],
)
def test_kernels_give_the_product_of_the_stored_weights(
    scheme: str, group_size: int, rows: int
) -> None:
    weight = stored(scheme, 48, 128, group_size)
    inputs = torch.randn(rows, 128, generator=torch.Generator().manual_seed(4))
    kernels = TorchLinearKernels(InterpretedLauncher())
    assert kernels.supports(weight)
    found = kernels.multiply(weight, inputs)
    expected = inputs.bfloat16().float() @ weight.values().t()
    assert found.dtype is torch.float32
    assert float((found - expected).norm() / expected.norm()) < 1e-2


def test_matrix_without_a_kernel_is_left_to_torch() -> None:
    kernels = TorchLinearKernels(InterpretedLauncher())
    layer = ZSELinear(stored("int8", 8, 40), None, device=CPU, kernels=kernels)
    assert not kernels.supports(stored("int8", 8, 40))
    assert layer._kernels is None


@pytest.mark.gpu
@pytest.mark.parametrize("quantization", ["int4", "nf4", "int8", "bf16"])
def test_model_on_the_gpu_gives_the_logits_of_the_cpu(quantization: str, make_file) -> None:
    path = make_file("qwen2", quantization)
    tokens = torch.tensor([[3, 17, 95, 4, 60, 60, 8, 31]])
    on_gpu, _, _ = load_zse_model(path, device="cuda")
    on_cpu, _, _ = load_zse_model(path, device="cpu")
    assert on_gpu.model.layers[0].mlp.up_proj._kernels is not None
    with torch.inference_mode():
        found = on_gpu(tokens.to("cuda")).logits.float().cpu()
        expected = on_cpu(tokens).logits
        output = on_gpu.generate(tokens.to("cuda"), max_new_tokens=4, do_sample=False)
    assert float((found - expected).norm() / expected.norm()) < 3e-2
    assert output.shape[1] > tokens.shape[1]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_bitsandbytes_on_the_gpu_gives_the_logits_of_the_cpu(make_file) -> None:
    pytest.importorskip("bitsandbytes")
    path = make_file("llama", "nf4")
    tokens = torch.tensor([[3, 17, 95, 4, 60, 60, 8, 31]])
    on_gpu, _, _ = load_zse_model(path, backend="bnb", device="cuda")
    on_cpu, _, _ = load_zse_model(path, device="cpu")
    with torch.inference_mode():
        found = on_gpu(tokens.to("cuda")).logits.float().cpu()
        expected = on_cpu(tokens).logits
    assert float((found - expected).norm() / expected.norm()) < 3e-2

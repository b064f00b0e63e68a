"""The norm kernels equal their references, in the interpreter."""

from __future__ import annotations

import pytest
import torch
from interpreted import InterpretedLauncher

from zse.errors import UnsupportedModelError
from zse.kernels.layout import HeadShape, Partials, Plain, Quantized
from zse.kernels.norm import reference
from zse.kernels.norm.launch import PostNorm, heads_norm, residual_norm, sums_norm
from zse.kernels.norm.variants import row_groups_for

EPSILON = 1e-6


class Codes:
    """Room for int8 activations, and what they stand for."""

    def __init__(self, rows: int, columns: int) -> None:
        self.codes = torch.zeros(rows, columns, dtype=torch.int8)
        self.scales = torch.full((rows, columns // 128), -1.0)
        self.sums = torch.full((rows, columns // 128), -1.0)
        self.buffer = Quantized(
            rows=rows,
            columns=columns,
            codes=self.codes.data_ptr(),
            scales=self.scales.data_ptr(),
            sums=self.sums.data_ptr(),
        )

    def check(self, expected: torch.Tensor) -> None:
        codes, scales, _ = reference.quantize(expected)
        torch.testing.assert_close(self.scales, scales, rtol=1e-4, atol=1e-9)
        assert (self.codes.int() - codes.int()).abs().max() <= 1
        assert (self.codes != codes).float().mean() < 0.01
        own_sums = self.scales * self.codes.float().unflatten(-1, (-1, 128)).sum(-1)
        torch.testing.assert_close(self.sums, own_sums, rtol=1e-5, atol=1e-6)


def plain(tensor: torch.Tensor) -> Plain:
    return Plain(rows=tensor.shape[0], columns=tensor.shape[1], values=tensor.data_ptr())


def partials(tensor: torch.Tensor) -> Partials:
    splits, rows, columns = tensor.shape
    return Partials(rows=rows, columns=columns, splits=splits, values=tensor.data_ptr())


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("splits", [0, 1, 3, 5])
@pytest.mark.parametrize("hidden", [128, 640])
def test_quantized_output_and_the_updated_stream_equal_the_reference(
    hidden: int, splits: int
) -> None:
    torch.manual_seed(1)
    stream, weight = torch.randn(3, hidden), torch.randn(hidden)
    added = torch.randn(splits, 3, hidden) if splits else None
    expected_stream, expected = reference.residual_norm(stream, weight, EPSILON, added)
    out = Codes(3, hidden)
    residual_norm(
        InterpretedLauncher(), stream.data_ptr(), 3, hidden, weight.data_ptr(), EPSILON, out.buffer,
        added=None if added is None else partials(added),
    )  # fmt: skip
    torch.testing.assert_close(stream, expected_stream, rtol=1e-6, atol=1e-6)
    out.check(expected)


@pytest.mark.parametrize("hidden", [48, 128, 400])
def test_plain_output_takes_any_multiple_of_sixteen(hidden: int) -> None:
    torch.manual_seed(2)
    stream, weight = torch.randn(2, hidden) * 30, torch.randn(hidden)
    added = torch.randn(2, 2, hidden)
    expected_stream, expected = reference.residual_norm(stream, weight, EPSILON, added)
    out = torch.zeros(2, hidden, dtype=torch.bfloat16)
    residual_norm(
        InterpretedLauncher(), stream.data_ptr(), 2, hidden, weight.data_ptr(), EPSILON,
        plain(out), added=partials(added),
    )  # fmt: skip
    torch.testing.assert_close(stream, expected_stream, rtol=1e-6, atol=1e-6)
    assert relative_error(out, expected) <= reference.TOLERANCE


def test_summands_of_some_rows_of_a_product_are_found() -> None:
    torch.manual_seed(6)
    stream, weight, added = torch.randn(2, 128), torch.randn(128), torch.randn(3, 5, 128)
    expected_stream, expected = reference.residual_norm(stream, weight, EPSILON, added[:, 2:4])
    out = Codes(2, 128)
    residual_norm(
        InterpretedLauncher(), stream.data_ptr(), 2, 128, weight.data_ptr(), EPSILON,
        out.buffer, added=partials(added).part(2, 2),
    )  # fmt: skip
    torch.testing.assert_close(stream, expected_stream, rtol=1e-6, atol=1e-6)
    out.check(expected)


@pytest.mark.parametrize("has_added", [True, False])
def test_gathered_rows_leave_the_stream_alone(has_added: bool) -> None:
    torch.manual_seed(3)
    hidden = 256
    stream, weight, added = torch.randn(5, hidden), torch.randn(hidden), torch.randn(2, 5, hidden)
    before = stream.clone()
    index = torch.tensor([4, 0, 4], dtype=torch.int32)
    _, expected = reference.residual_norm(stream, weight, EPSILON, added if has_added else None)
    out = Codes(3, hidden)
    residual_norm(
        InterpretedLauncher(), stream.data_ptr(), 3, hidden, weight.data_ptr(), EPSILON, out.buffer,
        added=partials(added) if has_added else None, row_index_address=index.data_ptr(),
    )  # fmt: skip
    assert torch.equal(stream, before)
    out.check(expected[index])


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("is_layer_norm", [True, False])
@pytest.mark.parametrize("has_biases", [True, False])
def test_biases_factors_and_layer_norm_equal_the_reference(
    has_biases: bool, is_layer_norm: bool, quantized: bool
) -> None:
    torch.manual_seed(7)
    hidden = 384
    stream, weight = torch.randn(2, hidden) + 3, torch.randn(hidden)
    added, added_bias, norm_bias = torch.randn(3, 2, hidden), *torch.randn(2, hidden)
    has_norm_bias = has_biases and is_layer_norm
    expected_stream, expected = reference.residual_norm(
        stream, weight, EPSILON, added, added_bias=added_bias if has_biases else None,
        added_scale=0.22, is_layer_norm=is_layer_norm,
        norm_bias=norm_bias if has_norm_bias else None, output_scale=0.125,
    )  # fmt: skip
    codes, out = Codes(2, hidden), torch.zeros(2, hidden, dtype=torch.bfloat16)
    residual_norm(
        InterpretedLauncher(), stream.data_ptr(), 2, hidden, weight.data_ptr(), EPSILON,
        codes.buffer if quantized else plain(out), added=partials(added),
        added_bias_address=added_bias.data_ptr() if has_biases else 0, added_scale=0.22,
        is_layer_norm=is_layer_norm,
        norm_bias_address=norm_bias.data_ptr() if has_norm_bias else 0, output_scale=0.125,
    )  # fmt: skip
    torch.testing.assert_close(stream, expected_stream, rtol=1e-6, atol=1e-6)
    if quantized:
        codes.check(expected)
    else:
        assert relative_error(out, expected) <= reference.TOLERANCE


def test_a_layer_norm_of_gathered_rows_leaves_the_stream_alone() -> None:
    torch.manual_seed(8)
    stream, weight, added = torch.randn(4, 48), torch.randn(48), torch.randn(2, 4, 48)
    before, index = stream.clone(), torch.tensor([3, 1], dtype=torch.int32)
    _, expected = reference.residual_norm(stream, weight, EPSILON, added, is_layer_norm=True)
    out = torch.zeros(2, 48, dtype=torch.bfloat16)
    residual_norm(
        InterpretedLauncher(), stream.data_ptr(), 2, 48, weight.data_ptr(), EPSILON, plain(out),
        added=partials(added), row_index_address=index.data_ptr(), is_layer_norm=True,
    )  # fmt: skip
    assert torch.equal(stream, before)
    assert relative_error(out, expected[index]) <= reference.TOLERANCE


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("normed", [True, False])
def test_what_is_added_has_a_norm_of_its_own_and_the_stream_a_factor(
    normed: bool, quantized: bool
) -> None:
    torch.manual_seed(9)
    hidden = 256
    stream, weight, post = torch.randn(2, hidden), torch.randn(hidden), torch.randn(hidden)
    added, bias, factor = torch.randn(3, 2, hidden) * 9, torch.randn(hidden), torch.tensor([0.7])
    expected_stream, expected = reference.residual_norm(
        stream, weight if normed else None, EPSILON, added, added_bias=bias, added_scale=0.5,
        post_norm=post, post_epsilon=1e-3, stream_scale=0.7,
    )  # fmt: skip
    codes, out = Codes(2, hidden), torch.zeros(2, hidden, dtype=torch.bfloat16)
    residual_norm(
        InterpretedLauncher(), stream.data_ptr(), 2, hidden, weight.data_ptr() if normed else None,
        EPSILON, codes.buffer if quantized else plain(out), added=partials(added),
        added_bias_address=bias.data_ptr(), added_scale=0.5,
        post=PostNorm(
            address=post.data_ptr(), epsilon=1e-3, stream_scale_address=factor.data_ptr()
        ),
    )  # fmt: skip
    torch.testing.assert_close(stream, expected_stream, rtol=1e-5, atol=1e-5)
    if quantized:
        codes.check(expected)
    else:
        assert relative_error(out, expected) <= reference.TOLERANCE


@pytest.mark.parametrize("has_added", [True, False])
def test_the_stream_itself_is_stored_where_no_norm_is(has_added: bool) -> None:
    torch.manual_seed(10)
    stream, added = torch.randn(3, 128), torch.randn(2, 3, 128)
    expected = stream + added.sum(0) if has_added else stream.clone()
    out = torch.zeros(3, 128, dtype=torch.bfloat16)
    residual_norm(
        InterpretedLauncher(), stream.data_ptr(), 3, 128, None, 0.0, plain(out),
        added=partials(added) if has_added else None,
    )  # fmt: skip
    torch.testing.assert_close(stream, expected, rtol=1e-6, atol=1e-6)
    assert relative_error(out, expected) <= reference.TOLERANCE


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("splits", [1, 3])
def test_all_queries_have_one_norm_and_all_keys_another(splits: int, has_bias: bool) -> None:
    torch.manual_seed(11)
    shape = HeadShape(num_heads=6, kv_heads=2, head_dim=64)
    parts, bias = torch.randn(splits, 3, shape.qkv_columns), torch.randn(shape.qkv_columns)
    q_norm, k_norm = torch.randn(384), torch.randn(128)
    total = parts.sum(0) + (bias if has_bias else 0)
    expected = torch.cat(
        (
            reference.rms_norm(total[:, :384], q_norm, EPSILON),
            reference.rms_norm(total[:, 384:512], k_norm, EPSILON),
            total[:, 512:],
        ),
        1,
    )
    whole = heads_norm(
        InterpretedLauncher(), partials(parts), shape, q_norm_address=q_norm.data_ptr(),
        k_norm_address=k_norm.data_ptr(), epsilon=EPSILON,
        bias_address=bias.data_ptr() if has_bias else 0,
    )  # fmt: skip
    assert (whole.splits, whole.values, whole.split_rows) == (1, parts.data_ptr(), 3)
    torch.testing.assert_close(parts[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("splits", [1, 3])
def test_the_norm_of_a_sum_replaces_its_first_summand(splits: int, has_bias: bool) -> None:
    torch.manual_seed(12)
    parts, bias, weight = torch.randn(splits, 3, 144), torch.randn(144), torch.randn(144)
    others = parts[1:].clone()
    total = parts.sum(0) + (bias if has_bias else 0)
    normed = sums_norm(
        InterpretedLauncher(), partials(parts), weight.data_ptr(), EPSILON,
        bias_address=bias.data_ptr() if has_bias else 0,
    )  # fmt: skip
    assert (normed.splits, normed.values, normed.split_rows) == (1, parts.data_ptr(), 3)
    expected = reference.rms_norm(total, weight, EPSILON)
    torch.testing.assert_close(parts[0], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(parts[1:], others)


def test_a_group_of_zeros_has_codes_of_zero_and_a_scale_of_zero() -> None:
    stream, weight = torch.randn(1, 256), torch.ones(256)
    stream[0, 128:] = 0
    out = Codes(1, 256)
    residual_norm(
        InterpretedLauncher(), stream.data_ptr(), 1, 256, weight.data_ptr(), EPSILON, out.buffer
    )
    assert out.scales[0, 1] == 0
    assert not out.codes[0, 128:].any()


def test_rows_that_no_kernel_takes_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="hidden size 100"):
        row_groups_for(100)
    with pytest.raises(UnsupportedModelError, match="hidden size 32768"):
        row_groups_for(32768)


def test_columns_that_do_not_fill_groups_cannot_be_quantized() -> None:
    buffer = Quantized(rows=1, columns=208, codes=0, scales=0, sums=0)
    with pytest.raises(UnsupportedModelError, match="208 columns"):
        residual_norm(InterpretedLauncher(), 0, 1, 208, 0, EPSILON, buffer)

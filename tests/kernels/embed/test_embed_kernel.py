"""The embedding kernel reads every scheme as the file's own dequantizer does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from interpreted import InterpretedLauncher

from zse.errors import UnsupportedModelError
from zse.format import Scheme
from zse.format.as_torch import dequantize
from zse.kernels.embed.launch import EmbedTable, Placing, embed
from zse.kernels.embed.reference import embed as reference

VOCAB, HIDDEN = 12, 1152
PLAIN = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def stored(scheme: str, group: int) -> dict[str, torch.Tensor]:
    """Return random parts of a table as a file holds them."""
    torch.manual_seed(5)
    if scheme in PLAIN:
        return {"data": torch.randn(VOCAB, HIDDEN).to(PLAIN[scheme])}
    if scheme == "int8":
        codes = torch.randint(-127, 128, (VOCAB, HIDDEN), dtype=torch.int8)
        return {"qweight": codes, "scale": torch.rand(VOCAB)}
    packed = torch.randint(0, 256, (VOCAB, HIDDEN // 2), dtype=torch.uint8)
    shape = (VOCAB, HIDDEN // group)
    if scheme == "nf4":
        return {"qweight": packed, "absmax": (torch.rand(shape) - 0.5).half()}
    pairs = torch.randn(*shape, 2).half()
    return {"qweight": packed, "scale_zero": pairs.view(torch.int32).squeeze(-1)}


@pytest.mark.parametrize(
    ("scheme", "group"),
    [*((name, 0) for name in (*PLAIN, "int8")), ("int4", 128), ("int4", 64), ("nf4", 64)],
)
@pytest.mark.parametrize("scale", [1.0, 12.0])
def test_rows_equal_the_dequantized_table(scheme: str, group: int, scale: float) -> None:
    parts = stored(scheme, group)
    entry = SimpleNamespace(scheme=Scheme(scheme), shape=(VOCAB, HIDDEN), group_size=group)
    weight = dequantize(entry, parts)  # type: ignore[arg-type]
    weights, *scales = parts.values()
    tokens = torch.tensor([3, -1, 11], dtype=torch.int32)
    slots = torch.tensor([0, 2, 0], dtype=torch.int32)
    last_tokens = torch.tensor([9, 9, 7], dtype=torch.int32)
    residual = torch.full((3, HIDDEN), -5.0)
    embed(
        InterpretedLauncher(),
        EmbedTable(
            scheme=scheme, weights=weights.data_ptr(), group_size=group,
            scales=scales[0].data_ptr() if scales else 0,
        ),
        tokens_address=tokens.data_ptr(), slots_address=slots.data_ptr(),
        last_tokens_address=last_tokens.data_ptr(), rows=3, hidden=HIDDEN,
        residual_address=residual.data_ptr(), scale=scale,
    )  # fmt: skip
    expected = reference([3, 7, 11], weight) * scale
    torch.testing.assert_close(residual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tells_types", [True, False])
def test_rows_of_positions_and_of_types_are_added(tells_types: bool) -> None:
    """The first row is a decoded token's, whose position lies apart from those of a prompt."""
    torch.manual_seed(6)
    weight = torch.randn(VOCAB, HIDDEN).half()
    position_rows, type_rows = torch.randn(9, HIDDEN), torch.randn(2, HIDDEN)
    numbers = {
        "tokens": [3, 0, 11], "positions": [6], "prefill_positions": [0, 1], "types": [1, 0, 1]
    }  # fmt: skip
    arrays = {name: torch.tensor(each, dtype=torch.int32) for name, each in numbers.items()}
    residual = torch.full((3, HIDDEN), -5.0)
    placing = Placing(
        position_rows=position_rows.data_ptr(), first_position=2, type_rows=type_rows.data_ptr(),
        decode_rows=1, positions=arrays["positions"].data_ptr(),
        prefill_positions=arrays["prefill_positions"].data_ptr(),
        types=arrays["types"].data_ptr() if tells_types else 0,
    )  # fmt: skip
    embed(
        InterpretedLauncher(), EmbedTable(scheme="fp16", weights=weight.data_ptr()),
        tokens_address=arrays["tokens"].data_ptr(), slots_address=0, last_tokens_address=0, rows=3,
        hidden=HIDDEN, residual_address=residual.data_ptr(), scale=2.0, placing=placing,
    )  # fmt: skip
    expected = 2.0 * weight[[3, 0, 11]].float() + position_rows[[8, 2, 3]]
    expected += type_rows[[1, 0, 1] if tells_types else [0, 0, 0]]
    torch.testing.assert_close(residual, expected, rtol=1e-6, atol=1e-6)


def test_a_table_that_no_kernel_reads_is_refused() -> None:
    table = EmbedTable(scheme="int4", weights=0, group_size=48)
    with pytest.raises(UnsupportedModelError, match="groups of 48"):
        embed(
            InterpretedLauncher(), table, tokens_address=0, slots_address=0, last_tokens_address=0,
            rows=1, hidden=96, residual_address=0,
        )  # fmt: skip

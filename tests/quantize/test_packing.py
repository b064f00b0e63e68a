from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from zse.format.as_torch import unpack_nibbles
from zse.quantize.packing import pack_int4, tree_sum_

GROUPS = st.sampled_from([32, 64, 128])


@given(num_rows=st.integers(1, 4), num_groups=st.integers(1, 3), group=GROUPS, key=st.integers(0))
def test_unpack_undoes_pack(num_rows: int, num_groups: int, group: int, key: int) -> None:
    generator = torch.Generator().manual_seed(key % 2**31)
    codes = torch.randint(
        0, 16, (num_rows, num_groups * group), dtype=torch.uint8, generator=generator
    )
    packed = pack_int4(codes, group)
    assert packed.shape == (num_rows, num_groups * group // 2)
    assert torch.equal(unpack_nibbles(packed, group).reshape(codes.shape), codes)


def test_byte_holds_code_b_low_and_code_b_plus_half_high() -> None:
    codes = torch.arange(64, dtype=torch.uint8).remainder(16).view(1, 64)
    packed = pack_int4(codes, 32)[0]
    for group in range(2):
        for byte in range(16):
            low, high = codes[0, 32 * group + byte], codes[0, 32 * group + 16 + byte]
            assert packed[16 * group + byte] == low + 16 * high


def test_tree_sum_adds_every_row() -> None:
    values = torch.arange(96.0).view(32, 3)
    assert torch.equal(tree_sum_(values.clone()), values.sum(0))

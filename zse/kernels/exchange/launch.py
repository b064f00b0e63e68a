"""How to launch ``exchange``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.exchange.variants import (
    FEW_GROUPS,
    MANY_GROUPS,
    NORM_GROUPS,
    PART_GROUPS,
    SLOT_WORDS,
    TWO_GROUPS,
    rank_gather_variant,
    rank_norm_parts_variant,
    rank_norm_variant,
    rank_sum_in_two_variant,
    rank_sum_variant,
)
from zse.kernels.layout import (
    ACTIVATION_GROUP,
    Partials,
    Quantized,
    activation_addresses,
)
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation
    from zse.kernels.variant import Variant

MAX_RANKS = 8
MAX_PROGRAMS = 128
"""Programs of an exchange at most: all of them must run at once, or they would wait for others of
this GPU that wait for theirs."""
ALL_SENT_BELOW = 3
"""Ranks from which on tiles of many numbers are added up by one rank each. Between two it would
send as many bytes, and wait twice."""
PARTS_ABOVE = 1024
"""Columns above which several programs make a row of few."""
APART_ABOVE, APART_ROWS = 4096, 16
"""Columns above which, and rows up to which, a sum over ranks is a kernel apart from the norm."""
_MOST_COUNT = 2**31 - 1


@record
class Exchange:
    """Where a GPU meets the others: addresses that its kernels can use.

    Of one ``rank`` of ``ranks``; the same kernels are launched by all ranks, in the same order.
    """

    rank: int
    ranks: int
    words: int
    """Address of this GPU's inbox, int32 [programs, 2, ranks, slot_words]: -1 where nothing is."""
    offsets: int
    """Address of int64 [ranks]: words from ``words`` to each rank's inbox."""
    state: int
    """Address of int32 [1 + programs], all 0 at first: whether this GPU has given up, counters."""
    failed: int
    """Address of an int32 of the host that becomes 1 when this GPU gives up waiting."""
    broken: int
    """Address of an int32 of the host that is not 0 when waiting has no sense."""
    slot_words: int
    """A multiple of 16."""
    programs: int
    patience_nanoseconds: int
    """How long a program waits for another GPU's words."""

    @property
    def addresses(self) -> tuple[int, ...]:
        return self.words, self.offsets, self.state, self.failed, self.broken

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.rank, self.ranks, self.slot_words, self.patience_nanoseconds


def slot_words_for(hidden: int) -> int:
    """Return the words of a slot that takes a row of ``hidden`` float32 and every tile."""
    return max(SLOT_WORDS, align_up(hidden, ACTIVATION_GROUP))


def inbox_bytes(ranks: int, programs: int, slot_words: int) -> int:
    return programs * 2 * ranks * slot_words * 4


def state_bytes(programs: int) -> int:
    return (1 + programs) * 4


def takes_norm(hidden: int) -> bool:
    """Whether the sum of a row and its norm can be one kernel."""
    return hidden % 16 == 0 and hidden <= NORM_GROUPS[-1] * ACTIVATION_GROUP


def part_groups(rows: int, hidden: int, programs: int) -> int:
    """Return the groups of which several programs make each row of a norm over ranks, all at once.

    0: one program makes a row. Two H200: 3.5 microseconds instead of 8.9 for a row of 8,192
    columns, 4.5 instead of 9.1 for eight rows, and 3.3 instead of 4.6 for one of 3,584.
    """
    if hidden <= PARTS_ABOVE:
        return 0
    allowed = PART_GROUPS if rows == 1 else PART_GROUPS[1:]
    fitting = (groups for groups in allowed if rows * _num_parts(hidden, groups) <= programs)
    return next(fitting, 0)


def _num_parts(hidden: int, groups: int) -> int:
    return -(-hidden // (groups * ACTIVATION_GROUP))


def sums_apart(rows: int, hidden: int) -> bool:
    """Whether the sum of a few rows, and then their norm, take less time than both at once.

    One program sends a row where both are one kernel, many where the sum is one of its own. Two
    H200: 6.3 microseconds instead of 9.1 for a row of 8,192; 5.0 instead of 4.7 for one of 3,584.
    """
    return hidden > APART_ABOVE and rows <= APART_ROWS


def rank_norm(
    launcher: Launcher,
    exchange: Exchange,
    residual_address: int,
    rows: int,
    hidden: int,
    norm_address: int,
    epsilon: float,
    output: Activation,
    added: Partials,
    *,
    added_bias_address: int = 0,
    row_index_address: int = 0,
    narrow: bool = False,
    groups_of_part: int = 0,
) -> None:
    """Add the pending sums of all ranks to the residual stream, then store its RMSNorm.

    Args:
        residual_address: float32 [T, hidden], the same on all ranks, and so afterwards; changed in
            place where rows are not gathered.
        hidden: ``takes_norm(hidden)``.
        norm_address: float32 [hidden] weight.
        output: Where activations go: int8 codes or bfloat16.
        added: This rank's summands, [splits, T, hidden].
        added_bias_address: float32 [hidden], added to this rank's sum; 0 for none.
        row_index_address: int32 [rows]: row i of the output is made of this row of the stream and
            of ``added``, and nothing is written back; 0 for all rows in place.
        narrow: Ranks' sums are rounded to bfloat16 on their way, which loses up to 2**-8 of each.
            Not with quantized output.
        groups_of_part: What ``part_groups`` says; then ``narrow`` is nothing to it. The same sums,
            whose squares are added up in another order.

    Raises:
        UnsupportedModelError: No kernel takes this row length.
    """
    if not takes_norm(hidden):
        raise UnsupportedModelError(
            f"hidden size {hidden}; the norm over ranks takes multiples of 16 up to "
            f"{NORM_GROUPS[-1] * ACTIVATION_GROUP}"
        )
    scales, sums, outputs = activation_addresses(output)
    quantized, parts = isinstance(output, Quantized), 1
    if groups_of_part:
        form = rank_norm_parts_variant(groups_of_part, quantized=quantized)
        parts = _num_parts(hidden, groups_of_part)
    else:
        form = _norm_form(hidden, quantized=quantized, narrow=narrow)
    launcher.launch(
        form,
        (min(rows, exchange.programs // parts) * parts, 1, 1),
        residual_address,
        added.values,
        row_index_address,
        norm_address,
        added_bias_address,
        outputs,
        scales,
        sums,
        *exchange.addresses,
        hidden,
        added.split_rows,
        added.splits,
        rows,
        int(row_index_address != 0),
        int(added_bias_address != 0),
        *exchange.numbers,
        epsilon,
    )


def _norm_form(hidden: int, *, quantized: bool, narrow: bool) -> Variant:
    needed = -(-hidden // ACTIVATION_GROUP)
    groups = next(groups for groups in NORM_GROUPS if groups >= needed)
    return rank_norm_variant(groups, quantized=quantized, narrow=narrow and not quantized)


def rank_sum(
    launcher: Launcher,
    exchange: Exchange,
    added: Partials,
    *,
    bias_address: int = 0,
    narrow: bool = False,
) -> Partials:
    """Add up what all ranks have, in the order of ranks; the sum replaces the first summand.

    Args:
        added: This rank's summands; columns are a multiple of 16.
        bias_address: float32 [columns], added to this rank's sum; 0 for none.
        narrow: Ranks' sums are rounded to bfloat16 on their way, which loses up to 2**-8 of each;
            from ``ALL_SENT_BELOW`` ranks on the whole sum is, too. For many rows.

    Returns:
        Where the sum is, the same bits on all ranks.

    Raises:
        UnsupportedModelError: Columns or rows are not what the kernel takes.
    """
    count = added.rows * added.columns
    if added.columns % 16 or count > _MOST_COUNT:
        raise UnsupportedModelError(
            f"sums of {added.rows} rows of {added.columns} columns over ranks; the kernels take "
            f"multiples of 16 columns and {_MOST_COUNT} numbers at most"
        )
    in_two = narrow and exchange.ranks >= ALL_SENT_BELOW
    form = rank_sum_in_two_variant() if in_two else rank_sum_variant(narrow=narrow)
    groups = TWO_GROUPS * exchange.ranks if in_two else MANY_GROUPS if narrow else FEW_GROUPS
    tiles = -(-count // (groups * ACTIVATION_GROUP))
    launcher.launch(
        form,
        (min(tiles, exchange.programs), 1, 1),
        added.values,
        bias_address,
        *exchange.addresses,
        count,
        added.columns,
        added.split_rows * added.columns,
        added.splits,
        int(bias_address != 0),
        *exchange.numbers,
    )
    return Partials(
        rows=added.rows,
        columns=added.columns,
        splits=1,
        values=added.values,
        whole_rows=added.whole_rows,
    )


def rank_gather(
    launcher: Launcher,
    exchange: Exchange,
    part_address: int,
    output_address: int,
    *,
    rows: int,
    part_columns: int,
    own_columns: int,
    columns: int,
) -> None:
    """Put rows together of which each rank has a run of columns.

    Args:
        part_address: float32 [rows, own_columns].
        output_address: float32 [rows, columns], the same bits on all ranks.
        part_columns: Columns of every rank but the last ones, which have what is left; a multiple
            of 16. Rank r's begin at r * part_columns.
        own_columns: Columns that this rank has.

    Raises:
        UnsupportedModelError: These are not the columns that a rank has.
    """
    left = columns - exchange.rank * part_columns
    expected = max(0, min(part_columns, left))
    if part_columns % 16 or own_columns != expected or exchange.ranks * part_columns < columns:
        raise UnsupportedModelError(
            f"rank {exchange.rank} of {exchange.ranks} has {own_columns} of {columns} columns in "
            f"parts of {part_columns}; expected {expected}, and parts of a multiple of 16"
        )
    tiles = rows * -(-part_columns // (FEW_GROUPS * ACTIVATION_GROUP))
    launcher.launch(
        rank_gather_variant(),
        (min(tiles, exchange.programs), 1, 1),
        part_address,
        output_address,
        *exchange.addresses,
        rows,
        part_columns,
        own_columns,
        columns,
        *exchange.numbers,
    )

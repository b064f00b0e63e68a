"""How to launch ``delta``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.delta.variants import (
    CHUNK_TOKENS,
    ROW_TOKENS,
    SCAN_COLUMNS,
    check_delta,
    convolve_variant,
    decode_variant,
    finish_variant,
    scan_variant,
    solve_variant,
    verify_variant,
)
from zse.kernels.layout import Quantized, activation_addresses
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from zse.kernels.delta.shape import DeltaShape
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation, Partials

_ALIGNMENT = 256


@record
class DeltaStates:
    """Addresses of the states of a layer's sequences, float32."""

    rings: int
    """[slots, width, channels]: what was projected for the last tokens of a sequence, that of
    position p in line p % width."""
    matrices: int
    """[slots, value_heads, key_dim, value_dim]."""


@record
class DeltaVectors:
    """Addresses of a layer's weights that are no matrices, float32."""

    convolution: int
    """[channels, width]."""
    decay: int
    """[value_heads]."""
    step_bias: int
    """[value_heads]."""
    norm: int
    """[value_dim]."""
    epsilon: float


@record
class DeltaRuns:
    """The new tokens of several sequences, one run each: addresses of int32 [count]."""

    count: int
    longest: int
    """Tokens of the longest run."""
    first_rows: int
    num_rows: int
    first_positions: int
    """A run that starts at 0 starts from an empty state, whatever its slot holds."""
    slots: int

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        return self.first_rows, self.num_rows, self.first_positions, self.slots


def prefill_workspace_bytes(rows: int, shape: DeltaShape) -> int:
    """Return the bytes that ``delta_prefill`` needs besides its operands."""
    return sum(_parts(rows, shape))


def delta_decode(
    launcher: Launcher,
    shape: DeltaShape,
    inputs: Partials,
    gates: Partials,
    layer: DeltaVectors,
    states: DeltaStates,
    output: Activation,
    *,
    positions_address: int,
    slots_address: int,
    runs_address: int = 0,
) -> None:
    """Compute one token of each row's sequence, and move its state on.

    With ``runs_address`` rows may follow each other in a sequence, as tokens that may turn out to
    be wrong: each leaves the state behind it in its row's slot.

    Args:
        inputs: Summands, [rows, shape.input_columns]: queries, keys, values, gates of the output.
        gates: Summands, [rows, 2 * value_heads]: steps, then decays.
        output: Where [rows, value columns] go; int8 where a head fills whole groups.
        positions_address: int32 [rows]; a token at 0 starts from an empty state.
        slots_address: int32 [rows], distinct but for rows that nobody reads.
        runs_address: int32 [rows], how many rows of a sequence begin here: 0 behind its first.

    Raises:
        UnsupportedModelError: No kernel takes heads of this width.
    """
    check_delta(shape.key_dim, shape.value_dim, shape.convolution_width)
    scales, sums, outputs = activation_addresses(output)
    variant_of = verify_variant if runs_address else decode_variant
    rows = (positions_address, slots_address, *((runs_address,) if runs_address else ()))
    launcher.launch(
        variant_of(shape.value_dim, quantized=isinstance(output, Quantized)),
        (inputs.rows, shape.num_value_heads, 1),
        *(inputs.values, gates.values),
        *(layer.convolution, layer.decay, layer.step_bias, layer.norm),
        *(*rows, states.rings, states.matrices),
        *(outputs, scales, sums),
        *(inputs.split_rows, inputs.splits, gates.split_rows, gates.splits),
        *(shape.num_key_heads, shape.num_value_heads, layer.epsilon),
    )


def delta_prefill(
    launcher: Launcher,
    shape: DeltaShape,
    inputs: Partials,
    gates: Partials,
    layer: DeltaVectors,
    states: DeltaStates,
    runs: DeltaRuns,
    *,
    workspace_address: int,
    outputs_address: int,
) -> None:
    """Compute all tokens of some runs, and move their sequences' states on.

    Args:
        inputs: As in ``delta_decode``; row 0 is the first run's first.
        gates: Likewise.
        workspace_address: ``prefill_workspace_bytes`` bytes.
        outputs_address: Where bfloat16 [rows, value columns] go.

    Raises:
        UnsupportedModelError: No kernel takes heads of this width.
    """
    check_delta(shape.key_dim, shape.value_dim, shape.convolution_width)
    dim, value_heads = shape.value_dim, shape.num_value_heads
    convolved_bytes, keys_bytes, _ = _parts(inputs.rows, shape)
    convolved = workspace_address
    wanted = (convolved + convolved_bytes, convolved + convolved_bytes + keys_bytes)
    heads = (shape.num_key_heads, value_heads)
    input_numbers, gate_numbers = (
        (inputs.split_rows, inputs.splits),
        (gates.split_rows, gates.splits),
    )
    rates = (gates.values, layer.decay, layer.step_bias)
    extents = (runs.first_rows, runs.num_rows)
    every_head = 2 * shape.num_key_heads + value_heads
    row_tiles, chunks = -(-runs.longest // ROW_TOKENS), -(-runs.longest // CHUNK_TOKENS)
    launcher.launch(
        convolve_variant(dim),
        (row_tiles, runs.count, every_head),
        *(inputs.values, layer.convolution, states.rings, *runs.addresses, convolved),
        *(*input_numbers, *heads),
    )
    launcher.launch(
        solve_variant(dim),
        (chunks, runs.count, value_heads),
        *(convolved, *rates, *extents, *wanted, *gate_numbers, *heads),
    )
    launcher.launch(
        scan_variant(dim),
        (dim // SCAN_COLUMNS, value_heads, runs.count),
        *(convolved, *rates, *runs.addresses, *wanted, states.matrices, *gate_numbers, *heads),
    )
    launcher.launch(
        finish_variant(dim),
        (row_tiles, runs.count, every_head),
        *(inputs.values, wanted[1], layer.norm, *runs.addresses, states.rings, outputs_address),
        *(*input_numbers, *heads, layer.epsilon),
    )


def _parts(rows: int, shape: DeltaShape) -> tuple[int, int, int]:
    """Return the bytes of convolved channels, and of each chunk's keys and values, in 16 bits."""
    columns = (shape.channels, shape.num_value_heads * shape.key_dim, shape.value_columns)
    first, second, third = (align_up(2 * rows * count, _ALIGNMENT) for count in columns)
    return first, second, third

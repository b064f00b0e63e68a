"""How to launch products of 8-bit numbers, for many tokens. Neither torch nor triton is needed."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.layout import Turned
from zse.kernels.linear.definitions import MATMUL_8BIT_APART
from zse.kernels.linear.plan import tile_of
from zse.kernels.linear.variants import (
    FEW_TOKENS,
    TURNED_BLOCKS,
    TURNED_COLUMNS,
    matmul_8bit_apart,
    matmul_8bit_deep,
    matmul_8bit_few,
    matmul_8bit_forms,
    matmul_8bit_split,
    turn,
    turn_tokens,
)
from zse.kernels.linear.weight import EVEN_ROWS, GROUPED_SCHEMES, SCALE_BYTES
from zse.units import align_up

if TYPE_CHECKING:
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Grid
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Plain
    from zse.kernels.linear.weight import LinearWeight
    from zse.kernels.variant import Variant

MOST_CHUNKS = 32
"""Most programs that share a row of the matrix while it is turned."""
TOKENS_AT_ONCE = (3, 5)
"""Programs that turn tokens on one multiprocessor, of tokens in parts and of whole ones: as many as
have registers and shared memory."""
PROGRAMS_OF_SPLITS, MOST_SPLITS, LEAST_STEPS = 2, 8, 6
"""Programs on a multiprocessor that splits make up for; most splits; least steps of a split."""
STAYING_ROUNDS = 1.6
"""Time of a tile of programs that stay in tiles of others, of half its rows, which come in no
rounds: one fills the gaps of the others. On an H200."""
TILE_TOKENS, HALF_TILE, WIDE_COLUMNS = 128, 64, 8192
"""Tokens of a tile, and of half of one; columns of a row from which on wide tiles of a matrix are
split."""
_ALIGNMENT = 256


def takes_8bit(weight: LinearWeight) -> bool:
    """Whether a matrix can be turned and multiplied in 8 bits; those of 16 bits stay what they are.

    Also those whose rows are not whole vectors, or too long.
    """
    is_stored = weight.scheme in GROUPED_SCHEMES or weight.scheme == "int8"
    is_whole = weight.columns % TURNED_COLUMNS == 0 and weight.rows % EVEN_ROWS == 0
    return is_stored and is_whole and _chunks(weight) <= MOST_CHUNKS


def turned_bytes(rows: int, columns: int) -> int:
    """Return the bytes of ``Turned`` activations."""
    return align_up(rows * columns, _ALIGNMENT) + align_up(rows * 4, _ALIGNMENT)


def turned_at(address: int, rows: int, columns: int) -> Turned:
    """Return activations that lie at an address, ``turned_bytes`` of them."""
    scales = address + align_up(rows * columns, _ALIGNMENT)
    return Turned(rows=rows, columns=columns, codes=address, scales=scales)


def turn_activations(launcher: Launcher, inputs: Plain, output: Turned) -> None:
    """Write 16-bit activations as ``Turned`` ones.

    Args:
        inputs: bfloat16 [rows, columns].
        output: Columns are a multiple of 128.
    """
    form = turn_tokens(inputs.columns)
    programs = launcher.device.multiprocessors * TOKENS_AT_ONCE[bool(dict(form.constants)["WHOLE"])]
    launcher.launch(
        form,
        (min(inputs.rows, programs), 1, 1),
        inputs.values,
        output.codes,
        output.scales,
        inputs.rows,
        output.columns // TURNED_COLUMNS,
    )


def maxima_bytes(weight: LinearWeight) -> int:
    """Return the bytes of what ``find_row_maxima`` writes."""
    return weight.rows * _chunks(weight) * 4


def find_row_maxima(launcher: Launcher, weight: LinearWeight, maxima_address: int) -> None:
    """Write the largest numbers of the turned rows of a matrix that ``takes_8bit``."""
    _find_row_maxima(launcher, weight, 0, weight.rows, maxima_address)


def turn_matrix(
    launcher: Launcher, weight: LinearWeight, maxima_address: int, output: Turned
) -> None:
    """Write all turned rows of a matrix that ``takes_8bit``, for ``linear_8bit`` to read as often.

    Args:
        maxima_address: What ``find_row_maxima`` wrote for the matrix.
        output: Its rows and columns.
    """
    _turn_rows(launcher, weight, 0, weight.rows, maxima_address, output.codes, output.scales)


def linear_8bit(
    launcher: Launcher,
    weight: LinearWeight,
    inputs: Turned,
    outputs_address: int,
    output_type: str,
    *,
    maxima_address: int,
    scratch_address: int,
    scratch_bytes: int,
    kept: Turned | None = None,
) -> None:
    """Multiply many tokens with a matrix [N, K] that ``takes_8bit``, a slab of its rows at a time.

    Args:
        inputs: Activations [T, K].
        outputs_address: Where [T, N] goes.
        output_type: ``fp32`` or ``bf16``.
        maxima_address: What ``find_row_maxima`` wrote for the matrix; 0 finds them now.
        scratch_address: Where turned rows of the matrix may lie.
        scratch_bytes: Bytes there.
        kept: What ``turn_matrix`` wrote; None turns the matrix now, by way of the scratch.

    Raises:
        UnsupportedModelError: The scratch holds too few rows of the matrix.
    """
    if kept is not None:
        multiply_kept(launcher, weight, inputs, outputs_address, output_type, kept=kept)
        return
    form, slab = _cut(launcher, weight, inputs.rows, output_type, scratch_bytes)
    element_bytes = 4 if output_type == "fp32" else 2
    for first in range(0, weight.rows, slab):
        rows = min(slab, weight.rows - first)
        scales = scratch_address + align_up(rows * weight.columns, _ALIGNMENT)
        if maxima_address:
            maxima = maxima_address + first * _chunks(weight) * 4
        else:
            maxima = scales + align_up(rows * 4, _ALIGNMENT)
            _find_row_maxima(launcher, weight, first, rows, maxima)
        _turn_rows(launcher, weight, first, rows, maxima, scratch_address, scales)
        turned = Turned(rows=rows, columns=weight.columns, codes=scratch_address, scales=scales)
        at = outputs_address + first * element_bytes
        _launch_product(launcher, form, weight, inputs, turned, at, rows)


def multiply_kept(
    launcher: Launcher,
    weight: LinearWeight,
    inputs: Turned,
    outputs_address: int,
    output_type: str,
    *,
    kept: Turned,
) -> None:
    """Do what ``linear_8bit`` does with a matrix that is kept turned, which needs no scratch."""
    form = _form_for(launcher, weight.rows, inputs.rows, output_type)
    _launch_product(launcher, form, weight, inputs, kept, outputs_address, weight.rows)


def linear_8bit_split(
    launcher: Launcher,
    weight: LinearWeight,
    inputs: Turned,
    outputs_address: int,
    output_type: str,
    *,
    kept: Turned,
    splits: int,
) -> None:
    """Multiply fewer tokens with a matrix [N, K] that is kept turned.

    Args:
        inputs: Activations [T, K].
        outputs_address: Where [splits, T, N] goes.
        output_type: ``fp32``, or ``bf16`` of one split.
        kept: What ``turn_matrix`` wrote.
        splits: ``splits_of_turned``, or one.
    """
    shape = (weight.rows, weight.columns, inputs.rows)
    form, _ = _form_of_splits(output_type, *shape, launcher.device)
    _launch_product(
        launcher, form, weight, inputs, kept, outputs_address, weight.rows, splits=splits
    )


def linear_8bit_alike(
    launcher: Launcher,
    weight: LinearWeight,
    inputs: Turned,
    outputs_address: int,
    output_type: str,
    *,
    kept: Turned,
    splits: int,
) -> None:
    """Multiply any number of tokens with a matrix [N, K] that is kept turned.

    The bits of a token depend on no number of tokens: sums of integers are exact, and each split
    is scaled and then added in one order. Only the splits may not follow the tokens; the form may.

    Args:
        inputs: Activations [T, K].
        outputs_address: Where [splits, T, N] goes.
        output_type: ``fp32``, or ``bf16`` of one split.
        kept: What ``turn_matrix`` wrote.
        splits: The same for every number of tokens.
    """
    form = _form_alike(output_type, weight.rows, inputs.rows, splits, launcher.device)
    _launch_product(
        launcher, form, weight, inputs, kept, outputs_address, weight.rows, splits=splits
    )


@lru_cache(maxsize=1024)  # as for ``_quickest``
def _form_alike(
    output_type: str, rows: int, tokens: int, splits: int, device: DeviceFacts
) -> Variant:
    """Return the form whose tiles of a matrix end first, where each is shared by so many programs.

    Tokens of a tile that are not there take longer to fetch than others, so fewer of them have a
    small tile or one that fetches more of the matrix beside them: down of a 7B for one token takes
    66 us by the usual tiles, 30 by wide ones and 22 by small ones, on an H200. Of two tiles of
    tokens programs are few enough to have a multiprocessor each, or none has one.
    """
    apart = device.target in MATMUL_8BIT_APART.targets
    if tokens <= FEW_TOKENS and output_type == "fp32":
        return matmul_8bit_few()
    if tokens <= HALF_TILE and apart:
        return matmul_8bit_apart(output_type)
    usual = matmul_8bit_split(output_type, tokens)
    if tokens <= TILE_TOKENS:
        return usual
    deep = matmul_8bit_deep()
    is_alone = _tiles(deep, rows, tokens) * splits <= device.multiprocessors
    if output_type == "fp32" and is_alone and deep.suits(device.target):
        return deep
    forms, processors = matmul_8bit_forms(output_type, apart=apart), device.multiprocessors
    return min(forms, key=lambda form: _rounds_of(form, rows, tokens, processors, splits))


def splits_of_turned(rows: int, columns: int, tokens: int, device: DeviceFacts) -> int:
    """Return how many programs share a tile of a matrix of few rows, for fewer tokens."""
    _, splits = _form_of_splits("fp32", rows, columns, tokens, device)
    return splits


@lru_cache(maxsize=1024)  # as for ``_quickest``
def _form_of_splits(
    output_type: str, rows: int, columns: int, tokens: int, device: DeviceFacts
) -> tuple[Variant, int]:
    """Return the form whose programs share tiles of a matrix, for fewer tokens, and how many do.

    Two tiles of tokens have two more forms, of programs that have a multiprocessor for themselves.
    Where rows are long enough to split, wide tiles of the matrix read the tokens half as often:
    35 us for 39 with down of a 7B for 256 tokens, on an H200. Else more steps are on their way with
    half the splits, where as many multiprocessors are busy: 12.7 us for 13.3 with o.
    """
    most = min(MOST_SPLITS, columns // TURNED_COLUMNS // LEAST_STEPS)

    def splits_of(form: Variant, programs: int) -> int:
        return max(1, min(most, programs * device.multiprocessors // _tiles(form, rows, tokens)))

    usual = matmul_8bit_split(output_type, tokens)
    splits = splits_of(usual, PROGRAMS_OF_SPLITS)
    deep = matmul_8bit_deep()
    if output_type != "fp32" or tokens <= TILE_TOKENS or not deep.suits(device.target):
        return usual, splits
    if columns >= WIDE_COLUMNS:
        wide = matmul_8bit_apart(output_type)
        return wide, splits_of(wide, 1)
    fewer = splits_of(deep, 1)
    return (deep, fewer) if fewer * PROGRAMS_OF_SPLITS >= splits > 1 else (usual, splits)


def _tiles(form: Variant, rows: int, tokens: int) -> int:
    tile_rows, tile_tokens = tile_of(form)
    return -(-rows // tile_rows) * -(-tokens // tile_tokens)


def _launch_product(
    launcher: Launcher,
    form: Variant,
    weight: LinearWeight,
    inputs: Turned,
    turned: Turned,
    outputs_address: int,
    rows: int,
    *,
    splits: int = 1,
) -> None:
    """Multiply with some turned rows of a matrix."""
    tile_rows, tile_tokens = tile_of(form)
    programs = -(-inputs.rows // tile_tokens) * -(-rows // tile_rows)
    if form.kernel is MATMUL_8BIT_APART:
        programs = min(programs, launcher.device.multiprocessors)
    launcher.launch(
        form,
        (programs, splits, 1),
        inputs.codes,
        inputs.scales,
        turned.codes,
        turned.scales,
        outputs_address,
        inputs.rows,
        rows // EVEN_ROWS,
        weight.columns // TURNED_COLUMNS,
        weight.rows // EVEN_ROWS,
    )


def _cut(
    launcher: Launcher, weight: LinearWeight, tokens: int, output_type: str, scratch_bytes: int
) -> tuple[Variant, int]:
    """Return the form of the product, and how many rows of the matrix it takes at a time.

    As few slabs as fit, all but the last alike.
    """
    widest = tile_of(matmul_8bit_split(output_type))[0]
    fitting = (scratch_bytes - 2 * _ALIGNMENT) // (weight.columns + 4 + 4 * _chunks(weight))
    if fitting < min(weight.rows, widest):
        raise UnsupportedModelError(
            f"the scratch of {scratch_bytes} bytes holds {fitting} turned rows of "
            f"{weight.columns} columns, expected at least {widest}"
        )
    slabs = 1 if fitting >= weight.rows else -(-weight.rows // (fitting // widest * widest))
    slab = align_up(-(-weight.rows // slabs), widest)
    return _form_for(launcher, min(slab, weight.rows), tokens, output_type), slab


def _form_for(launcher: Launcher, rows: int, tokens: int, output_type: str) -> Variant:
    """Return the form whose tiles of so many rows of a matrix end first."""
    apart = launcher.device.target in MATMUL_8BIT_APART.targets
    return _quickest(output_type, rows, tokens, launcher.device.multiprocessors, apart)


@lru_cache(maxsize=1024)  # a step asks for each of its few shapes in every layer
def _quickest(output_type: str, rows: int, tokens: int, processors: int, apart: bool) -> Variant:
    forms = matmul_8bit_forms(output_type, apart=apart)
    return min(forms, key=lambda form: _rounds_of(form, rows, tokens, processors))


def _rounds_of(form: Variant, rows: int, tokens: int, processors: int, splits: int = 1) -> float:
    """Return how long a form takes, in times of a tile of the form without rounds."""
    tiles = _tiles(form, rows, tokens) * splits
    if form.kernel is MATMUL_8BIT_APART:
        return -(-tiles // processors) * STAYING_ROUNDS
    return tiles / processors


def relative_time(rows: int, columns: int, tokens: int, device: DeviceFacts) -> float:
    """Return how long a product with a matrix [N, K] takes beside other ones on a device."""
    apart = device.target in MATMUL_8BIT_APART.targets
    form = _quickest("bf16", rows, tokens, device.multiprocessors, apart)
    return _rounds_of(form, rows, tokens, device.multiprocessors) * columns


def _find_row_maxima(
    launcher: Launcher, weight: LinearWeight, first: int, rows: int, maxima: int
) -> None:
    find, _ = turn(weight.scheme, weight.group_size)
    blocks = weight.columns // TURNED_COLUMNS
    launcher.launch(find, _grid(find, weight, rows), *_stored(weight, first), maxima, rows, blocks)


def _turn_rows(
    launcher: Launcher,
    weight: LinearWeight,
    first: int,
    rows: int,
    maxima: int,
    codes: int,
    scales: int,
) -> None:
    """Write turned rows of the matrix, and their scales, by their ``maxima``."""
    _, write = turn(weight.scheme, weight.group_size)
    blocks = weight.columns // TURNED_COLUMNS
    stored = _stored(weight, first)
    launcher.launch(write, _grid(write, weight, rows), *stored, maxima, codes, scales, rows, blocks)


def _stored(weight: LinearWeight, first: int) -> tuple[int, int]:
    """Return the addresses of a row's codes and scales."""
    scale_bytes = 4
    if weight.scheme in GROUPED_SCHEMES:
        scale_bytes = SCALE_BYTES[weight.scheme] * (weight.columns // weight.group_size)
    return weight.weights + first * weight.row_bytes, weight.scales + first * scale_bytes


def _grid(form: Variant, weight: LinearWeight, rows: int) -> Grid:
    return (_chunks(weight), -(-rows // int(dict(form.constants)["BN"])), 1)


def _chunks(weight: LinearWeight) -> int:
    """Return the programs that share a row while it is turned."""
    return -(-weight.columns // (TURNED_COLUMNS * TURNED_BLOCKS))

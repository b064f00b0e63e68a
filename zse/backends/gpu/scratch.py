"""Memory that lives within one step, at addresses that depend on the step's shape alone.

A pass needs few buffers, because kernels of one stream run in order: the activations that a matrix
reads, the sums it writes, and the residual stream. A captured step has these addresses inside it,
so the block is one range of addresses that grows in place and never moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.layout import ACTIVATION_GROUP, Plain, Quantized, Turned
from zse.kernels.linear.closed import Begun
from zse.kernels.linear.launch_8bit import turned_at, turned_bytes
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.device.gpu import Pool

BATCH_ROWS = 256
"""Rows above which weights are widened once and multiplied as 16-bit matrices."""
_ALIGNMENT = 256


@record
class MixtureBytes:
    """What mixtures of experts need of a step's buffers; a model without any needs nothing."""

    activations: int = 0
    sums: int = 0
    routing: int = 0
    beside: int = 0


@record
class ScratchSizes:
    """Bytes of each buffer of a step."""

    residual: int
    activations: int
    """16-bit activations, or int8 ones with their scales and sums."""
    sums: int
    """What matrices write: split sums, or the wide result of gate and up in 16 bits."""
    told: int
    """What every layer is told of each row, float32."""
    query: int
    """Rotated queries of prefill rows."""
    context: int
    """Keys and values of one layer as lines, of the sequences of prefill rows."""
    attention: int
    """What the splits of one sequence exchange."""
    low_rank: int
    """What the first matrices of adapters make."""
    gates: int
    """Steps and decays of linear attention."""
    delta: int
    """What its kernels hand on to each other."""
    weights: int
    """Weights for prefill, widened to 16 bits; or turned, and the activations likewise."""
    experts: int
    """Which experts each row goes through, and what a shared one of another width makes."""
    beside: int
    """What a dense MLP adds beside experts, and behind it what they do."""
    logits: int
    own_logits: int
    """Those that this rank computes, if it is one of several."""
    masks: int
    """Which tokens may come, a bit each."""
    sampling: int
    given: int
    """States that come with a step's tokens, float32."""
    left: int
    """States of all tokens of a step, normed, in 16 bits."""
    begun: int = 0
    """A norm that a product has begun: int8 activations, and sums of squares."""

    def offsets(self) -> tuple[Mapping[str, int], int]:
        """Return the offset of each buffer, and the bytes of all together."""
        offsets: dict[str, int] = {}
        offset = 0
        for name in self.__dataclass_fields__:
            offsets[name] = offset
            offset += align_up(getattr(self, name), _ALIGNMENT)
        return offsets, offset


class Scratch:
    """The buffers of one step, one after the other in a pool that is grown if it is too small."""

    def __init__(self, pool: Pool, sizes: ScratchSizes) -> None:
        offsets, total = sizes.offsets()
        pool.grow(total)
        address = pool.address
        self.residual = address + offsets["residual"]
        self.activations = address + offsets["activations"]
        self.sums = address + offsets["sums"]
        self.told = address + offsets["told"]
        self.query = address + offsets["query"]
        self.context = address + offsets["context"]
        self.attention = address + offsets["attention"]
        self.low_rank = address + offsets["low_rank"]
        self.gates = address + offsets["gates"]
        self.delta = address + offsets["delta"]
        self.weights = address + offsets["weights"]
        self.weights_bytes = sizes.weights
        self.experts = address + offsets["experts"]
        self.beside = address + offsets["beside"]
        self.logits = address + offsets["logits"]
        self.own_logits = address + offsets["own_logits"]
        self.masks = address + offsets["masks"]
        self.sampling = address + offsets["sampling"]
        self.given = address + offsets["given"]
        self.left = address + offsets["left"]
        self._begun = address + offsets["begun"]

    def plain(self, rows: int, columns: int, *, first_row: int = 0) -> Plain:
        """Return the activations as bfloat16 [rows, columns], from ``first_row`` on."""
        return Plain(rows=rows, columns=columns, values=self.activations + first_row * columns * 2)

    def quantized(self, rows: int, columns: int) -> Quantized:
        """Return the activations as int8 [rows, columns] with scales and sums."""
        return _quantized_at(self.activations, rows, columns)

    def begun(self, rows: int, columns: int, epsilon: float) -> Begun:
        """Return a norm that a product begins; it lies beside what the product reads."""
        inputs = _quantized_at(self._begun, rows, columns)
        squares = inputs.sums + _scale_bytes(rows, columns)
        return Begun(inputs=inputs, squares=squares, epsilon=epsilon)

    def turned(self, rows: int, columns: int) -> Turned:
        """Return the turned activations, which lie at the end of the room for weights."""
        end = self.weights + self.weights_bytes
        return turned_at(end - turned_bytes(rows, columns), rows, columns)


def begun_bytes(rows: int, columns: int) -> int:
    """Return the bytes of a norm that a product begins."""
    return align_up(rows * columns, _ALIGNMENT) + 3 * _scale_bytes(rows, columns)


def activation_bytes(rows: int, columns: int) -> int:
    """Return the bytes that activations take in either form."""
    quantized = align_up(rows * columns, _ALIGNMENT) + 2 * _scale_bytes(rows, columns)
    return max(rows * columns * 2, quantized)


def _quantized_at(address: int, rows: int, columns: int) -> Quantized:
    scales = address + align_up(rows * columns, _ALIGNMENT)
    sums = scales + _scale_bytes(rows, columns)
    return Quantized(rows=rows, columns=columns, codes=address, scales=scales, sums=sums)


def _scale_bytes(rows: int, columns: int) -> int:
    return align_up(rows * -(-columns // ACTIVATION_GROUP) * 4, _ALIGNMENT)

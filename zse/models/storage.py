"""Which scheme each weight gets: ``--quant``, ``--group-size``, ``--attention``, ``--lm-head``.

Linear layers follow ``--quant``, unless the checkpoint has quantized them already: then they stay
what they are, since nothing more can be known of them. Beside INT4 what makes queries, keys and
values is INT8: it is a fifteenth of most models, and rounding it costs nearly half of what rounding
all of them does. Where it is larger, and in one layer of eight, it has groups of half the size
instead. The head is INT8 by default, since it is read once a token and INT8 costs nothing
measurable. The embedding is INT8 beside quantized layers: it is the largest single tensor, a row of
it is read per token, and a scale for each row keeps that row close. What steers others, such as
routers, stays in 16 bits: it is small, and a choice is all or nothing. So does what makes keys and
values of a latent: it is read by columns as well as by rows. Norms and biases are a thousandth of
the bytes; they are float32, which is what the operations compute in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.format.layout import PlannedTensor
from zse.format.schemes import PACKED_COLUMNS, Scheme, group_sizes
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.models.spec import WeightGroup
    from zse.models.weights import WeightSpec

QUANTIZATIONS = ("int4", "int3", "int2", "nf4", "nl4", "mxfp4", "int8", "fp16", "bf16")
DEFAULT_QUANTIZATION = "int4"
LM_HEADS = ("auto", "int8", "fp16", "bf16")
ATTENTIONS = ("auto", "same", "int8")
DEFAULT_GROUP_SIZE = {"int4": 128, "int3": 64, "int2": 32, "nf4": 64, "nl4": 16, "mxfp4": 32}
_PLAIN = ("fp16", "bf16")
_MOST_ROWS_A_COLUMN = 2
"""Of a matrix that makes queries, keys and values: one that is larger is too much of a model to be
INT8 beside INT4. Usual ones, whose queries share keys, have 1.2 to 1.7."""
_SMALL_GROUP = 64
_NARROW_EVERY = 8
"""Layers of which one has no INT8 there: with all of them a 7B has more than 4.5 bits a weight, and
its tokens take 3.2% longer on a GPU, where 3% is the most that a default may cost."""


@record
class Int8Instead:
    """Matrices that are INT8 although fewer bits were asked for, and a sentence about them."""

    matrices: int
    warnings: tuple[str, ...]


AS_ASKED = Int8Instead(matrices=0, warnings=())
"""There are none."""


@record
class Storage:
    """What the user asked for.

    Raises:
        UsageError: A value is not one of those listed, or the combination has no meaning.
    """

    quantization: str = DEFAULT_QUANTIZATION
    """Scheme of the linear layers: int4, int3, int2, nf4, nl4, mxfp4, int8, fp16 or bf16."""
    group_size: int | None = None
    """Weights that share a scale: 128, 64 or 32; 64 or 32 of int3 and int2, 32 or 16 of nl4, always
    32 of mxfp4. None means 128 for int4, 64 for int3 and nf4, 32 for int2, 16 for nl4."""
    lm_head: str = "auto"
    """Scheme of the head: int8, fp16, bf16, or auto (INT8 unless all is 16-bit)."""
    attention: str = "auto"
    """Scheme of what makes queries, keys and values: int8, same as the other linear layers, or auto
    (INT8 beside INT4 whose group size nobody chose, where it is small; else the same)."""
    is_default: bool = False
    """Nobody chose the scheme: what a checkpoint has quantized stays as it is, as far as it can."""

    def __post_init__(self) -> None:
        _check_choice("quantization", self.quantization, QUANTIZATIONS)
        _check_choice("lm_head", self.lm_head, LM_HEADS)
        _check_choice("attention", self.attention, ATTENTIONS)
        if self.group_size is None:
            return
        if self.quantization not in DEFAULT_GROUP_SIZE:
            raise UsageError(
                f"{self.quantization} has no groups, but a group size of {self.group_size} is set",
                hint="Leave the group size out, or use int4, int3, int2, nf4 or nl4.",
            )
        sizes = group_sizes(Scheme(self.quantization))
        if self.group_size not in sizes:
            raise UsageError(
                f"group size {self.group_size} of {self.quantization} is not supported",
                hint=f"Use one of {', '.join(map(str, sizes))}.",
            )

    def to_json(self) -> dict[str, str | int]:
        """Return the options with every default filled in, for the file's provenance."""
        return {
            "quantization": self.quantization,
            "group_size": self._group_size(),
            "attention": self._attention(),
            "lm_head": self._head_scheme().value,
            "embedding": self._embedding_scheme().value,
        }

    def plan_tensor(self, source: WeightSpec) -> PlannedTensor:
        scheme, group_size = Scheme.FP32, 0
        if source.packing is not None:
            scheme, group_size = Scheme(source.packing.scheme), source.packing.group_size
        elif source.is_product:
            scheme, group_size = self._product_scheme(source)
        elif source.kind in ("gate", "latent"):
            scheme = self._plain_scheme()
        elif source.kind == "head":
            scheme = self._head_scheme()
        elif source.kind == "embed":
            scheme = self._embedding_scheme()
        return PlannedTensor(
            name=source.name, scheme=scheme, shape=source.shape, group_size=group_size
        )

    def count_int8_instead(self, plan: Sequence[WeightGroup]) -> Int8Instead:
        """Tell which matrices are INT8 because no group divides their width."""
        asked = Scheme(self.quantization)
        linear = [
            item
            for group in plan
            for item in group.weights
            if item.is_product and item.packing is None
        ]
        widths = [
            item.shape[1]
            for item in linear
            if self._linear_scheme(item.shape[1])[0] is not asked
            and not (item.kind == "attention" and self._attention() == "int8")
        ]
        if not widths:
            return AS_ASKED
        sizes = ", ".join(map(str, self.group_sizes))
        found = ", ".join(map(str, sorted(set(widths))))
        warning = (
            f"{len(widths)} of {len(linear)} matrices are INT8, not {asked.value.upper()}: "
            f"no group ({sizes}) divides their width ({found})."
        )
        return Int8Instead(matrices=len(widths), warnings=(warning,))

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Sizes that groups may have, the largest first."""
        sizes = group_sizes(Scheme(self.quantization))
        return tuple(size for size in sizes if size <= self._group_size())

    def _group_size(self) -> int:
        return self.group_size or DEFAULT_GROUP_SIZE.get(self.quantization, 0)

    def _product_scheme(self, source: WeightSpec) -> tuple[Scheme, int]:
        rows, columns = source.shape
        scheme, group_size = self._linear_scheme(columns)
        if source.kind != "attention" or self._attention() == "same":
            return scheme, group_size
        is_chosen = self.attention == "int8"
        is_small = rows <= _MOST_ROWS_A_COLUMN * columns and not _is_narrow(source.name)
        if is_chosen or is_small or scheme is not Scheme.INT4:
            return Scheme.INT8, 0
        return scheme, min(group_size, _SMALL_GROUP)

    def _attention(self) -> str:
        if self.attention == "auto":
            is_ours = self.quantization == DEFAULT_QUANTIZATION and self.group_size is None
            return "int8" if is_ours else "same"
        return self.attention

    def _linear_scheme(self, columns: int) -> tuple[Scheme, int]:
        scheme = Scheme(self.quantization)
        if not self._group_size():
            return scheme, 0
        whole = (size for size in self.group_sizes if columns % max(size, PACKED_COLUMNS) == 0)
        size = next(whole, 0)
        return (scheme, size) if size else (Scheme.INT8, 0)

    def _head_scheme(self) -> Scheme:
        return self._embedding_scheme() if self.lm_head == "auto" else Scheme(self.lm_head)

    def _embedding_scheme(self) -> Scheme:
        return Scheme(self.quantization) if self.quantization in _PLAIN else Scheme.INT8

    def _plain_scheme(self) -> Scheme:
        """Return how matrices are kept that are never quantized."""
        return Scheme(self.quantization) if self.quantization in _PLAIN else Scheme.BF16


def _is_narrow(name: str) -> bool:
    group, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    is_of_layer = group == "layers" and number.isdecimal()
    return is_of_layer and int(number) % _NARROW_EVERY == _NARROW_EVERY - 1


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name} {value!r} is not known", hint=f"Use one of {', '.join(choices)}.")

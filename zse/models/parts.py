"""Builds the parts of a spec from the tensor names that a family gives.

Names of ours come first, names of theirs follow, without the ``.weight`` and ``.bias`` at the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zse.models.layer_spec import AttentionSpec, LinearSpec, MLPSpec, NormSpec
from zse.models.spec import EmbeddingSpec
from zse.models.weights import RowOrder, Source, WeightSpec
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.models.layer_spec import Activation, NormKind
    from zse.models.rope import RoPESpec
    from zse.models.weights import Order, Shard, WeightKind


@record
class Piece:
    """Some rows of a matrix: one tensor of the checkpoint, or one of each member of a stack."""

    name: str
    rows: int
    order: Order | None = None
    is_transposed: bool = False


def weight(
    name: str,
    kind: WeightKind,
    sources: Sequence[Source],
    *,
    shard: Shard = "none",
    stack: int = 1,
    factor: float = 1.0,
    offset: float = 0.0,
) -> WeightSpec:
    """Return one stored tensor of all its sources' rows."""
    rows = stack * sum(source.rows for source in sources)
    return WeightSpec(
        name=name,
        shape=(rows,) if sources[0].is_vector else (rows, sources[0].columns),
        kind=kind,
        sources=tuple(sources),
        stack=stack,
        shard=shard,
        factor=factor,
        offset=offset,
    )


def vector(name: str, theirs: str, size: int, kind: WeightKind = "norm") -> WeightSpec:
    """Return a vector whose name in the checkpoint is ``theirs`` as it stands."""
    return weight(name, kind, [Source(name=theirs, shape=(size,))])


def linear(
    name: str,
    pieces: Sequence[Piece],
    columns: int,
    *,
    shard: Shard = "rows",
    bias: bool = False,
    kind: WeightKind = "linear",
    stack: int = 1,
) -> LinearSpec:
    """Return a matrix of pieces, all of which have a bias or none has."""

    def source(piece: Piece) -> Source:
        shape = (columns, piece.rows) if piece.is_transposed else (piece.rows, columns)
        return Source(
            name=f"{piece.name}.weight",
            shape=shape,
            order=piece.order,
            is_transposed=piece.is_transposed,
        )

    matrix = weight(f"{name}.weight", kind, list(map(source, pieces)), shard=shard, stack=stack)
    if not bias:
        return LinearSpec(weight=matrix)
    biases = [
        Source(name=f"{piece.name}.bias", shape=(piece.rows,), order=piece.order)
        for piece in pieces
    ]
    # What is added to a sum of shares is added once.
    added = "none" if shard == "columns" else shard
    return LinearSpec(
        weight=matrix, bias=weight(f"{name}.bias", "bias", biases, shard=added, stack=stack)
    )


@record
class Norms:
    """What the norms of a model have in common."""

    epsilon: float
    kind: NormKind = "rms"
    """Every LayerNorm has a bias, unless ``has_bias`` says no."""
    has_bias: bool = True
    offset: float = 0.0
    """1 where checkpoints keep a weight's distance from one."""

    def norm(self, name: str, theirs: str, size: int) -> NormSpec:
        bias = None
        if self.kind == "layer" and self.has_bias:
            bias = vector(f"{name}.bias", f"{theirs}.bias", size, "bias")
        sources = [Source(name=f"{theirs}.weight", shape=(size,))]
        return NormSpec(
            weight=weight(f"{name}.weight", "norm", sources, offset=self.offset),
            epsilon=self.epsilon,
            kind=self.kind,
            bias=bias,
        )


@record
class Heads:
    """The numbers of one kind of attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float | None = None
    """Of the scores; None: 1 / sqrt(head_dim)."""
    qkv_bias: bool = False
    output_bias: bool = False

    @property
    def qkv_rows(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


def attention(
    name: str,
    theirs: str,
    *,
    hidden: int,
    heads: Heads,
    rope: RoPESpec | None,
    window: int | None = None,
    head_norms: Norms | None = None,
    **own: Any,
) -> AttentionSpec:
    """Return attention whose checkpoint has ``q_proj``, ``k_proj``, ``v_proj`` and ``o_proj``.

    Args:
        head_norms: Of the norms of query and key heads, ``q_norm`` and ``k_norm``; None: none.
        own: Further fields of the spec, or other parts than these.
    """
    dim = heads.head_dim
    rows = {
        "q": heads.num_heads * dim,
        "k": heads.num_kv_heads * dim,
        "v": heads.num_kv_heads * dim,
    }
    parts: dict[str, Any] = {
        "qkv": linear(
            f"{name}.qkv",
            [Piece(name=f"{theirs}.{part}_proj", rows=count) for part, count in rows.items()],
            hidden,
            bias=heads.qkv_bias,
        ),
        "output": linear(
            f"{name}.o",
            [Piece(name=f"{theirs}.o_proj", rows=hidden)],
            rows["q"],
            shard="columns",
            bias=heads.output_bias,
        ),
    }
    if head_norms is not None:
        for part in ("q_norm", "k_norm"):
            parts[part] = head_norms.norm(f"{name}.{part}", f"{theirs}.{part}", dim)
    parts |= own
    parts["qkv"] = _of_kind("attention", parts["qkv"])
    return AttentionSpec(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=dim,
        scale=dim**-0.5 if heads.scale is None else heads.scale,
        rope=rope,
        window=window,
        **parts,
    )


def _of_kind(kind: WeightKind, matrix: LinearSpec) -> LinearSpec:
    return replace(matrix, weight=replace(matrix.weight, kind=kind))


def mlp(
    name: str,
    up: Sequence[str],
    down: str,
    *,
    hidden: int,
    width: int,
    activation: Activation = "silu",
    bias: bool = False,
    stack: int = 1,
    is_joined: bool = False,
) -> MLPSpec:
    """Return an MLP of gate and up, or of up alone; ``stack`` experts of it, numbered in names.

    Gate and up may be one tensor already (``is_joined``).
    """
    is_gated = is_joined or len(up) > 1
    kind: WeightKind = "experts" if stack > 1 else "linear"
    return MLPSpec(
        activation=activation,
        is_gated=is_gated,
        up=linear(
            f"{name}.gate_up" if is_gated else f"{name}.up",
            [Piece(name=theirs, rows=width * (1 + is_joined)) for theirs in up],
            hidden,
            bias=bias,
            kind=kind,
            stack=stack,
        ),
        down=linear(
            f"{name}.down",
            [Piece(name=down, rows=hidden)],
            width,
            shard="columns",
            bias=bias,
            kind=kind,
            stack=stack,
        ),
    )


def llama_mlp(
    name: str,
    theirs: str,
    *,
    hidden: int,
    width: int,
    activation: Activation = "silu",
    bias: bool = False,
) -> MLPSpec:
    """Return the MLP that most decoders have: ``gate_proj``, ``up_proj`` and ``down_proj``."""
    up = [f"{theirs}.mlp.{part}_proj" for part in ("gate", "up")]
    return mlp(
        name,
        up,
        f"{theirs}.mlp.down_proj",
        hidden=hidden,
        width=width,
        activation=activation,
        bias=bias,
    )


def neighbours_to_halves(num_heads: int, head_dim: int, rotary_dim: int) -> RowOrder:
    """Return the order in which column i turns with i + rotary_dim / 2, not with its neighbour.

    The rest of a head is reordered in the same way: queries and keys keep their products.
    """
    view = (num_heads, head_dim // rotary_dim, rotary_dim // 2, 2)
    return RowOrder(view=view, axes=(0, 1, 3, 2))


def embedding(
    theirs: str, vocab_size: int, hidden: int, *, tied: bool, scale: float = 1.0
) -> EmbeddingSpec:
    """Return the table of tokens. Tied, it is stored the way the head is."""
    sources = [Source(name=f"{theirs}.weight", shape=(vocab_size, hidden))]
    kind: WeightKind = "head" if tied else "embed"
    return EmbeddingSpec(weight=weight("embed.weight", kind, sources, shard="rows"), scale=scale)


def learned_positions(theirs: str, count: int, hidden: int) -> WeightSpec:
    """Return the table of positions, as many as the longest sequence has."""
    sources = [Source(name=f"{theirs}.weight", shape=(count, hidden))]
    return weight("positions.weight", "position", sources)


def head_of(table: EmbeddingSpec, *, tied: bool, theirs: str = "lm_head") -> WeightSpec:
    """Return the head's matrix: the table itself where they are tied."""
    if tied:
        return table.weight
    sources = [Source(name=f"{theirs}.weight", shape=table.weight.shape)]
    return weight("lm_head.weight", "head", sources, shard="rows")

"""Latent attention of a decoder: its spec from a ``config.json``, as DeepSeek's models spell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.layer_spec import AttentionSpec, LatentSpec
from zse.models.parts import Norms, Piece, linear, weight
from zse.models.rope import yarn_mscale
from zse.models.weights import RowHalves, Source
from zse.records import record

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import LinearSpec, NormSpec
    from zse.models.rope import RoPEScaling, RoPESpec

_NORMS = Norms(epsilon=1e-6)
"""Of latents: whatever epsilon the model's other norms have."""


@record
class Latents:
    """The numbers of latent attention."""

    hidden: int
    num_heads: int
    query_rank: int | None
    """Of the queries' own latent; None: there is none."""
    rank: int
    key_dim: int
    value_dim: int
    rope: RoPESpec
    interleaved: bool
    """Whether checkpoints have columns that turn together as neighbours."""
    has_bias: bool
    """Whether what makes latents, and what attention adds, has a bias."""

    @staticmethod
    def read(config: ConfigJSON, *, interleaved: bool) -> Latents:
        """Return what a configuration says.

        Raises:
            UnsupportedModelError: A value is missing or has no meaning, or heads share keys.
        """
        num_heads = config.integer("num_attention_heads")
        config.expect("num_key_value_heads", num_heads, None)
        query_rank = config.integer_or_null("q_lora_rank", 1536)
        if query_rank is None:
            config.expect("attention_bias", False, None)
        return Latents(
            hidden=config.integer("hidden_size"),
            num_heads=num_heads,
            query_rank=query_rank,
            rank=config.integer("kv_lora_rank", 512),
            key_dim=config.integer("qk_nope_head_dim", 128),
            value_dim=config.integer("v_head_dim", 128),
            rope=config.rope(config.integer("qk_rope_head_dim", 64)),
            interleaved=interleaved,
            has_bias=config.flag("attention_bias"),
        )

    @property
    def turning(self) -> int:
        """Columns of a head that turn."""
        return self.rope.rotary_dim

    def mixer(self, _index: int, ours: str, theirs: str) -> AttentionSpec:
        """Return the attention of a layer; its names begin with ``ours`` and ``theirs``."""
        theirs = f"{theirs}.self_attn"
        head_dim = self.key_dim + self.turning
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=1,
            head_dim=self.rank + self.turning,
            scale=head_dim**-0.5 * _magnified(self.rope.scaling),
            rope=self.rope,
            qkv=self._down(ours, theirs),
            latent=self._latent(ours, theirs),
            output=linear(
                f"{ours}.o",
                [Piece(name=f"{theirs}.o_proj", rows=self.hidden)],
                self.num_heads * self.value_dim,
                shard="columns",
                bias=self.has_bias,
            ),
        )

    def _down(self, ours: str, theirs: str) -> LinearSpec:
        """Return what reads the stream: it makes queries or their latent, and what is kept."""
        kept = self._turned(f"{theirs}.kv_a_proj_with_mqa", 1, self.rank)
        query = self._queries(f"{theirs}.q_proj")
        if self.query_rank is not None:
            query = Piece(name=f"{theirs}.q_a_proj", rows=self.query_rank)
        return linear(f"{ours}.qkv", [query, kept], self.hidden, shard="none", bias=self.has_bias)

    def _latent(self, ours: str, theirs: str) -> LatentSpec:
        rows = self.num_heads * (self.key_dim + self.value_dim)
        source = Source(name=f"{theirs}.kv_b_proj.weight", shape=(rows, self.rank))
        query, query_norm = self._from_latent(ours, theirs)
        return LatentSpec(
            rank=self.rank,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            query_norm=query_norm,
            query=query,
            norm=_NORMS.norm(f"{ours}.kv_norm", f"{theirs}.kv_a_layernorm", self.rank),
            expansion=weight(f"{ours}.kv_up.weight", "latent", [source], shard="rows"),
        )

    def _from_latent(self, ours: str, theirs: str) -> tuple[LinearSpec | None, NormSpec | None]:
        if (rank := self.query_rank) is None:
            return None, None
        norm = _NORMS.norm(f"{ours}.q_norm", f"{theirs}.q_a_layernorm", rank)
        return linear(f"{ours}.q_up", [self._queries(f"{theirs}.q_b_proj")], rank), norm

    def _queries(self, theirs: str) -> Piece:
        return self._turned(theirs, self.num_heads, self.key_dim)

    def _turned(self, theirs: str, heads: int, still: int) -> Piece:
        """Return rows of heads of which the last ones turn, in halves."""
        rows = still + self.turning
        order = RowHalves(head_rows=rows, turning=self.turning) if self.interleaved else None
        return Piece(name=theirs, rows=heads * rows, order=order)


def _magnified(scaling: RoPEScaling | None) -> float:
    """Return what stretched positions multiply scores by besides: as if cosines and sines were."""
    if scaling is None or not scaling.mscale_all_dim:
        return 1.0
    return yarn_mscale(scaling.factor, scaling.mscale_all_dim) ** 2

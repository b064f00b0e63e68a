"""Latent attention: what the kernels are told of it, and its operations around attention itself."""

from __future__ import annotations

from ctypes import pointer
from typing import TYPE_CHECKING, Any

from zse.errors import UnsupportedModelError
from zse.kernels.native import codes, structs
from zse.kernels.native.codes import Kind, Register

if TYPE_CHECKING:
    from zse.backends.cpu.recording import Recording
    from zse.backends.handles import LatentWeights
    from zse.models.layer_spec import AttentionSpec


def latent_of(attention: AttentionSpec, weights: LatentWeights) -> structs.Latent:
    """Return what the heads of a layer are made of.

    Raises:
        UnsupportedModelError: A file has the matrix of keys and values in a quantized form.
    """
    spec, expansion = attention.latent, weights.expansion
    assert spec is not None
    if expansion.scheme > codes.Scheme.BF16:
        scheme = codes.Scheme(expansion.scheme).name
        raise UnsupportedModelError(
            f"tensor {spec.expansion.name} is stored as {scheme}; a CPU reads it in 16 or 32 bits",
            hint="Convert the checkpoint again: zse convert keeps it so.",
        )
    query_norm = weights.query_norm
    return structs.Latent(
        rank=spec.rank,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        query_columns=attention.qkv.weight.shape[0] - attention.head_dim,
        query_norm=None if query_norm is None else pointer(query_norm),
        norm=pointer(weights.norm),
        expansion=pointer(expansion),
    )


def record_queries(
    recording: Recording, qkv: Register, weights: LatentWeights, **layer: Any
) -> Register:
    """Record what is kept of a row, and its queries; ``layer`` has its number and its attention."""
    recording.record(Kind.LATENT_STORE, Register.QUERY_LATENT, input=qkv, **layer)
    queries = qkv
    if weights.query is not None:
        queries = recording.multiply(Register.QUERY_LATENT, weights.query, Register.QUERIES)
    return recording.record(Kind.ABSORB, Register.WIDE_QUERIES, input=queries, **layer)


def record_values(recording: Recording, **layer: Any) -> Register:
    """Record what becomes of the sums of latents that attention returns."""
    return recording.record(Kind.EXPAND, Register.MIXED, input=Register.WIDE_MIXED, **layer)

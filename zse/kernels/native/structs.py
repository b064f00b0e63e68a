"""The structures of ``zse.h`` for Python, field by field; the header says what they mean.

Its numbers are in ``codes.py``. ``library.py`` compares their sizes with what the library was
compiled with.
"""

from __future__ import annotations

from ctypes import (
    POINTER,
    Structure,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint16,
    c_uint64,
    c_void_p,
)

from zse.kernels.native.codes import Register


class Matrix(Structure):
    """A matrix as the file has it."""

    _fields_ = (
        ("data", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("rows", c_int64),
        ("columns", c_int64),
        ("scheme", c_int32),
        ("group", c_int32),
    )


class Norm(Structure):
    """RMSNorm or LayerNorm."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("epsilon", c_float),
        ("subtracts_mean", c_int32),
    )


class Latent(Structure):
    """What heads are made of where their keys and values are not kept."""

    _fields_ = (
        ("rank", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("query_columns", c_int32),
        ("query_norm", POINTER(Norm)),
        ("norm", POINTER(Norm)),
        ("expansion", POINTER(Matrix)),
    )


class Attention(Structure):
    """What the attention of a layer is."""

    _fields_ = (
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("rotary", c_int32),
        ("q_norm", POINTER(Norm)),
        ("k_norm", POINTER(Norm)),
        ("sinks", c_void_p),
        ("value_epsilon", c_float),
        ("norms_together", c_int32),
        ("is_gated", c_int32),
        ("values_are_keys", c_int32),
        ("shares_keys", c_int32),
        ("sees_all", c_int32),
        ("latent", POINTER(Latent)),
        ("key_factors", c_void_p),
        ("turns_keys", c_int32),
    )


class Experts(Structure):
    """Which experts a row goes through."""

    _fields_ = (
        ("num_experts", c_int32),
        ("experts_per_token", c_int32),
        ("scoring", c_int32),
        ("normalizes", c_int32),
        ("weight_scale", c_float),
        ("num_groups", c_int32),
        ("groups_per_token", c_int32),
        ("scores_in_group", c_int32),
        ("selection_bias", c_void_p),
        ("expert_scales", c_void_p),
    )


class Rope(Structure):
    """How positions turn heads."""

    _fields_ = (
        ("frequencies", c_void_p),
        ("rotary_dim", c_int32),
        ("factor", c_float),
    )


class Cache(Structure):
    """One layer's keys and values."""

    _fields_ = (
        ("data", c_void_p),
        ("block_bytes", c_int64),
        ("block_size", c_int32),
        ("dtype", c_int32),
        ("group", c_int32),
        ("reserved", c_int32),
    )


class Rows(Structure):
    """Rows of one sequence that attend together."""

    _fields_ = (
        ("first_row", c_int32),
        ("num_rows", c_int32),
        ("start_position", c_int32),
        ("state_slot", c_uint16),
        ("state_from", c_uint16),
        ("blocks", c_void_p),
    )


class Delta(Structure):
    """What the linear attention of a layer is."""

    _fields_ = (
        ("num_key_heads", c_int32),
        ("num_value_heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("convolution_width", c_int32),
        ("reserved", c_int32),
        ("convolution", c_void_p),
        ("decay", c_void_p),
        ("step_bias", c_void_p),
        ("norm", POINTER(Norm)),
    )


class State(Structure):
    """The states of one layer's sequences."""

    _fields_ = (
        ("rings", c_void_p),
        ("matrices", c_void_p),
    )


class LowRank(Structure):
    """What an adapter adds to rows of a product."""

    _fields_ = (
        ("down", c_void_p),
        ("up", c_void_p),
        ("first_row", c_int64),
        ("rows", c_int64),
        ("rank", c_int32),
        ("scale", c_float),
    )


class Adaptation(Structure):
    """All that an adapter adds to one matrix."""

    _fields_ = (
        ("parts", POINTER(LowRank)),
        ("num_parts", c_int64),
    )


class Quantized(Structure):
    """Activations as int8."""

    _fields_ = (
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("stride", c_int64),
    )


class Operation(Structure):
    """One operation of a recorded model."""

    _fields_ = (
        ("kind", c_int32),
        ("layer", c_int32),
        ("input", c_int32),
        ("output", c_int32),
        ("row_set", c_int32),
        ("quantizes", c_int32),
        ("activation", c_int32),
        ("is_gated", c_int32),
        ("scale", c_float),
        ("limit", c_float),
        ("width", c_int32),
        ("pooling", c_int32),
        ("matrix", POINTER(Matrix)),
        ("norm", POINTER(Norm)),
        ("attention", POINTER(Attention)),
        ("rope", POINTER(Rope)),
        ("experts", POINTER(Experts)),
        ("delta", POINTER(Delta)),
    )


class Sampling(Structure):
    """How one token is chosen, and which was."""

    _fields_ = (
        ("entry_tokens", c_void_p),
        ("entry_penalties", c_void_p),
        ("entry_additions", c_void_p),
        ("banned_tokens", c_void_p),
        ("mask", c_void_p),
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("draw", c_double),
        ("num_entries", c_int32),
        ("num_banned", c_int32),
        ("top_k", c_int32),
        ("known_token", c_int32),
        ("num_logprobs", c_int32),
        ("token", c_int32),
        ("logprob", c_float),
        ("reserved", c_int32),
        ("top_tokens", c_void_p),
        ("top_logprobs", c_void_p),
    )


class Ranks(Structure):
    """The processes that compute a step together, and this one among them."""

    _fields_ = (
        ("slots", c_void_p),
        ("bells", c_void_p),
        ("broken", c_void_p),
        ("slot_bytes", c_int64),
        ("spin_nanoseconds", c_int64),
        ("timeout_nanoseconds", c_int64),
        ("num_tokens", c_int64),
        ("num_meetings", c_uint64),
        ("rank", c_int32),
        ("num_ranks", c_int32),
        ("has_failed", c_int32),
        ("reserved", c_int32),
    )


class Step(Structure):
    """One step's rows, and where its numbers lie."""

    _fields_ = (
        ("rows", c_int64),
        ("single_rows", c_int64),
        ("num_wanted", c_int64),
        ("num_chunks", c_int64),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("wanted", c_void_p),
        ("chunks", POINTER(Rows)),
        ("sampling", POINTER(Sampling)),
        ("caches", POINTER(Cache)),
        ("states", POINTER(State)),
        ("types", c_void_p),
        ("adapters", c_void_p),
        ("registers", c_void_p * len(Register)),
        ("quantized", Quantized),
        ("chosen", Quantized),
        ("ranks", POINTER(Ranks)),
    )


ALL: tuple[type[Structure], ...] = (
    Matrix,
    Norm,
    Latent,
    Attention,
    Experts,
    Rope,
    Cache,
    Rows,
    Delta,
    State,
    LowRank,
    Adaptation,
    Quantized,
    Operation,
    Sampling,
    Ranks,
    Step,
)
"""In the order of `zse.h`, which is the order of ``zse_struct_sizes``."""

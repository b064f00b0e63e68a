"""Tensors of mixtures of experts in a GGUF, as llama.cpp looks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gguf import GGMLQuantizationType as Quant

if TYPE_CHECKING:
    from gguf import GGUFWriter


class Tensors(Protocol):
    """Adds tensors of random numbers to a file."""

    def add(self, name: str, rows: int, columns: int, quant: Quant, stack: int = 0) -> None:
        """Add a matrix, or a stack of them."""

    def floats(self, name: str, *shape: int, deviation: float = 0.0) -> None:
        """Add numbers of 32 bits around zero, or ones."""


def add_facts(writer: GGUFWriter, settings: dict) -> None:
    """Add what a mixture's architecture needs beside what others do."""
    writer.add_expert_count(settings.get("num_experts") or settings["num_local_experts"])
    writer.add_expert_used_count(settings["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(_width_of(settings))
    writer.add_key_length(settings["head_dim"])
    writer.add_value_length(settings["head_dim"])
    if settings["model_type"] == "gpt_oss":
        writer.add_sliding_window(settings["sliding_window"])


def add_layer(tensors: Tensors, at: str, settings: dict, kind: Quant) -> None:
    """Add a layer, its names beginning with ``at``; experts are of ``kind``."""
    if settings["model_type"] == "gpt_oss":
        _add_gpt_oss(tensors, at, settings, kind)
    else:
        _add_qwen3_moe(tensors, at, settings, kind)


def _width_of(settings: dict) -> int:
    return settings.get("moe_intermediate_size") or settings["intermediate_size"]


def _projections(settings: dict) -> list[tuple[str, int, int]]:
    hidden, head = settings["hidden_size"], settings["head_dim"]
    mixed, kept = settings["num_attention_heads"] * head, settings["num_key_value_heads"] * head
    return [
        ("q", mixed, hidden),
        ("k", kept, hidden),
        ("v", kept, hidden),
        ("output", hidden, mixed),
    ]


def _parts(settings: dict) -> list[tuple[str, int, int]]:
    hidden, width = settings["hidden_size"], _width_of(settings)
    return [("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)]


def _add_qwen3_moe(tensors: Tensors, at: str, settings: dict, kind: Quant) -> None:
    hidden, count = settings["hidden_size"], settings["num_experts"]
    for norm, size in (("attn", hidden), ("ffn", hidden)):
        tensors.floats(f"{at}{norm}_norm.weight", size)
    for part in ("q", "k"):
        tensors.floats(f"{at}attn_{part}_norm.weight", settings["head_dim"])
    for part, rows, columns in _projections(settings):
        tensors.add(f"{at}attn_{part}.weight", rows, columns, kind)
    tensors.floats(f"{at}ffn_gate_inp.weight", count, hidden, deviation=0.02)
    for part, rows, columns in _parts(settings):
        tensors.add(f"{at}ffn_{part}_exps.weight", rows, columns, kind, stack=count)


def _add_gpt_oss(tensors: Tensors, at: str, settings: dict, kind: Quant) -> None:
    """All but the experts has eight bits, as in the files that are published."""
    hidden, count = settings["hidden_size"], settings["num_local_experts"]
    for norm in ("attn_norm", "post_attention_norm"):
        tensors.floats(f"{at}{norm}.weight", hidden)
    tensors.floats(f"{at}attn_sinks.weight", settings["num_attention_heads"], deviation=0.02)
    for part, rows, columns in _projections(settings):
        tensors.add(f"{at}attn_{part}.weight", rows, columns, Quant.Q8_0)
        tensors.floats(f"{at}attn_{part}.bias", rows, deviation=0.02)
    tensors.floats(f"{at}ffn_gate_inp.weight", count, hidden, deviation=0.02)
    tensors.floats(f"{at}ffn_gate_inp.bias", count, deviation=0.02)
    for part, rows, columns in _parts(settings):
        tensors.add(f"{at}ffn_{part}_exps.weight", rows, columns, kind, stack=count)
        tensors.floats(f"{at}ffn_{part}_exps.bias", count, rows, deviation=0.02)

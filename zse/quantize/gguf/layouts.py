"""What llama.cpp's converter made of a checkpoint's tensors, undone: views by Hugging Face's names.

Most architectures are a table of names. Those that split, join or turn tensors have a function
here, which takes what it knows of a layer; the table has the rest.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError
from zse.format.mxfp4 import MXFP4_GROUP
from zse.quantize.gguf.architectures import LEFT_OUT, WHOLE
from zse.quantize.gguf.gemma4_experts import experts_of_gemma4
from zse.quantize.gguf.views import (
    View,
    alternating,
    grouped,
    heads_of_latent,
    neighbours,
    spread,
)
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from zse.quantize.gguf.architectures import Architecture
    from zse.quantize.gguf.header import GgufHeader, GgufTensor
    from zse.quantize.gguf.views import Places

_MOST_EXPERTS = 4096
"""Each becomes a tensor of its own: a small file must not claim millions."""


@record
class _Model:
    """What of a file decides how its tensors lie."""

    header: GgufHeader
    prefix: str
    where: str

    def count(self, name: str, default: Any = None) -> int:
        """Return a setting that is a number above 0.

        Raises:
            CheckpointError: It is none.
        """
        value = self.header.settings.get(f"{self.prefix}.{name}", default)
        if type(value) is not int or value < 1:
            raise CheckpointError(
                f"{self.where}: {self.prefix}.{name} is {str(value)[:50]!r}; expected a number "
                "above 0"
            )
        return value


def views_of(
    header: GgufHeader, prefix: str, architecture: Architecture, where: str
) -> Iterator[tuple[str, View]]:
    """Yield the tensors that Hugging Face has, by name.

    Raises:
        CheckpointError: A tensor is missing, or of a shape that the settings do not allow.
    """
    model = _Model(header=header, prefix=prefix, where=where)
    layers: dict[int, dict[str, GgufTensor]] = {}
    for tensor in header.tensors.values():
        layer, rest = _layer_and_rest(tensor.name)
        if _part_of(rest) in LEFT_OUT:
            continue
        if layer is None:
            yield _whole(tensor, architecture)
        else:
            layers.setdefault(layer, {})[rest] = tensor
    guesses = header.settings.get(f"{prefix}.nextn_predict_layers", 0) if architecture.guess else 0
    first_guess = len(layers) - guesses if type(guesses) is int else len(layers)
    for index, tensors in layers.items():
        name = architecture.layer.format(layer=index)
        if index >= first_guess:
            name = architecture.guess_layer or name
        own = _LAYOUTS.get(architecture.model_type)
        if own is not None:
            yield from own(model, name, tensors)
        for rest, tensor in tensors.items():
            yield from _named(model, architecture, name, rest, tensor)


def _layer_and_rest(name: str) -> tuple[int | None, str]:
    """Return the layer and what of it: ``blk.3.attn_q.weight`` -> 3 and ``attn_q.weight``."""
    start, _, behind = name.partition(".")
    number, _, rest = behind.partition(".")
    if start == "blk" and number.isdecimal() and rest:
        return int(number), rest
    return None, name


def _part_of(rest: str) -> str:
    return rest.rpartition(".")[0] or rest


def _whole(tensor: GgufTensor, architecture: Architecture) -> tuple[str, View]:
    part, _, leaf = tensor.name.rpartition(".")
    names = architecture.whole or WHOLE
    if part not in names:
        return tensor.name, View(tensors=(tensor,), shape=tensor.shape)  # is refused by its name
    view = View(tensors=(tensor,), shape=tensor.shape, change=_of_norm(part, architecture))
    return f"{names[part]}.{leaf}", view


def _named(
    model: _Model, architecture: Architecture, name: str, rest: str, tensor: GgufTensor
) -> Iterator[tuple[str, View]]:
    """Yield what one tensor of a layer is, or the experts that it holds."""
    part, _, leaf = rest.rpartition(".")
    experts, guess = architecture.experts or {}, architecture.guess or {}
    bare = architecture.bare or {}
    if rest in bare:
        yield f"{name}.{bare[rest]}", View(tensors=(tensor,), shape=tensor.shape)
    elif part in guess:
        begin = "" if architecture.guess_layer else f"{name}."
        change = _of_norm(part, architecture)
        yield (
            f"{begin}{guess[part]}.{leaf}",
            View(tensors=(tensor,), shape=tensor.shape, change=change),
        )
    elif part in experts and len(tensor.shape) == 3:
        if tensor.shape[0] > _MOST_EXPERTS:
            raise CheckpointError(
                f"{model.where}: {tensor.name} has {tensor.shape[0]} experts; expected at most "
                f"{_MOST_EXPERTS}"
            )
        for index in range(tensor.shape[0]):
            yield (
                f"{name}.{experts[part].format(index=index)}.{leaf}",
                View(
                    tensors=(tensor,),
                    shape=tensor.shape[1:],
                    first_row=index * tensor.shape[1],
                ),
            )
    elif part in architecture.names:
        yield f"{name}.{architecture.names[part]}.{leaf}", _usual(model, architecture, part, tensor)
    else:
        yield tensor.name, View(tensors=(tensor,), shape=tensor.shape)  # is refused by its name


def _usual(model: _Model, architecture: Architecture, part: str, tensor: GgufTensor) -> View:
    shape, is_flat = tensor.shape, len(tensor.shape) == 1
    places = None
    if architecture.pairs_are_neighbours and part in ("attn_q", "attn_k"):
        places = neighbours(_head_rows(model, part, tensor))
    is_turned = part in architecture.transposed and len(shape) == 2
    if is_turned:
        shape = shape[::-1]
    if part == "ffn_gate_inp_shexp" and len(shape) == 1:
        shape = (1, *shape)  # a matrix of one row is kept as a vector
    return View(
        tensors=(tensor,),
        shape=shape,
        places=places,
        is_flat=is_flat,
        is_transposed=is_turned,
        change=_of_norm(part, architecture),
    )


def _of_norm(
    part: str, architecture: Architecture
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    is_norm = part.endswith("norm") and part != "ssm_norm"
    return _less_one if is_norm and architecture.adds_one_to_norms else None


def _less_one(numbers: torch.Tensor) -> torch.Tensor:
    return numbers - 1


def _head_rows(model: _Model, part: str, tensor: GgufTensor) -> int:
    heads = model.header.settings.get(f"{model.prefix}.attention.head_count")
    if part == "attn_k":
        heads = model.header.settings.get(f"{model.prefix}.attention.head_count_kv", heads)
    rows = tensor.shape[0]
    if type(heads) is not int or heads < 1 or rows % (2 * heads):
        raise CheckpointError(
            f"{model.where}: {tensor.name} has {rows} rows, which are not those of {heads} heads"
        )
    return rows // heads


def _gpt_oss(
    _model: _Model, name: str, tensors: dict[str, GgufTensor]
) -> Iterator[tuple[str, View]]:
    """Yield the experts: gate and up alternate, and what is not MXFP4 has inputs before outputs."""
    experts = f"{name}.mlp.experts"
    for theirs, parts in {"gate_up": ("gate", "up"), "down": ("down",)}.items():
        matrices = _taken(tensors, [f"ffn_{part}_exps.weight" for part in parts])
        biases = _taken(tensors, [f"ffn_{part}_exps.bias" for part in parts])
        if matrices:
            yield from _expert_matrices(f"{experts}.{theirs}_proj", matrices)
        if biases:
            count, rows = biases[0].shape
            yield (
                f"{experts}.{theirs}_proj_bias",
                View(
                    tensors=biases,
                    shape=(count, rows * len(biases)),
                    places=alternating(count * rows) if len(biases) > 1 else None,
                    is_flat=True,
                ),
            )


def _expert_matrices(name: str, matrices: tuple[GgufTensor, ...]) -> Iterator[tuple[str, View]]:
    count, rows, columns = matrices[0].shape
    rows *= len(matrices)
    places = alternating(matrices[0].num_rows) if len(matrices) > 1 else None
    view = partial(View, tensors=matrices, places=places)
    if {tensor.type.name for tensor in matrices} == {"MXFP4"}:
        groups = columns // MXFP4_GROUP
        blocks = (count, rows, groups, MXFP4_GROUP // 2)
        yield f"{name}_blocks", view(shape=blocks, packed="blocks")
        yield f"{name}_scales", view(shape=(count, rows, groups), packed="scales")
    else:
        yield name, view(shape=(count, columns, rows), is_transposed=True)


def _taken(tensors: dict[str, GgufTensor], names: list[str]) -> tuple[GgufTensor, ...]:
    """Take tensors that belong together out of a layer's, if all are there and of one shape."""
    found = [tensors[name] for name in names if name in tensors]
    if len(found) < len(names) or len({tensor.shape for tensor in found}) > 1:
        return ()
    if len(found[0].shape) != (3 if names[0].endswith("weight") else 2):
        return ()
    return tuple(tensors.pop(name) for name in names)


@record
class _Delta:
    """The heads of a linear attention."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @classmethod
    def read(cls, model: _Model) -> _Delta:
        key_heads, value_heads = model.count("ssm.group_count"), model.count("ssm.time_step_rank")
        inner = model.count("ssm.inner_size")
        if value_heads % key_heads or inner % value_heads:
            raise CheckpointError(
                f"{model.where} has {value_heads} heads of values and {inner} rows of them for "
                f"{key_heads} heads of keys; expected multiples"
            )
        return cls(
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=model.count("ssm.state_size"),
            value_dim=inner // value_heads,
        )

    @property
    def shared(self) -> int:
        """Heads of values that read one head of keys."""
        return self.value_heads // self.key_heads

    def heads(self, size: int, *, first: int = 0) -> Places | None:
        """Return places of value heads of ``size`` rows each, behind ``first`` others."""
        if self.shared == 1:
            return None
        return spread(self.key_heads, self.shared, size, first=first)


def _decays(tensor: GgufTensor, places: Places | None) -> View:
    """Return what a state decays by: llama.cpp has -exp of it."""
    return View(
        tensors=(tensor,), shape=tensor.shape, places=places, is_flat=True, change=_of_decay
    )


def _of_decay(numbers: torch.Tensor) -> torch.Tensor:
    return (-numbers).log()


def _taps(tensor: GgufTensor, places: Places | None) -> View:
    channels, width = tensor.shape[0], tensor.shape[-1]
    return View(tensors=(tensor,), shape=(channels, 1, width), places=places)


def _qwen3_next(
    model: _Model, name: str, tensors: dict[str, GgufTensor]
) -> Iterator[tuple[str, View]]:
    """Yield what is grouped by heads of keys in the checkpoint: queries, keys, values and gates."""
    if "ssm_a" not in tensors:
        return
    delta, prefix = _Delta.read(model), f"{name}.linear_attn"
    values = delta.shared * delta.value_dim
    sizes = (delta.key_dim, delta.key_dim, values, values)
    yield f"{prefix}.A_log", _decays(tensors.pop("ssm_a"), None)
    for theirs, ours in {"ssm_dt.bias": "dt_bias", "ssm_ba.weight": "in_proj_ba.weight"}.items():
        if theirs in tensors:
            tensor = tensors.pop(theirs)
            yield f"{prefix}.{ours}", View(tensors=(tensor,), shape=tensor.shape)
    if "ssm_conv1d.weight" in tensors:
        yield f"{prefix}.conv1d.weight", _taps(tensors.pop("ssm_conv1d.weight"), None)
    if "attn_qkv.weight" in tensors and "attn_gate.weight" in tensors:
        parts = (tensors.pop("attn_qkv.weight"), tensors.pop("attn_gate.weight"))
        rows, columns = sum(part.num_rows for part in parts), parts[0].shape[-1]
        if rows == delta.key_heads * sum(sizes) and columns == parts[1].shape[-1]:
            places = grouped(delta.key_heads, sizes)
            view = View(tensors=parts, shape=(rows, columns), places=places)
            yield f"{prefix}.in_proj_qkvz.weight", view
    elif "ssm_in.weight" in tensors:  # as the first converters left it
        tensor = tensors.pop("ssm_in.weight")
        yield f"{prefix}.in_proj_qkvz.weight", View(tensors=(tensor,), shape=tensor.shape)


def _qwen3_5(
    model: _Model, name: str, tensors: dict[str, GgufTensor]
) -> Iterator[tuple[str, View]]:
    """Yield what has heads of values: they lie as members of groups in the file."""
    if "ssm_a" not in tensors:
        return
    delta, prefix = _Delta.read(model), f"{name}.linear_attn"
    first, single = 2 * delta.key_heads * delta.key_dim, delta.heads(1)
    yield f"{prefix}.A_log", _decays(tensors.pop("ssm_a"), single)
    rows = {
        "attn_qkv.weight": ("in_proj_qkv.weight", delta.heads(delta.value_dim, first=first)),
        "attn_gate.weight": ("in_proj_z.weight", delta.heads(delta.value_dim)),
        "ssm_beta.weight": ("in_proj_b.weight", single),
        "ssm_alpha.weight": ("in_proj_a.weight", single),
        "ssm_dt.bias": ("dt_bias", single),
    }
    for theirs, (ours, places) in rows.items():
        if theirs in tensors:
            tensor = tensors.pop(theirs)
            yield (
                f"{prefix}.{ours}",
                View(
                    tensors=(tensor,),
                    shape=tensor.shape,
                    places=places,
                    is_flat=len(tensor.shape) == 1,
                ),
            )
    if "ssm_conv1d.weight" in tensors:
        places = delta.heads(delta.value_dim, first=first)
        yield f"{prefix}.conv1d.weight", _taps(tensors.pop("ssm_conv1d.weight"), places)
    if "ssm_out.weight" in tensors:
        tensor = tensors.pop("ssm_out.weight")
        columns = delta.heads(delta.value_dim)
        view = View(tensors=(tensor,), shape=tensor.shape, columns=columns)
        yield f"{prefix}.out_proj.weight", view


def _latent(model: _Model, name: str, tensors: dict[str, GgufTensor]) -> Iterator[tuple[str, View]]:
    """Yield what makes heads of a latent: keys, whose matrices lie turned, and values apart."""
    if "attn_k_b.weight" not in tensors or "attn_v_b.weight" not in tensors:
        return
    keys, values = tensors.pop("attn_k_b.weight"), tensors.pop("attn_v_b.weight")
    is_whole = len(keys.shape) == len(values.shape) == 3
    if not is_whole or (values.shape[0], values.shape[2]) != keys.shape[:2]:
        raise CheckpointError(
            f"{model.where}: {keys.name} of shape {list(keys.shape)} and {values.name} of shape "
            f"{list(values.shape)} are not of the same heads of one latent"
        )
    heads, rank, key_dim = keys.shape
    view = View(
        tensors=(keys, values),
        shape=(heads * (key_dim + values.shape[1]), rank),
        places=heads_of_latent((heads, rank, key_dim), values.shape[1]),
        is_flat=True,
    )
    yield f"{name}.self_attn.kv_b_proj.weight", view


_LAYOUTS: Mapping[str, Callable[[_Model, str, dict[str, Any]], Iterator[tuple[str, View]]]] = (
    MappingProxyType(
        {
            "gemma4_text": experts_of_gemma4,
            "gpt_oss": _gpt_oss,
            "qwen3_next": _qwen3_next,
            "qwen3_5": _qwen3_5,
            "qwen3_5_moe": _qwen3_5,
            "deepseek_v2": _latent,
            "deepseek_v3": _latent,
        }
    )
)
"""By model type: takes from a layer's tensors, by name without the layer's, what it yields."""

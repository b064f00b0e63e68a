"""How the experts of Gemma 4 lie in a GGUF file: gate and up of all in one tensor, or in two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.quantize.gguf.views import View, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.quantize.gguf.header import GgufTensor


def experts_of_gemma4(
    _model: object, name: str, tensors: dict[str, GgufTensor]
) -> Iterator[tuple[str, View]]:
    """Yield gate and up of all experts where they are apart, as some tools leave them."""
    names = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
    found = [tensors[one] for one in names if one in tensors]
    if len(found) < len(names) or found[0].shape != found[1].shape or len(found[0].shape) != 3:
        return
    count, rows, columns = found[0].shape
    for one in names:
        tensors.pop(one)
    yield (
        f"{name}.experts.gate_up_proj",
        View(
            tensors=tuple(found),
            shape=(count, 2 * rows, columns),
            places=grouped(count, (rows, rows)),
        ),
    )

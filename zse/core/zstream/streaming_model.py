"""``StreamingModel``: a model that is larger than the device's memory, ready to generate.

Of a module of torch the layers stream, by hooks; what is no layer moves to the device once. A
``.zse`` file is run by zse's own engine, whose kernels and copies are far faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from zse.core.zstream.memory_tracker import MemoryPressure, MemoryTracker
from zse.core.zstream.streamer import LayerStreamer
from zse.engine.llm import LLM
from zse.engine.request import SamplingParams
from zse.errors import UsageError
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zse.core.zstream.offload import OffloadManager
    from zse.core.zstream.prefetcher import Strategy
    from zse.engine.answers import RequestOutput
    from zse.stream.tracker import MemoryState

KV_RESERVE_BYTES = 8 * GIB
"""Left free for keys, values and activations where the window is chosen by what is free."""


class StreamingModel:
    """Use it in a ``with`` block, or call ``close``: a module is as before then.

    Args:
        model: A module of torch (transformers' LlamaForCausalLM, GPT2LMHeadModel, ...), on the
            CPU; or the path of a ``.zse`` file.
        gpu_layers: Layers that are on the device at once; 0 is as many as fit. Of a file: that
            stay there while the others stream.
        prefetch_layers: Layers on their way ahead.
        device: ``cuda``, ``cuda:N`` or ``cpu``; the first GPU, else the CPU, when not given.
        offload: Of a module: where layers are otherwise.
        strategy: Of a module: which layers are guessed to be next.
        options: Of a file: the keywords of ``zse.LLM``, such as ``vram_gib``.

    Raises:
        UsageError: No stack of layers was found in the module, or an argument is out of range.
    """

    def __init__(
        self,
        model: torch.nn.Module | str | Path,
        gpu_layers: int = 4,
        prefetch_layers: int = 2,
        *,
        device: str | None = None,
        offload: OffloadManager | None = None,
        strategy: Strategy = "sequential",
        **options: Any,
    ) -> None:
        if gpu_layers < 0 or prefetch_layers < 0:
            raise UsageError(
                f"gpu_layers is {gpu_layers}, prefetch_layers {prefetch_layers}; expected 0 or more"
            )
        self._file: LLM | None = None
        self._module: StreamedModule | None = None
        if isinstance(model, torch.nn.Module):
            if options:
                raise UsageError(f"a module of torch takes no {', '.join(sorted(options))}")
            self._module = StreamedModule(
                model, gpu_layers, prefetch_layers, device=device, offload=offload,
                strategy=strategy,
            )  # fmt: skip
            return
        self._file = LLM(
            model,
            device=device or "auto",
            stream="on",
            resident_layers=gpu_layers,
            stream_slots=max(2, prefetch_layers),
            **options,
        )

    @property
    def model(self) -> torch.nn.Module | LLM:
        """What was wrapped: the module, or the engine over a file."""
        return self._module.module if self._module is not None else self._engine

    def generate(self, inputs: Any, max_new_tokens: int = 256, **options: Any) -> Any:
        """Generate: of a module, as its own ``generate``; of a file, a list of outputs.

        Args:
            inputs: Token ids, a tensor [batch, tokens]; for a file also a text, or several.
            max_new_tokens: Tokens of an answer, at most.
            options: Of a module's ``generate``; of a file fields of ``zse.SamplingParams``.
        """
        if self._module is not None:
            return self._module.generate(inputs, max_new_tokens, options)
        prompts = inputs.tolist() if isinstance(inputs, torch.Tensor) else inputs
        return self._answer(prompts, max_new_tokens, options)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the module."""
        if self._module is None:
            raise UsageError("a .zse file has no forward", hint="Call generate.")
        return self._module.call(arguments, options)

    def stats(self) -> Any:
        """Return what has streamed: of a module a ``StreamerStats``, of a file ``StreamFacts``."""
        if self._module is not None:
            return self._module.streamer.stats()
        return self._engine.streaming

    def close(self) -> None:
        """Give the device's memory back."""
        if self._module is not None:
            self._module.close()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _engine(self) -> LLM:
        assert self._file is not None
        return self._file

    def _answer(
        self, prompts: Any, max_new_tokens: int, options: dict[str, Any]
    ) -> list[RequestOutput]:
        params = SamplingParams(max_tokens=max_new_tokens, **options)
        return self._engine.generate(prompts, params)


class StreamedModule:
    """A module whose layers stream: hooks bring each before it runs."""

    def __init__(
        self,
        module: torch.nn.Module,
        gpu_layers: int,
        prefetch_layers: int,
        *,
        device: str | None = None,
        offload: OffloadManager | None = None,
        strategy: Strategy = "sequential",
    ) -> None:
        self.module = module
        chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.device = torch.device(chosen)
        layers = find_layers(module)
        self.tracker = MemoryTracker(self.device)
        if not gpu_layers:
            sizes = [_bytes_of(layer) for layer in layers]
            gpu_layers = self.tracker.optimal_window(sizes, reserve_bytes=KV_RESERVE_BYTES)
        self._rest = _tensors_beside(module, layers)
        self._homes = [tensor.data for tensor in self._rest]
        for tensor in self._rest:
            tensor.data = tensor.data.to(self.device)
        self.streamer = LayerStreamer(
            layers,
            gpu_layers,
            prefetch_layers,
            device=self.device,
            offload=offload,
            strategy=strategy,
        )
        self.tracker.on_change(self._on_pressure)
        self._hooks = [
            layer.register_forward_pre_hook(self._bringer(index))
            for index, layer in enumerate(layers)
        ]

    def generate(self, inputs: Any, max_new_tokens: int, options: dict[str, Any]) -> Any:
        moved = {
            key: value.to(self.device) if isinstance(value, torch.Tensor) else value
            for key, value in options.items()
        }
        with torch.no_grad():
            generate: Any = self.module.generate
            return generate(inputs.to(self.device), max_new_tokens=max_new_tokens, **moved)

    def call(self, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
        def moved(value: Any) -> Any:
            return value.to(self.device) if isinstance(value, torch.Tensor) else value

        return self.module(
            *map(moved, arguments), **{key: moved(value) for key, value in options.items()}
        )

    def close(self) -> None:
        """Take the hooks away and bring everything back to where it was."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.streamer.close()
        for tensor, home in zip(self._rest, self._homes, strict=True):
            tensor.data = home

    def _bringer(self, index: int) -> Callable[[torch.nn.Module, Any], None]:
        def bring(_layer: torch.nn.Module, _arguments: Any) -> None:
            if index == 0:  # between passes
                self.tracker.update(not_before_seconds=0.25)
            self.streamer.acquire(index)

        return bring

    def _on_pressure(self, state: MemoryState) -> None:
        """Have fewer layers on the device while it is short of memory."""
        if state.pressure is not MemoryPressure.NORMAL:
            self.streamer.resize(max(1, self.streamer.window // 2))


def find_layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the stack of layers of a module: its largest list of modules of one class.

    LLaMA, Mistral and Qwen have it at ``model.layers``, GPT-2 and Falcon at ``transformer.h``, OPT
    at ``model.decoder.layers``, GPT-NeoX at ``gpt_neox.layers``.

    Raises:
        UsageError: There is none.
    """
    stacks = [
        list(part)
        for part in module.modules()
        if isinstance(part, (torch.nn.ModuleList, torch.nn.Sequential))
        and len(part) > 1
        and len({type(layer) for layer in part}) == 1
    ]
    if not stacks:
        raise UsageError(
            f"no stack of layers was found in {type(module).__name__}",
            hint="Use LayerStreamer with the layers themselves.",
        )
    return max(stacks, key=lambda stack: sum(map(_bytes_of, stack)))


def _bytes_of(module: torch.nn.Module) -> int:
    tensors = (*module.parameters(), *module.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _tensors_beside(
    module: torch.nn.Module, layers: Sequence[torch.nn.Module]
) -> list[torch.Tensor]:
    """Return parameters and buffers that belong to no layer."""
    inside = {id(tensor) for layer in layers for tensor in (*layer.parameters(), *layer.buffers())}
    return [
        tensor for tensor in (*module.parameters(), *module.buffers()) if id(tensor) not in inside
    ]

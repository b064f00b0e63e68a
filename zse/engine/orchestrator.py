"""IntelligenceOrchestrator: picks the scheme a model is run at by the memory there is.

    orchestrator = IntelligenceOrchestrator.auto("tiny")
    for text in orchestrator.generate("The capital of France is"):
        print(text, end="", flush=True)

It only decides and delegates: ``LLM`` does the work.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from zse.device.open import cuda_driver_present, runs_on_gpu
from zse.device.probe import probe
from zse.device.survey import survey_cuda
from zse.engine.admission import default_max_tokens
from zse.engine.llm import LLM
from zse.engine.request import SamplingParams
from zse.engine.requirements import largest_that_fits, read_facts
from zse.errors import DeviceError, UsageError
from zse.models.rank_memory import estimate_rank
from zse.records import record
from zse.settings import load_settings
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from zse.engine.output import Delta
    from zse.models.memory import MemoryEstimate

Mode = Literal["auto", "min_memory", "balanced", "max_speed"]

_SAFE_SHARE = 0.9  # of the free memory: other processes live too


@record
class InferenceStats:
    """What the last ``generate`` took."""

    prompt_tokens: int
    generated_tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second, prefill included."""
        return self.generated_tokens / self.seconds if self.seconds > 0 else 0.0


class IntelligenceOrchestrator:
    """A model with the scheme chosen for it. Made by one of its class methods.

    Args:
        model: Whatever ``LLM`` takes.
        estimates: What it takes at each scheme worth choosing, best quality first.
        estimate: What was chosen of these.
        device: auto, cpu or cuda[:N].
        gpu_ids: The GPUs that compute it together, where there are several.
    """

    def __init__(
        self,
        model: str | Path,
        estimates: Sequence[MemoryEstimate],
        estimate: MemoryEstimate,
        *,
        device: str,
        gpu_ids: Sequence[int] = (),
    ) -> None:
        self.gpu_ids = tuple(gpu_ids)
        self.model = model
        self.estimate = estimate
        self.last_stats: InferenceStats | None = None
        self._estimates = estimates
        self._device = device
        self._llm: LLM | None = None

    @classmethod
    def auto(cls, model: str | Path, *, device: str = "auto", max_context: int = 0) -> Self:
        """Choose the best scheme that fits in the memory that is free on the device now.

        Raises:
            DeviceError: Not even INT4 fits, or the device cannot be used.
        """
        budget = int(_free_bytes(device) * _SAFE_SHARE)
        return cls._choose(model, device, max_context, partial(largest_that_fits, budget))

    @classmethod
    def for_vram(
        cls, vram_gb: float, model: str | Path, *, device: str = "auto", max_context: int = 0
    ) -> Self:
        """Choose the best scheme that fits in ``vram_gb`` times 10**9 bytes.

        Raises:
            UsageError: The budget is not above 0.
            DeviceError: Not even INT4 fits.
        """
        if not vram_gb > 0:
            raise UsageError(f"vram_gb is {vram_gb}, expected more than 0")
        pick = partial(largest_that_fits, int(vram_gb * 1e9))
        return cls._choose(model, device, max_context, pick)

    @classmethod
    def min_memory(cls, model: str | Path, *, device: str = "auto", max_context: int = 0) -> Self:
        """Run at INT4."""
        return cls._choose(model, device, max_context, lambda estimates: estimates[-1])

    @classmethod
    def balanced(cls, model: str | Path, *, device: str = "auto", max_context: int = 0) -> Self:
        """Run at INT8."""
        return cls._choose(model, device, max_context, lambda found: found[len(found) // 2])

    @classmethod
    def max_speed(cls, model: str | Path, *, device: str = "auto", max_context: int = 0) -> Self:
        """Run at 16 bits, in the checkpoint's own type."""
        return cls._choose(model, device, max_context, lambda estimates: estimates[0])

    @classmethod
    def multi_gpu(
        cls, model: str | Path, gpu_ids: Sequence[int] | None = None, *, max_context: int = 0
    ) -> Self:
        """Run on several GPUs of this machine, at the best scheme that fits into them together.

        Args:
            model: Whatever ``LLM`` takes.
            gpu_ids: Which GPUs, by number; None means all that can be used.
            max_context: Longest sequence in tokens; 0 means the model's context, at most 4096.

        Raises:
            DeviceError: There is no such GPU, or not even INT4 fits.
            UsageError: The model cannot be divided among so many.
        """
        free = _free_of_gpus(gpu_ids)
        estimates = _estimates(model, max_context, on_gpu=True, ranks=len(free))
        estimate = largest_that_fits(int(min(free.values()) * _SAFE_SHARE), estimates)
        alone, *others = free
        device = "cuda" if others else f"cuda:{alone}"
        return cls(model, estimates, estimate, device=device, gpu_ids=tuple(free))

    @staticmethod
    def get_gpu_info() -> dict[str, Any]:
        """Return the GPUs that this build can run on, and the memory it runs in otherwise.

        Returns:
            count, total_memory and free_memory (bytes over all GPUs), gpus (a list),
            cuda_driver (whether a driver is there), host_total_memory and host_free_memory.
        """
        host = probe()
        gpus = [state.info for state in survey_cuda().gpus if state.problem is None]
        return {
            "count": len(gpus),
            "total_memory": sum(gpu.total_bytes for gpu in gpus),
            "free_memory": sum(gpu.free_bytes for gpu in gpus),
            "gpus": [asdict(gpu) for gpu in gpus],
            "cuda_driver": cuda_driver_present(),
            "host_total_memory": host.total_memory_bytes,
            "host_free_memory": host.available_memory_bytes,
        }

    @property
    def quantization(self) -> str:
        """The scheme that was chosen: ``int4``, ``int8`` or a type of 16 bits."""
        return self.estimate.quantization

    @property
    def is_loaded(self) -> bool:
        """Whether the model is in memory; it is loaded when it is first asked."""
        return self._llm is not None

    def estimate_requirements(self) -> dict[str, Any]:
        """Return the memory needed, before anything is loaded.

        Returns:
            chosen (the scheme), and by_quantization: for each scheme its bytes of weights, KV
            cache and overhead, and their total.
        """
        return {
            "model": str(self.model),
            "chosen": self.quantization,
            "by_quantization": {e.quantization: e.to_json() for e in self._estimates},
        }

    def load(self) -> Self:
        """Load the model, converting it first when it is a checkpoint. Loading twice does nothing.

        Raises:
            ZSEError: As ``LLM``.
        """
        self._loaded()
        return self

    @overload
    def generate(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        stream: Literal[True] = True,
        **sampling: Any,
    ) -> Iterator[str]: ...

    @overload
    def generate(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        stream: Literal[False],
        **sampling: Any,
    ) -> str: ...

    def generate(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        stream: bool = True,
        **sampling: Any,
    ) -> Iterator[str] | str:
        """Answer a text as it stands, or a list of chat messages. Loads the model if need be.

        Args:
            prompt: A text, or messages with role and content.
            max_tokens: Most tokens to generate; None means up to 256 or the context's end.
            stream: Return an iterator of text pieces; else the whole text.
            sampling: Other fields of ``SamplingParams``.

        Raises:
            InvalidParameterError: A parameter is out of its range.
            ZSEError: As ``load``.
        """
        llm = self._loaded()
        token_ids = (
            llm.tokenizer.encode(prompt) if isinstance(prompt, str) else llm.chat_prompt(prompt)
        )
        if max_tokens is None:
            max_tokens = default_max_tokens(llm.max_context - len(token_ids))
        params = SamplingParams(max_tokens=max_tokens, **sampling)
        pieces = self._texts(llm.stream(token_ids, params))
        return pieces if stream else "".join(pieces)

    def close(self) -> None:
        """Give the memory back; ``load`` may be called again."""
        if self._llm is not None:
            self._llm.close()
            self._llm = None

    def __enter__(self) -> Self:
        return self.load()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _loaded(self) -> LLM:
        if self._llm is None:
            ranks = max(1, len(self.gpu_ids))
            self._llm = LLM(
                self.model,
                device=self._device,
                tensor_parallel=ranks,
                gpus=",".join(map(str, self.gpu_ids)) if ranks > 1 else "",
                max_context=self.estimate.context_tokens,
                kv_gib=self.estimate.kv_bytes / GIB,
                quant=self.quantization,
            )
        return self._llm

    def _texts(self, deltas: Iterator[Delta]) -> Iterator[str]:
        start = time.monotonic()
        num_tokens = num_prompt_tokens = 0
        for delta in deltas:
            num_tokens += len(delta.token_ids)
            num_prompt_tokens = delta.prompt_tokens
            if delta.text:
                yield delta.text
        self.last_stats = InferenceStats(
            prompt_tokens=num_prompt_tokens,
            generated_tokens=num_tokens,
            seconds=time.monotonic() - start,
        )

    @classmethod
    def _choose(
        cls,
        model: str | Path,
        device: str,
        max_context: int,
        pick: Callable[[Sequence[MemoryEstimate]], MemoryEstimate],
    ) -> Self:
        estimates = _estimates(model, max_context, on_gpu=runs_on_gpu(device))
        return cls(model, estimates, pick(estimates), device=device)


def load_model(
    model: str | Path, mode: Mode = "auto", *, device: str = "auto", max_context: int = 0
) -> IntelligenceOrchestrator:
    """Choose a scheme by ``mode`` and load the model.

    Raises:
        UsageError: There is no such mode.
        ZSEError: As ``IntelligenceOrchestrator.load``.
    """
    modes = {
        "auto": IntelligenceOrchestrator.auto,
        "min_memory": IntelligenceOrchestrator.min_memory,
        "balanced": IntelligenceOrchestrator.balanced,
        "max_speed": IntelligenceOrchestrator.max_speed,
    }
    if mode not in modes:
        raise UsageError(f"mode {mode!r} is not known", hint=f"Use one of: {', '.join(modes)}.")
    return modes[mode](model, device=device, max_context=max_context).load()


def _free_bytes(device: str) -> int:
    """Return the memory that a model on this device may take now.

    Raises:
        DeviceError: It is a GPU that is absent or cannot be used.
    """
    if not runs_on_gpu(device):
        return probe().available_memory_bytes
    survey = survey_cuda()
    ordinal = device.partition(":")[2] or "0"
    state = next((gpu for gpu in survey.gpus if str(gpu.info.ordinal) == ordinal), None)
    problem = survey.problem if state is None else state.problem
    if problem is not None:
        raise problem
    if state is None:
        raise DeviceError(
            f"device {device!r} is none of the {len(survey.gpus)} GPUs here",
            hint="`zse hardware` lists them.",
        )
    return state.info.free_bytes


def _free_of_gpus(gpu_ids: Sequence[int] | None) -> dict[int, int]:
    """Return the free memory of each of some GPUs, of all that can be used where none is named.

    Raises:
        DeviceError: There is no such GPU, or it cannot be used.
    """
    survey = survey_cuda()
    found = {one.info.ordinal: one for one in survey.gpus}
    named = [ordinal for ordinal, one in found.items() if one.problem is None]
    if gpu_ids is not None:
        named = list(dict.fromkeys(gpu_ids))
    if survey.problem is not None:
        raise survey.problem
    if not named or (missing := [one for one in named if one not in found]):
        raise DeviceError(
            f"there are no GPUs {missing if named else ''} among the {len(found)} of this machine",
            hint="`zse hardware` lists them.",
        )
    for ordinal in named:
        if (problem := found[ordinal].problem) is not None:
            raise problem
    return {ordinal: found[ordinal].info.free_bytes for ordinal in named}


def _estimates(
    model: str | Path, context_tokens: int, *, on_gpu: bool, ranks: int = 1
) -> list[MemoryEstimate]:
    """Return an estimate for each scheme worth choosing, best quality first: 16 bits, 8 and 4.

    Of several ranks it is what one of them takes.
    """
    facts = read_facts(model, load_settings())
    # NF4 takes what INT4 takes and computes slower, so it is for those who ask for it.
    schemes = [facts.plain_quantization, "int8", "int4"]
    return [
        estimate_rank(facts, scheme, ranks, on_gpu=on_gpu, context_tokens=context_tokens)
        for scheme in ([facts.stored_quantization] if facts.tensors else schemes)
    ]

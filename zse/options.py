"""Every option once: type, default, bounds, unit, help and variable stand at its field.

Here are those of loading and running a model; ``zse.server_options`` has a server's.

Flags, the environment, ``zse.toml``, ``LLM``'s keywords and the reference pages are made of these
records, and the records themselves travel down to whoever reads an option. To add one, add a field
(and, when ``LLM`` takes it, its type to ``LoadFields``), and read it where it is needed.

A command declares its flags from here and hands over what it was given; None is "not given"::

    row = options_of(ServeOptions)["max_context"]  # .flags ("--max-context",), .kind int,
    # .default 0, .choices (), .help_text "Longest sequence, in tokens; ...  [ZSE_MAX_CONTEXT]"
    options = with_flags(load_settings().serve, {"max_context": 4096, "device": None})
"""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from zse.errors import UsageError
from zse.option import Checked, described, own_options, with_values
from zse.records import record
from zse.units import GIB

KV_DTYPES = ("auto", "fp32", "fp16", "bf16", "int8", "int4")
PREFILL_PRECISIONS = ("auto", "16", "8")
PREFILL_WEIGHTS = ("auto", "keep", "make")
SPECULATIONS = ("auto", "suffix", "model", "mtp", "medusa", "early-exit", "off")
STREAMINGS = ("auto", "on", "off")
CPU_INSTRUCTIONS = ("auto", "avx512", "avxvnni", "avx2", "sse4", "i8mm", "dotprod", "neon")
MAX_RANKS = 16
MAX_THREADS = 1024
"""Far more than any machine has cores; the runtime below crashes where it cannot start them all."""


@record
class DeviceOptions(Checked):
    """The device that computes, and its precision."""

    name: str = described(
        "auto", "Where the model runs: auto, cpu, cuda, cuda:N or torch", key="device"
    )
    threads: int = described(
        0, "CPU threads", unset="one a core, within the container's quota", most=MAX_THREADS
    )
    cpu_instructions: str = described(
        "auto",
        "Instruction set of the CPU kernels; auto takes the best that the CPU has",
        choices=CPU_INSTRUCTIONS,
    )
    vram_gib: float = described(
        0.0,
        "GPU memory that the server may use in all",
        unit="GiB",
        unset="all that is free",
        also=("--vram",),
    )
    exact_activations: bool = described(
        False, "Never round activations to 8 bits; decoding is slower"
    )
    deterministic: bool = described(
        False,
        "Give the same answer to the same request, whatever else is computed beside it; prompts "
        "take longer",
    )
    prefill_precision: str = described(
        "auto",
        "Bits in which a GPU reads prompts of more than 256 tokens, with quantized weights; auto "
        "is 8, but 16 for encoders and with --exact-activations",
        choices=PREFILL_PRECISIONS,
    )
    prefill_weights: str = described(
        "auto",
        "Whether a GPU keeps a second copy of the weights, a byte each, to read long prompts "
        "faster, or makes it anew for each step; auto keeps what fits an eighth of the memory that "
        "the weights leave. With --deterministic all rows read the copy where it is whole, or none",
        choices=PREFILL_WEIGHTS,
    )
    kernels: str = described(
        "",
        "Kernel pack (.zkp) for the GPU",
        unset="the one in the model file, the image or the cache",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exact_activations and self.prefill_precision == "8":
            raise UsageError(
                "--prefill-precision is 8, which --exact-activations excludes: its products are of "
                "16 bits",
                hint="Leave out --prefill-precision, or --exact-activations.",
            )

    @property
    def vram_bytes(self) -> int:
        """GPU memory for everything; 0 means all that is free."""
        return int(self.vram_gib * GIB)


@record
class CacheOptions(Checked):
    """The KV cache."""

    kv_gib: float = described(
        0.0, "Memory for the KV cache", unit="GiB", unset="chosen from what is free"
    )
    kv_dtype: str = described(
        "auto",
        "Type of the cached keys and values; auto: bf16 on a GPU, fp16 on a CPU; int8 holds 1.9 "
        "times the context, int4 up to 3.6 times at a small loss",
        choices=KV_DTYPES,
    )
    num_blocks: int = described(
        0, "Blocks of the KV cache", unset="as many as the memory for it holds", env=""
    )
    block_size: int = described(32, "Tokens in a block of the KV cache", least=1, env="")
    prefix_cache: bool = described(True, "Reuse the KV of equal prompt prefixes", env="")
    prefix_store: str = described(
        "",
        "Where cached prompt prefixes are saved when the server stops, for the next start: a "
        "folder or s3://BUCKET/PREFIX/; memory: keeps them in host memory while a model sleeps or "
        "is swapped out",
        unset="nowhere",
    )
    prefix_store_gib: float = described(
        2.0, "Size limit of the prefix store; the least recently used go first", unit="GiB"
    )
    prefix_key_file: str = described(
        "",
        "File with the key that encrypts the prefix store: 32 bytes, raw or as 64 hexadecimal "
        "digits",
        unset="no encryption",
    )

    prefix_host_gib: float = described(
        0.0,
        "Host memory as a second place for prefixes that a GPU's full KV cache gives up",
        unit="GiB",
        unset="none",
    )

    @property
    def prefix_host_bytes(self) -> int:
        """Host memory for prefixes that left the device."""
        return int(self.prefix_host_gib * GIB)

    @property
    def kv_bytes(self) -> int:
        """Memory for the KV cache; 0 means chosen from what is free."""
        return int(self.kv_gib * GIB)

    @property
    def prefix_store_bytes(self) -> int:
        """Most that is kept of prefixes between starts."""
        return int(self.prefix_store_gib * GIB)


@record
class BatchOptions(Checked):
    """Limits of what is computed together."""

    max_context: int = described(
        0,
        "Longest sequence, prompt and answer together",
        unit="tokens",
        unset="what the model says",
    )
    max_sequences: int = described(
        64, "Answers that run at once; the others wait", key="max_running", least=1
    )
    max_batch_tokens: int = described(2048, "Most tokens in a step", least=1, env="")


@record
class SpeculationOptions(Checked):
    """Who guesses the next tokens of answers, to be checked together."""

    speculate: str = described(
        "auto",
        "Who guesses tokens that are then checked together: suffix takes what followed the same "
        "words before, model asks the draft model, mtp a head that the file has, medusa "
        "heads that it was given, early-exit the model's own first layers; auto is model where one "
        "is named, else suffix where that changes no bit of an answer, on a CPU",
        choices=SPECULATIONS,
    )
    draft_model: str = described(
        "",
        "A small model of the same tokenizer that guesses tokens for the large one",
        unset="none",
    )
    early_exit_layers: int = described(
        0,
        "First layers that guess where --speculate is early-exit",
        unset="as many as turn out best",
        least=0,
    )


@record
class LoRAOptions(Checked):
    """LoRA adapters."""

    max_rank: int = described(
        64, "Largest rank of an adapter", key="max_lora_rank", least=1, most=512
    )
    max_loaded: int = described(
        32, "Adapters that are loaded at once", key="max_loras", least=1, most=10000
    )
    gpu_gib: float = described(
        0.0,
        "GPU memory reserved for adapters",
        key="lora_gib",
        unit="GiB",
        unset="room for those that are named at the start, each of the largest rank, and for eight "
        "more if adapters may be loaded over the API",
    )

    @property
    def gpu_bytes(self) -> int:
        """GPU memory for adapters."""
        return int(self.gpu_gib * GIB)


@record
class RankOptions(Checked):
    """Several devices of this machine for one model."""

    tensor_parallel: int = described(
        1,
        "Devices that share every layer of the model (tensor parallelism); on a CPU, processes",
        least=1,
        most=MAX_RANKS,
        also=("--tp",),
    )
    pipeline_parallel: int = described(
        1,
        "Stages that the layers are divided among (pipeline parallelism); each has as many devices "
        "as --tensor-parallel says",
        least=1,
        most=MAX_RANKS,
        also=("--pp",),
    )
    gpus: str = described(
        "",
        "Which GPUs, by number, such as 0,1; 0,0 has two ranks take turns on one",
        unset="the first ones of the machine",
    )
    timeout_seconds: float = described(
        60.0,
        "How long a step on several devices may make no progress before it counts as failed",
        key="rank_timeout_seconds",
        unit="seconds",
        least=1.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_devices > MAX_RANKS:
            raise UsageError(
                f"{self.pipeline_parallel} stages of {self.tensor_parallel} devices are "
                f"{self.num_devices}, at most {MAX_RANKS} compute a model together",
                hint="Use a smaller --pipeline-parallel or --tensor-parallel.",
            )
        if self.gpus and self.num_devices == 1:
            raise UsageError(
                f"--gpus {self.gpus} is given, and one device computes the model",
                hint="Say how many do by --tensor-parallel, or name the one by --device cuda:N.",
            )

    @property
    def num_devices(self) -> int:
        """Devices of all stages."""
        return self.tensor_parallel * self.pipeline_parallel


@record
class StreamOptions(Checked):
    """Models that are larger than the memory."""

    stream: str = described(
        "auto",
        "Load layers anew for each step instead of keeping them in memory; auto does so if the "
        "model would leave no room for the KV cache",
        choices=STREAMINGS,
    )
    resident_layers: int = described(
        0, "Layers that stay on the GPU while others stream", unset="as many as fit"
    )
    slots: int = described(
        2,
        "Buffers on the GPU for layers that stream, a layer each",
        key="stream_slots",
        least=2,
        most=64,
    )
    ram_gib: float = described(
        0.0,
        "Memory of this machine for weights: with a GPU, pinned copies of the layers that stream; "
        "on a CPU, what is kept of the whole model",
        unit="GiB",
        unset="chosen from what is available",
    )

    @property
    def ram_bytes(self) -> int:
        """Memory of this machine for weights; 0 means chosen from what is available."""
        return int(self.ram_gib * GIB)


@record
class LoadOptions(Checked):
    """How a model is loaded."""

    device: DeviceOptions = DeviceOptions()
    cache: CacheOptions = CacheOptions()
    batch: BatchOptions = BatchOptions()
    speculation: SpeculationOptions = SpeculationOptions()
    lora: LoRAOptions = LoRAOptions()
    ranks: RankOptions = RankOptions()
    stream: StreamOptions = StreamOptions()
    quant: str | None = described(
        None, "Scheme to convert to when the model is not a .zse file yet", env=""
    )


UNROUNDED = {"exact_activations": True, "kv_dtype": "auto", "prefill_precision": "auto"}
"""What a model is loaded with that others are held against: nothing but its weights is rounded."""


class LoadFields(TypedDict, total=False):
    """The options of a load by name, for type checkers; ``LoadOptions`` says what they mean."""

    device: str
    threads: int
    cpu_instructions: str
    vram_gib: float
    exact_activations: bool
    deterministic: bool
    prefill_precision: str
    prefill_weights: str
    kernels: str
    kv_gib: float
    kv_dtype: str
    num_blocks: int
    block_size: int
    prefix_cache: bool
    prefix_store: str
    prefix_store_gib: float
    prefix_host_gib: float
    prefix_key_file: str
    max_context: int
    max_sequences: int
    max_batch_tokens: int
    speculate: str
    max_lora_rank: int
    max_loras: int
    lora_gib: float
    stream: str
    resident_layers: int
    stream_slots: int
    ram_gib: float
    draft_model: str
    early_exit_layers: int
    tensor_parallel: int
    pipeline_parallel: int
    gpus: str
    rank_timeout_seconds: float
    quant: str | None


def load_options(**values: Unpack[LoadFields]) -> LoadOptions:
    """Return the options of a load that have these values.

    Raises:
        UsageError: A value is out of range.
    """
    unknown = values.keys() - LoadFields.__annotations__.keys()
    if unknown:
        raise TypeError(f"a model is loaded with no option {', '.join(sorted(unknown))}")
    return with_values(LoadOptions(), values)


def load_fields(options: LoadOptions) -> LoadFields:
    """Return the keywords of ``load_options`` that make these options."""
    values: Any = {
        row.key if row.key in LoadFields.__annotations__ else name: getattr(one, name)
        for one in (
            *(options, options.device, options.cache, options.batch),
            *(options.speculation, options.lora, options.ranks, options.stream),
        )
        for name, row in own_options(type(one)).items()
    }
    fields_given: LoadFields = values
    return fields_given

"""What a user asks of a conversion: keywords of ``convert_model``, flags of ``zse convert``.

One record has the words as they were given, and makes of them what the parts of a conversion take.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from zse.models.storage import DEFAULT_QUANTIZATION, Storage
from zse.quantize.calibrate.support import check_calibrated
from zse.quantize.calibrate.texts import read_calibration
from zse.quantize.mixed.mix import Mix, budget_of
from zse.quantize.place_of_work import choose_device
from zse.quantize.text_files import TextOptions
from zse.quantize.writing import Recipe
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.quantize.calibrate.texts import CalibrationText
    from zse.quantize.mixed.plan import Budget, MixedPlan


@record
class ConversionOptions:
    """How a checkpoint is converted."""

    quantization: str | None = None
    """``int4``, ``int3``, ``int2``, ``nf4``, ``nl4``, ``mxfp4``, ``int8``, ``fp16`` or ``bf16``;
    None means ``int4``, and for a checkpoint that came quantized what it has."""
    group_size: int | None = None
    """128, 64 or 32 (int4, nf4), 64 or 32 (int3, int2), 32 or 16 (nl4); None means 128 for int4, 64
    for int3 and nf4, 32 for int2, 16 for nl4."""
    attention: str = "auto"
    """Of what makes queries, keys and values: ``int8``, ``same`` as other linear layers, or
    ``auto``: INT8 beside ``int4`` without a group size, where it is small."""
    lm_head: str = "auto"
    """``auto``, ``int8``, ``fp16`` or ``bf16``."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    tokenizer: str | Path | None = None
    """Folder whose tokenizer is taken instead of the checkpoint's own."""
    chat_template: str | Path | None = None
    """Jinja file that is taken instead of the tokenizer's own template."""
    allow_no_tokenizer: bool = False
    """Convert a checkpoint that has none."""
    calibrate: str | Path | None = None
    """File with a text that the model reads, so that codes are chosen by what it makes of it: plain
    text, or JSON lines of messages (``.jsonl``); ``sample`` is one that zse brings."""
    target_bits: float | None = None
    """Mean bits of a weight of linear layers: each gets a scheme of its own, as its errors count.
    ``quantization`` and ``group_size`` are left out then."""
    target_gib: float | None = None
    """The same, by the size of the whole file."""
    merge_lora: Sequence[str | Path] = ()
    """Folders of LoRA adapters in PEFT's form, which are added to the weights."""
    medusa: str | Path | None = None
    """Folder of Medusa's heads, which are kept in the file and guess tokens if asked to."""
    device: str = "auto"
    """Where schemes are computed: ``cpu``, ``cuda`` or ``cuda:N``; ``auto`` is a GPU where torch
    sees one."""
    resume: bool = False
    """Go on with what a killed run left, and keep what is done if this run fails."""
    force: bool = False
    """Replace what the output's name means, and write inside the checkpoint's folder."""

    @property
    def budget(self) -> Budget | None:
        """The target that was given, if any.

        Raises:
            UsageError: A scheme was asked for as well, or two targets.
        """
        return budget_of(self.target_bits, self.target_gib, self.quantization, self.group_size)

    def storage(self) -> Storage:
        """Return how weights are kept.

        Raises:
            UsageError: A scheme or a size of groups has no meaning.
        """
        return Storage(
            quantization=(self.quantization or DEFAULT_QUANTIZATION).lower(),
            group_size=self.group_size,
            attention=self.attention.lower(),
            lm_head=self.lm_head.lower(),
            is_default=self.quantization is None,
        )

    def texts(self) -> TextOptions:
        """Return whose tokenizer and template are taken.

        Raises:
            UsageError: Options contradict each other, or the template is not one.
            NotFoundError: A file or folder does not exist.
            TokenizerMissingError: The folder holds no tokenizer.json.
        """
        return TextOptions(
            tokenizer=_path(self.tokenizer),
            chat_template=_path(self.chat_template),
            allow_no_tokenizer=self.allow_no_tokenizer,
        )

    def calibration(self) -> CalibrationText | None:
        """Return the text that the model reads, if any.

        Raises:
            UsageError: The file is empty, or no text.
            NotFoundError: There is no such file.
        """
        return None if self.calibrate is None else read_calibration(self.calibrate)

    def recipe(self, on_plan: Callable[[MixedPlan], None] | None, *, threads: int) -> Recipe:
        """Return what is made of the checkpoint.

        Args:
            on_plan: Called with the schemes under a target, before anything is written.
            threads: How many compute on a CPU; 0 means as many as there are cores.

        Raises:
            UsageError: An option has no meaning.
            NotFoundError: A file or folder does not exist.
        """
        budget, storage = self.budget, self.storage()
        if self.calibrate is not None:
            check_calibrated(storage.quantization)
        return Recipe(
            storage=storage,
            texts=self.texts(),
            calibration=self.calibration(),
            mix=None if budget is None else Mix(budget, on_plan or (lambda _plan: None)),
            adapters=tuple(Path(folder).expanduser() for folder in self.merge_lora),
            medusa=_path(self.medusa),
            threads=threads,
            device=choose_device(self.device),
        )


class ConversionFields(TypedDict, total=False):
    """The options by name, for type checkers; ``ConversionOptions`` says what they mean."""

    group_size: int | None
    attention: str
    lm_head: str
    revision: str | None
    tokenizer: str | Path | None
    chat_template: str | Path | None
    allow_no_tokenizer: bool
    calibrate: str | Path | None
    target_bits: float | None
    target_gib: float | None
    merge_lora: Sequence[str | Path]
    medusa: str | Path | None
    device: str
    resume: bool
    force: bool


def conversion_options(
    quantization: str | None, **fields: Unpack[ConversionFields]
) -> ConversionOptions:
    """Return the options that have these values.

    Raises:
        TypeError: There is no option of such a name.
    """
    unknown = fields.keys() - ConversionFields.__annotations__.keys()
    if unknown:
        raise TypeError(f"a model is converted with no option {', '.join(sorted(unknown))}")
    return ConversionOptions(quantization=quantization, **fields)


def _path(text: str | Path | None) -> Path | None:
    return None if text is None else Path(text).expanduser()

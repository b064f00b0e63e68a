"""The texts that travel with a model (tokenizer, chat template, settings), and whether they work.

A model without a tokenizer converts, builds and dies when it is served, so it is refused here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from zse.errors import CheckpointError, NotFoundError, TemplateError, UsageError
from zse.models.pooling import MODULES_FILE, POOLING_SECTION, check_vectors
from zse.quantize.weight_files import parse_json
from zse.records import record
from zse.text.binary import build_binary
from zse.text.facts import parse_object
from zse.text.template import ChatTemplate
from zse.text.tokenizer import Tokenizer, special_token_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from zse.models.spec import ModelSpec
    from zse.quantize.checkpoint import Checkpoint

TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
TOKENIZER_FILES = (
    TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", TEMPLATE, "chat_template.json",
)  # fmt: skip
"""What a tokenizer's folder may hold; the first is what a model cannot do without."""
_COPIED_TEXTS = ("special_tokens_map.json", TOKENIZER, "tokenizer_config.json")
_OWN = ("config.json", "generation_config.json", POOLING_SECTION)
_OTHER_FORMS = ("tokenizer.model", "spm.model", "vocab.json", "vocab.txt")
_MAX_TEMPLATE_BYTES = 1 << 20


class TokenizerMissingError(CheckpointError):
    """A checkpoint has no tokenizer that can be served."""


@record
class TextOptions:
    """What the user says about the tokenizer and the chat template.

    Raises:
        UsageError: Options contradict each other, or the template is not one.
        NotFoundError: A file or folder does not exist.
        TokenizerMissingError: The folder holds no tokenizer.json.
    """

    tokenizer: Path | None = None
    """Folder whose tokenizer is taken; None means the checkpoint's own."""
    chat_template: Path | None = None
    """Jinja file that is taken; None means the one that belongs to the tokenizer."""
    allow_no_tokenizer: bool = False
    """A model that can only be given token ids is what is wanted."""

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            if self.allow_no_tokenizer:
                raise UsageError("--tokenizer and --allow-no-tokenizer contradict each other")
            if not self.tokenizer.is_dir():
                raise NotFoundError(
                    f"there is no folder {self.tokenizer}",
                    hint="Name the folder that holds tokenizer.json.",
                )
            names = [path.name for path in self.tokenizer.iterdir()]
            self.check_names(str(self.tokenizer), names, is_own=False)
        if self.chat_template is not None:
            self.template()

    def files(self) -> list[Path]:
        found = [] if self.chat_template is None else [self.chat_template]
        return found + ([] if self.tokenizer is None else list(self.tokenizer.iterdir()))

    def template(self) -> str | None:
        """Return the chat template that was given, as it stands in its file."""
        if self.chat_template is None:
            return None
        if not self.chat_template.is_file():
            raise NotFoundError(f"there is no file {self.chat_template}", hint="Check the path.")
        try:
            data = self.chat_template.read_bytes()
            text = data.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.chat_template} is not UTF-8 text") from error
        if not text.strip() or len(data) > _MAX_TEMPLATE_BYTES:
            raise UsageError(
                f"{self.chat_template} has {len(data)} bytes; expected a Jinja template",
                hint="Give the file that transformers calls chat_template.jinja.",
            )
        return text

    def check_names(self, where: str, names: Collection[str], *, is_own: bool = True) -> None:
        """Refuse a checkpoint, by the names of its files, that has no usable tokenizer."""
        if TOKENIZER in names or self.allow_no_tokenizer or (is_own and self.tokenizer):
            return
        others = [name for name in _OTHER_FORMS if name in names]
        if others:
            load = f"AutoTokenizer.from_pretrained({where!r})"
            raise TokenizerMissingError(
                f"{where} holds its tokenizer as {' and '.join(others)} only; expected {TOKENIZER}",
                hint="Make it with transformers, sentencepiece and protobuf installed, "
                f"{load}.save_pretrained('FOLDER'), then add --tokenizer FOLDER.",
            )
        raise TokenizerMissingError(
            f"{where} holds no {TOKENIZER}",
            hint="Take it from the base model's folder with --tokenizer FOLDER. "
            "(--allow-no-tokenizer makes a file that cannot be served as text.)",
        )

    def to_json(self) -> dict[str, str]:
        """Return what a file's provenance says; the digests of the content are in its sections."""
        given = {"tokenizer": self.tokenizer, "chat_template": self.chat_template}
        return {key: path.resolve().name for key, path in given.items() if path is not None}


def collect_sections(checkpoint: Checkpoint, options: TextOptions) -> list[tuple[str, bytes]]:
    """Return ``(section name, content)`` in the order they are written.

    Files are copied as they are. The chat template is taken from wherever the checkpoint, or the
    folder that was named for its tokenizer, keeps it. The tokenizer's fast binary form is added
    when it is proven equal to the usual one.

    Raises:
        TokenizerMissingError: There is no tokenizer, and nobody said that there need be none.
        CheckpointError: tokenizer_config.json is malformed.
        UnsupportedModelError: Its vectors are made as nothing here makes them.
    """
    place = checkpoint.place
    told = _present(place.read, (POOLING_SECTION, MODULES_FILE))
    check_vectors(checkpoint.spec, told.get(POOLING_SECTION), told.get(MODULES_FILE))
    options.check_names(str(place.path), place.names())
    sections = list(_present(place.read, _OWN).items())
    texts = own = _present(place.read, TOKENIZER_FILES)
    if options.tokenizer is not None:
        texts = _present(partial(_in_folder, options.tokenizer), TOKENIZER_FILES)
    sections += [(name, texts[name]) for name in _COPIED_TEXTS if name in texts]
    template = options.template() or default_template(texts) or default_template(own)
    if template:
        sections.append((TEMPLATE, template.encode()))
    binary = build_binary(texts[TOKENIZER]) if TOKENIZER in texts else None
    if binary is not None:
        sections.append(("tokenizer.kitoken", binary))
    return sorted(sections)


def _present(read: Callable[[str], bytes | None], names: Iterable[str]) -> dict[str, bytes]:
    texts = {name: read(name) for name in names}
    return {name: text for name, text in texts.items() if text is not None}


def _in_folder(folder: Path, name: str) -> bytes | None:
    path = folder / name
    return path.read_bytes() if path.is_file() else None


def check_texts(
    sections: Mapping[str, bytes], spec: ModelSpec, options: TextOptions
) -> tuple[str, ...]:
    """Try the tokenizer and the template that a file will hold; return what is to be said.

    Args:
        sections: By their names.
        spec: The model that they belong to.
        options: A template that the user gave must work.

    Raises:
        UsageError: The template that was given does not.
        FormatError: The tokenizer cannot be read.
    """
    if TOKENIZER not in sections:
        return ("There is no tokenizer: the model can be given token ids only.",)
    warnings = []
    num_tokens = Tokenizer.from_sections(sections.get).vocab_size
    if num_tokens > spec.vocab_size:
        warnings.append(
            f"The tokenizer has {num_tokens} tokens, the model {spec.vocab_size}: "
            "check that it belongs to this model."
        )
    if TEMPLATE not in sections and not spec.is_encoder:
        warnings.append(
            "There is no chat template: /v1/chat/completions and zse chat will refuse. "
            "For an instruct model give one with --chat-template FILE."
        )
    if TEMPLATE not in sections:
        return tuple(warnings)
    try:
        _render(sections)
    except TemplateError as error:
        if options.chat_template is not None:
            raise UsageError(
                f"{options.chat_template}: {error.message}", hint=error.hint
            ) from error
        warnings.append(
            f"The checkpoint's chat template cannot be used ({error.message}): "
            "give another one with --chat-template FILE."
        )
    return tuple(warnings)


def _render(sections: Mapping[str, bytes]) -> None:
    data = sections.get("tokenizer_config.json")
    config = parse_object(data, "tokenizer_config.json") if data else {}
    template = ChatTemplate(
        sections[TEMPLATE].decode("utf-8", "replace"),
        bos_token=special_token_text(config.get("bos_token")),
        eos_token=special_token_text(config.get("eos_token")),
    )
    template.render([{"role": "user", "content": "Hello"}])


def default_template(files: Mapping[str, bytes]) -> str | None:
    """Return the default chat template; newer checkpoints keep it in a file of its own.

    Args:
        files: Name -> content of those of ``TOKENIZER_FILES`` that there are.

    Raises:
        CheckpointError: A file is not UTF-8 text, or not a JSON object.
    """
    if TEMPLATE in files:
        try:
            return files[TEMPLATE].decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{TEMPLATE} is not UTF-8 text: {error.reason} at byte {error.start}",
                hint="Download the checkpoint again, or give another with --chat-template FILE.",
            ) from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        if name not in files:
            continue
        template = parse_json(files[name], name).get("chat_template")
        if isinstance(template, list):  # several templates, each with a name
            named = (item for item in template if isinstance(item, dict))
            template = next(
                (item.get("template") for item in named if item.get("name") == "default"), None
            )
        if isinstance(template, str):
            return template
    return None

"""The tokenizer's files and the chat template that a GGUF file's settings stand for."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError, UnsupportedModelError
from zse.quantize.gguf.pre_tokenizers import PRE_TOKENIZERS, byte_level
from zse.quantize.gguf.word_pieces import around_texts, restored, special_tokens, word_pieces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_USUAL, _UNKNOWN, _CONTROL, _OF_USERS = 1, 2, 3, 4
"""Kinds of tokens (``llama_token_type``); 6 is a byte."""
_WORD_START = "\u2581"
_HINT = "Name a folder that holds the model's tokenizer.json with --tokenizer FOLDER."


def texts_of(settings: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """Return tokenizer.json, tokenizer_config.json and the chat template, those that there are.

    Raises:
        CheckpointError: The settings of the tokenizer are damaged.
        UnsupportedModelError: A tokenizer of a kind that is not known.
    """
    found: dict[str, bytes] = {}
    if "tokenizer.ggml.tokens" in settings:
        vocabulary = _Vocabulary(settings, where)
        found["tokenizer.json"] = _json(vocabulary.document())
        found["tokenizer_config.json"] = _json(vocabulary.named_tokens())
    template = settings.get("tokenizer.chat_template")
    if isinstance(template, str) and template.strip():
        found["chat_template.jinja"] = template.encode("utf-8", "replace")
    return found


_SPACES: dict[str, Any] = {
    "type": "Replace",
    "pattern": {"String": " "},
    "content": _WORD_START,
}
_LETTERS_BACK: tuple[dict[str, Any], ...] = (
    {"type": "Replace", "pattern": {"String": _WORD_START}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)


class _Vocabulary:
    """The tokens of a file, by number, and how texts become some of them."""

    def __init__(self, settings: Mapping[str, Any], where: str) -> None:
        self._settings = settings
        self._where = where
        self._tokens: list[str] = list(self._list("tokens", str))
        self._kinds: list[int] = list(self._list("token_type", int))
        self._restored = self._restore_spaces()
        if settings.get("tokenizer.ggml.model") == "bert":
            pairs = zip(self._tokens, self._kinds, strict=True)
            self._tokens = [restored(token, is_control=kind == _CONTROL) for token, kind in pairs]
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        if len(self._ids) != len(self._tokens):
            raise self._broken("two tokens are written alike")

    def _restore_spaces(self) -> set[int]:
        """Make tokens of spaces alone usual ones again, and return which those are.

        llama.cpp's converter writes SentencePiece's runs of them as what they stand for.
        """
        restored = set()
        if self._settings.get("tokenizer.ggml.model") == "llama":
            for number, (token, kind) in enumerate(zip(self._tokens, self._kinds, strict=True)):
                if kind == _OF_USERS and token and not token.strip(" "):
                    self._tokens[number], self._kinds[number] = _WORD_START * len(token), _USUAL
                    restored.add(number)
        return restored

    def document(self) -> dict[str, Any]:
        """Return the tokenizer.json.

        Raises:
            UnsupportedModelError: The kind of tokenizer, or of its pre-tokenizer, is not known.
        """
        kind = self._settings.get("tokenizer.ggml.model")
        if kind == "gpt2":
            document, adds_bos = self._byte_level()
        elif kind == "llama":
            document, adds_bos = self._by_scores()
        elif kind == "gemma4":
            document, adds_bos = self._by_merges(), True
        elif kind == "bert":
            return self._joined(self._of_words(), around_texts(*self._ends(), self._ids))
        else:
            raise UnsupportedModelError(
                f"{self._where} has a tokenizer of kind {str(kind)[:50]!r}, which is not read from "
                "GGUF",
                hint=_HINT,
            )
        adds_bos = self._flag("add_bos_token", default=adds_bos)
        return self._joined(document, self._template(adds_bos=adds_bos))

    def _joined(self, document: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._added(),
            **document,
            "post_processor": template,
        }

    def named_tokens(self) -> dict[str, Any]:
        """Return the tokenizer_config.json: the tokens that templates name."""
        names = {
            "bos": "bos_token",
            "eos": "eos_token",
            "unknown": "unk_token",
            "padding": "pad_token",
            "cls": "cls_token",
            "seperator": "sep_token",
            "mask": "mask_token",
        }
        found = {ours: self._named(theirs) for theirs, ours in names.items()}
        return {name: token for name, token in found.items() if token is not None}

    def _byte_level(self) -> tuple[dict[str, Any], bool]:
        """Bytes as letters, merged in the order of a list (GPT-2's)."""
        pre = self._settings.get("tokenizer.ggml.pre", "gpt-2")
        row = PRE_TOKENIZERS.get(str(pre))
        if row is None:
            raise UnsupportedModelError(
                f"{self._where} cuts texts as {str(pre)[:50]!r} does, which is not known",
                hint=_HINT,
            )
        steps = list(row.steps)
        pairs = self._pairs()
        document = {
            "normalizer": {"type": row.normalizer} if row.normalizer else None,
            "pre_tokenizer": steps[0] if len(steps) == 1 else _sequence("pretokenizers", steps),
            "decoder": byte_level(uses_regex=True),
            "model": self._merged(pairs, ignores_merges=row.ignores_merges, unknown=None),
        }
        return document, row.adds_bos

    def _by_merges(self) -> dict[str, Any]:
        """Letters, merged in the order of a list, bytes where there is no letter (Gemma's)."""
        return {
            "normalizer": _SPACES,
            "pre_tokenizer": None,
            "decoder": _sequence("decoders", list(_LETTERS_BACK)),
            "model": self._merged(self._pairs(), unknown=self._named("unknown"), falls_back=True),
        }

    def _pairs(self) -> list[list[str]]:
        pairs = [merge.split(" ") for merge in self._list("merges", str, count=None)]
        if not all(len(pair) == 2 and {*pair, "".join(pair)} <= self._ids.keys() for pair in pairs):
            raise self._broken("a merge is not of two tokens that make a third")
        return pairs

    def _by_scores(self) -> tuple[dict[str, Any], bool]:
        """Letters, merged by the score of what comes of it, bytes where there is no letter."""
        scores = [
            math.inf if number in self._restored else score  # runs of spaces are whole before all
            for number, score in enumerate(self._list("scores", float))
        ]
        begins = self._flag("add_space_prefix", default=True)
        prefix = {"type": "Prepend", "prepend": _WORD_START}
        back = list(_LETTERS_BACK)
        if begins:
            back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        document = {
            "normalizer": _sequence("normalizers", [prefix, _SPACES]) if begins else _SPACES,
            "pre_tokenizer": None,
            "decoder": _sequence("decoders", back),
            "model": self._merged(
                self._merges_of(scores), unknown=self._named("unknown"), falls_back=True
            ),
        }
        return document, True

    def _of_words(self) -> dict[str, Any]:
        """Words, and pieces of those that are not known (BERT's)."""
        unknown = self._named("unknown")
        if unknown is None:
            raise self._broken("it has no unknown_token_id")
        return word_pieces(self._ids, unknown)

    def _ends(self) -> tuple[str, str]:
        """Return what stands before a text and behind it, which files spell as llama.cpp does."""
        first = self._named("cls") or self._named("bos")
        last = self._named("seperator") or self._named("eos")
        if first is None or last is None:
            raise self._broken("it has no tokens around a text")
        return first, last

    def _merges_of(self, scores: Sequence[float]) -> list[list[str]]:
        """Return every way to make a token of two, the best first.

        SentencePiece merges the neighbours whose token has the highest score.
        """
        ids, found = self._ids, []
        rows = enumerate(zip(self._tokens, scores, self._kinds, strict=True))
        for number, (token, score, kind) in rows:
            if kind in (_UNKNOWN, _CONTROL, _OF_USERS):
                continue
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in ids and right in ids:
                    found.append((-score, number, ids[left], left, right))
        return [[left, right] for *_, left, right in sorted(found)]

    def _merged(
        self,
        merges: list[list[str]],
        *,
        unknown: str | None,
        ignores_merges: bool = False,
        falls_back: bool = False,
    ) -> dict[str, Any]:
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": falls_back,
            "byte_fallback": falls_back,
            "ignore_merges": ignores_merges,
            "vocab": self._ids,
            "merges": merges,
        }

    def _added(self) -> list[dict[str, Any]]:
        """Return the tokens that are found in a text as they stand."""
        return [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind != _OF_USERS,
            }
            for number, (token, kind) in enumerate(zip(self._tokens, self._kinds, strict=True))
            if kind in (_UNKNOWN, _CONTROL, _OF_USERS) and token
        ]

    def _template(self, *, adds_bos: bool) -> dict[str, Any]:
        """Return what is put around a text."""
        bos, eos = self._named("bos"), self._named("eos")
        first = [bos] if adds_bos and bos is not None else []
        last = [eos] if self._flag("add_eos_token", default=False) and eos is not None else []

        def text(letter: str, number: int) -> list[dict[str, Any]]:
            around = [{"SpecialToken": {"id": token, "type_id": number}} for token in first]
            behind = [{"SpecialToken": {"id": token, "type_id": number}} for token in last]
            return [*around, {"Sequence": {"id": letter, "type_id": number}}, *behind]

        return {
            "type": "TemplateProcessing",
            "single": text("A", 0),
            "pair": [*text("A", 0), *text("B", 1)],
            "special_tokens": special_tokens([*first, *last], self._ids),
        }

    def _named(self, name: str) -> str | None:
        number = self._settings.get(f"tokenizer.ggml.{name}_token_id")
        if number is None:
            return None
        if type(number) is not int or not 0 <= number < len(self._tokens):
            raise self._broken(
                f"{name}_token_id is {str(number)[:50]}, of {len(self._tokens)} tokens"
            )
        return self._tokens[number]

    def _flag(self, name: str, *, default: bool) -> bool:
        value = self._settings.get(f"tokenizer.ggml.{name}", default)
        if type(value) is not bool:
            raise self._broken(f"{name} is {str(value)[:50]!r}")
        return value

    def _list(self, name: str, kind: type, *, count: int | None = -1) -> list[Any]:
        """Return a list of one value a token; of any number with a ``count`` of None."""
        values = self._settings.get(f"tokenizer.ggml.{name}")
        if not isinstance(values, list) or not all(type(value) is kind for value in values):
            raise self._broken(f"{name} is no list of {kind.__name__}")
        if count is not None and name != "tokens" and len(values) != len(self._tokens):
            raise self._broken(f"{name} has {len(values)} values for {len(self._tokens)} tokens")
        return values

    def _broken(self, reason: str) -> CheckpointError:
        return CheckpointError(f"{self._where}: the tokenizer cannot be read: {reason}", hint=_HINT)


def _sequence(name: str, steps: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", name: steps}


def _json(document: Mapping[str, Any]) -> bytes:
    # Tokens that are no UTF-8 came as surrogates; a tokenizer.json has no way to say them.
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")

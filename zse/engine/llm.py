"""LLM: one model in one process, without a server and without threads of its own.

    with LLM("tiny") as llm:
        print(llm.generate("The capital of France is")[0].text)

Every call drives the engine from the calling thread; calls from several threads take turns step by
step and share batches.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Self, Unpack, cast, overload

from zse.engine.admission import default_max_tokens
from zse.engine.answers import output_of
from zse.engine.grammars import Grammars
from zse.engine.inputs import is_one_conversation, list_of_prompts, messages_of
from zse.engine.loading import load_model
from zse.engine.pulled import PulledStream, PulledStreams
from zse.engine.request import SamplingParams
from zse.options import LoadFields, load_options
from zse.settings import load_settings
from zse.text.dialect import detect_dialect
from zse.text.template import load_chat_template
from zse.text.user_text import Values, encode_pieces

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from zse.backends.types import DeviceUsed, LogitRows
    from zse.engine.adapters import Adapters
    from zse.engine.answers import RequestOutput
    from zse.engine.inputs import Conversation, Message
    from zse.engine.output import Delta
    from zse.engine.ranking import Ranked
    from zse.engine.reading import Pooling
    from zse.engine.stats import EngineStats
    from zse.format.model_file import ModelFile
    from zse.quantize.locate import StageProgress
    from zse.stream.weights import StreamFacts
    from zse.text.grammar.spec import GrammarSpec
    from zse.text.template import ChatTemplate
    from zse.text.tokenizer import Tokenizer
    from zse.text.user_text import ControlTexts


class LLM:
    """A model ready to generate.

    Args:
        path: A .zse file of this machine or behind s3://, hf:// or https://; or a checkpoint
            folder, a hub id or ``tiny``, which is converted on first use.
        progress: Called as ``progress(stage, done_bytes, total_bytes)`` while a checkpoint is
            converted (``convert``) or a file is fetched (``fetch``).
        loras: Folders of LoRA adapters in PEFT's form, by the names that calls give them.
        options: Where and how it runs: the fields of ``zse.options.LoadFields``, such as
            ``device``, ``max_context`` and ``kv_gib``.

    Raises:
        NotFoundError: There is no such model.
        FormatError: The file is damaged.
        DeviceError: The device is absent or too small.
        LoRAError: An adapter is damaged, or for another model.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        progress: StageProgress | None = None,
        loras: Mapping[str, str | Path] | None = None,
        **options: Unpack[LoadFields],
    ) -> None:
        settings = load_settings()
        options["kernels"] = options.get("kernels") or settings.serve.load.device.kernels
        self._options = load_options(**options)
        self._model = load_model(
            path, self._options, settings, progress=progress, num_adapters=len(loras or ())
        )
        self._grammars = Grammars(self._model.core, self._model.tokenizer)
        self._streams = PulledStreams(self._model)
        try:
            for name, folder in (loras or {}).items():
                self.adapters.load(name, folder)
        except BaseException:
            self.close()
            raise

    @functools.cached_property
    def adapters(self) -> Adapters:
        """The model's LoRA adapters: ``load`` and ``remove`` them while it answers."""
        from zse.engine.adapters import Adapters

        return Adapters(self._model.core.runner, self._options.lora)

    @property
    def path(self) -> Path | str:
        """The .zse file, or its address in object storage."""
        return self._model.reader.path

    @property
    def file(self) -> ModelFile:
        """The open .zse file: its header and its sections."""
        return self._model.reader

    @property
    def device(self) -> DeviceUsed:
        """What the model runs on; where ``auto`` was asked for, what it came to.

        It has ``name`` (``cpu`` or ``cuda:N``), ``hardware`` and ``threads``.
        """
        return self._model.device

    @property
    def streaming(self) -> StreamFacts | None:
        """What streams through memory of a model that is larger; None where all of it is there."""
        return self._model.core.runner.streaming

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer from the file."""
        return self._model.tokenizer

    @property
    def max_context(self) -> int:
        """Longest sequence in tokens, prompt and answer together."""
        return self._model.core.capacity_tokens

    def generate(
        self,
        prompts: str | list[int] | Sequence[str | list[int]],
        params: SamplingParams | None = None,
        *,
        form: GrammarSpec | None = None,
        lora: str | None = None,
    ) -> list[RequestOutput]:
        """Answer one prompt or many; many share the engine's batches.

        Args:
            prompts: A text, a list of token ids, or a list of these.
            params: How to sample; by default up to 256 tokens at temperature 1.
            form: What every answer is held to, as ``zse.text.grammar.spec`` makes it.
            lora: Name of the adapter that answers.

        Returns:
            One output for each prompt, in their order.

        Raises:
            InvalidParameterError: A parameter or token id is out of range.
            ContextLengthError: Prompt and completion exceed the context.
        """
        streams: list[PulledStream] = []
        try:
            for prompt in list_of_prompts(prompts):
                streams.append(self._open(prompt, params, form, lora))  # noqa: PERF401 - all or none
            for stream in streams:
                while not stream.text.is_finished:
                    self._streams.step(stream)
        finally:
            for stream in streams:
                self._streams.forget(stream)
        return [output_of(stream.request, stream.deltas) for stream in streams]

    def stream(
        self,
        prompt: str | list[int],
        params: SamplingParams | None = None,
        *,
        form: GrammarSpec | None = None,
        lora: str | None = None,
    ) -> Iterator[Delta]:
        """Yield the answer as it grows. Closing the iterator cancels the request.

        Raises:
            ZSEError: As ``generate``, when the first delta is asked for.
        """
        stream = self._open(prompt, params, form, lora)
        try:
            while stream.deltas or not stream.text.is_finished:
                if stream.deltas:
                    yield stream.deltas.popleft()
                else:
                    self._streams.step(stream)
        finally:
            self._streams.forget(stream)

    @overload  # a text is a sequence of texts too, but the first form that fits is taken
    def chat(  # type: ignore[overload-overlap]
        self,
        messages: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        form: GrammarSpec | None = None,
        lora: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> RequestOutput: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]] | Sequence[Conversation],
        params: SamplingParams | None = None,
        *,
        form: GrammarSpec | None = None,
        lora: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[RequestOutput]: ...

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: SamplingParams | None = None,
        *,
        form: GrammarSpec | None = None,
        lora: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """Answer one conversation or many, rendered with the model's chat template.

        Args:
            messages: A text, which stands for one message of the user; a list of messages with
                ``role`` and ``content``; or a list of such conversations, which share batches.
            params: How to sample; by default up to 256 tokens at temperature 1.
            form: What every answer is held to, as ``zse.text.grammar.spec`` makes it.
            lora: Name of the adapter that answers.
            tools: OpenAI function definitions that the model may call.

        Returns:
            One output; for a list of conversations a list of them, in their order.

        Raises:
            InvalidParameterError: That is no conversation, or a parameter is out of range.
            TemplateError: The file has no chat template, or it does not accept the messages.
            ContextLengthError: Conversation and completion exceed the context.
        """
        if is_one_conversation(messages):
            prompt = self.chat_prompt(cast("Conversation", messages), tools=tools)
            return self.generate([prompt], params, form=form, lora=lora)[0]
        conversations = cast("Sequence[Conversation]", messages)
        prompts = [self.chat_prompt(each, tools=tools) for each in conversations]
        return self.generate(prompts, params, form=form, lora=lora)

    def chat_prompt(
        self, messages: Conversation, *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Return the token ids of a conversation, ready for ``generate`` or ``stream``.

        Raises:
            InvalidParameterError: That is no conversation.
            TemplateError: The file has no chat template, or it does not accept the messages.
        """
        values = Values(messages_of(messages), list(tools) if tools else None, {})
        pieces = self._control_texts.rendered(
            values, lambda given: self._template.render(given.messages, tools=given.tools)
        )
        return encode_pieces(self.tokenizer, pieces)

    def logits(self, token_ids: Sequence[int], *, lora: str | None = None) -> LogitRows:
        """Return what the model says of each next token: row i is about token i + 1.

        Args:
            token_ids: One sequence.
            lora: Name of an adapter.

        Returns:
            A list with one row a token, on every device. A row is a ``memoryview`` of
            ``vocab_size`` float32: ``rows[i][token_id]`` is a number, and ``numpy.asarray(rows)``
            an array [num_tokens, vocab_size].

        Raises:
            InvalidParameterError: The list is empty, or a token id is out of range.
            ContextLengthError: It is longer than the context.
        """
        with self._streams.held():
            adapter = None if lora is None else self.adapters.get(lora)
            return self._model.core.logits(token_ids, adapter)

    def embed(
        self,
        texts: str | Sequence[str] | Sequence[Sequence[int]],
        *,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
    ) -> list[array[float]]:
        """Return a vector of length 1 for each text, float32.

        Args:
            texts: One, or several; or their token ids.
            pooling: ``last`` token's state, the ``mean`` of all or, of an encoder, the ``first``;
                None: as the model's file says, else ``last``, of an encoder ``mean``.
            dimensions: Numbers that are kept, from the first on (arXiv:2205.13147); None: all.

        Raises:
            InvalidParameterError: A text is empty.
            ContextLengthError: A text is longer than the context.
        """
        from zse.engine.vectors import unit, vectors_of_texts

        encode = functools.partial(self.tokenizer.encode, parse_special=False)
        items = [texts] if isinstance(texts, str) else texts
        prompts = [encode(item) if isinstance(item, str) else item for item in items]
        with self._streams.ended():
            vectors = vectors_of_texts(self._model, prompts, pooling)
        return [unit(vector, dimensions) for vector in vectors]

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        instruction: str = "",
        truncate: bool = False,
    ) -> list[Ranked]:
        """Return documents in the order of their scores beside a query, the best first.

        A reranker scores each from 0 to 1. Of another model it is the cosine of their vectors.

        Args:
            query: What is looked for.
            documents: Texts.
            top_n: Documents that are returned; None: all.
            instruction: What is to be judged, of rerankers that take one; empty: as it was tuned.
            truncate: Whether the end of a document that is too long is cut off, not refused.

        Raises:
            InvalidParameterError: A text is empty, or the model takes no instruction.
            ContextLengthError: A document with the query is longer than the context.
        """
        from zse.engine.ranking import ranked

        with self._streams.ended():
            found = ranked(self._model, query, documents, instruction, truncate=truncate)
        return found[:top_n]

    def stats(self) -> EngineStats:
        """Return what the engine counts: blocks of the KV cache, reused prefixes, tokens."""
        return self._model.core.stats()

    def close(self) -> None:
        """Give the device's memory back. May be called twice."""
        self._streams.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @functools.cached_property
    def _template(self) -> ChatTemplate:
        return load_chat_template(self._model.reader)

    @functools.cached_property
    def _control_texts(self) -> ControlTexts:
        return detect_dialect(self._template.source, self.tokenizer.facts.added).control_texts

    def _open(
        self,
        prompt: str | list[int],
        params: SamplingParams | None,
        form: GrammarSpec | None,
        lora: str | None,
    ) -> PulledStream:
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if params is None:
            limit = default_max_tokens(self.max_context - len(token_ids))
            params = SamplingParams(max_tokens=limit)
        return self._streams.open(
            token_ids,
            params,
            None if lora is None else self.adapters.get(lora),
            None if form is None else self._grammars.compile(form, params.n),
        )

"""Where the answers of ``zse chat`` come from: this process, or a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from zse.errors import UnsupportedModelError, ZSEError
from zse.options import load_fields

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    import httpx

    from zse.engine.llama_cpp import LlamaCpp
    from zse.options import LoadOptions
    from zse.quantize.locate import StageProgress

Message = dict[str, str]
_START = "zse serve MODEL"
_DONE = "[DONE]"


class ServerError(ZSEError):
    """The server refused, or could not be reached."""

    exit_code = 8


class LocalBackend:
    """A model in this process."""

    def __init__(self, model: str, load: LoadOptions, *, progress: StageProgress) -> None:
        from zse.engine.llm import LLM
        from zse.serve.load import sampling_defaults

        self._llm = LLM(model, progress=progress, **load_fields(load))
        self._defaults = sampling_defaults(self._llm.file)

    def answer(self, messages: Sequence[Message], given: Mapping[str, Any]) -> Generator[str]:
        """Yield the pieces of the answer. Closing the iterator stops it.

        Args:
            given: What was said of how it is generated, by the names that requests have.

        Raises:
            ContextLengthError: The conversation is too long.
        """
        from zse.engine.request import SamplingParams

        values: dict[str, Any] = {"max_tokens": None, **self._defaults, **given}
        prompt = self._llm.chat_prompt(messages)
        for delta in self._llm.stream(prompt, SamplingParams(**values)):
            yield delta.text

    def close(self) -> None:
        self._llm.close()


class LlamaCppBackend:
    """A GGUF file in this process that zse does not import: llama.cpp runs it."""

    def __init__(self, model: LlamaCpp) -> None:
        self._model = model

    def answer(self, messages: Sequence[Message], given: Mapping[str, Any]) -> Generator[str]:
        """Yield the pieces of the answer. Closing the iterator stops it."""
        yield from self._model.chat(messages, dict(given))

    def close(self) -> None:
        self._model.close()


def open_local(
    model: str, load: LoadOptions, *, progress: StageProgress
) -> LocalBackend | LlamaCppBackend:
    """Return a model in this process, run by llama.cpp where zse does not import its GGUF file.

    Raises:
        ZSEError: As ``LLM`` raises it.
    """
    try:
        return LocalBackend(model, load, progress=progress)
    except UnsupportedModelError as error:
        from zse.models.resolve import is_gguf_file

        if not is_gguf_file(model):
            raise
        from zse.engine.llama_cpp import instead

        return LlamaCppBackend(instead(model, error, max_context=load_fields(load)["max_context"]))


class ServerBackend:
    """A server that speaks the OpenAI protocol, ours or another, with or without ``/v1``."""

    def __init__(self, url: str, *, model: str, api_key: str) -> None:
        import httpx

        base = url.rstrip("/").removesuffix("/v1")
        self._url = f"{base}/v1/chat/completions"
        self._fields = {"model": model, "stream": True}
        # Connecting is quick or fails; a first token may take as long as the queue is.
        timeout = httpx.Timeout(600, connect=10)
        headers = {"authorization": f"Bearer {api_key}"}
        self._client = httpx.Client(timeout=timeout, headers=headers)

    def answer(self, messages: Sequence[Message], given: Mapping[str, Any]) -> Generator[str]:
        """Yield the pieces of the answer. Closing the iterator closes the connection.

        Raises:
            ServerError: The server refused, failed on the way, or is not there.
        """
        import httpx

        body = {**self._fields, **given, "messages": list(messages)}
        try:
            with self._client.stream("POST", self._url, json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise _refusal(response)
                for line in response.iter_lines():
                    field, _, value = line.partition(":")
                    if field == "data" and value.strip() != _DONE:
                        yield _text_of(value)
        except httpx.InvalidURL as error:
            raise ServerError(f"{self._url!r} is no address: {error}") from None
        except httpx.ConnectError as error:
            raise ServerError(
                f"nobody answers at {self._url}: {error}", hint=f"Start a server: {_START}"
            ) from None
        except httpx.HTTPError as error:
            raise ServerError(
                f"the answer of {self._url} broke off: {str(error) or type(error).__name__}",
                hint=f"Ask once more (the Up key brings it back), or start it anew: {_START}",
            ) from None

    def close(self) -> None:
        self._client.close()


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    """What is read of one event of a stream; other servers leave out what ours always says."""

    choices: list[_Choice] | None = None
    error: Any = None


def _refusal(response: httpx.Response) -> ServerError:
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:200]
    hint = "Give a key of it with --api-key." if response.status_code == 401 else ""
    return ServerError(f"the server answered {response.status_code}: {message}", hint=hint)


def _text_of(event: str) -> str:
    """Return the text that an event of a stream adds.

    Raises:
        ServerError: It is an error, or no event of a chat completion.
    """
    try:
        chunk = msgspec.json.decode(event, type=_Chunk)
    except msgspec.DecodeError as error:
        raise ServerError(f"the server sent no chat completion: {error}") from None
    if chunk.error is not None:
        said = chunk.error.get("message") if isinstance(chunk.error, dict) else chunk.error
        raise ServerError(f"the server stopped the answer: {str(said)[:500]}")
    delta = chunk.choices[0].delta if chunk.choices else None
    return (delta.content if delta else None) or ""

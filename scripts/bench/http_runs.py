"""A started server under load: one streaming completion for each prompt, all at once."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from zse.engine.meter import TimedRun
from zse.format.reader import ZSEReader
from zse.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

READY_SECONDS = 600
MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Answer:
    """When the pieces of one answer came."""

    times: list[float]
    num_tokens: int


class HttpServer:
    """``python -m zse.serve`` as a child process.

    Args:
        options: With the model and the device arguments.
        num_tokens: Longest sequence in tokens.
        extra: Further arguments of the server.
    """

    def __init__(
        self, options: argparse.Namespace, *, num_tokens: int, extra: Sequence[str] = ()
    ) -> None:
        with ZSEReader(options.model) as reader:
            self.vocab_size = int(reader.header.model_config["vocab_size"])
            tokenizer = load_tokenizer(reader)
            # A model of random weights mostly chooses ids that have no text, and what has no text
            # is not sent. With a bias it repeats one letter: a frame a token.
            self._letter = tokenizer.encode("a", add_special_tokens=False)[-1]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = self._port = probe.getsockname()[1]
        flags = ["--port", self._port, "--device", options.device, "--max-context", num_tokens]
        flags += ["--threads", options.threads, "--kv-dtype", options.kv_dtype]
        flags += ["--kernels", options.kernels] if options.kernels else []
        flags += ["--exact-activations"] if options.exact_activations else []
        flags += ["--deterministic"] if options.deterministic else []
        command = [sys.executable, "-m", "zse.serve", options.model, *map(str, flags), *extra]
        self._process = subprocess.Popen([*command, "--log-level", "warning"])

    def __enter__(self) -> Self:
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise SystemExit("the server did not become ready")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def answer(self, prompts: list[list[int]], num_output: int) -> TimedRun:
        """Answer all prompts at once, ``num_output`` tokens each."""
        began = time.perf_counter()
        answers = asyncio.run(self._answer_all(prompts, num_output))
        wrong = [answer.num_tokens for answer in answers if answer.num_tokens != num_output]
        if wrong:
            raise SystemExit(f"answers of {wrong} tokens, expected {num_output}")
        times = sorted(at for answer in answers for at in answer.times)
        decoding_from = max(answer.times[0] for answer in answers)
        decoding_until = max(decoding_from, min(answer.times[-1] for answer in answers))
        return TimedRun(
            prompt_tokens=sum(map(len, prompts)),
            output_tokens=len(times),
            seconds=times[-1] - began,
            first_token_seconds=sorted(answer.times[0] - began for answer in answers),
            decode_tokens=sum(decoding_from < at <= decoding_until for at in times),
            decode_seconds=decoding_until - decoding_from,
            step_seconds=[b - a for a, b in itertools.pairwise(answers[0].times)],
        )

    async def _answer_all(self, prompts: list[list[int]], num_output: int) -> list[Answer]:
        return await asyncio.gather(*(self._stream(prompt, num_output) for prompt in prompts))

    async def _stream(self, prompt: list[int], num_output: int) -> Answer:
        body = {
            "model": "default",
            "prompt": prompt,
            "max_tokens": num_output,
            "temperature": 0,
            "ignore_eos": True,
            "repetition_penalty": 1,
            "logit_bias": {str(self._letter): 100},
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=MAX_LINE_BYTES
        )
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost:{self._port}\r\n"
        head += "Content-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        times, num_tokens, seen = [], 0, b""
        async for line in reader:
            seen = line if line.strip() else seen
            if line.startswith(b"data: ") and b'"text":"' in line and b'"text":""' not in line:
                times.append(time.perf_counter())
            elif b'"completion_tokens"' in line:
                num_tokens = json.loads(line[6:])["usage"]["completion_tokens"]
        writer.close()
        if not times:
            raise SystemExit(f"no answer; the last line was {seen!r}")
        return Answer(times=times, num_tokens=num_tokens)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()
